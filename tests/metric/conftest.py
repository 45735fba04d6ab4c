"""The small judge."""

from tests.helpers.small_models import judge_folder

__all__ = ["judge_folder"]
