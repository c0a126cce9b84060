"""How matrix products are computed on a CPU: by the faster of torch's two libraries, where it is as exact."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


@cache
def use_fast_products() -> None:
    """Hand products of fp32 matrices to oneDNN, once, unless that would cost precision.

    torch leaves them to MKL, whose best kernels run on Intel's processors alone: on others oneDNN can be more
    than twice as fast. torch's word for the change is "medium" precision, which permits rounding to bfloat16; oneDNN
    makes use of that only where there are matrix units for it. So one product tells, and whoever has set a precision
    keeps it.
    """
    if torch.cuda.is_available() or torch.get_float32_matmul_precision() != "highest":
        return
    before = rounding_error()
    torch.set_float32_matmul_precision("medium")
    if rounding_error() > 8 * before:  # bfloat16 would be some hundred times as coarse
        torch.set_float32_matmul_precision("highest")


def rounding_error() -> float:
    """The largest error of one product of random matrices."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(64, 512, generator=generator) for _ in range(2))
    exact: Tensor = left.double() @ right.double().T
    return ((left @ right.T).double() - exact).abs().max().item()
