"""JSON and YAML of any origin: plain values or one sentence, in bounded time and memory."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from di4c_cli import recipe_file
from di4c_cli.errors import UserError
from di4c_cli.evaluation import results
from di4c_cli.foreign import structured
from di4c_cli.foreign.structured import StructureError, parse_json, parse_yaml, read_json, read_yaml
from di4c_cli.limits import read_config
from di4c_cli.teacher import safe

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=8)
PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
TREES = st.recursive(PLAIN | TEXT, lambda t: st.lists(t, max_size=4) | st.dictionaries(TEXT, t, max_size=4))

REJECTED_YAML = {
    "0b_": "0b_ is not a number",
    "9" * 5000: "more than 20 digits",
    "1e999": "not a finite number",
    ".nan": "not a finite number",
    "[" * 100_000: "deeper than 200",
    "&a [*a]": "recursive|deeper than 200",
    "{<<: {b: 1}}": "merge keys",
    "{a: 1, a: 2}": "twice",
    "!!python/object/apply:os.system [ls]": "is not read",
    '"\\ud800"': "surrogate",
    '"\\UFFFFFFFF"': "too large",
    "!!int ''": "out of range",
    "!!bool maybe": "maybe",
    "\x00": "not allowed",
}
REJECTED_JSON = {
    '{"a": 1, "a": 2}': "'a' stands there twice",
    "[NaN]": "NaN is not a finite number",
    "1e999": "not a finite number",
    "9" * 21: "more than 20 digits",
    "[" * 100_000: "deeper than 200",
    "[" * 202 + "]" * 202: "deeper than 200",
    '{"\\ud800": 1}': "surrogate",
    "[1,": "line 1, column",
    "": "line 1, column 1",
}


@given(TREES)
@settings(max_examples=25, deadline=None)
def test_readers_give_back_what_the_libraries_write(tree: Any) -> None:
    assert parse_json(json.dumps(tree)) == tree
    assert parse_yaml(yaml.safe_dump(tree, allow_unicode=True)) == tree


@pytest.mark.parametrize("text", REJECTED_YAML, ids=lambda text: text[:12])
def test_yaml_is_rejected_in_recipes_settings_and_runs(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"training: {text}")
    with pytest.raises(UserError, match=REJECTED_YAML[text]) as caught:
        recipe_file.read(str(path))
    assert "mine.yaml is not a readable recipe" in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(UserError, match=REJECTED_YAML[text]):
        recipe_file.parse_assignment(f"training.iterations={text}")
    assert safe.read_tree(path) is None


def test_yaml_reads_dates_as_text_keys_as_written_and_floats_of_version_1_2() -> None:
    assert parse_yaml("day: 2024-13-45\n1: a\nyes: 1e-5") == {"day": "2024-13-45", "1": "a", "yes": 1e-5}
    assert parse_yaml("a: !!python/tuple [1, 0x10, 1_000]") == {"a": [1, 16, 1000]}


def test_yaml_aliases_count_as_the_values_they_stand_for() -> None:
    assert parse_yaml("a: &x [1, 2]\nb: *x") == {"a": [1, 2], "b": [1, 2]}
    rows = [f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 9)}]" for n in range(12)]
    with pytest.raises(StructureError, match="more than 131,072 values"):
        parse_yaml("\n".join(["a: &a [1, 1]", *rows]))


@pytest.mark.parametrize("text", REJECTED_JSON, ids=lambda text: text[:12])
def test_json_is_rejected_in_configurations_and_results(tmp_path: Path, text: str) -> None:
    for name, read in (("config.json", lambda path: read_config(path.parent)), ("results.json", results.load)):
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(UserError, match=REJECTED_JSON[text]) as caught:
            read(path)
        assert name in str(caught.value) and "\n" not in str(caught.value)


def test_readers_name_their_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"[" + b"0," * 600 + b"0]")
    with pytest.raises(UserError, match="larger than 1 kB, the limit for a JSON file"):
        read_json(path, 1024)
    monkeypatch.setattr(structured, "MAX_VALUES", 500)
    with pytest.raises(UserError, match="more than 500 values"):
        read_json(path)
    path.write_bytes(b"a: " + b"x" * structured.MAX_YAML_BYTES)
    with pytest.raises(UserError, match="larger than 128 kB"):
        read_yaml(path)
    path.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(UserError, match="byte 7 is not UTF-8"):
        read_json(path)
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_json(path) == {"a": 1}


def test_json_limits_take_the_largest_published_files() -> None:
    merges, vocabulary = 580_000, 262_144  # Gemma's tokenizer.json: pairs of texts, and a mapping
    assert 3 * merges + 2 * vocabulary < structured.MAX_VALUES


@pytest.mark.parametrize("parse", [parse_json, parse_yaml])
def test_readers_read_or_reject_every_mutation(parse: Any) -> None:
    chance = random.Random(0)
    whole = json.dumps({"a": [1, 2.5, None, {"b": "text", "c": [True] * 3}], "d": {"e": "\u1234", "f": -1}})
    for _ in range(400):
        raw = bytearray(whole.encode())
        for _ in range(chance.randint(1, 5)):
            raw[chance.randrange(len(raw))] = chance.choice(b'[]{}"\\:,&*!?|>%@`-_019eE.\x00\xff\n \t<')
        try:
            tree = parse(bytes(raw))
        except StructureError as error:
            assert str(error)
        else:
            json.dumps(tree, allow_nan=False).encode()
