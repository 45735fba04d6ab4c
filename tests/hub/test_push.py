"""Students on the Hub: uploaded in one commit, and back as the same model, bit for bit."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file

from di4c_cli import hub as client
from di4c_cli import load
from di4c_cli.card import figures_of, rows_of
from di4c_cli.errors import Failure, UserError
from di4c_cli.evaluation.models import EvaluatedModel
from di4c_cli.evaluation.results import Cell, Figure, ModelEntry, Results
from di4c_cli.publish import publish, results_near
from di4c_cli.teacher.convert import convert
from tests.helpers.faults import run_killed
from tests.helpers.standin import GOLDEN, Fault, Run, StandIn

STUDENTS = {
    "text": ("sdtt_di4c_student", {}),
    "pixels": ("tauldr/di4c_student", {}),
    "codes": ("maskgit_di4c_student", {"heads": 4, "vqgan": str(GOLDEN / "vqgan")}),
}


def outputs(model: object) -> torch.Tensor:
    denoiser = model.denoiser  # type: ignore[attr-defined]
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(0, denoiser.process.states, (2, denoiser.length), generator=generator)
    return model.log_probs(x, 0.7, seed=5)  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("kind", STUDENTS)
def test_push_and_load_give_the_same_bits(hub: StandIn, here: Path, tmp_path: Path, kind: str) -> None:
    path, options = STUDENTS[kind]
    convert(str(GOLDEN / path), tmp_path / "run" / "student", **options)
    original = load(str(tmp_path / "run"))
    publish(tmp_path / "run", f"me/{kind}")
    back = load(f"me/{kind}")
    assert torch.equal(outputs(original), outputs(back))
    assert back.config.kind == "student" and back.config.latent == original.config.latent
    found = back.config.provenance["loaded_from"]
    assert found["repo"] == f"me/{kind}" and found["revision"] in hub.repositories[f"me/{kind}"].commits
    if kind == "codes":
        codes = torch.arange(16)[None]
        assert (back.decode(codes) == original.decode(codes)).all()
    x = back.sample(2, steps=2, seed=1)
    assert torch.equal(x, original.sample(2, steps=2, seed=1))


def test_push_uploads_the_model_files_only(hub: StandIn, here: Path, tmp_path: Path) -> None:
    convert(str(GOLDEN / "sdtt_di4c_student"), tmp_path / "out")
    (tmp_path / "out" / "notes.txt").write_text("private")
    publish(tmp_path / "out", "me/model", private=True, revision="v1")
    repository = hub.repositories["me/model"]
    files = repository.commits[repository.branches["v1"]]
    assert set(files) == {".gitattributes", "config.json", "model.safetensors", "README.md"}
    assert repository.private and repository.branches["main"] != repository.branches["v1"]
    card = files["README.md"].decode()
    header = yaml.safe_load(card.split("---")[1])
    assert header["library_name"] == "di4c" and header["pipeline_tag"] == "text-generation"
    assert "di4c sample --student me/model" in card
    weights = tmp_path / "weights"
    weights.write_bytes(files["model.safetensors"])
    with safe_open(weights, framework="pt") as file:
        assert file.metadata()["di4c"] == "2" and file.metadata()["kind"] == "student"
    assert load("me/model@v1").config.kind == "student"


def test_push_keeps_an_edited_card(hub: StandIn, here: Path, tmp_path: Path) -> None:
    convert(str(GOLDEN / "sdtt"), tmp_path / "out")
    (tmp_path / "out" / "README.md").write_text("# my own words\n")
    publish(tmp_path / "out", "me/model")
    repository = hub.repositories["me/model"]
    assert repository.commits[repository.branches["main"]]["README.md"] == b"# my own words\n"


def write_results(folder: Path, digest: str, value: float, age: float) -> None:
    """A small results.json, some seconds old."""
    figures = {"perplexity": Figure(value=value)}
    cell = Cell(row="student", column="4 steps", steps=4, n=10, seed=0, seconds=1.0, figures=figures)
    entry = ModelEntry(row="student", ref="x", name="x", kind="student", digest=digest, parameters=1)
    path = folder / "results.json"
    Results(
        protocol="x",
        title="x",
        created="x",
        seconds=1.0,
        device="cpu",
        threads=1,
        packages={},
        models=[entry],
        instruments=[],
        cells=[cell],
    ).save(path)
    os.utime(path, (1e9 - age, 1e9 - age))


def test_push_puts_metrics_into_the_card(hub: StandIn, here: Path, tmp_path: Path) -> None:
    """Of the newest one of these weights; a newer one of another student is left out."""
    run = tmp_path / "run"
    convert(str(GOLDEN / "sdtt_di4c_student"), run / "student")
    own = EvaluatedModel("student", load(str(run))).digest
    write_results(run / "old", own, 99.0, age=20)
    write_results(run / "eval", own, 12.5, age=10)
    write_results(run / "foreign", "0123456789abcdef", 1.0, age=0)
    publish(run, "me/model")
    repository = hub.repositories["me/model"]
    card = repository.commits[repository.branches["main"]]["README.md"].decode()
    header = yaml.safe_load(card.split("---")[1])
    (figure,) = header["model-index"][0]["results"][0]["metrics"]
    assert header["metrics"] == ["perplexity"] and figure["value"] == 12.5 and "4 steps" in figure["name"]


@pytest.mark.parametrize(
    "path",
    ["", "models", "models.0", "models.0.digest", "cells", "cells.0", "cells.0.figures", "cells.0.figures.perplexity"],
)
@pytest.mark.parametrize("odd", [None, 5, "text", [], [1], {}, {"a": None}, "\ud800", 10**400])
def test_odd_results_beside_a_model_are_left_out(tmp_path: Path, path: str, odd: object) -> None:
    write_results(tmp_path / "eval", "abc", 1.0, 0)
    file = tmp_path / "eval" / "results.json"
    tree = json.loads(file.read_text())
    *inner, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    node = tree
    for key in inner:
        node = node[key]
    if path:
        node[last] = odd
    file.write_text(json.dumps(tree if path else odd))
    found = results_near(tmp_path, "abc")
    assert found is None or rows_of(found, "abc") == ["student"]
    assert figures_of(found, "abc") == [] or found is not None


def test_push_again_adds_a_commit(hub: StandIn, here: Path, tmp_path: Path) -> None:
    convert(str(GOLDEN / "sdtt"), tmp_path / "out")
    first, second = publish(tmp_path / "out", "me/model"), publish(tmp_path / "out", "me/model")
    assert first != second and len(hub.repositories["me/model"].commits) == 3


@pytest.mark.slow
def test_push_private_rejects_a_public_repository(hub: StandIn, here: Path, tmp_path: Path) -> None:
    convert(str(GOLDEN / "sdtt"), tmp_path / "out")
    publish(tmp_path / "out", "me/open")
    before = dict(hub.repositories["me/open"].commits)
    with pytest.raises(UserError, match=r"me/open exists already and is public\. Make it private"):
        publish(tmp_path / "out", "me/open", private=True, revision="v2")
    assert hub.repositories["me/open"].commits == before and "v2" not in hub.repositories["me/open"].branches
    publish(tmp_path / "out", "me/closed", private=True)
    publish(tmp_path / "out", "me/closed", private=True)
    publish(tmp_path / "out", "me/closed")
    assert hub.repositories["me/closed"].private and len(hub.repositories["me/closed"].commits) == 4


def test_push_rejects_links(hub: StandIn, here: Path, tmp_path: Path) -> None:
    convert(str(GOLDEN / "sdtt"), tmp_path / "out")
    secret = tmp_path / "secret"
    secret.write_text("key")
    (tmp_path / "out" / "README.md").unlink()
    (tmp_path / "out" / "README.md").symlink_to(secret)
    with pytest.raises(UserError, match="not a file of the model folder"):
        publish(tmp_path / "out", "me/model")
    assert "me/model" not in hub.repositories


def test_push_changes_no_local_file(hub: StandIn, here: Path, tmp_path: Path) -> None:
    """There is nothing to kill it at: the Hub has the commit, or it has not."""
    convert(str(GOLDEN / "sdtt"), tmp_path / "out")
    assert run_killed(["push", tmp_path / "out", "me/model"], tmp_path / "out") == 0


def test_push_explains_refusals(hub: StandIn, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PAUSE_SECONDS", 0.01)
    convert(str(GOLDEN / "sdtt"), tmp_path / "out")
    with pytest.raises(UserError, match="not a Hub id"):
        publish(tmp_path / "out", "model")
    with pytest.raises(UserError, match="neither a run nor a model folder"):
        publish(tmp_path, "me/model")
    hub.faults.append(Fault("/api/repos/create", "403"))
    with pytest.raises(UserError, match="refuses access"):
        publish(tmp_path / "out", "me/model")
    hub.faults[:] = [Fault("/commit/", "400")]
    with pytest.raises(Failure, match="error"):
        publish(tmp_path / "out", "me/model")


@pytest.mark.slow
def test_push_and_convert_commands_round_trip(run: Run, hub: StandIn, tmp_path: Path) -> None:
    """Pull, push and pull back as a user would, each in a process of its own."""
    pulled = run("convert", "sdtt-7", "out", "--verbose")
    assert pulled.returncode == 0 and "31 tensors: 31 renamed." in pulled.stderr
    pushed = run("push", "out", "me/model", "--private")
    assert pushed.returncode == 0 and pushed.stdout.startswith(f"{hub.url}/me/model/commit/")
    assert "%" not in pushed.stderr, "progress bars are for terminals"
    back = run("convert", "me/model", "back")
    assert back.returncode == 0 and "31 matched" in back.stderr
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("out", "back"))
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
