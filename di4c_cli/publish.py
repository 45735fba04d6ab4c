"""Uploading a model folder to the Hub: it is checked, gets its card and goes up in one commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from di4c_cli import codec, hub
from di4c_cli.card import model_card, rows_of
from di4c_cli.config import ADAPTER_FILES
from di4c_cli.errors import UserError
from di4c_cli.evaluation import results
from di4c_cli.foreign.regular import is_regular
from di4c_cli.limits import read_config
from di4c_cli.metric.features import tensors_digest
from di4c_cli.model import load


def model_folder(path: Path) -> Path:
    """The model folder a path means: itself, or the last student of a run."""
    for folder in (path, path / "student"):
        if (folder / "config.json").is_file():
            return folder
    hint = "Name what `di4c distill` or `convert` wrote."
    raise UserError(f"{path} is neither a run nor a model folder.", hint)


def results_near(folder: Path, digest: str) -> dict[str, Any] | None:
    """The newest evaluation of these weights in the model's folder or run."""
    places = [folder, *([folder.parent] if folder.name == "student" else [])]
    found = [path for place in places for path in (*place.glob("results.json"), *place.glob("*/results.json"))]
    for path in sorted(filter(is_regular, found), key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            tree = results.load(path).model_dump(mode="json")
        except UserError:  # another file of that name, or a damaged one
            continue
        if rows_of(tree, digest):
            return tree
    return None


def contents(folder: Path, repo: str) -> dict[str, Path | bytes]:
    """The files to upload: those of the model and no others of the folder.

    The weights are loaded once, so that no damaged model is published. A card that di4c wrote is renewed with
    the repository's name and the metrics; an edited card stays as it is.
    """
    loaded = load(str(folder.absolute()))
    config, denoiser = loaded.config, loaded.denoiser
    if "file" in config.codec:
        codec.build(config.codec, folder)
    adapter = ADAPTER_FILES if config.adapter is not None else ()
    names = ("config.json", "model.safetensors", *adapter, config.codec_file_name())
    found: dict[str, Path | bytes] = {name: _own_file(folder, name) for name in names if name is not None}
    digest = tensors_digest(denoiser.network.state_dict())
    found["README.md"] = model_card(config, results_near(folder, digest), repo, digest).encode()
    if (folder / "README.md").exists():
        card = _own_file(folder, "README.md")
        if card.read_bytes() != model_card(config).encode():
            found["README.md"] = card
    return found


def publish(path: Path, repo: str, private: bool = False, revision: str | None = None) -> str:
    """Upload the model at `path`; returns the commit's URL."""
    if not hub.is_id(repo):
        raise UserError(f"'{repo}' is not a Hub id.", "Write user/name.")
    folder = model_folder(path)
    message = f"Upload {read_config(folder).name}"
    return hub.upload(repo, contents(folder, repo), private, revision, message)


def _own_file(folder: Path, name: str) -> Path:
    """A regular file of the folder; a link could publish a file that is not part of the model."""
    path = folder / name
    if path.is_symlink() or not path.is_file():
        raise UserError(f"{path} is not a file of the model folder.", "Put a copy of the file there.")
    return path
