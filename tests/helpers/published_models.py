"""Models in the paper's own formats, small and untrained, and what measures them: for whole protocols."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from di4c_cli.teacher.convert import convert
from tests.helpers.scan_network import Scan
from tests.helpers.small_models import WORLDS, save_pair

GOLDEN = Path(__file__).parents[1] / "golden"


def instrument(root: Path, side: int) -> list[object]:
    """Flags that name a feature network and real images of a side."""
    root.mkdir(parents=True, exist_ok=True)
    torch.jit.script(Scan()).save(str(root / "scan.pt"))
    images = np.random.default_rng(0).integers(0, 256, size=(30, side, side, 3)).astype(np.uint8)
    np.save(root / "real.npy", images)
    return ["--features", root / "scan.pt", "--reference", root / "real.npy"]


def tauldr() -> list[object]:
    """The U-Net pair as its authors store it: 3×8×8 pixels, 24 levels."""
    return ["--teacher", GOLDEN / "tauldr" / "teacher", "--student", GOLDEN / "tauldr" / "di4c_student"]


def maskgit(root: Path) -> list[object]:
    """The MaskGIT pair with its VQGAN, 16×16 images of 7 classes; the student stands in for di4c-d too."""
    student = GOLDEN / "maskgit_di4c_student" / "current.pth"
    for name, source in (("teacher", GOLDEN / "maskgit"), ("student", student)):
        convert(str(source), root / name, heads=4, vqgan=str(GOLDEN / "vqgan"))
    return ["--teacher", root / "teacher", "--student", root / "student", "--model", f"di4c-d={root}/student"]


def many_classes(root: Path) -> list[object]:
    """A pair with a thousand classes, for the labels of the sample figure."""
    digits = WORLDS["digits"]
    WORLDS["classes"] = {**digits, "labels": 1000, "network": {**digits["network"], "labels": 1000}}
    teacher, student = save_pair(root, "classes")
    return ["--teacher", teacher, "--student", student, "--model", f"di4c-d={student}"]


def family_rows(pair: tuple[Path, Path], rows: Iterable[str]) -> list[object]:
    """Flags of rows such as `sdtt-6` and `sdtt-6+di4c`: the teacher, and the student for every name with a plus."""
    return [word for row in rows for word in ("--model", f"{row}={pair['+' in row]}")]
