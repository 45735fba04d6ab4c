"""Students on the Hub: a model folder checked, given its card and uploaded in one commit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from di4c_cli import codec, hub, student
from di4c_cli.card import model_card, rows_of
from di4c_cli.config import ModelConfig
from di4c_cli.errors import UserError
from di4c_cli.metric.features import tensors_digest

MAX_RESULTS = 50 * 2**20


def model_folder(path: Path) -> Path:
    """The model folder a path means: itself, or the last student of a run."""
    for folder in (path, path / "student"):
        if (folder / "config.json").is_file():
            return folder
    raise UserError(
        f"{path} is neither a run nor a model folder.", "Name what `di4c distill` or `convert` wrote."
    )


def results_near(folder: Path, digest: str) -> dict[str, Any] | None:
    """The newest evaluation of these weights in the model's folder or run; others may lie there too."""
    places = [folder, *([folder.parent] if folder.name == "student" else [])]
    found = [
        path for place in places for path in (*place.glob("results.json"), *place.glob("*/results.json"))
    ]
    for path in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            tree = json.loads(path.read_text(encoding="utf-8")) if path.stat().st_size < MAX_RESULTS else None
        except (OSError, ValueError):
            continue
        if isinstance(tree, dict) and "cells" in tree and rows_of(tree, digest):
            return tree
    return None


def contents(folder: Path, repo: str) -> dict[str, Path | bytes]:
    """What is uploaded: the model's own files and nothing else that lies in the folder.

    The weights are loaded once, so that nothing broken is published. A card that was written by di4c is
    renewed with the repository's name and the figures; one that somebody edited is left as it is.
    """
    config, denoiser = student.load_folder(folder)
    if "file" in config.codec:
        codec.build(config.codec, folder)
    names = ["config.json", "model.safetensors", *_codec_names(config)]
    found: dict[str, Path | bytes] = {name: _own_file(folder, name) for name in names}
    digest = tensors_digest(denoiser.network.state_dict())
    found["README.md"] = model_card(config, results_near(folder, digest), repo, digest).encode()
    if (folder / "README.md").exists():
        card = _own_file(folder, "README.md")
        if card.read_bytes() != model_card(config).encode():
            found["README.md"] = card
    return found


def publish(path: Path, repo: str, private: bool = False, revision: str | None = None) -> str:
    """Upload the model at `path`; returns the commit's address."""
    if not hub.is_id(repo):
        raise UserError(f"'{repo}' is not a Hub id.", "Write user/name.")
    folder = model_folder(path)
    message = f"Upload {student.read_config(folder).name}"
    return hub.upload(repo, contents(folder, repo), private, revision, message)


def _codec_names(config: ModelConfig) -> list[str]:
    name = config.codec.get("file")
    if name is None:
        return []
    if not isinstance(name, str) or Path(name).name != name or name.startswith("."):
        raise UserError(
            f"The codec's file name {name!r} is not a plain name.", "Check the model's config.json."
        )
    return [name]


def _own_file(folder: Path, name: str) -> Path:
    """A regular file of the folder; a link could publish something that is not part of the model."""
    path = folder / name
    if path.is_symlink() or not path.is_file():
        raise UserError(f"{path} is not a file of the model folder.", "Put a copy of the file there.")
    return path
