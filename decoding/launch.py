"""The processes of a run, by Lightning Fabric: its own, or those of torchrun, ``fabric run`` and SLURM."""

from __future__ import annotations

import logging
import os
from typing import Literal

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments import SLURMEnvironment, TorchElasticEnvironment
from lightning.fabric.strategies import DDPStrategy

from decoding.crew import START
from mucola.errors import MucolaError

Accelerator = Literal["auto", "cpu", "cuda", "mps"]


def launch(accelerator: Accelerator, devices: int | None, num_nodes: int | None) -> Fabric:
    """Start the other ranks, or find oneself among them."""
    for name in ("fabric.utilities.distributed", "fabric.utilities.rank_zero", "pytorch.utilities.rank_zero"):
        logging.getLogger(f"lightning.{name}").setLevel(logging.WARNING)
    if os.environ.get("LT_CLI_USED") == "1":  # `fabric run`: its options stand in the environment
        return Fabric()
    external = _external()
    devices, num_nodes = devices or external[0], num_nodes or external[1]
    on_cpu = accelerator == "cpu" or (accelerator == "auto" and not torch.cuda.is_available())
    there = _cores() if on_cpu else 1 if accelerator == "mps" else torch.cuda.device_count()
    devices = devices or (1 if on_cpu else there)
    if not there:
        raise MucolaError("There is no GPU here; use --accelerator cpu.")
    if devices > there:
        what = "CPU cores" if on_cpu else "GPUs"
        raise MucolaError(f"{devices} devices were asked for, but there are only {there} {what} here; use --devices.")
    os.environ.setdefault("LOCAL_WORLD_SIZE", str(devices))
    # Ranks only exchange a few numbers, so any backend will do, and this one is everywhere.
    strategy = DDPStrategy(process_group_backend="gloo", timeout=START) if devices * (num_nodes or 1) > 1 else "auto"
    try:
        fabric = Fabric(accelerator=accelerator, devices=devices, num_nodes=num_nodes or 1, strategy=strategy)
        fabric.launch()
    except (ValueError, RuntimeError) as error:
        raise MucolaError(f"The processes could not be started: {str(error).strip().splitlines()[0]}") from error
    return fabric


def _external() -> tuple[int | None, int | None]:
    """Processes a node and number of nodes, where something else has started us."""
    if TorchElasticEnvironment.detect():
        here = int(os.environ["LOCAL_WORLD_SIZE"])
        return here, int(os.environ["WORLD_SIZE"]) // here
    if SLURMEnvironment.detect():
        nodes = int(os.environ.get("SLURM_NNODES", 1))
        tasks = int(os.environ.get("SLURM_NTASKS", nodes))
        return int(os.environ.get("SLURM_NTASKS_PER_NODE", tasks // nodes)), nodes
    return None, None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
