"""`di4c sample`: draw samples; text goes to the terminal, images into a PNG, many of either into shards."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from di4c_cli.cli.console import cell, emit, emit_json, file_name, output_file, progress, say, silent
from di4c_cli.cli.processes import Oversubscribe, Processes, launch_again
from di4c_cli.errors import UserError
from di4c_cli.schema import MAX_BATCH, MAX_SEED

if TYPE_CHECKING:
    from torch import Tensor

    from di4c_cli.generate.frames import Film
    from di4c_cli.generate.request import PreparedSample, SampleRequest
    from di4c_cli.process_group import ProcessGroup

MIN_SHARDED_SAMPLES = 2000
"""From this many samples on they go to disk in shards."""


def sample(
    student: Annotated[
        str | None, typer.Option(help="Student or run folder, Hub id or name; default: the newest run here.")
    ] = None,
    teacher: Annotated[
        str | None, typer.Option(help="Sample a teacher; with --hybrid, the teacher of the last steps.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Sampling steps; default: the model's.")] = None,
    n: Annotated[
        int | None, typer.Option("-n", help="Samples; default: 3 images of each class, 16 images, or 1 text.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed; sample i of a seed is always the same.")] = 0,
    label: Annotated[
        str | None, typer.Option(help="Class: 3, or 0,1,2 in turn, or `all` in turn (default), or `none`.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File (.png, .txt) or, for shards, a folder; default: samples.png.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, max=MAX_BATCH, help="Samples per batch; does not change the samples.")
    ] = None,
    sampler: Annotated[
        str | None, typer.Option(help="analytical, confidence or tau-leaping; default: the model's.")
    ] = None,
    guidance: Annotated[float | None, typer.Option(help="Classifier-free guidance scale.")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Below 1: likelier, less varied samples; default: 1.")
    ] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus sampling; default: 1, which means off.")] = None,
    sample_dtype: Annotated[
        str, typer.Option(help="float64 is exact; float32 reproduces published draws.")
    ] = "float64",
    precision: Annotated[str, typer.Option(help="Of the network: fp32 (TF32 on CUDA) or bf16.")] = "fp32",
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="On a GPU: samples that do not depend on the batch, slower.")
    ] = False,
    last: Annotated[str | None, typer.Option(help="Last step: sample or argmax; default: the model's.")] = None,
    hybrid: Annotated[int | None, typer.Option(help="The teacher makes the last K steps.")] = None,
    corrector: Annotated[int | None, typer.Option(help="Corrector steps before each of the last two steps.")] = None,
    corrector_step: Annotated[
        float | None, typer.Option(help="Size of a corrector step in time; default: 1e-4.")
    ] = None,
    tile: Annotated[int | None, typer.Option(help="Samples per network call; default: by length.")] = None,
    prompt: Annotated[str | None, typer.Option(help="Text that the samples begin with.")] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="Read the prompt from a file.")] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="A file with a prompt in each line (or .jsonl, field text), used in turn.")
    ] = None,
    template: Annotated[
        str | None, typer.Option(help="Text around the prompt, e.g. '<|user|>{prompt}<|assistant|>'.")
    ] = None,
    answer: Annotated[
        int | None, typer.Option(help="Tokens after the prompt; default: up to the model's length.")
    ] = None,
    block: Annotated[
        int | None, typer.Option(help="Fill blocks of N positions from left to right; they divide the steps equally.")
    ] = None,
    infill: Annotated[
        Path | None, typer.Option(help="A file with [MASK] (or [MASK*N]) at the positions to fill.")
    ] = None,
    show_steps: Annotated[
        bool,
        typer.Option("--show-steps", help="Show text as it is sampled; for images write a GIF and a strip of frames."),
    ] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or mps; default: cuda if there is one.")] = None,
    processes: Processes = None,
    oversubscribe: Oversubscribe = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Draw samples. The default model is the newest run in runs/, or else the embedded student `fashion-student`."""
    options = {
        "sampler": sampler,
        "guidance": guidance,
        "temperature": temperature,
        "top_p": top_p,
        "dtype": sample_dtype,
        "precision": precision,
        "deterministic": deterministic or None,
        "last": last,
        "hybrid": hybrid,
        "corrector": corrector,
        "corrector_step": corrector_step,
        "tile": tile,
        "block": block,
    }
    launch_again(processes, device, oversubscribe)  # before torch is imported, which every process does itself
    from di4c_cli.generate.request import SampleRequest
    from di4c_cli.process_group import process_group

    with process_group(device) as group:
        device = group.device
        texts = {"prompt": prompt, "prompt_file": prompt_file, "prompts": prompts, "infill": infill}
        more = {"template": template, "answer": answer, "device": device, "options": options}
        asked = SampleRequest(student, teacher, steps, n, seed, label, **texts, **more)  # type: ignore[arg-type]
        _sample(asked, out, batch_size, show_steps, json, group)


def _sample(
    request: SampleRequest, out: Path | None, batch_size: int | None, show: bool, json: bool, group: ProcessGroup
) -> None:
    from di4c_cli.generate.request import prepare

    told = say if group.main else silent
    prepared = prepare(request, told)
    text = prepared.model.codec.kind in ("text", "none")
    suffix = ".txt" if text else ".png"
    sharded = prepared.n >= MIN_SHARDED_SAMPLES or (out is not None and not out.suffix)
    if out is not None and not sharded:
        out = output_file(out, suffix)
    if sharded and show:
        raise UserError(
            "--show-steps is for a few samples.", f"Use -n below {MIN_SHARDED_SAMPLES} and a file as --out."
        )
    if show and group.size > 1:
        raise UserError("--show-steps is for one process.", "Leave --processes out.")
    told(prepared.sentence())
    started = time.monotonic()
    if sharded:
        result = _to_shards(prepared, out, batch_size, group)
    elif not group.main:
        prepared.draw_together(group, 0, prepared.n, batch_size)
        result = {}
    elif text:
        result = _to_terminal(prepared, out, batch_size, show, json, group)
    else:
        result = _to_picture(prepared, out or Path("samples.png"), batch_size, show, group)
    seconds, rate = time.monotonic() - started, prepared.tokens_per_pass(group)
    if text and rate is not None:
        told(f"{rate:.3g} tokens per forward pass.")
    if json and group.main:
        emit_json({**prepared.facts(), "seconds": round(seconds, 3), "tokens_per_pass": rate, **result})


def _to_shards(
    prepared: PreparedSample, out: Path | None, batch_size: int | None, group: ProcessGroup
) -> dict[str, Any]:
    from di4c_cli.generate import shards

    name = file_name(prepared.model.name)
    folder = out or Path(f"samples-{name}-{prepared.plan.steps}-s{prepared.seed}")
    with progress("samples", prepared.n) as advance:
        manifest = shards.stream(prepared, folder, batch_size, advance, group)
    told = say if group.main else silent
    told(f"wrote {folder}: {prepared.n} samples in shards of {manifest['shard']}; {shards.MANIFEST} says how.")
    return {"out": str(folder), "shard": manifest["shard"]}


def _to_terminal(
    prepared: PreparedSample, out: Path | None, batch_size: int | None, show: bool, json: bool, group: ProcessGroup
) -> dict[str, Any]:
    from di4c_cli import files

    texts = _live(prepared) if show else prepared.decode(_all(prepared, batch_size, group))
    sheet = "\n".join((f"--- sample {i}\n" if len(texts) > 1 else "") + line for i, line in enumerate(texts))
    if out is not None:
        files.write_text(out, sheet + "\n")
        say(f"wrote {out}")
    elif not json:
        emit(sheet, lines=True)
    return {"samples": texts, "out": None if out is None else str(out)}


def _to_picture(
    prepared: PreparedSample, out: Path, batch_size: int | None, show: bool, group: ProcessGroup
) -> dict[str, Any]:
    from di4c_cli.codec.grid import save_grid
    from di4c_cli.generate.frames import Film, save_film
    from di4c_cli.generate.request import FEW_CLASSES

    film = Film(16) if show else None
    images = prepared.model.decode(_all(prepared, batch_size, group, film))
    labels = prepared.labels or []
    # one column per class, so that a class can be followed down the picture
    columns = len(labels) if 1 < len(labels) <= FEW_CLASSES and prepared.n > len(labels) else None
    save_grid(images, out, columns)
    written = [out]
    if film is not None:
        written += save_film(film, prepared.model.codec, prepared.model.denoiser.symbols, out)
    for path in written:
        say(f"wrote {path}")
    return {"out": [str(path) for path in written]}


def _all(prepared: PreparedSample, batch_size: int | None, group: ProcessGroup, film: Film | None = None) -> Tensor:
    """All samples, with a progress bar; a film needs a first batch of at least its own size."""
    if film is not None:
        size = batch_size or prepared.plan.batch_size(prepared.length)
        batch_size = max(size, min(film.most, prepared.n))
    with progress("samples", prepared.n) as advance:
        return prepared.draw_together(group, 0, prepared.n, batch_size, on_step=film, advance=advance)


def _live(prepared: PreparedSample) -> list[str]:
    """Text on the terminal while it is sampled; plain lines when stderr is not a terminal."""
    from rich.console import Console
    from rich.live import Live

    from di4c_cli.generate.frames import masked_texts

    console, codec = Console(stderr=True), prepared.model.codec
    texts: list[str] = []
    for i in range(prepared.n):
        with Live(console=console, refresh_per_second=20, transient=True) as live:

            def update(left: int, t: float, x: Tensor, live: Live = live) -> None:
                text = masked_texts(codec, x)[0]
                if console.is_terminal:
                    live.update(cell(f"[{left} steps left] {text}", None, lines=True))
                else:
                    say(f"t={t:.3g}: {text}", None)

            texts += prepared.decode(prepared.draw(i, 1, on_step=update))
    return texts
