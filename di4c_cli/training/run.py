"""A training run: its rounds one after the other (paper A.4), resumed from what is on disk."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor

from di4c_cli import files
from di4c_cli.errors import Failure, UserError
from di4c_cli.limits import check_threads
from di4c_cli.model_folder import save_folder
from di4c_cli.network.lora import halve_frozen
from di4c_cli.recipe import Recipe
from di4c_cli.recipe_file import start_recipe
from di4c_cli.training.from_data import FromData
from di4c_cli.training.from_teacher import FromTeacher
from di4c_cli.training.loop import Report, RunContext, TrainingLoop
from di4c_cli.training.metrics import MetricsFile, MetricsRow, check_trackers, read_rows, start_trackers, track
from di4c_cli.training.pictures import draw_curves, write_samples
from di4c_cli.training.plan import recipe_plan
from di4c_cli.training.pretrain_config import PretrainConfig, RunRecipe
from di4c_cli.training.pretrain_data import TOKENIZER_FILE
from di4c_cli.training.processes import (
    Stopped,
    StopRequest,
    idle_mps,
    leaving_process_group,
    lost_contact,
    make_accelerator,
    on_main,
    stop_on_signal,
)
from di4c_cli.training.run_folder import RunFolder, RunState, checkpoint_folders
from di4c_cli.training.start import RoundStart, StartingPoint
from di4c_cli.training.student_init import build_method


def _silent(_: object) -> None:
    """The default of `report` and `say`."""


@dataclass
class RunOptions:
    """How to run; nothing here changes the trained model."""

    device: str | None = None
    force: bool = False
    report: Report = _silent
    begin: Callable[[RunRecipe], None] = _silent
    """Called with the recipe whose metrics `report` gets from now on."""
    say: Callable[[str], None] = _silent
    dtype: torch.dtype = torch.float32
    keep_group: bool = False
    """The process group is used after the run."""


@dataclass(frozen=True)
class RunResult:
    """How a run ended."""

    folder: RunFolder
    already_finished: bool = False
    main: bool = True
    asked_to_stop: int = 0
    """Exit code of a signal that came during the very last step: the run is finished, what follows it is not begun."""

    def check_stop(self) -> RunResult:
        """This result, unless a signal asked the command to stop."""
        if self.asked_to_stop:
            raise Stopped("Stopped.", "Run the same command again to resume.", self.asked_to_stop)
        return self


StartOf = Callable[[Accelerator], StartingPoint]
"""Makes the starting point of a run when its device is known."""


def distill(recipe: Recipe, out: Path, options: RunOptions) -> RunResult:
    """Distil the recipe's teacher into a student in `out`; the same call resumes a stopped run."""
    first = start_recipe(recipe)

    def train_start() -> Path:
        assert first is not None
        folder = RunFolder(out).start_run
        with_options = replace(options, force=False, keep_group=True)
        if not distill(first, folder, with_options).check_stop().already_finished:
            options.say(f"The run begins with the student of {first.name}; it goes on with {recipe.method.name}.")
        return RunFolder(folder).model

    def start_of(accelerator: Accelerator) -> FromTeacher:
        return FromTeacher(recipe, accelerator, options.say, None if first is None else train_start)

    return train(recipe, RunFolder(out), options, start_of)


def pretrain(recipe: PretrainConfig, out: Path, options: RunOptions) -> RunResult:
    """Train a teacher from scratch in `out`; the same call resumes a stopped run."""
    folder = RunFolder(out, "teacher")
    kept = folder.path / TOKENIZER_FILE

    def start_of(accelerator: Accelerator) -> FromData:
        return FromData(recipe, accelerator, kept, options.force, options.say)

    return train(recipe, folder, options, start_of)


def train(recipe: RunRecipe, folder: RunFolder, options: RunOptions, start_of: StartOf) -> RunResult:
    """Run a recipe in its folder; the same call resumes a stopped run."""
    check_trackers(list(recipe.training.trackers))
    accelerator = make_accelerator(recipe.training.precision, options.device, recipe.training.trackers, folder.path)
    with leaving_process_group():
        result = _train(recipe, folder, options, accelerator, start_of)
    for tracker in accelerator.trackers:
        tracker.finish()
    if not options.keep_group:
        accelerator.state.destroy_process_group()
    return result


def _train(
    recipe: RunRecipe, folder: RunFolder, options: RunOptions, accelerator: Accelerator, start_of: StartOf
) -> RunResult:
    main = accelerator.is_main_process
    state = RunState.NEW
    if not options.force:
        state = on_main(accelerator, lambda: folder.state(recipe))
    if main and options.device is None and idle_mps():
        options.say("Training on the CPU, because training on Apple's GPU is untested. --device mps uses it.")
    if state is RunState.FINISHED:
        return RunResult(folder, True, main)
    check_threads(recipe.training.workers or 0)
    # reads teacher and data before anything is written
    run = Run(accelerator, recipe, folder, options, start_of(accelerator))
    with ExitStack() as stack:
        on_main(accelerator, lambda: _claim(folder, recipe, options, stack))
        try:
            run.all_rounds()
        except UserError as error:  # a bad record far inside the data: files are written by now
            raise Failure(error.message, error.hint) from error
        except RuntimeError as error:
            if accelerator.num_processes == 1 or not lost_contact(error):
                raise
            raise Failure(
                "Another process of this run ended; the last checkpoint is intact.",
                "Run the same command again to resume.",
            ) from error
    return RunResult(folder, False, main, run.asked_to_stop)


def _claim(folder: RunFolder, recipe: RunRecipe, options: RunOptions, stack: ExitStack) -> None:
    """Move an old run aside if asked, lock the folder, remove leftovers, write the recipe."""
    if options.force:
        moved = folder.move_aside()
        if moved is not None:
            options.say(f"The old run is now {moved}.")
    stack.enter_context(files.lock(folder.path))
    folder.clean()
    folder.start(recipe)


class Run:
    """The rounds of one recipe."""

    def __init__(
        self, accelerator: Accelerator, recipe: RunRecipe, folder: RunFolder, options: RunOptions, start: StartingPoint
    ) -> None:
        self.accelerator, self.recipe, self.folder, self.options = accelerator, recipe, folder, options
        self.start, self.asked_to_stop = start, 0
        recipe_plan(recipe, accelerator.num_processes)
        # the main process first: it may fetch or encode what the others then find, and it reports mistakes
        on_main(accelerator, start.read)
        if not accelerator.is_main_process:
            start.read()

    def all_rounds(self) -> None:
        """Train every round that is not finished, then draw the curves and write the run's model."""
        start_trackers(self.accelerator, self.recipe, self.folder.path.name)
        for number in range(1, self.recipe.rounds + 1):
            if not (self.folder.round_model(number) / "config.json").is_file():
                self.one_round(number)
            self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            draw_curves(read_rows(self.folder.metrics), self.folder.curves, self.recipe.method.live_metrics)
            self.folder.finish(self.recipe.rounds)
        self.accelerator.wait_for_everyone()

    def one_round(self, number: int) -> None:
        """Train one round from its last checkpoint, if it has one, and write its model."""
        begin = self.start.round(number, self.folder.round_model(number - 1) if number > 1 else None)
        self.options.begin(self.recipe)
        last = next(reversed(checkpoint_folders(self.folder.checkpoints(number))), None)
        metrics = self._metrics(number, last)
        with stop_on_signal(loud=self.accelerator.is_main_process) as stop:
            try:
                loop = self._loop(number, begin, self._context(number, stop, metrics, begin))
                if last is not None:
                    loop.resume(last)
                loop.run()
                tensors = loop.weights()
            finally:
                if metrics is not None:
                    metrics.close()
            if self.accelerator.is_main_process:
                card = self.start.card(begin.config, loop.progress)
                trained = tensors if begin.config.adapter else begin.model(tensors).denoiser
                goal = self.folder.round_model(number)
                save_folder(goal, begin.config, trained, card, begin.codec_file, self.start.weights_dtype)
        self.asked_to_stop = stop.exit_code if stop.asked else 0
        if stop.asked and number < self.recipe.rounds:
            raise Stopped(f"Stopped after round {number}.", "Run the same command again to resume.", stop.exit_code)
        self.accelerator.free_memory()

    def _loop(self, number: int, begin: RoundStart, context: RunContext) -> TrainingLoop:
        """The training loop of one round, before its first step or checkpoint."""
        dtype = self.options.dtype
        student = begin.student.to(dtype)
        if self.recipe.training.compile:
            student.compile()
        frozen = None if begin.teacher is None else begin.teacher.to(self.accelerator.device, dtype)
        adapter = self.recipe.training.adapter
        if adapter is not None and adapter.base_precision == "bf16":
            halve_frozen(student.network)
        method = build_method(self.recipe, student, frozen, number)
        return TrainingLoop(self.accelerator, self.recipe, number, method, begin.source, context)

    def _context(self, number: int, stop: StopRequest, metrics: MetricsFile | None, begin: RoundStart) -> RunContext:
        def sample(step: int, tensors: dict[str, Tensor]) -> None:
            model = begin.model(tensors)
            model.to(self.accelerator.device)
            write_samples(model, self.folder.samples, number, step, self.recipe.seed)
            if begin.base is None:  # an adapter shares its weights with the student that is being trained
                model.to("cpu")

        checkpoints = self.folder.checkpoints(number)
        return RunContext(checkpoints, metrics, stop, self._report, sample, self.options.say, begin.held_out)

    def _report(self, row: MetricsRow) -> None:
        self.options.report(row)
        if self.recipe.training.trackers:
            track(self.accelerator, row, self.recipe.training.iterations)

    def _metrics(self, number: int, last: Path | None) -> MetricsFile | None:
        if not self.accelerator.is_main_process:
            return None
        step = int(last.name.rpartition("-")[2]) if last is not None else 0
        return MetricsFile(self.folder.metrics, (number, step))
