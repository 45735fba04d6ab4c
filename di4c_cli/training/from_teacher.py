"""The start of a distillation: rounds begin with a teacher, the recipe's or the student of the round before."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import torch
from accelerate import Accelerator

from di4c_cli.card import model_card
from di4c_cli.config import ModelConfig
from di4c_cli.data.stream import Source
from di4c_cli.errors import UserError
from di4c_cli.metric.features import tensors_digest
from di4c_cli.model import Model, load, load_folder
from di4c_cli.model_folder import read_adapter
from di4c_cli.recipe import Recipe
from di4c_cli.training.checkpoint import Progress
from di4c_cli.training.estimate import check_memory, estimate
from di4c_cli.training.plan import recipe_plan
from di4c_cli.training.round_data import open_round_data, with_synthetic
from di4c_cli.training.start import RoundStart
from di4c_cli.training.student_init import adapter_student, method_on_meta, new_student, student_config


class FromTeacher:
    """The starting point of a distillation."""

    weights_dtype: torch.dtype | None = None

    def __init__(
        self,
        recipe: Recipe,
        accelerator: Accelerator,
        say: Callable[[str], None],
        train_start: Callable[[], Path] | None = None,
    ) -> None:
        """`train_start` trains the student with which the recipe begins, or finds it, and names its folder."""
        self.recipe, self.accelerator, self.say, self.train_start = recipe, accelerator, say, train_start

    def read(self) -> None:
        """Read teacher and data, and check that λ fits network and method; nothing is written."""
        self.teacher = load(self.recipe.teacher, weights=self.recipe.init_weights)
        student = student_config(self.teacher, self.recipe, 1)
        method_on_meta(self.recipe, student, self.teacher.config)
        if self.accelerator.device.type == "cpu":
            plan = recipe_plan(self.recipe, self.accelerator.num_processes)
            check_memory(estimate(student, self.teacher.config, self.recipe, plan))
        self.source = open_round_data(self.recipe, self.teacher, 1, self.accelerator.device)
        labels = self.teacher.denoiser.labels
        if self.accelerator.is_main_process and labels and self.source.read(0, 1).label is None:
            self.say(
                f"The data {self.recipe.data} has no labels: the student of a teacher with {labels} classes "
                "learns unconditional samples only."
            )

    def round(self, number: int, previous: Path | None) -> RoundStart:
        """The student of a round, its frozen teacher and its data."""
        recipe, device = self.recipe, self.accelerator.device
        teacher, source = self.teacher, self.source
        if previous is not None:
            teacher = load_folder(previous, self.teacher).with_teacher(self.teacher)
            source = open_round_data(recipe, teacher, number, device)
        config = student_config(teacher, recipe, number)
        config.provenance["data"] = getattr(source, "origin", config.provenance["data"])
        source = with_synthetic(source, recipe, teacher, number, self.accelerator, self.say)
        if config.adapter is not None:
            return self._adapter_round(config, source, teacher, number, previous)
        initial = teacher
        if number == 1 and recipe.student_weights is not None:
            initial = load(recipe.teacher, weights=recipe.student_weights)
        student = new_student(initial, config, recipe, number)
        if self.train_start is not None:
            student.network.load_state_dict(load_folder(self.train_start(), teacher).denoiser.network.state_dict())
        frozen = copy.deepcopy(teacher.denoiser) if recipe.method.needs_teacher else None
        return RoundStart(config, student, source, frozen, teacher.codec_file, sampling_teacher=self.teacher)

    def _adapter_round(
        self, config: ModelConfig, source: Source, teacher: Model, number: int, previous: Path | None
    ) -> RoundStart:
        """A round whose student, and from the second round on its teacher, are adapters of the recipe's teacher."""
        recipe, base = self.recipe, self.teacher.denoiser
        if recipe.student_weights is not None:
            raise UserError("An adapter starts from its teacher's weights.", "Leave student_weights out.")
        config.provenance["base_digest"] = tensors_digest(base.network.state_dict())
        own = None if previous is None else read_adapter(previous)
        student = adapter_student(base, config, recipe, number, own)
        frozen = None
        if recipe.method.needs_teacher:
            frozen = base if own is None else adapter_student(base, config, recipe, number, own).requires_grad_(False)
        return RoundStart(config, student, source, frozen, teacher.codec_file, sampling_teacher=self.teacher, base=base)

    def card(self, config: ModelConfig, progress: Progress) -> str:
        """The student's model card."""
        return model_card(config)
