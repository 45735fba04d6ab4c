"""The command of docs/training.md for several machines is understood by those who would run it."""

from __future__ import annotations

import shlex
from pathlib import Path

from accelerate.commands.launch import launch_command_parser
from typer.testing import CliRunner

from di4c_cli import recipe_file
from di4c_cli.cli.app import app
from di4c_cli.training.plan import make_batch_plan

PAGE = Path(__file__).parents[2] / "docs" / "training.md"


def test_command_for_several_machines_is_understood() -> None:
    """By Accelerate's parser, the rest by `di4c distill`; nothing is started."""
    page = PAGE.read_text(encoding="utf-8").replace("\\\n", " ")
    (line,) = [line for line in page.splitlines() if "accelerate launch --multi_gpu" in line]
    given = launch_command_parser().parse_args(shlex.split(line)[2:])
    assert (given.num_machines, given.machine_rank, given.num_processes) == (2, 0, 16)
    words = given.training_script_args
    assert given.module and given.training_script == "di4c_cli" and words[:2] == ["distill", "--recipe"]
    batch = int(words[words.index("--batch") + 1])
    make_batch_plan(batch, recipe_file.read(words[2], {}).training.micro_batch, given.num_processes)
    result = CliRunner().invoke(app, [*words, "--help"])
    assert result.exit_code == 0, result.output
