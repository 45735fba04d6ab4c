"""`di4c teachers`, `convert` and `push` from the user's side: tables, JSON, mistakes in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from di4c_cli.cli.app import app
from di4c_cli.teacher import registry

GOLDEN = Path(__file__).parents[1] / "golden"


def invoke(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.stdout, result.stderr


def test_teachers_prints_a_table_and_json() -> None:
    code, out, err = invoke("teachers")
    assert code == 0 and "sdtt (46)" in out and "sdtt-large-7" not in out
    assert " 678-3453 MB " in out and " 16029 MB " in out and "-: its authors' page has it" in err
    assert len(out.splitlines()) == 5 + len({entry.format for entry in registry.entries().values()}), "a line each"
    assert max(map(len, out.splitlines())) <= 80
    code, out, _ = invoke("teachers", "--all")
    assert code == 0 and "digits" in out and "sdtt-large-7" in out and "maskgit-512" in out
    code, out, _ = invoke("teachers", "llada")
    assert code == 0 and "llada-8b-instruct" in out and "llada-1.5" in out and "sdtt" not in out
    code, out, _ = invoke("teachers", "--json")
    rows = {row["name"]: row for row in json.loads(out)["teachers"]}
    assert code == 0 and rows["sdtt-7"]["cached"] is False and rows["sdtt-7"]["recipe"] == "sdtt-7"
    code, out, _ = invoke("teachers", "tauldr-cifar10")
    assert code == 0 and "Dropbox" in out
    code, out, _ = invoke("teachers", "maskgit-256", "--json")
    assert code == 0 and json.loads(out)["options"] == {"heads": 16}
    code, _, err = invoke("teachers", "mdml")
    assert code == 2 and "Did you mean 'mdlm'" in err


def test_convert_prints_its_load_report(tmp_path: Path) -> None:
    code, out, err = invoke("convert", str(GOLDEN / "sdtt"), str(tmp_path / "out"), "--verbose")
    assert code == 0 and out == "" and "backbone.vocab_embed.embedding" in err
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"README.md", "config.json", "model.safetensors"}
    code, _, err = invoke("convert", str(GOLDEN / "sdtt"), str(tmp_path / "out"))
    assert code == 2 and "exists already" in err
    code, _, _ = invoke("convert", str(GOLDEN / "mdlm"), str(tmp_path / "out"), "--force")
    assert code == 0 and "mdlm" in (tmp_path / "out" / "config.json").read_text()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    code, _, _ = invoke("convert", str(GOLDEN / "mdlm"), str(tmp_path / "mine"), "--force")
    assert code == 2 and (tmp_path / "mine" / "thesis.tex").exists()


@pytest.mark.parametrize(
    ("config", "other"),
    [
        ('{"name": "a web project"}', None),
        ("[1]", None),
        ("{", None),
        ('{"di4c": 1}', "thesis.tex"),
        ('{"di4c": 1}', "src"),
        ('{"di4c": 1, "codec": {"file": "src"}}', "src"),
    ],
)
def test_convert_force_replaces_models_only(tmp_path: Path, config: str, other: str | None) -> None:
    (tmp_path / "config.json").write_text(config)
    if other is not None:
        (tmp_path / other).mkdir() if other == "src" else (tmp_path / other).write_text("x")
    before = sorted(tmp_path.iterdir())
    code, _, err = invoke("convert", str(GOLDEN / "mdlm"), str(tmp_path), "--force")
    assert code == 2 and (other or "config.json") in err and "Traceback" not in err
    assert sorted(tmp_path.iterdir()) == before and (tmp_path / "config.json").read_text() == config


def test_convert_writes_into_the_empty_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    code, _, err = invoke("convert", str(GOLDEN / "sdtt"), ".")
    assert code == 0 and "cd ." in err
    assert (tmp_path / "here" / "model.safetensors").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["convert", "nobody", "out"], "There is no model"),
        (["convert", "tauldr-di4c", "out"], "Zenodo"),
        (["convert", str(GOLDEN / "maskgit"), "out", "--codes", "40"], "--heads"),
        (["convert", str(GOLDEN / "maskgit"), "out", "--heads", "5", "--codes", "40"], "multiple"),
        (["convert", str(GOLDEN / "sdtt"), "out", "--weights", "best"], "ema or live"),
        (["convert", str(GOLDEN / "sdtt"), "out", "--tokenizer", "none.json"], "no tokenizer file"),
        (["convert", str(GOLDEN / "sdtt"), "out", "--config", "none.json"], "no configuration file"),
        (["push", "nowhere", "me/model"], "neither a run nor a model folder"),
    ],
)
def test_commands_explain_mistakes(words: list[str], told: str) -> None:
    code, out, err = invoke(*words)
    assert code == 2 and out == "" and told in err
    assert err.startswith("di4c: ") and len(err.strip().splitlines()) == 1
    assert not Path("out").exists()


def test_convert_takes_a_tokenizer_file(tmp_path: Path) -> None:
    from di4c_cli import load
    from di4c_cli.codec.text import gpt2_tokenizer

    gpt2_tokenizer(300).save(str(tmp_path / "tokenizer.json"))
    tokenizer = ["--tokenizer", str(tmp_path / "tokenizer.json")]
    code, _, err = invoke("convert", str(GOLDEN / "sdtt"), str(tmp_path / "out"), *tokenizer)
    assert code == 0, err
    assert (tmp_path / "out" / "tokenizer.json").is_file()
    assert load(str(tmp_path / "out")).codec.encode("ab") == [64, 65]
