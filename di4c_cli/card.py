"""README.md of a model folder: a model card with the Hub's YAML header. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from di4c_cli import __version__
from di4c_cli.config import ModelConfig
from di4c_cli.hub import is_id
from di4c_cli.latent.config import LatentConfig
from di4c_cli.methods import DEFAULT_METHOD, METHODS
from di4c_cli.printable import markdown, printable

IMAGE_GENERATION = "unconditional-image-generation"
PIPELINE_TAGS = {"text": "text-generation", "pixels": IMAGE_GENERATION, "vq": IMAGE_GENERATION}
LICENCE_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,30}")
OWN_LICENCE = "apache-2.0"

TEMPLATE = """---
{header}---

# {name}

{summary}

## Sampling

    di4c sample --student {ref} --steps {steps}

```python
import di4c_cli

model = di4c_cli.load("{ref}")
x = model.sample(4, steps={steps}, seed=0)
print(model.decode(x))
```

The same seed gives the same samples for any batch size. `di4c eval --student {ref}` evaluates the model,
`di4c distill --teacher {ref}` distils it further.

{figures}## Provenance

| | |
|---|---|
{table}
"""


def model_card(config: ModelConfig, metrics: Mapping[str, Any] | None = None, ref: str = ".", digest: str = "") -> str:
    """The card of a model; `metrics` is a result of `di4c eval` as JSON, `ref` the reference for loading the model.

    `digest` is the hash of the weights, which identifies the model in the result.
    """
    figures = figures_of(metrics, digest)
    header = yaml.safe_dump(header_of(config, figures), sort_keys=False)
    lines = [f"| {markdown(figure['name'])} | {figure['value']:.6g} |" for figure in figures]
    return TEMPLATE.format(
        header=header,
        name=markdown(config.name),
        summary=_summary(config),
        ref=ref,
        steps=config.sampling.steps,
        figures="\n".join(["## Figures", "", "| metric | value |", "|---|---|", *lines, "", ""]) if lines else "",
        table="\n".join(f"| {key} | {markdown(value)} |" for key, value in _provenance(config)),
    )


def header_of(config: ModelConfig, figures: list[dict[str, Any]]) -> dict[str, Any]:
    """The YAML header without the keys whose values are unknown."""
    root = _root(config)
    task = PIPELINE_TAGS.get(str(config.codec.get("type")))
    base = _base_model(config, root)
    data = printable(config.provenance.get("data") or "", 200)
    header: dict[str, Any] = {"library_name": "di4c", "license": _licence(root)}
    if task is not None:
        header["pipeline_tag"] = task
    if base is not None:
        header |= {"base_model": base, "base_model_relation": "finetune"}
    if is_id(data):
        header["datasets"] = [data]
    header["tags"] = ["discrete-diffusion", "di4c", *(["distillation"] if config.kind == "student" else [])]
    if figures:
        header["metrics"] = list(dict.fromkeys(figure["type"] for figure in figures))
        dataset = {"name": data or "see the results file", "type": data if is_id(data) else "other"}
        result = {"task": {"type": task or "other"}, "dataset": dataset, "metrics": figures}
        header["model-index"] = [{"name": printable(config.name, 200), "results": [result]}]
    return header


def figures_of(metrics: Mapping[str, Any] | None, digest: str) -> list[dict[str, Any]]:
    """The metrics of the weights with this hash, one for each metric and sampling setting."""
    rows = rows_of(metrics or {}, digest)
    cells = [cell for cell in (metrics or {}).get("cells", []) if cell.get("row") in rows]
    return [
        {"type": printable(name, 80), "value": figure["value"], "name": printable(f"{name} at {_setting(cell)}", 200)}
        for cell in cells
        for name, figure in cell.get("figures", {}).items()
    ]


def rows_of(metrics: Mapping[str, Any], digest: str) -> list[str]:
    """The rows of an evaluation that belong to the weights with this hash."""
    models = metrics.get("models", [])
    return [entry["row"] for entry in models if digest and entry.get("digest") == digest]


def _setting(cell: Mapping[str, Any]) -> str:
    """The sampling setting of a cell; its column holds temperature and guidance."""
    column, hybrid = str(cell.get("column") or ""), (cell.get("settings") or {}).get("hybrid")
    parts = [column, "" if "step" in column else f"{cell.get('steps')} steps"]
    parts += [f"last {hybrid} by the teacher" if hybrid else "", f"n = {cell.get('n')}"]
    return ", ".join(part for part in [*parts, f"seed {cell.get('seed')}"] if part)


def _summary(config: ModelConfig) -> str:
    if config.kind == "teacher":
        return f"A discrete diffusion model, written by di4c {__version__} as a teacher for few-step students."
    known = config.provenance
    teacher = printable(known.get("teacher") or known.get("format", "an unknown teacher"), 200).replace("`", "'")
    kind = "a mixture over a latent λ that captures correlations between positions" if config.latent else "without λ"
    return f"A few-step student of `{teacher}`: {kind}, trained by {_training(config)}."


def _training(config: ModelConfig) -> str:
    """How the student was trained, by the recipe in its history; files of other origin are the paper's students."""
    recipe = config.provenance.get("recipe")
    method = recipe.get("method") if isinstance(recipe, dict) else None
    name = method.get("name") if isinstance(method, dict) else None
    if name is None and isinstance(recipe, dict) and isinstance(recipe.get("objective"), dict):
        name = "variational" if recipe["objective"].get("posterior") else "di4c"  # a recipe of version 0.1
    return METHODS[name].card if isinstance(name, str) and name in METHODS else METHODS[DEFAULT_METHOD].card


def _root(config: ModelConfig) -> dict[str, Any]:
    """The provenance of the first teacher, before all rounds."""
    history = config.provenance
    for _ in range(100):  # a crafted config could nest forever
        parent = history.get("parent")
        inner = parent.get("provenance") if isinstance(parent, dict) else None
        if not isinstance(inner, dict):
            break
        history = inner
    return history


def _base_model(config: ModelConfig, root: Mapping[str, Any]) -> str | None:
    """The teacher's Hub id or its name in di4c; a local path is left out."""
    repo = root.get("repo")
    if isinstance(repo, str) and is_id(repo):
        return repo
    teacher = str(config.provenance.get("teacher") or "").partition("@")[0]
    return teacher if is_id(teacher) or re.fullmatch(r"[a-z0-9][a-z0-9.-]*", teacher) else None


def _licence(root: Mapping[str, Any]) -> str:
    """The first teacher's licence; anything but a licence's short name becomes `other`."""
    given = root.get("licence")
    if given is None and root.get("source") != "hub" and "path" not in root:
        return OWN_LICENCE
    return given if isinstance(given, str) and LICENCE_NAME.fullmatch(given) else "other"


def _provenance(config: ModelConfig) -> list[tuple[str, str]]:
    """The provenance as rows of a table."""
    known, root = config.provenance, _root(config)
    recipe = known.get("recipe")
    recipe = recipe.get("name") if isinstance(recipe, dict) else recipe
    rounds = f"{known['round']} of {known.get('rounds', '?')}" if "round" in known else None
    first = root.get("repo") or root.get("path")
    latent = config.latent
    rows = {
        "teacher": known.get("teacher"),
        "first teacher": first,
        "its revision": root.get("revision") or known.get("teacher_revision"),
        "its weights": root.get("weights"),
        "recipe": recipe,
        "data": known.get("data"),
        "learned from": known.get("information"),
        "round": rounds,
        "iterations": known.get("iterations"),
        "seed": known.get("seed"),
        "network": config.network.get("type"),
        "process": config.process.get("type"),
        "latent": _latent(latent) if latent else None,
        "versions": ", ".join(f"{key} {known[key]}" for key in ("di4c", "torch") if key in known) or None,
    }
    return [(key, str(value)) for key, value in rows.items() if value is not None]


def _latent(latent: LatentConfig) -> str:
    where = " at every position" if latent.inject == "local" else ""
    prior = f", learned prior of width {latent.prior_width}" if latent.prior == "learned" else ""
    return f"{latent.inject}, {latent.distribution}, dim {latent.dim}{where}{prior}"
