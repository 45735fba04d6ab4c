"""The small models."""

from small_models import pupil, teacher

__all__ = ["pupil", "teacher"]
