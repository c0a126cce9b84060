"""The tiny language model of the decoding tests."""

from tests.decoding.conftest import tiny

__all__ = ["tiny"]
