"""pixels: the digits with sixteen grey levels, discretised Gaussian diffusion, no classes."""

from __future__ import annotations

from di4c_cli.tasks.digits import DigitsTask


class PixelsTask(DigitsTask):
    """The digits at sixteen grey levels."""

    name = "pixels"
    levels = 16
    eval_steps, eval_samples = (2, 4, 8, 16), 500
    protocol_steps = (2, 4, 8, 16, 32)
    steps_saved_samples = 500
