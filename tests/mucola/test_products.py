"""Fast products must be exact products."""

import pytest
import torch

from mucola import products


@pytest.fixture
def untouched(monkeypatch):
    """As in a fresh process on a machine without a GPU; afterwards as it was."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    products.use_fast_products.cache_clear()
    yield
    torch.set_float32_matmul_precision(before)


def test_products_stay_as_exact_as_single_precision_is(untouched):
    products.use_fast_products()
    assert products.rounding_error() < 1e-3  # of numbers of size 23; bfloat16 has some 0.1


def test_coarse_products_are_refused(untouched, monkeypatch):
    errors = iter([1e-5, 1e-2])
    monkeypatch.setattr(products, "rounding_error", lambda: next(errors))
    products.use_fast_products()
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_precision_that_was_set_is_kept(untouched):
    torch.set_float32_matmul_precision("high")
    products.use_fast_products()
    assert torch.get_float32_matmul_precision() == "high"


def test_gpus_are_left_alone(untouched, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    products.use_fast_products()
    assert torch.get_float32_matmul_precision() == "highest"
