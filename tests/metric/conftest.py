"""The small judge."""

from small_models import judge_folder

__all__ = ["judge_folder"]
