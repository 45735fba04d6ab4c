"""The small models."""

from tests.helpers.small_models import pupil, teacher

__all__ = ["pupil", "teacher"]
