"""A whole run: one round after the other, each teaching the next (paper A.4), from what is on disk."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from di4c_cli.build import build_denoiser, build_on_meta
from di4c_cli.card import model_card
from di4c_cli.config import ModelConfig
from di4c_cli.data.source import open_source
from di4c_cli.data.stream import DataSpec, Source, SyntheticMixture
from di4c_cli.errors import Failure
from di4c_cli.model import Model, load, load_folder
from di4c_cli.model_folder import save_folder
from di4c_cli.noise import sample_seeds
from di4c_cli.recipe import Recipe
from di4c_cli.training.checkpoint import full_disk_explained
from di4c_cli.training.loop import Outside, Report, Round
from di4c_cli.training.loss_module import LossModule, Objective, make_objective, make_posterior
from di4c_cli.training.make_student import new_student, student_config
from di4c_cli.training.metrics import (
    MetricsFile,
    MetricsRow,
    check_trackers,
    read_rows,
    start_trackers,
    track,
)
from di4c_cli.training.pictures import draw_curves, write_samples
from di4c_cli.training.plan import make_plan
from di4c_cli.training.processes import (
    StopRequest,
    idle_mps,
    lost_contact,
    make_accelerator,
    on_main,
    stop_on_signal,
)
from di4c_cli.training.run_folder import RunFolder, RunState

MakeObjective = Callable[[dict[str, Any]], Objective]


def _silent(_: object) -> None:
    """Nobody is watching."""


@dataclass
class Options:
    """How to run, as opposed to what: nothing here changes the student."""

    device: str | None = None
    force: bool = False
    report: Report = _silent
    say: Callable[[str], None] = _silent
    dtype: torch.dtype = field(default=torch.float32)


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    folder: RunFolder
    already_finished: bool = False
    main: bool = True


def distill(recipe: Recipe, out: Path, options: Options, objective: MakeObjective | None = None) -> Outcome:
    """Turn the recipe's teacher into a student in `out`; run it again to go on where it stopped.

    `objective` makes another loss than the recipe's section describes, from that section's values.
    """
    folder = RunFolder(out)
    check_trackers(list(recipe.training.trackers))
    accelerator = make_accelerator(recipe.training.precision, options.device, recipe.training.trackers, out)
    main = accelerator.is_main_process
    state = RunState.NEW
    if not options.force:
        state = on_main(accelerator, lambda: folder.state(recipe))
    if main and options.device is None and idle_mps():
        options.say("Training on the CPU: on Apple's GPU nothing has been tried. --device mps uses it.")
    if state is RunState.FINISHED:
        accelerator.end_training()
        return Outcome(folder, True, main)
    run = Run(
        accelerator, recipe, folder, options, objective
    )  # reads teacher and data: mistakes there write nothing
    with ExitStack() as stack:
        on_main(accelerator, lambda: _claim(folder, recipe, options, stack))
        try:
            run.all_rounds(stack.enter_context(stop_on_signal(loud=main)))
        except RuntimeError as error:
            if accelerator.num_processes == 1 or not lost_contact(error):
                raise
            raise Failure(
                "Another process of this run ended; the last checkpoint is intact.",
                "Run the same command again to go on.",
            ) from error
    return Outcome(folder, False, main)


def _claim(folder: RunFolder, recipe: Recipe, options: Options, stack: ExitStack) -> None:
    """Make the folder ours: move an old one aside if asked, lock it, sweep it, write the recipe."""
    if options.force:
        moved = folder.move_aside()
        if moved is not None:
            options.say(f"The old run is now {moved}.")
    stack.enter_context(folder.lock())
    folder.clean()
    folder.start(recipe)


SLOW = 1000
"""Samples of the teacher's that take long enough to say so."""


class Run:
    """The rounds of one recipe."""

    def __init__(
        self,
        accelerator: Accelerator,
        recipe: Recipe,
        folder: RunFolder,
        options: Options,
        objective: MakeObjective | None = None,
    ) -> None:
        self.accelerator, self.recipe, self.folder, self.options = accelerator, recipe, folder, options
        self.make_objective = objective or make_objective
        make_plan(recipe.training.batch, recipe.training.micro_batch, accelerator.num_processes)
        # the main process first: it may fetch or encode what the others then find, and it reports mistakes
        on_main(accelerator, self._read)
        if not accelerator.is_main_process:
            self._read()

    def _read(self) -> None:
        """Teacher and data; nothing has been written yet."""
        self.teacher = load(self.recipe.teacher, weights=self.recipe.init_weights)
        self._check_latent()
        self.source = self._open(1, self.teacher)
        labels = self.teacher.denoiser.labels
        if self.accelerator.is_main_process and labels and self.source.read(0, 1).label is None:
            self.options.say(
                f"The data {self.recipe.data} has no labels: of a teacher with {labels} classes "
                "the student learns the unconditional samples alone."
            )

    def _check_latent(self) -> None:
        """A λ that the network, the loss or the posterior cannot take is told before anything is written."""
        student = build_on_meta(student_config(self.teacher, self.recipe, 1))
        with torch.device("meta"):
            make_posterior(self.recipe, student, 1)
        if self.recipe.objective.stratified and student.latent is not None:
            student.latent.check_parts()

    def _open(self, number: int, teacher: Model) -> Source:
        asked = replace(wanted(self.recipe, teacher, number), device=self.accelerator.device)
        return open_source(self.recipe.data, teacher, asked)

    def _taught(self, source: Source, teacher: Model, number: int) -> Source:
        """The data with the teacher's own samples among them, where the recipe wants some."""
        share, count = pool_size(self.recipe)
        if not count:
            return source
        (seed,) = sample_seeds(f"{self.recipe.seed}:pool", [number])
        steps = self.recipe.objective.reference_steps
        if count >= SLOW:
            self.options.say(f"Drawing {count} of the teacher's own samples in {steps} steps.")
        teacher.to(self.accelerator.device)
        taught = SyntheticMixture(source, teacher, share, count, steps, seed)
        teacher.to("cpu")
        return taught

    def all_rounds(self, stop: StopRequest) -> None:
        """Every round that is not finished yet, then the curves and the run's student."""
        start_trackers(self.accelerator, self.recipe, self.folder.path.name)
        for number in range(1, self.recipe.rounds + 1):
            if not self.folder.round_done(number):
                self.one_round(number, stop)
            self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            with full_disk_explained(self.folder.student):
                draw_curves(read_rows(self.folder.metrics), self.folder.curves)
                self.folder.finish(self.recipe.rounds)
        self.accelerator.wait_for_everyone()
        self.accelerator.end_training()

    def one_round(self, number: int, stop: StopRequest) -> None:
        """Train one round from its last checkpoint, if there is one, and write its student."""
        teacher = self.teacher
        if number > 1:
            teacher = load_folder(self.folder.round_student(number - 1)).taught_by(self.teacher)
        source = self.source if number == 1 else self._open(number, teacher)
        config = student_config(teacher, self.recipe, number)
        config.provenance["data"] = getattr(source, "origin", config.provenance["data"])
        source = self._taught(source, teacher, number)
        last = self.folder.last_checkpoint(number)
        metrics = self._metrics(number, last)

        def sample(step: int, tensors: dict[str, Tensor]) -> None:
            model = averaged(config, tensors, teacher.folder).taught_by(self.teacher)
            write_samples(
                model.to(self.accelerator.device), self.folder.samples, number, step, self.recipe.seed
            )
            self.teacher.to("cpu")

        checkpoints = self.folder.checkpoints(number)
        outside = Outside(checkpoints, metrics, stop, self._report, sample, self.options.say)
        try:
            module = self._module(teacher, config, number)
            work = Round(self.accelerator, self.recipe, number, module, source, outside)
            if last is not None:
                work.resume(last)
            work.run()
            model = averaged(config, work.ema.tensors(), teacher.folder)
        finally:
            if metrics is not None:
                metrics.close()
        if self.accelerator.is_main_process:
            goal = self.folder.round_student(number)
            with full_disk_explained(goal):
                save_folder(goal, config, model.denoiser, model_card(config), teacher.codec_file)
        self.accelerator.free_memory()

    def _module(self, teacher: Model, config: ModelConfig, number: int) -> LossModule:
        student = new_student(teacher, config, self.recipe, number).to(self.options.dtype)
        if self.recipe.training.compile:
            student.compile()
        frozen = copy.deepcopy(teacher.denoiser).to(self.accelerator.device, self.options.dtype)
        objective = self.make_objective(self.recipe.objective.model_dump())
        posterior = make_posterior(self.recipe, student, number)
        return LossModule(student, frozen, objective, self.recipe.training.dropout > 0, posterior)

    def _report(self, row: MetricsRow) -> None:
        self.options.report(row)
        if self.recipe.training.trackers:
            track(self.accelerator, row, self.recipe.training.iterations)

    def _metrics(self, number: int, last: Path | None) -> MetricsFile | None:
        if not self.accelerator.is_main_process:
            return None
        step = int(last.name.rpartition("-")[2]) if last is not None else 0
        return MetricsFile(self.folder.metrics, (number, step))


def pool_size(recipe: Recipe) -> tuple[float, int]:
    """Share of the teacher's own samples in the stream, and how many different ones a round draws."""
    training = recipe.training
    share, pool = training.teacher_share, training.teacher_pool
    if recipe.data == "teacher" and recipe.objective.posterior:
        # each as often as it would be among data
        share, pool = 1.0, round(pool / (share or 1.0))
    # a short run does not need them all
    return share, min(pool, training.iterations * training.batch) if share else 0


def wanted(recipe: Recipe, teacher: Model, number: int) -> DataSpec:
    """What round `number` asks of its data."""
    denoiser, training = teacher.denoiser, recipe.training
    return DataSpec(
        recipe.seed,
        f"data/{number}",
        denoiser.length,
        denoiser.symbols,
        denoiser.labels,
        training.label_drop,
        training.flip,
    )


def averaged(config: ModelConfig, tensors: dict[str, Tensor], folder: Path | None) -> Model:
    """A model with the averaged weights; its codec's files are looked up beside the teacher."""
    denoiser = build_denoiser(config)
    denoiser.network.load_state_dict(tensors)
    return Model(config, denoiser.eval().requires_grad_(False), folder)
