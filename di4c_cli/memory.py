"""Memory of the machine and of this process: how much there is, and the highest use so far."""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

STATUS, CLEAR_PEAK = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def physical_memory() -> int:
    """Bytes of memory of this machine; a very large number where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 2**63


def below_limits() -> int:
    """Bytes that this process may still ask for under its own limits (`ulimit -v`, `ulimit -d`)."""
    used = psutil.Process().memory_info()
    left = [2**63]
    for kind, name in ((resource.RLIMIT_AS, "vms"), (resource.RLIMIT_DATA, "data")):
        limit = resource.getrlimit(kind)[0]
        if limit != resource.RLIM_INFINITY:
            left.append(max(0, limit - getattr(used, name, 0)))
    return min(left)


def gpu_memory(device: Any = None) -> int | None:
    """Bytes of a GPU, used or not, by default of the current one; None for the CPU and where nobody tells."""
    torch = sys.modules.get("torch")
    if torch is None or (device is not None and device.type != "cuda") or not torch.cuda.is_available():
        return None
    return int(torch.cuda.get_device_properties(device).total_memory)


def peak_memory(device: str = "cpu") -> int:
    """Bytes at the highest point since the start or the last reset: of the GPU, or of this process."""
    if device.startswith("cuda"):
        return int(sys.modules["torch"].cuda.max_memory_allocated())
    with suppress(OSError, StopIteration):
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def reset_peak_memory(device: str = "cpu") -> None:
    """Start the measurement of `peak_memory` anew, where the system allows it."""
    if device.startswith("cuda"):
        sys.modules["torch"].cuda.reset_peak_memory_stats()
        return
    with suppress(OSError):
        CLEAR_PEAK.write_text("5")


def training_device() -> str:
    """`cuda` if torch is loaded and sees a GPU, else `cpu`: where a run's memory is measured."""
    torch = sys.modules.get("torch")
    return "cuda" if torch is not None and torch.cuda.is_available() else "cpu"
