"""`di4c distill`: turn a teacher into a few-step student."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from di4c_cli import embedded, recipe_file
from di4c_cli.cli.console import command_line, emit, emit_json, say
from di4c_cli.cli.live import LiveTable, duration
from di4c_cli.errors import NameWarning, UserError
from di4c_cli.methods import METHODS
from di4c_cli.teacher import recipe_for
from di4c_cli.teacher.registry import find_entry
from di4c_cli.training.launch import (
    check_launcher_variables,
    configured_processes,
    launch,
    launch_with_accelerate,
    launched,
)
from di4c_cli.training.launch import preset as accelerate_preset

if TYPE_CHECKING:
    from di4c_cli.recipe import Recipe
    from di4c_cli.training.dry_run import Preview
    from di4c_cli.training.pretrain_config import PretrainConfig

CUDA_GIGABYTES = 2
"""What CUDA and its libraries take beside the tensors."""
GPU_FLOPS, GPU_SHARE = 312e12, 0.4
"""Of an A100 in bfloat16 by its data sheet, and the share that a training step commonly reaches."""


def distill(
    teacher: Annotated[
        str | None, typer.Option("--teacher", "-t", help="Name, Hub id, folder or file; see `di4c teachers`.")
    ] = None,
    recipe: Annotated[str | None, typer.Option("--recipe", "-r", help="Name or YAML file; see `di4c recipes`.")] = None,
    method: Annotated[str | None, typer.Option(help=f"Training method: {', '.join(METHODS)}.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds; each student teaches the next.")] = None,
    iterations: Annotated[int | None, typer.Option(help="Training steps a round.")] = None,
    data: Annotated[str | None, typer.Option(help="Path, Hub dataset id, `embedded` or `teacher` (no data).")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default: runs/<teacher>-<recipe>-s<seed>.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all draws.")] = None,
    batch: Annotated[int | None, typer.Option(help="Samples per step over all processes.")] = None,
    micro_batch: Annotated[int | None, typer.Option(help="Samples per process and backward pass.")] = None,
    latents: Annotated[int | None, typer.Option(help="λ draws per sample (L).")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, bf16 or fp16.")] = None,
    lora: Annotated[int | None, typer.Option(help="Rank of an adapter to train instead of all weights.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Any recipe value: --set method.alpha.kind=sigmoid")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or mps; default: cuda if there is one.")] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Local processes to train with.")] = None,
    oversubscribe: Annotated[bool, typer.Option("--oversubscribe", help="Allow more processes than cores.")] = False,
    accelerate_config: Annotated[
        str | None, typer.Option("--accelerate-config", help="ddp, fsdp2, deepspeed-zero2 or a YAML file.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what the run would do; change nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Move an existing run folder aside.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Distil a teacher into a student; run the same command again to resume."""
    flags = {
        "teacher": teacher,
        "rounds": rounds,
        "seed": seed,
        "data": data,
        "training.iterations": iterations,
        "training.batch": batch,
        "training.micro_batch": micro_batch,
        "training.precision": precision,
        "training.adapter.rank": lora,
        "method.latents": latents,
    }
    from di4c_cli.training.run_folder import default_out

    check_launcher_variables()
    resolved, name = resolve(recipe, method, flags, settings or [])
    folder = out or default_out(resolved.teacher, name, resolved.seed)
    if recipe is None and teacher is not None and find_entry(teacher) is None and not launched():
        say(f"The recipe is {name}, by the kind of teacher; --recipe chooses another.")
    if dry_run:
        _preview(resolved, folder, processes or 1, device, oversubscribe, as_json)
    elif launched() or (processes in (None, 1) and accelerate_config is None):
        _run(resolved, folder, device, force, as_json)
    else:
        raise typer.Exit(launch_processes(resolved, accelerate_config, processes, device, oversubscribe))


def launch_processes(
    recipe: Recipe | PretrainConfig,
    config: str | None,
    processes: int | None,
    device: str | None,
    oversubscribe: bool = False,
) -> int:
    """The same command in several processes; their environment tells them that they were launched."""
    from di4c_cli.training.plan import recipe_plan
    from di4c_cli.training.processes import check_device, check_processes, on_cpu

    preset = None if config is None else accelerate_preset(config)
    configured, machines = (1, 1) if preset is None else configured_processes(preset)
    count = processes or configured
    check_device(device, count)
    check_processes(-(-count // machines), device, oversubscribe)
    recipe_plan(recipe, count)
    if preset is not None:
        return launch_with_accelerate(preset, processes, sys.argv[1:])
    command = [sys.executable, "-m", "di4c_cli", *sys.argv[1:]]
    return launch(count, command, on_cpu(device))


def resolve(recipe: str | None, method: str | None, flags: dict[str, Any], settings: list[str]) -> tuple[Recipe, str]:
    """Recipe file, flags and `--set` together, and the recipe's short name; `--set` overrides the rest."""
    if launched():  # the launcher has told the new names
        warnings.simplefilter("ignore", NameWarning)
    teacher = embedded.ask_name(flags["teacher"] or embedded.DEFAULT)
    if flags["teacher"] is not None:
        flags = {**flags, "teacher": teacher}
    own = f"{method}/{teacher}"  # a recipe of the method for this very teacher
    asked = recipe or (own if own in recipe_file.names() else recipe_for(teacher, method))
    name = recipe_file.ask_name(asked)
    if method is not None:
        name = recipe_file.with_method(name, method)
    overrides = {key: value for key, value in flags.items() if value is not None}
    if "method.latents" in overrides:
        trained_by = recipe_file.method_name(recipe_file.raw(name))
        if trained_by in METHODS and "latents" not in METHODS[trained_by].model_fields:
            raise UserError(
                f"--latents belongs to the method di4c, and the recipe {name} uses {trained_by}.",
                "Leave it out, or add --method di4c.",
            )
    overrides |= dict(recipe_file.parse_assignment(text) for text in settings)
    resolved = recipe_file.read(name, overrides)
    return resolved, Path(name).stem if name.endswith((".yaml", ".yml")) else name


def _run(recipe: Recipe, out: Path, device: str | None, force: bool, as_json: bool) -> None:
    from di4c_cli.training.metrics import summary
    from di4c_cli.training.run import RunOptions, distill

    with LiveTable(recipe, out / "samples") as table:
        options = RunOptions(device=device, force=force, say=say, report=table, begin=table.begin)
        outcome = distill(recipe, out, options)
    if not outcome.main:
        return
    folder, figures = outcome.folder, summary(outcome.folder.metrics)
    if as_json:
        emit_json({"student": str(folder.model), "already_finished": outcome.already_finished, **figures})
    if outcome.already_finished:
        say(f"This run is finished already; its student is in {folder.model}.")
    else:
        skipped = f", {figures['skipped']} skipped" if figures["skipped"] else ""
        say(f"{figures['steps']} steps in {duration(figures['seconds'])}{skipped}. Means of the last tenth:")
        say("  " + ", ".join(f"{name} {figures[name]:.4g}" for name in recipe.method.live_metrics if name in figures))
        say(f"Student: {folder.model}")
        say(f"Curves:  {folder.curves}")
    say("Next:")
    say("  " + command_line("di4c", "sample", "--student", folder.model, "--steps", 4))
    say("  " + command_line("di4c", "eval", "--student", folder.model))


def _preview(recipe: Recipe, out: Path, processes: int, device: str | None, oversubscribe: bool, as_json: bool) -> None:
    from dataclasses import asdict

    from di4c_cli.training.dry_run import preview
    from di4c_cli.training.processes import check_processes

    check_processes(processes, device, oversubscribe)
    found = preview(recipe, out, processes, device)
    if as_json:
        emit_json(asdict(found))
    else:
        for line in preview_lines(found):
            emit(line)
    for problem in found.problems:
        say(f"di4c: {problem}")
    if found.exit_code:
        raise typer.Exit(found.exit_code)


def preview_lines(found: Preview) -> list[str]:
    """The lines that a dry run prints."""
    tree = found.recipe
    lines = [
        f"recipe     {tree['name']}: {tree['rounds']} x {tree['training']['iterations']} iterations, "
        f"batch {tree['training']['batch']}, method {tree['method']['name']}, seed {tree['seed']}",
        f"folder     {found.out} ({found.run})",
        f"teacher    {tree['teacher']} ({found.teacher})",
        f"data       {found.data or tree['data']}",
    ]
    if found.parameters:
        lines.append("weights    " + ", ".join(f"{name} {size:,}" for name, size in found.parameters.items()))
    if found.memory:
        parts = (f"{name.replace('_', ' ')} {size / 2**20:,.0f}" for name, size in found.memory.items() if size)
        lines.append(f"memory     {', '.join(parts)} MiB per process on this machine (estimate)")
    for gigabytes, tensors in found.gpu_memory.items():
        need = tensors / 2**30 + CUDA_GIGABYTES
        added = f"{tensors / 2**30:.1f} + {CUDA_GIGABYTES} for CUDA = {need:.1f} GiB (estimate)"
        lines.append(f"GPU {gigabytes} GB  {'fits' if need <= gigabytes else 'too small'}: {added}")
    if found.seconds_per_step is not None and found.total_seconds is not None:
        total = duration(found.total_seconds)
        lines.append(f"time       {found.seconds_per_step:.3g} s a step, {total} in all ({found.measured})")
    elif found.measured:
        lines.append(f"time       {found.measured}")
    if found.flops is not None and found.seconds_per_step is None:
        seconds = found.flops / (GPU_FLOPS * GPU_SHARE)
        total = duration(seconds * tree["training"]["iterations"] * tree["rounds"])
        rate = f"at {GPU_SHARE:.0%} of an A100's {GPU_FLOPS / 1e12:.0f} TFLOP/s in bf16"
        lines.append(f"work       {found.flops / 1e12:.3g} TFLOP a step: {seconds:.2g} s and {total} in all {rate}")
    for name, size in found.files.items():
        lines.append(f"would write {name}" + ("" if size is None else f" ({size / 1e6:,.1f} MB)"))
    disk = sum(filter(None, found.files.values()))
    return lines + [f"disk       {disk / 1e6:,.1f} MB for these files"] * bool(disk)
