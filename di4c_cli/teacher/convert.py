"""Writing what any format holds as a folder of our own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from di4c_cli import __version__, files
from di4c_cli.config import FORMAT
from di4c_cli.teacher import find, read, tell
from di4c_cli.teacher.options import Options, TokenizerOnly


def convert(ref: str, target: Path, verbose: bool = False, **options: Any) -> str:
    """Write the model a reference names to `target`; returns one line about it, `verbose` prints the account.

    An image tokenizer alone is written as `vqgan.safetensors` with its settings, for `--vqgan`.
    """
    try:
        bundle = read(ref, **options)
    except TokenizerOnly:
        return _convert_tokenizer(ref, target, bool(options.get("offline")))
    import torch  # after the reading: a failed download need not wait for torch

    from di4c_cli import student
    from di4c_cli.card import model_card

    model = bundle.model()
    if model.codec_file is not None:
        _ = model.codec  # nothing is written whose decoder cannot be read
    model.config.provenance |= {"di4c": __version__, "torch": str(torch.__version__)}
    student.save_folder(target, model.config, model.denoiser, model_card(model.config), model.codec_file)
    assert model.account is not None
    tell(model.account, verbose)
    size = sum(parameter.numel() for parameter in model.denoiser.network.parameters())
    told = ", ".join(f"{count} {status}" for status, count in model.account.counts.items())
    network = model.config.network["type"]
    return f"{model.config.kind} {model.name}: {network}, {size:,} weights; tensors: {told}"


def _convert_tokenizer(ref: str, target: Path, offline: bool) -> str:
    from safetensors.torch import save_file

    from di4c_cli.teacher.formats import vqgan

    found = vqgan.read(find(ref, Options(offline=offline)))
    settings = {"di4c": FORMAT, "type": "vqgan", **found.settings}
    with files.new_folder(target) as part:
        save_file(found.tensors, part / vqgan.FILE, {"format": "pt"})
        (part / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    return f"image tokenizer: {found.settings['codes']} codes; tensors: {len(found.tensors)} matched"
