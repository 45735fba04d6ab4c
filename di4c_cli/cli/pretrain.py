"""`di4c pretrain`: train a teacher, from scratch or from a model, on a toy task's data or the user's text or images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from di4c_cli import embedded, recipe_file
from di4c_cli.cli.console import command_line, emit_json, say
from di4c_cli.cli.distill import launch_processes
from di4c_cli.cli.live import LiveTable, duration
from di4c_cli.errors import UserError
from di4c_cli.training.launch import launched

if TYPE_CHECKING:
    from di4c_cli.training.pretrain_config import PretrainConfig

DEFAULT_RECIPE = f"pretrain/{embedded.DEFAULT}"


def pretrain(
    recipe: Annotated[
        str | None, typer.Option("--recipe", "-r", help="A pretraining recipe; `di4c recipes` lists them.")
    ] = None,
    teacher: Annotated[
        str | None, typer.Option("--teacher", "-t", help="Model to start from; default: fresh weights.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Text file, folder of text or images, or .npz file.")] = None,
    held_out: Annotated[str | None, typer.Option(help="Held-out data; default: a part of --data.")] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="tokenizer.json or its folder; default: trained on the text.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default: in pretrained/.")] = None,
    iterations: Annotated[int | None, typer.Option(help="Training steps.")] = None,
    batch: Annotated[int | None, typer.Option(help="Samples per step over all processes.")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, bf16 or fp16.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights and data order.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Any recipe value: --set network.width=256")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or mps; default: cuda if there is one.")] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Local processes to train with.")] = None,
    accelerate_config: Annotated[
        str | None, typer.Option("--accelerate-config", help="ddp, fsdp2, deepspeed-zero2 or a YAML file.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Move an existing run folder aside.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Train a teacher and keep its best held-out weights; run the same command again to resume."""
    teacher = None if teacher is None else embedded.ask_name(teacher)
    name = recipe or _recipe_for(data, teacher)
    if recipe_file.kind_of(name) != "pretrain":
        raise UserError(f"'{name}' is not a pretraining recipe.", "Use `di4c distill` for it.")
    flags: dict[str, Any] = {
        "teacher": teacher,
        "data": data,
        "held_out": held_out,
        "tokenizer": tokenizer,
        "training.iterations": iterations,
        "training.batch": batch,
        "training.precision": precision,
        "seed": seed,
    }
    from di4c_cli.training.run_folder import default_out

    overrides = {key: value for key, value in flags.items() if value is not None}
    overrides |= dict(recipe_file.parse_assignment(text) for text in settings or [])
    config = recipe_file.read_pretrain(name, overrides)
    own = config.model_name if config.teacher is None else default_out(config.teacher, name, config.seed).name
    if launched() or (processes in (None, 1) and accelerate_config is None):
        _run(config, out or Path("pretrained") / own, device, force, as_json)
    else:
        raise typer.Exit(launch_processes(config, accelerate_config, processes, device))


def _recipe_for(data: str | None, teacher: str | None) -> str:
    """The recipe for the user's data, or for the model to start from, when none is named."""
    own = DEFAULT_RECIPE if teacher is None else f"pretrain/{teacher}"
    if data is None and own in recipe_file.names():
        return own
    if data is None:
        raise UserError(f"There is no embedded data for '{teacher}'.", "Name a file or folder with --data.")
    from di4c_cli.data import text, tokens

    name = "pretrain/images"
    if text.text_files(Path(data)) or (teacher is not None and Path(data).suffix in tokens.SUFFIXES):
        name = "pretrain/text" if teacher is None else "pretrain/masked-lm"
    if not launched():
        say(f"The recipe is {name}, by the kind of data; --recipe chooses another.")
    return name


def _run(config: PretrainConfig, out: Path, device: str | None, force: bool, as_json: bool) -> None:
    from di4c_cli.limits import read_config
    from di4c_cli.training.metrics import summary
    from di4c_cli.training.run import RunOptions, pretrain

    with LiveTable(config) as table:

        def report(row: dict[str, Any]) -> None:
            table(row)
            if row.get("held_out") is not None:
                step = f"Step {row['step']} of {config.training.iterations}"
                say(f"{step}: loss {row['loss']:.4f}, held-out loss {row['held_out']:.4f}")

        outcome = pretrain(config, out, RunOptions(device=device, force=force, say=say, report=report))
    if not outcome.main:
        return
    folder, figures = outcome.folder, summary(outcome.folder.metrics)
    history = read_config(folder.model).provenance
    loss, step = history["held_out_loss"], history["iterations"]
    best = {"best_held_out": loss, "best_step": step}
    if as_json:
        emit_json({"teacher": str(folder.model), "already_finished": outcome.already_finished, **figures, **best})
    if outcome.already_finished:
        say(f"This run is finished already; its teacher is in {folder.model}.")
    else:
        say(f"{figures['steps']} steps in {duration(figures['seconds'])}.")
        if loss is not None:
            say(f"Held-out loss {loss:.4f} nats per unknown position (step {step}).")
        say(f"Teacher: {folder.model}")
        say(f"Curves:  {folder.curves}")
    say("Next:")
    say("  " + command_line("di4c", "sample", "--teacher", folder.model, "--steps", 16))
    if config.data != "embedded":
        say("  " + command_line("di4c", "distill", "--teacher", folder.model, "--data", config.data))
