"""di4c: discrete diffusion teachers distilled into few-step mixture students.

`load(ref)` gives a model to sample from or to ask for probabilities; everything else is behind the `di4c` command.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from di4c_cli.model import Model

__version__ = "0.2.0"
__all__ = ["__version__", "load"]

# The Hub's client reads this variable when it is first imported, and so do transformers and datasets. A value that the
# user has set stays. The variable is set here, because every use of the package imports this file first.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")


def load(ref: str, **options: Any) -> Model:
    """Load a teacher or student by name, Hub id, folder or file (see `di4c_cli.model.load`)."""
    # imported here, so that importing the package does not import torch
    from di4c_cli.model import load as load_model

    return load_model(ref, **options)
