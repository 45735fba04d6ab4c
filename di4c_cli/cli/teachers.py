"""`di4c teachers`: every known name with its source, its size and whether it is available locally."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from di4c_cli import embedded, hub
from di4c_cli.cli.console import emit, emit_json, say, show_table
from di4c_cli.teacher import plugins, registry

FAMILIES = {
    "di4c": "toy models inside di4c, no network",
    "sdtt": "SDTT, masked diffusion, OpenWebText",
    "mdlm": "MDLM, masked diffusion, OpenWebText",
    "duo": "Duo, uniform diffusion, OpenWebText",
    "llada": "LLaDA, 8 B parameters, text",
    "dream": "Dream and DiffuCoder, 7 B weights",
    "a2d": "Qwen3 of 0.6 B made bidirectional",
    "esm": "ESM-2, protein sequences",
    "bert": "BERT, English, small letters",
    "roberta": "RoBERTa, English",
    "maskgit": "MaskGIT, ImageNet, with its VQGAN",
    "tauldr": "pixels, CIFAR-10, and its student",
    "sdtt-student": "the paper's students of SDTT",
}
"""A few words for each family."""


def teachers(
    name: Annotated[str | None, typer.Argument(help="A family, to list its names, or a name, to show it.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="List every name, not one line a family.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the families of teachers and students, the names of one, or everything about a name.

    Besides these names, any Hub id (user/name@revision) and any local path is accepted.
    """
    entries = registry.entries()
    family = name if name not in entries and name in [entry.format for entry in entries.values()] else None
    if name and not family:
        _show(name, as_json)
        return
    rows = [describe(entry) for entry in entries.values() if family in (None, entry.format)]
    rows += [
        {"name": name, "source": f"package {point.dist.name if point.dist else point.value}"}
        for name, point in plugins.points().items()
        if not family
    ]
    if as_json:
        emit_json({"teachers": rows})
        return
    header = ["name", "from", "size", "here", "what it is"]
    cells = [_cells(row) for row in (rows if everything or family else _grouped(rows))]
    if not everything and not family:  # one line each in a terminal of 80 columns
        header, cells = ["family", *header[2:]], [[name, *rest] for name, _, *rest in cells]
    show_table("Teachers and students", header, cells)
    say("here: whether the cache has it all; -: its authors' page has it, and `di4c teachers NAME` says where.")
    say("`di4c teachers NAME` shows more, `--all` every name. Hub ids (user/name@revision) and paths are accepted too.")


def _grouped(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for the models of a format."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row.get("format") or row["name"], []).append(row)
    for kind, found in groups.items():
        found[0]["note"] = FAMILIES.get(kind, found[0].get("note", ""))
        if len(found) > 1:
            here = {row["cached"] for row in found} - {None} or {None}
            found[0] |= {"name": f"{kind} ({len(found)})", "cached": here.pop() if len(here) == 1 else "some"}
            found[0]["sizes"] = sorted(row["megabytes"] or 0 for row in found)
    return [found[0] for found in groups.values()]


def _show(name: str, as_json: bool) -> None:
    entry = registry.find_entry(embedded.ask_name(name))
    if entry is None:
        raise registry.unknown(name, list(plugins.points()), "name in the list")
    row = describe(entry) | {"files": list(entry.files), "where": entry.where, "options": entry.options}
    if as_json:
        emit_json(row)
        return
    for key, value in row.items():
        if value not in (None, "", [], {}):
            emit(f"{key:<11}{', '.join(value) if isinstance(value, list) else value}")


def describe(entry: registry.Entry) -> dict[str, Any]:
    """One registry entry as a row; `cached` is None for models that the user has to download."""
    cached = None
    if entry.source == "hub":
        cached = all(hub.is_cached(str(entry.repo), str(entry.revision), names) for names in entry.choices)
    elif entry.source == "embedded":
        cached = (entry.folder / "model.safetensors").is_file()
    row = {"name": entry.name, "source": entry.origin, "format": entry.format, "recipe": entry.recipe}
    size = None if entry.megabytes is None else round(entry.megabytes, 1)
    return row | {"megabytes": size, "cached": cached, "licence": entry.licence, "note": entry.note}


def _cells(row: dict[str, Any]) -> list[str]:
    here, sizes = {True: "yes", False: "no", None: "-"}.get(row.get("cached"), "some"), row.get("sizes")
    texts = [f"{size:.0f}" if size >= 10 else f"{size:.1f}" for size in sizes or [row.get("megabytes")] if size]
    shown = "-".join(dict.fromkeys((texts[0], texts[-1]))) + " MB" if texts else ""
    return [row["name"], row["source"].split("@")[0], shown, here, row.get("note", "")]
