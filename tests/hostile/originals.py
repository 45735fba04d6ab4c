"""Valid small files of every kind that the commands read; the targets copy and damage them."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from typer.testing import CliRunner

from di4c_cli import recipe_file
from di4c_cli.cli.app import app
from di4c_cli.teacher.convert import convert
from tests.helpers.small_run import make_teacher

GOLDEN = Path(__file__).parents[1] / "golden"
TEXTS = ["Four score and seven years ago", "The state of the union is strong.", "naïve λ 字 🙂", "a b\nc", "x " * 300]
MODES = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "F", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr")
FOREIGN: dict[str, list[str]] = {
    "sdtt": [],
    "mdlm": [],
    "sdtt_di4c_student": [],
    "maskgit": ["--heads", "4", "--codes", "40"],
    "maskgit_di4c_student": ["--heads", "4", "--codes", "40"],
    "tauldr/teacher": [],
    "tauldr/di4c_student": [],
    **{name: [] for name in ("llada", "dream", "a2d", "bert", "roberta", "esm")},
}
"""Published layouts, and the options with which they are converted."""
VARIANTS = ("duo", "udlm", "shards", "pickled-shards", "pickle", "lines")
"""Layouts that are made of others: another process, weights in several files, torch's own files, vocab.txt."""
OWN = ("digits", "text", "codes", "pixels", "student", "llama", "encoder", "uniform")


def build(root: Path) -> Path:
    """Make them all in a child process, because training starts threads that a forked copy would lack."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.environ["DI4C_CACHE"] = str(root / "cache")
            torch.set_num_threads(1)
            root.mkdir(parents=True, exist_ok=True)
            os.chdir(root)
            _build(root)
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    if os.waitpid(child, 0)[1]:
        raise RuntimeError("the valid files could not be made")
    return root


def _build(root: Path) -> None:
    _models(root / "models")
    _data(root / "data")
    _recipes(root / "recipes")
    _judge(root / "judge")
    _results(root)
    for path in root.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _models(root: Path) -> None:
    root.mkdir()
    for name in FOREIGN:
        ignored = shutil.ignore_patterns("io.safetensors", "README.md", "config_resolved.json", "hyper.json")
        shutil.copytree(GOLDEN / name, root / name, ignore=ignored)
    shutil.copytree(GOLDEN / "vqgan", root / "vqgan", ignore=shutil.ignore_patterns("io.safetensors", "README.md"))
    _tokenizers(root / "tokenizers")
    make_teacher(root / "digits")
    convert(str(GOLDEN / "sdtt"), root / "text", tokenizer=str(root / "tokenizers" / "words.json"))
    convert(str(GOLDEN / "maskgit"), root / "codes", heads=4, vqgan=str(GOLDEN / "vqgan"))
    convert(str(GOLDEN / "tauldr" / "teacher"), root / "pixels")
    convert("words-student", root / "student")
    _variants(root)
    for source, name in (("llada", "llama"), ("esm", "encoder"), ("duo", "uniform")):
        convert(str(root / source), root / name)


def _variants(root: Path) -> None:
    """The layouts `VARIANTS`."""
    for name, source in zip(VARIANTS, ("mdlm", "mdlm", "llada", "dream", "bert", "esm"), strict=True):
        shutil.copytree(root / source, root / name)
    for name in ("duo", "udlm"):
        settings = json.loads((root / name / "config.json").read_text())
        (root / name / "config.json").write_text(json.dumps(settings | {"model_type": name, "time_conditioning": True}))
    for name, ending, save in (("shards", "safetensors", save_file), ("pickled-shards", "bin", torch.save)):
        _shard(root / name, ending, save)
    tensors = load_file(root / "pickle" / "model.safetensors")
    torch.save(tensors, root / "pickle" / "pytorch_model.bin")
    (root / "pickle" / "model.safetensors").unlink()
    tree = json.loads((root / "lines" / "tokenizer.json").read_text())
    ids = {**tree["model"]["vocab"], **{entry["content"]: entry["id"] for entry in tree["added_tokens"]}}
    (root / "lines" / "vocab.txt").write_text("".join(f"{token}\n" for token in sorted(ids, key=ids.__getitem__)))
    (root / "lines" / "tokenizer.json").unlink()


def _shard(folder: Path, ending: str, save: Callable[[dict[str, torch.Tensor], Path], None]) -> None:
    """The weights in two files with an index, as transformers writes large models."""
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    stem = "model" if ending == "safetensors" else "pytorch_model"
    parts = {f"{stem}-0000{i + 1}-of-00002.{ending}": names[i::2] for i in range(2)}
    for file, own in parts.items():
        save({name: tensors[name] for name in own}, folder / file)
    listed = {"metadata": {"total_size": 1}, "weight_map": {name: file for file, own in parts.items() for name in own}}
    (folder / f"{stem}.{ending}.index.json").write_text(json.dumps(listed))
    (folder / "model.safetensors").unlink()


def _tokenizers(root: Path) -> None:
    """Every kind of model, with normalizers and decoders, for the 97 symbols of the small text model."""
    root.mkdir()
    words = {f"w{number}": number for number in range(60)} | {
        word: 60 + at for at, word in enumerate(["a", "b", "c", "the"])
    }
    letters = {chr(97 + number): number for number in range(26)} | {"##b": 26, "[UNK]": 27}
    kinds: dict[str, Any] = {
        "words": models.WordLevel(words, unk_token="w0"),
        "pairs": models.BPE({"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4}, [("a", "b"), ("ab", "c")]),
        "unigram": models.Unigram([("<unk>", 0.0), ("a", -1.0), ("b", -2.0), ("ab", -1.5)], 0, True),
        "pieces": models.WordPiece(letters, unk_token="[UNK]"),
    }
    for name, model in kinds.items():
        one = Tokenizer(model)
        one.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Digits()])
        one.normalizer = normalizers.Sequence(
            [normalizers.NFC(), normalizers.Lowercase(), normalizers.Replace("q", "k")]
        )
        one.decoder = decoders.Sequence([decoders.Replace("_", " "), decoders.Fuse()])
        one.save(str(root / f"{name}.json"))


def _data(root: Path) -> None:
    """A corpus in every form, arrays, folders of images in every mode, CIFAR-10 in both forms, prompts."""
    root.mkdir()
    (root / "corpus.txt").write_text("\n\n".join(TEXTS * 3))
    records = "\n".join(json.dumps({"text": text, "id": number}) for number, text in enumerate(TEXTS * 3)) + "\n"
    (root / "corpus.jsonl").write_text(records)
    (root / "corpus.txt.gz").write_bytes(gzip.compress("\n".join(TEXTS).encode()))
    (root / "corpus.jsonl.gz").write_bytes(gzip.compress(records.encode()))
    table = pyarrow.table({"text": TEXTS * 3, "id": list(range(len(TEXTS) * 3))})
    pyarrow.parquet.write_table(table, root / "corpus.parquet", row_group_size=4)
    rng = np.random.default_rng(0)
    np.save(root / "tokens.npy", rng.integers(0, 60, 4000, dtype=np.int64))
    (root / "tokens.bin").write_bytes(rng.integers(0, 60, 4000, dtype=np.uint16).tobytes())
    digits = rng.integers(0, 256, (24, 8, 8), dtype=np.uint8)
    np.savez(root / "digits.npz", images=digits, labels=rng.integers(0, 10, 24))
    np.savez_compressed(root / "digits-packed.npz", x=digits, label=rng.integers(0, 10, 24, dtype=np.uint8))
    np.save(root / "digits.npy", digits)
    np.savez(root / "colours.npz", images=rng.integers(0, 256, (12, 8, 8, 3), dtype=np.uint8))
    _pictures(root, rng)
    (root / "prompt.txt").write_text("a b the\n")
    (root / "infill.txt").write_text("a [MASK*20] the [MASK] b\n")
    (root / "prompts.txt").write_text("a b\n" + "the c a b " * 4 + "\n" + "a w1 w2 " * 5 + "\n")
    np.save(root / "prompts.npy", rng.integers(0, 60, (3, 12)))
    (root / "texts.txt").write_text("\n".join(TEXTS[:3]) + "\n")
    (root / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    shutil.copy(Path(__file__).parents[2] / "di4c_cli" / "embedded" / "assets" / "gpt2-LICENSE.txt", root / "notes.md")


def picture(mode: str, side: int, rng: np.random.Generator) -> Image.Image:
    """Random pixels in a mode of Pillow."""
    if mode in ("I", "F"):
        return Image.fromarray(rng.integers(0, 65536, (side, side)).astype(np.int32 if mode == "I" else np.float32))
    if mode.startswith("I;16"):
        order = ">u2" if mode.endswith("B") else "<u2"
        return Image.frombytes(mode, (side, side), rng.integers(0, 65536, (side, side)).astype(order).tobytes())
    base = Image.fromarray(rng.integers(0, 256, (side, side, 4), dtype=np.uint8), "RGBA")
    if mode in ("La", "RGBa"):
        return base.convert("LA" if mode == "La" else "RGBA").convert(mode)
    if mode == "PA":
        return base.convert("RGB").convert("P").convert("PA")
    return base.convert("RGB").convert(mode) if mode not in ("RGBA", "LA") else base.convert(mode)


def _pictures(root: Path, rng: np.random.Generator) -> None:
    for folder, side, modes in (
        ("grey", 8, ("L", "1", "I;16")),
        ("colour", 8, ("RGB", "P", "RGBA")),
        ("large", 16, ("RGB",)),
    ):
        for number in range(6):
            path = root / folder / str(number % 2) / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            picture(modes[number % len(modes)], side, rng).save(path)
    batch = rng.integers(0, 256, (4, 3073), dtype=np.uint8)
    batch[:, 0] %= 10
    for name in ("cifar-binary", "cifar-sheets"):
        (root / name).mkdir()
    (root / "cifar-binary" / "data_batch_1.bin").write_bytes(batch.tobytes())
    sheet = rng.integers(0, 256, (4, 1024, 3), dtype=np.uint8)
    Image.fromarray(sheet).save(root / "cifar-sheets" / "data_batch_1.png")
    (root / "cifar-sheets" / "train_lables.json").write_text("[0, 1, 2, 9]")


def _recipes(root: Path) -> None:
    root.mkdir()
    for name, number in (
        ("digits", 0),
        ("di4c/digits", 1),
        ("pretrain/digits", 2),
        ("ablations/alpha", 3),
        ("moment_matching/digits", 4),
        ("sdtt/digits", 5),
        ("masked-lm", 6),
    ):
        shutil.copy(recipe_file.find(name), root / f"{number}-{name.replace('/', '-')}.yaml")
    sweep = yaml.safe_load((root / "3-ablations-alpha.yaml").read_text())
    (root / "3-ablations-alpha.yaml").write_text(yaml.safe_dump(sweep | {"rows": sweep["rows"][:2]}, sort_keys=False))
    adapted = yaml.safe_load((root / "1-di4c-digits.yaml").read_text())
    adapted["training"]["adapter"] = {"type": "lora", "rank": 4, "alpha": 8.0, "targets": ["out_proj"]}
    (root / "7-adapter.yaml").write_text(yaml.safe_dump(adapted, sort_keys=False))
    from di4c_cli.training.launch import presets

    for name, path in list(presets().items())[:2]:
        shutil.copy(path, root / f"accelerate-{name}.yaml")


def _judge(folder: Path) -> None:
    """A GPT-2 of a few thousand random weights."""
    import transformers

    built = Tokenizer.from_file(str(folder.parent / "models" / "tokenizers" / "words.json"))
    ends = {"bos_token": "w1", "eos_token": "w1"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=built, **ends).save_pretrained(folder)
    sizes = {
        "vocab_size": 128,
        "n_positions": 64,
        "n_embd": 16,
        "n_layer": 1,
        "n_head": 2,
        "bos_token_id": 1,
        "eos_token_id": 1,
    }
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).save_pretrained(folder)


def _results(root: Path) -> None:
    """A run with its evaluation, a second result, statistics of a reference, and shards of samples."""
    teacher = str(root / "models" / "digits")
    short = ["--iterations", "2", "--batch", "2", "--latents", "2", "--set", "training.checkpoint_every=1"]
    _call("distill", "--teacher", teacher, "--recipe", "di4c/digits", *short, "--out", str(root / "run"))
    adapter = ["--set", "training.adapter={type: lora, rank: 2}", "--out", str(root / "adapter-run")]
    _call("distill", "--teacher", "digits", "--recipe", "di4c/digits", *short, *adapter)
    shutil.copytree(root / "adapter-run" / "student", root / "models" / "adapter")
    student = str(root / "run" / "student")
    _call(
        "eval",
        "--student",
        student,
        "--teacher",
        teacher,
        "--steps",
        "1,2",
        "-n",
        "3",
        "--out",
        str(root / "run" / "evaluation"),
    )
    _call("eval", "--teacher", teacher, "--steps", "1", "-n", "3", "--out", str(root / "evaluation"))
    _call("sample", "--teacher", teacher, "-n", "4", "--steps", "1", "--out", str(root / "shards"))
    images = str(root / "data" / "digits.npz")
    reference = ["--reference", str(root / "data" / "grey")]
    _call("eval", "--samples", images, *reference, "-n", "4", "--out", str(root / "file-evaluation"))
    (found,) = (root / "file-evaluation").glob("reference-*.npz")
    shutil.copy(found, root / "data" / "statistics.npz")


def _call(*words: str) -> None:
    result = CliRunner().invoke(app, list(words))
    if result.exit_code:
        raise RuntimeError(f"{words}: {result.stderr}")
