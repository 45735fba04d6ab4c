"""The small models and the small judge."""

from tests.helpers.small_models import digits, judge_folder, pupil, teacher, text_pair

__all__ = ["digits", "judge_folder", "pupil", "teacher", "text_pair"]
