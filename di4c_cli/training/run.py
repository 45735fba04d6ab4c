"""A distillation run: its rounds one after the other (paper A.4), resumed from what is on disk."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor

from di4c_cli.build import build_denoiser
from di4c_cli.card import model_card
from di4c_cli.config import ModelConfig
from di4c_cli.data.stream import Source
from di4c_cli.errors import Failure
from di4c_cli.model import Model, load, load_folder
from di4c_cli.model_folder import save_folder
from di4c_cli.recipe import Recipe
from di4c_cli.training.checkpoint import full_disk_explained
from di4c_cli.training.loop import Report, RunContext, TrainingLoop
from di4c_cli.training.metrics import MetricsFile, MetricsRow, check_trackers, read_rows, start_trackers, track
from di4c_cli.training.pictures import draw_curves, write_samples
from di4c_cli.training.plan import make_batch_plan
from di4c_cli.training.processes import (
    StopRequest,
    idle_mps,
    leaving_process_group,
    lost_contact,
    make_accelerator,
    on_main,
    stop_on_signal,
)
from di4c_cli.training.round_data import open_round_data, with_synthetic
from di4c_cli.training.run_folder import RunFolder, RunState
from di4c_cli.training.student_init import build_method, method_on_meta, new_student, student_config


def _silent(_: object) -> None:
    """The default of `report` and `say`."""


@dataclass
class RunOptions:
    """How to run; nothing here changes the student."""

    device: str | None = None
    force: bool = False
    report: Report = _silent
    say: Callable[[str], None] = _silent
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class RunResult:
    """How a run ended."""

    folder: RunFolder
    already_finished: bool = False
    main: bool = True


def distill(recipe: Recipe, out: Path, options: RunOptions) -> RunResult:
    """Distil the recipe's teacher into a student in `out`; the same call resumes a stopped run."""
    folder = RunFolder(out)
    check_trackers(list(recipe.training.trackers))
    accelerator = make_accelerator(recipe.training.precision, options.device, recipe.training.trackers, out)
    with leaving_process_group():
        return _distill(recipe, folder, options, accelerator)


def _distill(recipe: Recipe, folder: RunFolder, options: RunOptions, accelerator: Accelerator) -> RunResult:
    main = accelerator.is_main_process
    state = RunState.NEW
    if not options.force:
        state = on_main(accelerator, lambda: folder.state(recipe))
    if main and options.device is None and idle_mps():
        options.say("Training on the CPU, because training on Apple's GPU is untested. --device mps uses it.")
    if state is RunState.FINISHED:
        accelerator.end_training()
        return RunResult(folder, True, main)
    # reads teacher and data before anything is written
    run = Run(accelerator, recipe, folder, options)
    with ExitStack() as stack:
        on_main(accelerator, lambda: _claim(folder, recipe, options, stack))
        try:
            run.all_rounds(stack.enter_context(stop_on_signal(loud=main)))
        except RuntimeError as error:
            if accelerator.num_processes == 1 or not lost_contact(error):
                raise
            raise Failure(
                "Another process of this run ended; the last checkpoint is intact.",
                "Run the same command again to resume.",
            ) from error
    return RunResult(folder, False, main)


def _claim(folder: RunFolder, recipe: Recipe, options: RunOptions, stack: ExitStack) -> None:
    """Move an old run aside if asked, lock the folder, remove leftovers, write the recipe."""
    if options.force:
        moved = folder.move_aside()
        if moved is not None:
            options.say(f"The old run is now {moved}.")
    stack.enter_context(folder.lock())
    folder.clean()
    folder.start(recipe)


class Run:
    """The rounds of one recipe."""

    def __init__(self, accelerator: Accelerator, recipe: Recipe, folder: RunFolder, options: RunOptions) -> None:
        self.accelerator, self.recipe, self.folder, self.options = accelerator, recipe, folder, options
        make_batch_plan(recipe.training.batch, recipe.training.micro_batch, accelerator.num_processes)
        # the main process first: it may fetch or encode what the others then find, and it reports mistakes
        on_main(accelerator, self._read)
        if not accelerator.is_main_process:
            self._read()

    def _read(self) -> None:
        """Read teacher and data, and check that λ fits network and method; nothing is written."""
        self.teacher = load(self.recipe.teacher, weights=self.recipe.init_weights)
        method_on_meta(self.recipe, student_config(self.teacher, self.recipe, 1), self.teacher.config)
        self.source = open_round_data(self.recipe, self.teacher, 1, self.accelerator.device)
        labels = self.teacher.denoiser.labels
        if self.accelerator.is_main_process and labels and self.source.read(0, 1).label is None:
            self.options.say(
                f"The data {self.recipe.data} has no labels: the student of a teacher with {labels} classes "
                "learns unconditional samples only."
            )

    def all_rounds(self, stop: StopRequest) -> None:
        """Train every round that is not finished, then draw the curves and write the run's student."""
        start_trackers(self.accelerator, self.recipe, self.folder.path.name)
        for number in range(1, self.recipe.rounds + 1):
            if not self.folder.round_done(number):
                self.one_round(number, stop)
            self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            with full_disk_explained(self.folder.student):
                draw_curves(read_rows(self.folder.metrics), self.folder.curves, self.recipe.method.live_metrics)
                self.folder.finish(self.recipe.rounds)
        self.accelerator.wait_for_everyone()
        self.accelerator.end_training()

    def one_round(self, number: int, stop: StopRequest) -> None:
        """Train one round from its last checkpoint, if it has one, and write its student."""
        teacher, device = self.teacher, self.accelerator.device
        if number > 1:
            teacher = load_folder(self.folder.round_student(number - 1)).with_teacher(self.teacher)
        source = self.source if number == 1 else open_round_data(self.recipe, teacher, number, device)
        config = student_config(teacher, self.recipe, number)
        config.provenance["data"] = getattr(source, "origin", config.provenance["data"])
        source = with_synthetic(source, self.recipe, teacher, number, device, self.options.say)
        last = self.folder.last_checkpoint(number)
        metrics = self._metrics(number, last)
        context = self._context(number, stop, metrics, config, teacher)
        try:
            model = self._train(number, teacher, source, config, context, last)
        finally:
            if metrics is not None:
                metrics.close()
        if self.accelerator.is_main_process:
            goal = self.folder.round_student(number)
            with full_disk_explained(goal):
                save_folder(goal, config, model.denoiser, model_card(config), teacher.codec_file)
        self.accelerator.free_memory()

    def _train(
        self, number: int, teacher: Model, source: Source, config: ModelConfig, context: RunContext, last: Path | None
    ) -> Model:
        """The training loop of one round; returns the averaged student."""
        start = teacher
        if number == 1 and self.recipe.student_weights is not None:
            start = load(self.recipe.teacher, weights=self.recipe.student_weights)
        student = new_student(start, config, self.recipe, number).to(self.options.dtype)
        if self.recipe.training.compile:
            student.compile()
        frozen = None
        if self.recipe.method.needs_teacher:
            frozen = copy.deepcopy(teacher.denoiser).to(self.accelerator.device, self.options.dtype)
        method = build_method(self.recipe, student, frozen, number)
        loop = TrainingLoop(self.accelerator, self.recipe, number, method, source, context)
        if last is not None:
            loop.resume(last)
        loop.run()
        return averaged(config, loop.ema.tensors(), teacher.folder)

    def _context(
        self, number: int, stop: StopRequest, metrics: MetricsFile | None, config: ModelConfig, teacher: Model
    ) -> RunContext:
        def sample(step: int, tensors: dict[str, Tensor]) -> None:
            model = averaged(config, tensors, teacher.folder).with_teacher(self.teacher)
            model.to(self.accelerator.device)
            write_samples(model, self.folder.samples, number, step, self.recipe.seed)
            self.teacher.to("cpu")

        checkpoints = self.folder.checkpoints(number)
        return RunContext(checkpoints, metrics, stop, self._report, sample, self.options.say)

    def _report(self, row: MetricsRow) -> None:
        self.options.report(row)
        if self.recipe.training.trackers:
            track(self.accelerator, row, self.recipe.training.iterations)

    def _metrics(self, number: int, last: Path | None) -> MetricsFile | None:
        if not self.accelerator.is_main_process:
            return None
        step = int(last.name.rpartition("-")[2]) if last is not None else 0
        return MetricsFile(self.folder.metrics, (number, step))


def averaged(config: ModelConfig, tensors: dict[str, Tensor], folder: Path | None) -> Model:
    """A model with the averaged weights; the files of its codec stand beside the teacher."""
    denoiser = build_denoiser(config)
    denoiser.network.load_state_dict(tensors)
    return Model(config, denoiser.eval().requires_grad_(False), folder)
