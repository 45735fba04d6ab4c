"""The Di4C losses (paper sections 3, A, E, F): terms, control variates, times, gradient in chunks."""

from __future__ import annotations

from di4c_cli.objective.settings import Settings

__all__ = ["Settings"]
