"""Precision of matrix products."""

from __future__ import annotations

import torch

from di4c_cli.numerics import allow_tf32


def test_tf32_is_allowed_on_cuda_alone() -> None:
    """`torch.set_float32_matmul_precision` would let some CPUs round their products too."""
    allow_tf32()
    assert torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32
    on_cpu = getattr(torch.backends.mkldnn, "matmul", None)  # not in older versions of torch
    assert getattr(on_cpu, "fp32_precision", "none") != "tf32"
