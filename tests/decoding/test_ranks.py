"""Several processes on one run: as a user starts them, and as a machine kills them.

``MUCOLA_KILLS`` sets how often the run is killed (20 for the full test, a few by default).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from mucola.generations import Run

KILLS = int(os.environ.get("MUCOLA_KILLS", 2))
CHAINS, PROMPTS = 200, 10
ALONE = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def options(tiny: Path, folder: Path) -> list[str]:
    prompts = folder.parent / "prompts.txt"
    prompts.write_text("".join(f"The book {number}\n" for number in range(PROMPTS)), encoding="utf-8")
    sampling = {"mode": "faithful", "steps": 12, "restarts": 0, "batch_size": 4}
    return [
        *("--model", str(tiny), "--prompts.file", str(prompts), "-n", str(CHAINS // PROMPTS), "--length", "6"),
        *("--output", str(folder), "--exclude", "war", "--method.sampling", json.dumps(sampling)),
    ]


def start(*arguments: str) -> subprocess.Popen[str]:
    """In a session of its own, so that all its processes can be killed and counted."""
    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        env=os.environ | ALONE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a background shell ignores it
    )


def finish(process: subprocess.Popen[str], seconds: float = 180) -> tuple[int, str, str]:
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, output, errors


def processes(session: int) -> list[int]:
    """The living processes of a session, youngest last."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(entry.name))
    return sorted(found)


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def lines(folder: Path) -> int:
    return sum(file.read_bytes().count(b"\n") for file in folder.glob("*.jsonl"))


def _reached(folder: Path, goal: float, process: subprocess.Popen[str]) -> bool:
    return lines(folder) > goal or process.poll() is not None


def kill(process: subprocess.Popen[str], victim: str) -> None:
    """SIGKILL to rank 0, to another rank or to all of them; whoever is left must end by itself."""
    ranks = processes(process.pid)
    chosen = {"first": ranks[:1], "last": ranks[-1:], "all": ranks}[victim]
    for pid in chosen:
        os.kill(pid, signal.SIGKILL)
    assert wait_for(lambda: not processes(process.pid), 20), f"after a kill of {victim}, ranks hang"
    process.communicate()


@pytest.mark.skipif(not Path("/proc").exists(), reason="counts processes in /proc")
def test_killed_at_any_moment_a_run_loses_and_repeats_nothing(tiny: Path, tmp_path: Path) -> None:
    folder, moments = tmp_path / "run", random.Random(0)
    arguments = ["mucola", "decode", *options(tiny, folder), "--devices", "2"]
    for number in range(KILLS):
        before = lines(folder)
        running = start(*arguments)
        # Any moment from the first line of this part on; some before it, while the ranks start.
        if number % 5 == 4:
            time.sleep(moments.uniform(0, 6))
        else:
            share = (CHAINS - before) / (KILLS - number + 1)
            goal = before + moments.uniform(0, share)
            wait_for(partial(_reached, folder, goal, running), 120)
        kill(running, moments.choice(["first", "last", "all"]))
    code, output, errors = finish(start(*arguments))
    assert code == 0, errors
    assert f"{CHAINS} of {CHAINS} samples" in output
    run = Run(folder)  # refuses a torn line and a repeated sample
    assert len(run) == CHAINS
    assert set(run.sizes().values()) == {CHAINS // PROMPTS}


def test_ranks_share_the_work_and_the_result_is_that_of_one(tiny: Path, tmp_path: Path) -> None:
    """Also: torchrun starts it, and the number of ranks may change on the way."""
    launcher = ["torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "decoding"]
    code, output, errors = finish(start(*launcher, *options(tiny, tmp_path / "two")))
    assert code == 0, errors
    assert output.count("samples/s") == 1
    assert all((tmp_path / "two" / f"rank-{rank}.jsonl").stat().st_size for rank in (0, 1))
    (tmp_path / "two" / "rank-1.jsonl").rename(tmp_path / "two" / "rank-7.jsonl")
    two = {(g.prompt_id, g.sample): g.text for group in Run(tmp_path / "two") for g in group}
    lost = (tmp_path / "two" / "rank-0.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "two" / "rank-0.jsonl").write_bytes(b"".join(lost[:5]))
    code, _, errors = finish(start("decoding", *options(tiny, tmp_path / "two")))
    assert code == 0, errors
    assert {(g.prompt_id, g.sample): g.text for group in Run(tmp_path / "two") for g in group} == two


def test_an_error_is_said_once_and_no_rank_hangs(tiny: Path, tmp_path: Path) -> None:
    running = start("mucola", "decode", *options(tiny, tmp_path / "run"), "--devices", "2", "--toxic", "0.01")
    code, _, errors = finish(running, seconds=90)
    assert code == 2
    assert "embedding table" in errors
    assert len(errors.strip().splitlines()) == 1
    assert wait_for(lambda: not processes(running.pid), 10)


def test_ctrl_c_leaves_whole_lines_and_says_how_to_go_on(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    running = start("mucola", "decode", *options(tiny, folder), "-n", "5000", "--devices", "2")
    assert wait_for(lambda: lines(folder) > 5, 120)
    os.killpg(running.pid, signal.SIGINT)
    code, _, errors = finish(running, seconds=30)
    assert code == 130
    assert "the same command makes the others" in errors
    assert "Traceback" not in errors
    assert len(Run(folder)) > 5
    assert wait_for(lambda: not processes(running.pid), 10)
