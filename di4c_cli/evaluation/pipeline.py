"""From an `EvaluationConfig` to an evaluation that can run: models, protocol, scorers, output folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from di4c_cli import files, recipe_file
from di4c_cli.codec.text import Text
from di4c_cli.errors import UserError
from di4c_cli.evaluation.config import EvaluationConfig, EvaluationDefaults
from di4c_cli.evaluation.models import EvaluatedModel, default_out, load_models
from di4c_cli.evaluation.prompts import fit_prompts, load_prompts
from di4c_cli.evaluation.protocol import CellSpec, EvaluationProtocol, column, steps_protocol
from di4c_cli.evaluation.protocols import STEPS_SAVED, TEACHER_STEPS, check_name, get_protocol
from di4c_cli.evaluation.results import run_folder
from di4c_cli.evaluation.run import Evaluation
from di4c_cli.evaluation.scorers import ScorerContext, make_scorers
from di4c_cli.evaluation.scorers.text import judge_scorers
from di4c_cli.model import load
from di4c_cli.sampler.plan import check_ranges
from di4c_cli.tasks.base import ToyTask
from di4c_cli.tasks.registry import TASKS, task_of

DEFAULT_SAMPLES, DEFAULT_STEPS = 1000, (1, 2, 4, 8)
"""For models that belong to no toy task."""


def prepare(config: EvaluationConfig, say: Callable[[str], None] = lambda text: None) -> Evaluation:
    """Check a config and load what it needs; only cached reference statistics are written."""
    if config.out is not None:
        check_out(config.out)
    check_ranges({"precision": config.precision, "block": config.block})
    for dtype in config.dtypes or ():
        check_ranges({"dtype": dtype})
    student, teacher = _model_names(config)
    models = load_models(student, teacher, config.others, config.options.device, say)
    model, task = models[-1].model, task_of(models[-1].model)
    if any(task_of(other.model) is not task for other in models):
        raise UserError("Teacher and student do not make the same kind of samples.", "Use the student's own teacher.")
    protocol = fit_prompts(_protocol(config, models, task), model)
    out = config.out or default_out(_student_ref(models))
    check_out(out)
    n = wanted = _sample_count(config, protocol)
    prompts = load_prompts(protocol, model, task, config.prompts)
    if prompts is not None:
        n = min(wanted, prompts.max_samples)
        usage = prompts.usage(n, wanted, protocol.repeats)
        say(" ".join(usage))
        protocol = replace(protocol, notes=(*protocol.notes, *usage))
    context = ScorerContext(model, task, n, out, config.options, protocol.prompts)
    chosen = config.scorers if config.scorers is not None else protocol.scorers
    if chosen is None:
        chosen = judge_scorers(context) if fitting_scorer(context) == "judge" else (fitting_scorer(context),)
    scorers = make_scorers((*chosen, *protocol.extra_scorers), context)
    return Evaluation(protocol, models, scorers, n, config.seed, out, task, prompts)


def expand(config: EvaluationConfig) -> list[EvaluationConfig]:
    """`steps-saved` without a model is one evaluation for each toy task; everything else is itself."""
    if config.protocol is not None:
        config = replace(config, protocol=check_name(config.protocol))
    named = config.student or config.teacher or config.others
    if config.protocol != STEPS_SAVED or named:
        return [config]
    root = config.out or Path("evaluations") / STEPS_SAVED
    check_out(root)
    return [replace(config, student=f"{name}-student", out=root / name) for name in TASKS]


def _model_names(config: EvaluationConfig) -> tuple[str | None, str | None]:
    """Student and teacher; a toy task's protocol has its own pair, and `steps-saved` the task's teacher."""
    name, named = config.protocol, config.student or config.teacher or config.others
    if name == STEPS_SAVED:
        if config.student is None:
            raise UserError(f"{STEPS_SAVED} needs a student; --teacher and --model are not enough.", "Name --student.")
        task = None if config.teacher else task_of(load(config.student))
        return config.student, config.teacher or (task.name if task else None)
    if name is not None and not named:
        for task_name in TASKS:
            if name.startswith(task_name):
                return f"{task_name}-student", task_name
    return config.student, config.teacher


def _protocol(config: EvaluationConfig, models: list[EvaluatedModel], task: ToyTask | None) -> EvaluationProtocol:
    """The named protocol, else models against steps; every model has cells, with draws of every precision."""
    if config.protocol is None:
        protocol = _steps_protocol(config, models, task)
    else:
        free_steps = config.protocol == STEPS_SAVED
        if config.temperatures or config.block or (config.steps and not free_steps):
            problem = "A protocol fixes its own steps, temperatures and blocks."
            raise UserError(problem, "Leave --steps, --temperatures and --block out.")
        protocol = get_protocol(config.protocol, task, config.steps)
    for row in (one.row for one in models if one.row not in protocol.rows):
        protocol = protocol.with_row(row)
    if config.dtypes:
        protocol = protocol.with_draws(config.dtypes)
    if config.labels is not None:
        cells = tuple(replace(cell, label=None) for cell in protocol.cells)
        protocol = replace(protocol, labels=config.labels, cells=cells)
    if config.precision != "fp32":
        protocol = protocol.with_options(precision=config.precision)
    if config.block:
        protocol = protocol.with_options(block=config.block, hybrid=0)
    return replace(protocol, repeats=config.repeats or protocol.repeats)


def _student_ref(models: list[EvaluatedModel]) -> str:
    """The model whose run holds the results: the student, else the last one."""
    return next((one.ref for one in models if one.row == "student"), models[-1].ref)


def _steps_protocol(config: EvaluationConfig, models: list[EvaluatedModel], task: ToyTask | None) -> EvaluationProtocol:
    """Models against steps; the name is the task's, so that results of one task can be compared."""
    n, steps = default_sizes(_student_ref(models), task)
    rows = [one.row for one in models]
    names = " and ".join(one.model.name for one in models if one.row != "teacher")
    against = [f"against {one.model.name}" for one in models if one.row == "teacher"]
    protocol = steps_protocol(
        task.name if task else models[-1].model.name,
        " ".join([*([names] if names else []), *against]).removeprefix("against "),
        rows,
        config.steps or steps,
        config.n or n,
        config.temperatures or (),
    )
    if task and rows[0] == "teacher" and len(rows) > 1 and not (config.steps or config.temperatures):
        # the steps at which the teacher may be as good as the student
        more = tuple(CellSpec("teacher", column(k), k) for k in TEACHER_STEPS if k > max(steps))
        protocol = replace(protocol, cells=(*protocol.cells, *more))
    return protocol


def default_sizes(ref: str, task: ToyTask | None) -> tuple[int, list[int]]:
    """Samples and steps of a model: those of its run's recipe, if it has one."""
    run = run_folder(Path(ref))
    if run is None:
        return sizes(EvaluationDefaults(), task)
    tree = recipe_file.raw(str(run / "recipe.yaml")).get("evaluation") or {}
    return sizes(recipe_file.validate(EvaluationDefaults, tree, str(run / "recipe.yaml")), task)


def sizes(defaults: EvaluationDefaults, task: ToyTask | None) -> tuple[int, list[int]]:
    """Samples and steps: a recipe's, where it has any; else the task's."""
    n, steps = (task.eval_samples, task.eval_steps) if task else (DEFAULT_SAMPLES, DEFAULT_STEPS)
    return defaults.samples or n, defaults.steps or list(steps)


def _sample_count(config: EvaluationConfig, protocol: EvaluationProtocol) -> int:
    """Samples of each cell; with prompts a multiple of the continuations of one prompt."""
    n = min(config.n or protocol.n, config.limit or config.n or protocol.n)
    times = protocol.prompts.times if protocol.prompts else 1
    if n < times:
        raise UserError(
            f"{protocol.name} continues each prompt {times} times, more than the {n} samples.",
            f"Use --limit {times} or more.",
        )
    return n - n % times


def fitting_scorer(context: ScorerContext) -> str:
    """The scorer of the model's kind of samples."""
    assert context.model is not None
    codec = context.model.codec
    if isinstance(codec, Text):
        return "ngram" if context.task and context.options.judge is None else "judge"
    if context.options.judge is not None:
        raise UserError("A judge reads text, but this model makes images.", "Use --features instead of --judge.")
    return "exact" if codec.kind == "none" else "features"


def check_out(out: Path) -> None:
    """Reject a folder that holds something else."""
    if out.is_file():
        raise UserError(f"{out} is a file.", "Choose another --out.")
    patterns = ("results.json", "parts", "reference-*.npz", "*/parts")
    ours = any(any(out.glob(pattern)) for pattern in patterns)
    if out.is_dir() and any(not files.is_leftover(entry.name) for entry in out.iterdir()) and not ours:
        raise UserError(f"{out} holds something that is not an evaluation.", "Choose another --out.")
