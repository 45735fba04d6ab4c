"""Folders of masked language models as they are found: shards, pickles, other files, old names, hostile values."""

from __future__ import annotations

import json
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from di4c_cli import load, model_folder
from di4c_cli.errors import UserError
from di4c_cli.teacher import recipe_for
from di4c_cli.teacher.convert import convert
from tests.helpers import masked_lms
from tests.teacher.test_formats import outputs
from tests.teacher.test_security import Command


@pytest.fixture
def folder(golden: Path, tmp_path: Path) -> Any:
    """A writable copy of a golden set without its outputs."""

    def copy(kind: str) -> Path:
        ignored = shutil.ignore_patterns("io.safetensors", "README.md")
        return Path(shutil.copytree(golden / kind, tmp_path / kind, ignore=ignored))

    return copy


def shard(folder: Path, ending: str = "safetensors") -> None:
    """Replace the weights by two shards and their index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    half, stem = len(tensors) // 2, "model" if ending == "safetensors" else "pytorch_model"
    places = {}
    for number, names in enumerate((list(tensors)[:half], list(tensors)[half:]), start=1):
        path = folder / f"{stem}-{number:05}-of-00002.{ending}"
        part = {name: tensors[name] for name in names}
        save_file(part, path) if ending == "safetensors" else torch.save(part, path)
        places |= dict.fromkeys(names, path.name)
    (folder / f"{stem}.{ending}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


@pytest.mark.parametrize("kind", masked_lms.MASK)
def test_convert_of_a_masked_lm_keeps_every_bit(golden: Path, tmp_path: Path, kind: str) -> None:
    original = load(str(golden / kind))
    convert(str(golden / kind), tmp_path / "out")
    converted = load(str(tmp_path / "out"))
    assert torch.equal(outputs(original), outputs(converted))
    x = original.sample(2, steps=4, seed=1)
    assert torch.equal(x, converted.sample(2, steps=4, seed=1)) and original.decode(x) == converted.decode(x)
    assert recipe_for(str(golden / kind)) == recipe_for(str(tmp_path / "out")) == "masked-lm"


@pytest.mark.parametrize("kind", masked_lms.MASK)
@pytest.mark.parametrize("ending", ["safetensors", "bin"])
def test_shards_are_read_together(golden: Path, folder: Any, ending: str, kind: str) -> None:
    path = folder(kind)
    shard(path, ending)
    assert torch.equal(outputs(load(str(path))), outputs(load(str(golden / kind))))
    next(path.glob("*-00002-of-*")).unlink()
    with pytest.raises(UserError, match=r"lacks the shard '(pytorch_)?model-00002-of-00002"):
        load(str(path))


@pytest.mark.parametrize("kind", masked_lms.MASK)
@pytest.mark.parametrize("legacy", [False, True])
def test_pickled_weights_are_read(golden: Path, folder: Any, legacy: bool, kind: str) -> None:
    path = folder(kind)
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    if kind == "bert":
        tensors = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): tensor for name, tensor in tensors.items()}
    torch.save(tensors, path / "pytorch_model.bin", _use_new_zipfile_serialization=not legacy)
    assert torch.equal(outputs(load(str(path))), outputs(load(str(golden / kind))))


def test_weights_saved_from_a_gpu_are_read_without_one(golden: Path, folder: Any) -> None:
    """The pickle names the device of every storage."""
    path = folder("llada")
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    torch.save(tensors, path / "here.pt")
    with zipfile.ZipFile(path / "here.pt") as old, zipfile.ZipFile(path / "pytorch_model.bin", "w") as new:
        for entry in old.infolist():
            content = old.read(entry)
            if entry.filename.endswith("data.pkl"):
                assert b"X\x03\x00\x00\x00cpu" in content
                content = content.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
            new.writestr(entry, content)
    (path / "here.pt").unlink()
    assert torch.equal(outputs(load(str(path))), outputs(load(str(golden / "llada"))))


@pytest.mark.parametrize("kind", ["llada", "sdtt", "maskgit"])
def test_files_beside_the_weights_are_no_reason_to_refuse(golden: Path, folder: Any, tmp_path: Path, kind: str) -> None:
    path, marker = folder(kind), tmp_path / "executed"
    options: dict[str, Any] = {"heads": 4, "codes": 40} if kind == "maskgit" else {}
    original = outputs(load(str(path), **options))
    for name in ("training_args.bin", "optimizer.pt", "notes.pt"):
        (path / name).write_bytes(pickle.dumps(Command(marker)))
    (path / "tf_model.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(600))
    (path / "flax_model.msgpack").write_bytes(b"\x81\xa5flax" * 40)
    (path / "modeling.py").write_text(f"open({str(marker)!r}, 'w')\n")
    (path / "checkpoint-5").mkdir()
    for name in ("config.json", "model.safetensors"):
        if (path / name).exists() and kind == "llada":
            shutil.copy(path / name, path / "checkpoint-5")
            torch.save(load_file(path / "model.safetensors"), path / "pytorch_model.bin")
    assert torch.equal(outputs(load(str(path), **options)), original)
    assert not marker.exists()


def test_vocabulary_of_one_token_a_line_is_read(folder: Any) -> None:
    path = folder("bert")
    (path / "tokenizer.json").unlink()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sat", "."]
    (path / "vocab.txt").write_text("\n".join(words + [f"x{n}" for n in range(30)]) + "\n")
    model = load(str(path))
    ids = model.codec.encode("The cats sat.")
    assert ids == [4, 5, 6, 7, 8] and model.decode(torch.tensor([ids])) == ["the cats sat."]
    path = folder("esm")
    (path / "tokenizer.json").unlink()
    letters = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"]
    (path / "vocab.txt").write_text("\n".join(letters))
    model = load(str(path))
    assert model.codec.encode("MAL<eos>") == [20, 5, 4, 2]
    assert model.decode(torch.tensor([[0, 20, 5, 4, 32]])) == ["<cls>MAL[MASK]"]


def change(path: Path, **changes: Any) -> Path:
    tree = json.loads((path / "config.json").read_text()) | changes
    (path / "config.json").write_text(json.dumps(tree))
    return path


HOSTILE: list[tuple[str, dict[str, Any], str]] = [
    ("llada", {"rope_theta": 0}, "rope_base"),
    ("llada", {"rope_theta": 1e300}, "rope_base"),
    ("llada", {"n_heads": 3}, "must be a multiple of 3 heads"),
    ("llada", {"n_heads": 8, "n_kv_heads": 3}, "cannot share 3 key heads"),
    ("llada", {"n_heads": 10**9}, "network.heads"),
    ("llada", {"d_model": 10**12}, "network.width"),
    ("llada", {"mask_token_id": 40}, "mask id 40 is not one of its 40 rows"),
    ("llada", {"mask_token_id": -1}, "mask id -1"),
    ("llada", {"mask_token_id": "x"}, "mask id 'x'"),
    ("llada", {"block_type": "sequential"}, "block_type 'sequential'"),
    ("llada", {"mlp_hidden_size": None}, "no usable 'mlp_hidden_size'"),
    ("llada", {"max_sequence_length": 10**9, "rms_norm_eps": 2}, "network.eps"),
    ("a2d", {"head_dim": 7}, "heads of width 7"),
    ("a2d", {"head_dim": 10**6}, "network.head_width"),
    ("a2d", {"rope_parameters": {"rope_theta": 1e4, "rope_type": "yarn"}}, "rope_type 'yarn'"),
    ("a2d", {"layer_types": ["sliding_attention"] * 2}, "layer_types"),
    ("a2d", {"num_key_value_heads": [1]}, "network.kv_heads"),
    ("bert", {"num_attention_heads": 5}, "multiple of 5 heads"),
    ("bert", {"hidden_act": "sinus"}, "network.activation"),
    ("bert", {"is_decoder": True}, "is_decoder"),
    ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
    ("roberta", {"pad_token_id": 10**15}, "impossible id"),
    ("roberta", {"pad_token_id": 13}, "network.length"),
    ("roberta", {"layer_norm_eps": 0}, "network.eps"),
    ("esm", {"rope_theta": -1}, "rope_base"),
    ("esm", {"pad_token_id": "x"}, "impossible id 'x'"),
    ("esm", {"pad_token_id": -1}, "impossible id -1"),
    ("esm", {"tie_word_embeddings": "yes"}, "network.tied"),
]


@pytest.mark.parametrize(("kind", "changes", "told"), HOSTILE, ids=str)
def test_hostile_configurations_are_refused_in_one_sentence(
    folder: Any, kind: str, changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(UserError, match=told):
        load(str(change(folder(kind), **changes)))


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "config.json", "", "other/x.safetensors"])
def test_index_of_shards_names_only_tensor_files_beside_it(folder: Any, name: str) -> None:
    path = folder("llada")
    shard(path)
    shutil.copy(path / "model-00001-of-00002.safetensors", path.parent / "secret.safetensors")
    index = path / "model.safetensors.index.json"
    tree = json.loads(index.read_text())
    tree["weight_map"] = dict.fromkeys(tree["weight_map"], name)
    index.write_text(json.dumps(tree))
    with pytest.raises(UserError, match=r"lacks the shard|not a readable checkpoint|torch checkpoint"):
        load(str(path))


def test_shards_must_fit_into_memory_together(folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder("llada")
    shard(path)
    largest = max(file.stat().st_size for file in path.glob("*.safetensors"))
    monkeypatch.setattr(model_folder, "physical_memory", lambda: largest + 1)
    with pytest.raises(UserError, match=r"2 files beside .* are larger than this machine's memory"):
        load(str(path))


def test_wrong_tensors_are_refused_in_one_sentence(folder: Any) -> None:
    path = folder("bert")
    tensors = load_file(path / "model.safetensors")
    types, bias = "bert.embeddings.token_type_embeddings.weight", "cls.predictions.bias"
    for name, tensor, told in (
        (types, torch.zeros(2, 3), "their types"),
        (types, torch.tensor(1.0), "their types"),
        (bias, torch.tensor(1.0), "one row for each token"),
        ("bert.embeddings.word_embeddings.weight", torch.zeros(3), "token table"),
        ("bert.encoder.layer.0.intermediate.dense.bias", torch.zeros(3), "3 in the file"),
        ("bert.other.weight", torch.zeros(3), "which the network does not have"),
    ):
        save_file(tensors | {name: tensor}, path / "model.safetensors")
        with pytest.raises(UserError, match=told):
            load(str(path))
    save_file({name: t for name, t in tensors.items() if "transform" not in name}, path / "model.safetensors")
    with pytest.raises(UserError, match="no masked-language-model head"):
        load(str(path))


def test_mask_and_vocabulary_must_be_known(folder: Any) -> None:
    path = folder("bert")
    tree = masked_lms.tokenizer_tree("bert")
    tree["model"]["vocab"] = {f"v{id}": id for id in range(41)}
    (path / "tokenizer.json").write_text(json.dumps(tree))
    with pytest.raises(UserError, match="which token is the mask"):
        load(str(path))
    with pytest.raises(UserError, match=r"ids up to 40, model.safetensors only 40 rows"):
        load(str(change(path, mask_token_id=3)))
    (path / "tokenizer.json").unlink()
    model = load(str(path))
    assert model.denoiser.symbols == 39
    with pytest.raises(UserError, match="tokenizer 'bert' is not part of di4c"):
        model.decode(torch.zeros(1, 3, dtype=torch.long))


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("llada2_moe", "family is llada, but its MLPs are mixtures"),
        ("qwen3", "family is a2d, but its attention is causal"),
        ("modernbert", "family is bert, but its blocks are built otherwise"),
        ("t5", "an encoder and a decoder"),
        ("SDAR", "block after block"),
        ("novel", "family is a2d, but its tensors have the same names under another model_type"),
    ],
)
def test_unknown_type_names_the_nearest_family(folder: Any, kind: str, told: str) -> None:
    path = change(folder("a2d"), model_type=kind)
    with pytest.raises(UserError, match=told):
        load(str(path))


def test_unknown_tensors_name_the_nearest_family_and_what_differs(folder: Any) -> None:
    path = folder("bert")
    tensors = load_file(path / "model.safetensors")
    tensors["bert.encoder.layer.0.gate.weight"] = torch.zeros(2, 2)
    save_file(tensors, path / "model.safetensors")
    with pytest.raises(UserError, match=r"nearest family is bert, but it has bert\.encoder\.layer\.0\.gate\.weight\."):
        load(str(change(path, model_type="novel")))
    (path / "config.json").unlink()
    with pytest.raises(UserError, match=r"no configuration that di4c knows; the nearest family is bert: it has"):
        load(str(path))
    save_file({"a": torch.zeros(2)}, path / "model.safetensors")
    with pytest.raises(UserError, match="no checkpoint of a known format"):
        load(str(path))
