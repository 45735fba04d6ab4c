"""Modelled time of a step on a GPU: every kernel at the limit of memory or arithmetic, every wait in the way."""

from __future__ import annotations

from dataclasses import dataclass

from tests.device.pretend import Watch

LAUNCH = 6e-6
"""Seconds that the host needs for one kernel."""
SHORTEST = 2e-6
"""Seconds of the shortest kernel."""
WAIT = 15e-6
"""Seconds in which the device has nothing to do after a wait."""
REACHED = 0.6
"""Share of the stated arithmetic that matrix products reach."""


@dataclass(frozen=True)
class Gpu:
    """Bytes a second, and operations a second by float type; fp32 products run as TF32."""

    name: str
    bandwidth: float
    speed: dict[str, float]


GPUS = (
    Gpu("A6000", 768e9, {"f64": 0.605e12, "f32": 77.4e12, "bf16": 154.8e12}),
    Gpu("4090", 1008e9, {"f64": 1.29e12, "f32": 82.6e12, "bf16": 165.2e12}),
    Gpu("H100", 3350e9, {"f64": 34e12, "f32": 494e12, "bf16": 989e12}),
)
"""Data sheets: dense arithmetic without sparsity."""


def seconds(watch: Watch, gpu: Gpu) -> float:
    """The larger of the device's and the host's time, plus the waits."""
    device = 0.0
    for kernel in watch.kernels:
        arithmetic = kernel.flops / (REACHED * gpu.speed.get(kernel.dtype, gpu.speed["f32"]))
        device += max(kernel.bytes / gpu.bandwidth, arithmetic, SHORTEST)
    return max(device, LAUNCH * len(watch.kernels)) + WAIT * sum(watch.waits.values())
