"""The workflow of the continuous integration covers what pyproject.toml declares and runs commands that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
JOBS: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))["jobs"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_ci_has_every_job_and_every_job_has_steps() -> None:
    assert set(JOBS) == {"lint", "test", "torch", "wheel"}
    for job in JOBS.values():
        assert job["runs-on"] and [step for step in job["steps"] if "run" in step]


def test_ci_tests_every_declared_python_and_the_oldest_and_newest_torch() -> None:
    declared = re.findall(r'Python :: (3\.\d+)"', PROJECT)
    assert JOBS["test"]["strategy"]["matrix"]["python"] == declared
    (oldest,) = re.findall(r'"torch>=([\d.]+)"', PROJECT)
    versions = JOBS["torch"]["strategy"]["matrix"]["torch"]
    assert versions[0] == f"{oldest}.0" and "2.9.1" in versions and versions[-1] == "newest"


def test_ci_runs_targets_and_tests_that_exist() -> None:
    commands = [step["run"] for job in JOBS.values() for step in job["steps"] if "run" in step]
    targets = set(re.findall(r"^([\w-]+):", MAKEFILE, re.M))
    called = {match for command in commands for match in re.findall(r"\bmake ([\w-]+)", command)}
    assert {"lint", "test-torch"} <= called <= targets
    (listed,) = re.findall(r"^TORCH_TESTS := ((?:.*\\\n)*.*)", MAKEFILE, re.M)
    paths = listed.replace("\\\n", " ").split()
    assert len(paths) > 5 and all((ROOT / path).exists() for path in paths)
