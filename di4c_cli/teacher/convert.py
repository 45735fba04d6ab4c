"""Writing a model of any format as a model folder of our own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from di4c_cli import __version__, files
from di4c_cli.card import model_card
from di4c_cli.config import FORMAT
from di4c_cli.teacher import find, read, show_report
from di4c_cli.teacher.bundle import LoadOptions, TokenizerOnly


def convert(ref: str, target: Path, verbose: bool = False, **options: Any) -> str:
    """Write the model behind a reference to `target`; returns a summary line, `verbose` prints the load report.

    An image tokenizer alone is written as `vqgan.safetensors` with its settings, for `--vqgan`.
    """
    try:
        bundle = read(ref, **options)
    except TokenizerOnly:
        return _convert_tokenizer(ref, target, bool(options.get("offline")))
    import torch  # after the reading: a failed download need not wait for torch

    from di4c_cli import codec, model_folder  # import torch too

    config, denoiser, folder, report, codec_tensors = bundle.load()
    config.adapter = None  # its weights are merged now
    if Path(ref).is_file() and config.name == Path(ref).stem:  # what a file is called names no model
        config.name = files.real_path(target).name
    file = config.codec.get("file")
    if file is not None:
        codec.build(config.codec, folder, codec_tensors)  # nothing is written if the decoder cannot be read
    config.provenance |= {"di4c": __version__, "torch": str(torch.__version__)}
    copied = codec_tensors if file is None or folder is None else folder / str(file)
    model_folder.save_folder(target, config, denoiser, model_card(config), copied)
    show_report(report, verbose)
    size = sum(parameter.numel() for parameter in denoiser.network.parameters())
    network = config.network["type"]
    return f"{config.kind} {config.name}: {network}, {size:,} weights; tensors: {report.summary}"


def _convert_tokenizer(ref: str, target: Path, offline: bool) -> str:
    from safetensors.torch import save_file  # imports torch

    from di4c_cli.teacher.formats import vqgan  # imports torch

    found = vqgan.read(find(ref, LoadOptions(offline=offline)))
    settings = {"di4c": FORMAT, "type": "vqgan", **found.settings}
    with files.new_folder(target) as part:
        save_file(found.tensors, part / vqgan.VQGAN_FILE, {"format": "pt"})
        (part / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    return f"image tokenizer: {found.settings['codes']} codes; tensors: {len(found.tensors)} matched"
