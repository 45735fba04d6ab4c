"""README.md of a model folder: a model card with the Hub's YAML header, from one template; no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from di4c_cli import __version__
from di4c_cli.config import ModelConfig
from di4c_cli.hub import is_id
from di4c_cli.latent.config import LatentConfig
from di4c_cli.methods import METHODS

TASKS = {
    "text": "text-generation",
    "pixels": "unconditional-image-generation",
    "vq": "unconditional-image-generation",
}
LICENCE = re.compile(r"[a-z0-9][a-z0-9.-]{1,30}")
OWN_LICENCE = "apache-2.0"
HERE = "."

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

The same seed gives the same samples, whatever the batch size. `di4c eval --student {ref}` measures it,
`di4c distill --teacher {ref}` goes on from it.

{figures}## Where it comes from

{table}
"""


def model_card(
    config: ModelConfig, metrics: Mapping[str, Any] | None = None, ref: str = HERE, digest: str = ""
) -> str:
    """The card of a model; `metrics` is a result of `di4c eval` as JSON, `ref` what users will load it by.

    `digest` is the hash of the weights by which the result knows the model.
    """
    figures = figures_of(metrics, digest)
    header = yaml.safe_dump(header_of(config, figures), sort_keys=False, allow_unicode=True)
    return TEMPLATE.format(
        header=header,
        name=_plain(config.name),
        summary=_summary(config),
        ref=ref,
        steps=config.sampling.steps,
        figures=_figure_section(figures),
        table=_table(_history(config)),
    )


def header_of(config: ModelConfig, figures: list[dict[str, Any]]) -> dict[str, Any]:
    """The YAML header; keys are left out where nothing true can be said."""
    root = _root(config)
    task = TASKS.get(str(config.codec.get("type")))
    base = _base_model(config, root)
    data = str(config.provenance.get("data") or "")
    header: dict[str, Any] = {"library_name": "di4c", "license": _licence(root)}
    if task is not None:
        header["pipeline_tag"] = task
    if base is not None:
        header |= {"base_model": base, "base_model_relation": "finetune"}
    if is_id(data):
        header["datasets"] = [data]
    header["tags"] = [
        "discrete-diffusion",
        *(["di4c", "distillation"] if config.kind == "student" else ["di4c"]),
    ]
    if figures:
        header["metrics"] = list(dict.fromkeys(figure["type"] for figure in figures))
        dataset = {"name": data or "see the results file", "type": data if is_id(data) else "other"}
        result = {"task": {"type": task or "other"}, "dataset": dataset, "metrics": figures}
        header["model-index"] = [{"name": config.name, "results": [result]}]
    return header


def figures_of(metrics: Mapping[str, Any] | None, digest: str) -> list[dict[str, Any]]:
    """The figures of the weights with this hash in an evaluation, one for each metric and way of sampling."""
    rows = rows_of(metrics or {}, digest)
    found = []
    for cell in (metrics or {}).get("cells", []):
        if cell.get("row") not in rows:
            continue
        for name, figure in cell.get("figures", {}).items():
            found.append({"type": name, "value": figure["value"], "name": f"{name} at {_way(cell)}"})
    return found


def rows_of(metrics: Mapping[str, Any], digest: str) -> list[str]:
    """The rows of an evaluation that are about the weights with this hash, whatever they are called."""
    models = metrics.get("models", [])
    return [entry["row"] for entry in models if digest and entry.get("digest") == digest]


def _way(cell: Mapping[str, Any]) -> str:
    """How a cell was sampled: its column knows temperature and guidance."""
    steps, column = f"{cell.get('steps')} steps", str(cell.get("column") or "")
    hybrid = (cell.get("settings") or {}).get("hybrid")
    parts = [
        column if "step" in column else f"{column}, {steps}" if column else steps,
        *([f"last {hybrid} by the teacher"] if hybrid else []),
        f"n = {cell.get('n')}",
        f"seed {cell.get('seed')}",
    ]
    return _plain(", ".join(parts))


def _figure_section(figures: list[dict[str, Any]]) -> str:
    if not figures:
        return ""
    lines = [f"| {_plain(figure['name'])} | {figure['value']:.6g} |" for figure in figures]
    return "\n".join(["## Figures", "", "| metric | value |", "|---|---|", *lines, "", ""])


def _summary(config: ModelConfig) -> str:
    if config.kind == "teacher":
        return (
            f"A discrete diffusion model, written by di4c {__version__} as a teacher for few-step students."
        )
    teacher = _plain(
        config.provenance.get("teacher") or config.provenance.get("format", "an unknown teacher")
    )
    return (
        f"A few-step student of `{teacher}`: a mixture over a latent λ that captures correlations between "
        f"positions, trained by {_training(config)}."
    )


def _training(config: ModelConfig) -> str:
    """How the student was trained, by the recipe in its history; files of other origin are the paper's students."""
    recipe = config.provenance.get("recipe")
    method = recipe.get("method") if isinstance(recipe, dict) else None
    name = method.get("name") if isinstance(method, dict) else None
    if name is None and isinstance(recipe, dict) and isinstance(recipe.get("objective"), dict):
        name = "variational" if recipe["objective"].get("posterior") else "di4c"  # a recipe of version 0.1
    return METHODS[name].card if isinstance(name, str) and name in METHODS else METHODS["di4c"].card


def _root(config: ModelConfig) -> dict[str, Any]:
    """The history of the first teacher, behind all rounds."""
    history = config.provenance
    for _ in range(100):  # a crafted config could nest without end
        parent = history.get("parent")
        inner = parent.get("provenance") if isinstance(parent, dict) else None
        if not isinstance(inner, dict):
            break
        history = inner
    return history


def _base_model(config: ModelConfig, root: Mapping[str, Any]) -> str | None:
    """The teacher's Hub id or its name in di4c; a local path means nothing to anybody else."""
    repo = root.get("repo")
    if isinstance(repo, str) and is_id(repo):
        return repo
    teacher = str(config.provenance.get("teacher") or "").partition("@")[0]
    return teacher if is_id(teacher) or re.fullmatch(r"[a-z0-9][a-z0-9.-]*", teacher) else None


def _licence(root: Mapping[str, Any]) -> str:
    """The first teacher's licence; what is not a licence's short name is `other`."""
    given = root.get("licence")
    if given is None and root.get("source") != "hub" and "path" not in root:
        return OWN_LICENCE
    return given if isinstance(given, str) and LICENCE.fullmatch(given) else "other"


def _history(config: ModelConfig) -> list[tuple[str, str]]:
    """What is known about the making, as rows for people."""
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
        "round": rounds,
        "iterations": known.get("iterations"),
        "seed": known.get("seed"),
        "network": config.network.get("type"),
        "process": config.process.get("type"),
        "latent": _latent(latent) if latent else None,
        "versions": ", ".join(f"{key} {known[key]}" for key in ("di4c", "torch") if key in known) or None,
    }
    return [(key, str(value)) for key, value in rows.items() if value is not None]


def _table(rows: list[tuple[str, str]]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {key} | {_plain(value)} |" for key, value in rows)])


def _plain(value: Any) -> str:
    """A short text that cannot break out of its place in the page."""
    return re.sub(r"[|`\r\n<>]", " ", str(value))[:200]


def _latent(latent: LatentConfig) -> str:
    where = " at every position" if latent.inject == "local" else ""
    prior = f", learned prior of width {latent.prior_width}" if latent.prior == "learned" else ""
    return f"{latent.inject}, {latent.distribution}, dim {latent.dim}{where}{prior}"
