"""Every sink with every payload, through the real commands: console, errors, tables, cards, plots, pages, JSON."""

from __future__ import annotations

import io
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models

from di4c_cli import recipe_file
from di4c_cli.build import build_denoiser
from di4c_cli.card import model_card
from di4c_cli.cli import console, eval, live
from di4c_cli.config import ModelConfig
from di4c_cli.errors import UserError
from di4c_cli.evaluation.results import Results
from di4c_cli.limits import read_config
from di4c_cli.model_folder import save_folder
from di4c_cli.printable import markdown, printable
from di4c_cli.publish import contents
from di4c_cli.report.page import write_all
from tests.helpers.faults import call
from tests.helpers.small_models import small_model
from tests.hostile.payloads import (
    DANGEROUS_HTML,
    ENCODABLE,
    MAX_OUTPUT,
    PAYLOADS,
    SLOW_SINKS,
    assert_clean,
    assert_inert_markdown,
    assert_printable,
)

every_payload = pytest.mark.parametrize("name", PAYLOADS)
every_encodable = pytest.mark.parametrize("name", ENCODABLE)
slow_sink = pytest.mark.parametrize("name", SLOW_SINKS)


@pytest.fixture(autouse=True)
def _crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student without a codec, three positions of three symbols."""
    model = small_model("student", world="space")
    save_folder(tmp_path_factory.mktemp("space") / "model", model.config, model.denoiser, "# small\n")
    return tmp_path_factory.getbasetemp() / "space0" / "model"


def changed(folder: Path, target: Path, *keys: str, value: object) -> Path:
    """A copy of a model folder with one value of config.json replaced."""
    shutil.copytree(folder, target)
    tree = json.loads((target / "config.json").read_text())
    place = tree
    for key in keys[:-1]:
        place = place.setdefault(key, {})
    place[keys[-1]] = value
    (target / "config.json").write_text(json.dumps(tree))
    return target


def results(text: str) -> Results:
    """An evaluation all of whose names are foreign."""
    figure = {"value": 1.5, "low": 1.0, "high": 2.0, "unit": text, "note": f"bias {text}"}
    common: dict[str, Any] = {"n": 10, "seed": 0, "seconds": 1.0, "settings": {text: text}, "samples": [text, text]}
    cells = [
        {"row": row, "column": f"{text} {k}", "steps": k, "figures": {text: figure, "kl": figure}, **common}
        for row in (text, "student")
        for k in (1, 2)
    ]
    fields = ("row", "ref", "name", "kind", "revision", "digest", "teacher")
    tree = {name: text for name in ("protocol", "title", "task", "created", "device", "main", "command")}
    more: dict[str, Any] = {"seconds": 1.0, "threads": 1, "packages": {text: text}, "notes": [text], "cells": cells}
    instrument = {"name": text, "kind": "judge", "digest": text, "reference": text}
    model = dict.fromkeys(fields, text) | {"parameters": 1}
    return Results.model_validate({**tree, **more, "models": [model], "instruments": [instrument]})


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


@every_payload
def test_printable_and_markdown(name: str) -> None:
    text = PAYLOADS[name]
    assert_printable(printable(text))
    assert "\n" not in printable(text) and len(printable(text)) <= 500
    assert printable(printable(text)) == printable(text)
    assert_printable(printable(text, 1000, lines=True))
    assert_inert_markdown(f"---\n---\n{markdown(text)}")


def test_printable_leaves_ordinary_text_alone() -> None:
    for text in ("λ ~ q, naïve café, 漢字, 🙂, a\xa0b", "it's [1] <2> \\n $3 50 %"):
        assert printable(text) == text
    assert printable("a\tb\r\nc\rd", lines=True) == "a\tb\nc\\rd"
    assert printable("x" * 600) == "x" * 333 + "…" + "x" * 166
    assert printable(None) == "None" and printable("x" * 600, None) == "x" * 600


@every_payload
def test_console_functions(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = PAYLOADS[name]
    console.say(text)
    console.emit(text[:1000], lines=True)
    console.show_table(text, [text, text], [[text, text]])
    seen = capsys.readouterr()
    assert_printable(seen.out)
    assert_printable(seen.err)
    console.emit_json({text: [text]})
    said = capsys.readouterr().out
    assert json.loads(said) == {text: [text]} and said.rstrip("\n").isprintable()
    with pytest.raises(UserError) as caught:
        raise UserError(text, text)
    assert_printable(f"{caught.value}{caught.value.message}{caught.value.hint}")


@every_payload
@pytest.mark.parametrize("columns", [40, 120])
def test_tables_and_bars_in_a_terminal(name: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich's own sequences are colours and cursor movements; none of them carries the text."""
    text, stream = PAYLOADS[name], Screen()
    for variable, value in {"COLUMNS": str(columns), "TERM": "xterm", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setattr("sys.stderr", stream)
    console.show_table(text, ["name", text], [["a", text]])
    with console.progress(text, 2) as advance:
        advance(1)
    table = live.LiveTable(recipe_file.read("digits"))
    table._lines.append([text[:2000]] * 9)
    Console(file=stream).print(table.table(columns))
    seen = stream.getvalue()
    for forbidden in ("\x1b]", "\x1b[31m", "\x1b[H", "\x9b", "\b", "\u202e", "\x00", "\u200b"):
        assert forbidden not in seen


@pytest.mark.slow
@slow_sink
def test_arguments_echoed_by_commands(name: str) -> None:
    text = PAYLOADS[name]
    for words in (
        (text,),
        ("sample", f"--{text}"),
        ("sample", "-n", text),
        ("sample", "--teacher", text),
        ("sample", "--device", text),
        ("sample", "--label", text, "--sampler", text),
        ("recipes", text),
        ("recipes", "show", text),
        ("teachers", text),
        ("report", text),
        ("compare", text, text),
        ("sweep", text),
        ("eval", "--protocol", text),
        ("eval", "--steps", text),
        ("distill", "--recipe", text),
        ("distill", "--set", text, "--dry-run"),
        ("distill", "--data", text, "--dry-run"),
        ("distill", "--method", text),
        ("distill", "--accelerate-config", text),
        ("bench-latency", "--shape", text),
        ("convert", text, "out"),
        ("push", text, text),
    ):
        if not text.startswith("---"):
            assert_clean(call(*words), 1, 2)


@slow_sink
def test_fields_of_a_model_folder(name: str, folder: Path, tmp_path: Path) -> None:
    text = PAYLOADS[name]
    named = changed(folder, tmp_path / "named", "name", value=text)
    assert_clean(call("sample", "--student", named, "--steps", 1))
    places = ["process.schedule", "process.type", "network.type", "codec.type", "codec.file", "sampling.sampler"]
    fields = [place.split(".") for place in [*places, "latent.inject", "provenance.teacher", "kind"]]
    for number, keys in enumerate([*fields, [text]]):
        target = changed(folder, tmp_path / str(number), *keys, value=text)
        assert_clean(call("sample", "--student", target, "--steps", 1))


@every_encodable
def test_tensor_names(name: str, folder: Path, tmp_path: Path) -> None:
    target = shutil.copytree(folder, tmp_path / "model")
    tensors = load_file(target / "model.safetensors")
    tensors[PAYLOADS[name]] = torch.zeros(1)
    save_file(tensors, target / "model.safetensors")
    assert_clean(call("sample", "--student", target, "--steps", 1), 2)
    assert_clean(call("--verbose", "convert", "--verbose", target, tmp_path / "out"), 2)


@slow_sink
def test_tokens(name: str, tmp_path: Path) -> None:
    """The text of samples keeps its lines and nothing else; --out and --json keep every character."""
    text = PAYLOADS[name][:1000]
    network = {"type": "dit", "symbols": 2, "length": 4, "width": 16, "depth": 1, "heads": 2, "cond_dim": 8}
    tree = {"kind": "teacher", "name": "tokens", "network": network, "process": {"type": "masked", "symbols": 2}}
    config = ModelConfig.model_validate({**tree, "codec": {"type": "text", "file": "tokenizer.json"}})
    tokenizer = Tokenizer(models.WordLevel({f"{text}.": 0, f"{text},": 1}, unk_token=f"{text}."))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    save_folder(tmp_path / "model", config, build_denoiser(config), "# card\n", tmp_path / "tokenizer.json")
    words = ("sample", "--teacher", tmp_path / "model", "--steps", 1, "-n", 2)
    assert_clean(call(*words), 0)
    assert_clean(call(*words, "--show-steps"), 0)
    as_json = call(*words, "--json")
    assert_clean(as_json, 0)
    assert text in json.loads(as_json.stdout)["samples"][0]
    assert_clean(call(*words, "--out", tmp_path / "x.txt"), 0)
    assert text.encode() in (tmp_path / "x.txt").read_bytes()


@slow_sink
def test_results_in_tables_plots_and_pages(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = PAYLOADS[name][:20_000]
    found = results(text)
    _, picture, page = write_all(found, tmp_path)
    with Image.open(picture) as image:
        assert image.size == (832, 520)
    html = page.read_text(encoding="utf-8")
    shown, _, data = html.partition('<script type="application/json" id="results">')
    assert not DANGEROUS_HTML.search(shown) and "</script" not in data.removesuffix("</script></body></html>\n")
    assert all(char.isprintable() or char in "\n\t\xa0" for char in shown)
    assert_clean(call("report", tmp_path, "--out", tmp_path / "again.html"), 0)
    assert_clean(call("compare", tmp_path, tmp_path), 0)
    assert_clean(call("compare", tmp_path, tmp_path, "--json") if len(text) < 1000 else call("--version"), 0)
    capsys.readouterr()
    eval.show(found)
    seen = capsys.readouterr().out
    assert all(char.isprintable() or char in "\n\t" for char in seen)
    assert len(seen) < MAX_OUTPUT * 3


@every_payload
def test_model_card(name: str, folder: Path) -> None:
    text = PAYLOADS[name]
    if name == "surrogate":
        text = text.encode("utf-8", "backslashreplace").decode()  # JSON files with a lone surrogate are not read
    config = read_config(folder)
    keys = ("teacher", "repo", "path", "revision", "weights", "recipe", "data", "licence", "di4c", "torch", "round")
    config = config.model_copy(update={"name": text, "provenance": dict.fromkeys(keys, text)})
    tree = results(text).model_dump(mode="json")
    tree["models"][0]["digest"] = "d"
    card = model_card(config, tree, digest="d")
    assert_inert_markdown(card)
    assert_printable(card)
    header = yaml.safe_load(card.split("---\n")[1])
    assert header["library_name"] == "di4c" and header["license"] in ("other", "apache-2.0")


@every_encodable
def test_published_card(name: str, folder: Path, tmp_path: Path) -> None:
    """What `push` uploads beside a stranger's weights."""
    target = changed(folder, tmp_path / "model", "name", value=PAYLOADS[name])
    (target / "README.md").unlink()
    results(PAYLOADS[name][:2000]).save(target / "results.json")
    try:
        card = contents(target, "me/model")["README.md"]
    except UserError as error:
        assert_printable(str(error))
        return
    assert isinstance(card, bytes)
    assert_inert_markdown(card.decode())


@pytest.mark.slow
@slow_sink
def test_recipes_of_a_stranger(name: str, tmp_path: Path) -> None:
    text = PAYLOADS[name]
    tree = yaml.safe_load(recipe_file.find("di4c/digits").read_text())
    path = tmp_path / "mine.yaml"
    for change in ({"name": text, "summary": text}, {text: 1}, {"teacher": text}, {"data": text}, {"kind": text}):
        path.write_text(yaml.safe_dump(tree | change))
        assert_clean(call("distill", "--recipe", path, "--dry-run", "--out", tmp_path / "run"))
    if len(text) < 1000:
        assert_clean(call("recipes", "show", path), 0)
        path.write_bytes(text.encode())
        assert_clean(call("recipes", "show", path), 0)
    sweep = yaml.safe_load(recipe_file.find("ablations/alpha").read_text())
    rows = [{"label": text, "set": {text: 1}}]
    path.write_text(yaml.safe_dump(sweep | {"name": text, "summary": text, "rows": rows}))
    assert_clean(call("sweep", path), 1, 2)


@pytest.mark.slow
@slow_sink
def test_names_of_datasets_and_columns(name: str, folder: Path, tmp_path: Path) -> None:
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    text = PAYLOADS[name]
    parquet.write_table(arrow.table({text: [b"x"], f"{text}2": ["y"]}), tmp_path / "x.parquet")
    (tmp_path / "x.jsonl").write_text(json.dumps({text: text}) + "\n")
    for file in ("x.parquet", "x.jsonl"):
        words = ("distill", "--teacher", "words", "--data", tmp_path / file, "--iterations", 1, "--dry-run")
        assert_clean(call(*words))
        assert_clean(call(*words, "--set", f"data.column={text}"))


@slow_sink
def test_names_of_folders(name: str, folder: Path, tmp_path: Path) -> None:
    text = PAYLOADS[name].replace("/", "-")[:200]
    try:
        target = tmp_path / os.fsdecode(text.encode("utf-8", "surrogateescape"))
        shutil.copytree(folder, target)
    except (ValueError, OSError):
        pytest.skip("not a possible name")
    assert_clean(call("sample", "--student", target, "--steps", 1, "--out", f"{target}.txt"), 0)
    assert_clean(call("sample", "--student", target, "--steps", 1, "--json"), 0)
    assert_clean(call("convert", target, target / "x"))
    assert_clean(call("report", target), 2)
    assert_clean(call("eval", "--student", target, "-n", 4, "--steps", 1, "--out", tmp_path / "e"))
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.yaml").write_bytes(f"name: x # {target}\n".encode(errors="surrogateescape"))
    results("x").save(run / "results.json")
    assert_clean(call("report", run), 0)
