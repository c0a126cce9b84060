"""What tells files apart."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path


def sha256(files: Iterable[Path]) -> str:
    """The SHA-256 of the files' contents one behind the other, in hexadecimal digits."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
