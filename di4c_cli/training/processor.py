"""Half precision on processors that announce more than they can do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

VARIABLE = "ONEDNN_MAX_CPU_ISA"
WITHOUT_TILES = "AVX512_CORE_FP16"
TRIAL = (
    "import torch; layer = torch.nn.Linear(64, 64).to(torch.bfloat16); "
    "layer(torch.ones(64, 64, dtype=torch.bfloat16))"
)


def announces_tiles(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor says that it has matrix tiles (AMX)."""
    try:
        return "amx_tile" in cpuinfo.read_text()
    except OSError:
        return False


def avoid_broken_tiles() -> bool:
    """Some virtual machines announce AMX and end the process that uses it: tried once, in another process.

    Where it fails, torch's kernels are told to do without, before the first of them is chosen. True if so.
    """
    if VARIABLE in os.environ or not announces_tiles():
        return False
    if subprocess.run([sys.executable, "-c", TRIAL], capture_output=True, check=False).returncode >= 0:
        return False
    os.environ[VARIABLE] = WITHOUT_TILES
    return True
