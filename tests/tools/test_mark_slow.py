"""The tool that marks slow tests: durations per function, one quick test a file, marks in their place."""

from __future__ import annotations

import ast

import pytest

from tools.mark_slow import Cost, Limits, marked, read_durations, slow_functions

DURATIONS = """
2.00s call     tests/a/test_x.py::test_one[2-a b]
0.50s setup    tests/a/test_x.py::test_one[2-a b]
0.10s call     tests/a/test_x.py::test_one[3]
0.20s call     tests/a/test_x.py::TestThing::test_two
9.00s teardown tests/a/test_x.py::TestThing::test_two
1 passed in 3.00s
"""
SOURCE = '''"""Some tests."""

from __future__ import annotations

import os


@parametrize("x", [1])
def test_one(x):
    assert x


class TestThing:
    def test_two(self):
        assert os


@pytest.mark.slow
def test_three():
    pass
'''


def test_read_durations_takes_the_slowest_case_with_its_fixtures() -> None:
    found = read_durations(DURATIONS)["tests/a/test_x.py"]
    assert found == {"test_one": Cost(2.5, pytest.approx(2.6)), "TestThing::test_two": Cost(0.2, 0.2)}


def test_slow_functions_leaves_a_file_one_quick_test() -> None:
    limits = Limits(over=1, together=5, most=3)
    long, many, medium, short = Cost(9.0, 9.0), Cost(0.5, 6.0), Cost(2.0, 2.0), Cost(0.1, 0.1)
    assert slow_functions({"a": long, "b": short}, limits) == {"a"}
    assert slow_functions({"a": many, "b": short}, limits) == {"a"}
    assert slow_functions({"a": long, "b": medium}, limits) == {"a"}
    assert slow_functions({"a": long, "b": many}, limits) == {"a", "b"}


def test_marked_writes_each_mark_once() -> None:
    names = {"test_one", "TestThing::test_two", "test_three"}
    text = marked(SOURCE, names)
    ast.parse(text)
    assert text.count("@pytest.mark.slow") == 3 and text.count("import pytest\n") == 1
    assert '@pytest.mark.slow\n@parametrize("x", [1])\n' in text
    assert "    @pytest.mark.slow\n    def test_two" in text
    assert marked(text, names) == text


def test_marked_leaves_a_file_that_is_marked_as_a_whole() -> None:
    source = "pytestmark = pytest.mark.slow\n\n\ndef test_one():\n    pass\n"
    assert marked(source, {"test_one"}) == source
