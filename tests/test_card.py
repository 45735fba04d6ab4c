"""The model card: a header the Hub understands, true statements only, nothing that breaks the page."""

from __future__ import annotations

from typing import Any

import yaml

from di4c_cli.card import model_card
from di4c_cli.config import ModelConfig
from di4c_cli.latent.config import LatentConfig

ROOT = {"source": "hub", "repo": "jdeschena/sdtt", "branch": "b", "revision": "0" * 40, "licence": "apache-2.0"}


def student(**provenance: Any) -> ModelConfig:
    return ModelConfig(
        kind="student",
        name="sdtt-7-student",
        network={"type": "dit"},
        process={"type": "masked"},
        latent=LatentConfig(dim=1),
        codec={"type": "text", "name": "gpt2"},
        provenance=provenance,
    )


def header(card: str) -> dict[str, Any]:
    tree = yaml.safe_load(card.split("---\n")[1])
    assert isinstance(tree, dict)
    return tree


def test_card_of_a_student_after_two_rounds() -> None:
    first = {"teacher": "sdtt-7", "round": 1, "parent": {"kind": "teacher", "provenance": ROOT}}
    config = student(
        teacher="sdtt-7",
        recipe={"name": "sdtt-7"},
        data="Skylion007/openwebtext",
        round=2,
        rounds=2,
        di4c="0.1.0",
        parent={"kind": "student", "provenance": first},
    )
    card = model_card(config, ref="me/model")
    found = header(card)
    assert found["base_model"] == "jdeschena/sdtt" and found["license"] == "apache-2.0"
    assert found["library_name"] == "di4c" and found["pipeline_tag"] == "text-generation"
    assert found["datasets"] == ["Skylion007/openwebtext"] and "metrics" not in found
    assert "di4c sample --student me/model --steps 4" in card and "| round | 2 of 2 |" in card
    assert "0" * 40 in card


def test_card_says_nothing_false_about_local_models() -> None:
    found = header(
        model_card(student(teacher="/home/me/model.pt", data="notes.txt", parent={"provenance": {"path": "x"}}))
    )
    assert "base_model" not in found and "datasets" not in found and found["license"] == "other"
    embedded = header(model_card(student(teacher="words", data="embedded")))
    assert embedded["base_model"] == "words" and embedded["license"] == "apache-2.0"


def test_card_shows_metrics_of_the_same_weights_only() -> None:
    """Those of the same weights, each with its way of sampling; never another model's of the same kind."""
    cells = [
        {"row": row, "column": column, "steps": 2, "n": 50, "seed": 0, "figures": {"fid": {"value": value}}}
        for row, column, value in (
            ("student", "2 steps", 3.25),
            ("student", "2 steps, T 0.8", 3.5),
            ("student", "w = 3 | x", 3.75),
            ("other", "2 steps", 7.0),
            ("teacher", "2 steps", 9.0),
        )
    ]
    cells[2]["settings"] = {"hybrid": 1}
    kinds = {"student": "student", "other": "student", "teacher": "teacher"}
    models = [{"row": row, "kind": kind, "digest": f"hash of {row}"} for row, kind in kinds.items()]
    results = {"cells": cells, "models": models}
    card = model_card(student(teacher="words"), results, digest="hash of student")
    (result,) = header(card)["model-index"][0]["results"]
    assert [figure["value"] for figure in result["metrics"]] == [3.25, 3.5, 3.75]
    assert "| fid at 2 steps, n = 50, seed 0 | 3.25 |" in card
    assert "| fid at 2 steps, T 0.8, n = 50, seed 0 | 3.5 |" in card
    assert r"| fid at w = 3 \| x, 2 steps, last 1 by the teacher, n = 50, seed 0 | 3.75 |" in card
    for digest in ("", "hash of somebody else"):
        assert "model-index" not in header(model_card(student(teacher="words"), results, digest=digest))


def test_card_escapes_a_hostile_provenance() -> None:
    nested: dict[str, Any] = {}
    for _ in range(300):
        nested = {"parent": {"provenance": nested}}
    card = model_card(student(teacher="a|b\n---\n<script>", data="x" * 5000, **nested))
    assert "<script>" not in card.split("## Provenance")[1] and "x" * 300 not in card
    assert card.count("\n---\n") == 1
