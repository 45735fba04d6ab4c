"""Every command line shown in the pages and recipes is executed here, shortened by flags where it is long.

Words to fill in (FILE, RUN, <world>) and files that a page takes for granted are made small here. What cannot be
executed stands in EXEMPT with the reason.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from di4c_cli.cli.app import COMMANDS, app
from tests.helpers.published_models import GOLDEN
from tests.helpers.scan_network import Scan
from tests.helpers.shown import commands, header, overlooked
from tests.helpers.small_models import judge_folder

__all__ = ["judge_folder"]
ROOT = Path(__file__).parents[2]
ELSEWHERE = {"extending.md": "test_extending.py", "extending-sampling.md": "test_extending.py"}
"""Pages whose commands need what other examples on them make; that file runs them."""
ALL = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "di4c_cli" / "embedded" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
PAGES = [page for page in ALL if page.name not in ELSEWHERE]
RECIPES = sorted((ROOT / "recipes").rglob("*.yaml"))
EXEMPT = {
    r"make \w+": "make targets",
    r"di4c .*--accelerate-config (ddp|fsdp2|deepspeed-zero2)\b.*": "a GPU",
    r"di4c .*--device (cuda|mps)\b.*": "a GPU",
    r"di4c .*--teacher (sdtt-\d|mdlm|duo|llada-8b|maskgit-256)\b.*": "the real Hub; tests/hub has a stand-in",
    r"di4c eval .*--model sdtt-\d.*": "the real Hub; tests/cli/test_eval_protocols.py has stand-ins",
    r"di4c .*--teacher runs/plane/teacher\b.*": "benchmarks/plane.py trains this teacher",
    r"di4c push .*": "the real Hub; tests/hub/test_push.py",
    r"di4c .*--recipe bench-2d/.*": "benchmarks.plane, which makes its data",
    r"di4c sweep contest/.*": "tests/training/test_contest.py runs one; test_recipe_header dry runs of all",
    r"(accelerate launch|torchrun) .*--n(um_machines|nodes) .*": "several machines; test_several_machines.py parses it",
    r"(pip (install|download)|npm pack) .*": "a package index",
    r"python3 -m venv .*": "a package index, for what is installed next",
    r"(\S*/)?python -m pytest .*": "this suite",
    r"di4c distill --teacher FOLDER .*": "a foreign checkpoint; tests/teacher has every layout",
    r"di4c convert FILE\.ckpt .*": "a foreign checkpoint; tests/teacher has every layout",
}
SHORT = {
    "distill": ["--iterations", "1", "--batch", "2"],
    "sample": ["-n", "2", "--steps", "1"],
    "eval": ["-n", "20", "--steps", "1"],
    "sweep": [
        *("--iterations", "1", "--samples", "20", "--set", "training.batch=2", "--set", "evaluation.steps=[1]"),
        *("--set", "training.synthetic_pool=4", "--set", "training.synthetic_steps=1"),
    ],
    "bench-latency": ["--steps", "1", "--batch-size", "1", "--warmup", "1"],
    "pretrain": ["--iterations", "1", "--batch", "2"],
}
"""Appended flags; of a flag given twice the last counts."""
TOOLS = re.compile(r"python (?:-m )?((?:tools|benchmarks|tests)[./]\S+)(.*)")
"""Scripts of the repository; they take minutes to hours, so their own account of their flags is asked."""
LATE = re.compile(r"\bRUN\b")
"""Lines that need what others on the page make."""


ONCE = ("di4c eval --protocol steps-saved", "accelerate launch -m di4c_cli distill …")
"""Long lines that stand alone: tried on the first page that shows them."""


def exempt(command: str) -> bool:
    return any(re.fullmatch(pattern, command) for pattern in EXEMPT)


def filled(command: str) -> str:
    """A line with its words to fill in replaced by small real things."""
    for word, real in {
        "<world>": "digits",
        "--protocol NAME": "--protocol digits",
        "gpt2-large": "judge",
        "FILE": "texts.txt",
        "RUN": "runs/mine",
        " …": "",
    }.items():
        command = command.replace(word, real)
    return command


def lay_out(judge: Path) -> None:
    """What pages take for granted, in the current folder: a judge, texts, a pixel pair in its authors' layout."""
    shutil.copytree(judge, "judge")
    Path("texts.txt").write_text("the sea\nthe land and the sea\n" * 10)
    shutil.copytree(GOLDEN / "tauldr" / "di4c_student", "runs/cifar10")
    shutil.copy(GOLDEN / "tauldr" / "teacher" / "checkpoints" / "ckpt_0001999999.pt", ".")
    shutil.copy(GOLDEN / "tauldr" / "teacher" / "config" / "config_001.yaml", ".")
    shutil.copytree(GOLDEN / "bert", "my-masked-lm")
    shutil.copytree(GOLDEN / "mdlm", "my-mdlm")
    for name in ("english", "english-sdtt"):
        shutil.copytree(ROOT / "di4c_cli" / "embedded" / "words" / "teacher", f"runs/{name}")
    np.save("points.npy", np.random.default_rng(0).integers(0, 50, size=(200, 2)))
    torch.jit.script(Scan()).save("inception.pt")
    images = np.random.default_rng(0).integers(0, 24, size=(30, 8, 8, 3)).astype(np.uint8)
    np.savez("cifar10-train.npz", images=images)
    for part in ("train", "held-out"):
        Path("corpus", part).mkdir(parents=True)
        Path("corpus", part, "sea.txt").write_text("the sea and the land and the wind over the sea\n" * 200)
    shutil.copy("corpus/train/sea.txt", "corpus.txt")
    Path("data/cifar10").mkdir(parents=True)
    for number, image in enumerate(images):
        Image.fromarray(image).save(f"data/cifar10/{number}.png")


def short(words: list[str], number: int) -> list[str]:
    """A line of ours with the flags that make it quick; a training run gets a folder of its own."""
    name = next((word for word in words[1:] if word in COMMANDS), "")
    more = SHORT.get(name, [])
    if name == "eval" and "--protocol" in words:
        more = ["--limit", "20", "--steps", "1", "--student", "digits-student"]
        if "steps-saved" not in words:
            more = ["--limit", "2"]
    if name == "eval" and "--samples" in words:
        more = []
    if name == "distill" and "--out" not in words:
        more = [*more, "--out", f"runs/{number}"]
    if name == "bench-latency" and "--shape" in words:
        words = without_shape(words)
    return [*words, *more]


def without_shape(words: list[str]) -> list[str]:
    """A benchmark of a small model instead of a published size, which takes minutes; tests/bench has the sizes."""
    place = words.index("--shape")
    explained = CliRunner().invoke(app, ["bench-latency", "--help"], env={"COLUMNS": "200"}).stdout
    assert re.search(rf"\b{re.escape(words[place + 1])}\b", explained), f"unknown shape {words[place + 1]}"
    return [*words[:place], "--teacher", "digits", *words[place + 2 :]]


def run(command: str, number: int = 0, flags: tuple[str, ...] = ()) -> None:
    """In this process where that is possible, else through a shell in which `di4c` is this interpreter's."""
    line = filled(command)
    tool = TOOLS.fullmatch(line)
    if tool is not None:
        check_tool(tool[1], tool[2].split())
        return
    if not line.startswith("di4c ") or "|" in line or "--processes" in line:
        in_shell(line, number)
        return
    words = shlex.split(line)
    target = None
    if ">" in words:
        target, words = words[-1], words[: words.index(">")]
    done = CliRunner().invoke(app, [*short(words, number)[1:], *flags])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, f"{command}: {done.stderr}"
    if target is not None:
        Path(target).write_text(done.stdout, encoding="utf-8")


def in_shell(line: str, number: int) -> None:
    """Pipes, variables, several processes, other launchers. A bare `di4c` greets."""
    first, *rest = re.split(r"(?= [|>] )", line, maxsplit=1)
    words = [Path(word).name if re.search(r"/di4c$", word) else word for word in shlex.split(first)]
    if "--processes" in words:
        words[words.index("--processes") + 1] = "2"
    if "launch" in words:
        words[words.index("launch") + 1 : words.index("launch") + 1] = ["--cpu", "--num_processes", "1"]
    bare = words in (["di4c"], ["python", "-m", "di4c_cli"])
    here = f"{shlex.quote(sys.executable)} -m"
    script = (
        f'di4c() {{ {here} di4c_cli "$@"; }}; python() {{ {shlex.quote(sys.executable)} "$@"; }}; '
        f'accelerate() {{ {here} accelerate.commands.accelerate_cli "$@"; }}; set -o pipefail; '
    )
    known = words if bare or words[0] == "python" else short(words, number)
    quoted = " ".join(word if re.match(r"[A-Z_]+=", word) else shlex.quote(word) for word in known)
    done = subprocess.run(
        ["bash", "-c", script + quoted + "".join(rest)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"ACCELERATE_LOG_LEVEL": "ERROR"},
    )
    if bare:
        assert "di4c --help" in done.stdout + done.stderr, line
    else:
        assert done.returncode == 0, f"{line}: {done.stderr}"


def check_tool(name: str, flags: list[str]) -> None:
    """A script, by path or as a module, that is there and knows the flags shown."""
    start = [ROOT / name] if name.endswith(".py") else ["-m", name]
    done = subprocess.run([sys.executable, *start, "--help"], capture_output=True, text=True, check=True)
    for flag in flags:
        assert not flag.startswith("--") or flag in done.stdout, f"{name} has no {flag}"


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: "/".join(page.parts[-2:]))
def test_page_shows_commands_that_work(page: Path, judge_folder: Path) -> None:
    lay_out(judge_folder)
    before = [text for other in PAGES[: PAGES.index(page)] for text in commands(other.read_text("utf-8"))]
    done = [command for command in ONCE if command in before]
    shown = commands(page.read_text(encoding="utf-8"))
    found = [command for command in shown if not exempt(command) and command not in done]
    for number, command in enumerate(sorted(found, key=lambda command: LATE.search(command) is not None)):
        run(command, number)


@pytest.mark.parametrize("page", ALL, ids=lambda page: "/".join(page.parts[-2:]))
def test_page_commands_are_all_collected(page: Path) -> None:
    assert overlooked(page.read_text(encoding="utf-8")) == []


def test_commands_finds_blocks_and_inline_code() -> None:
    page = (
        "Bare:\n\n    di4c\n    $ di4c teachers --json   a remark\n    VAR=1 .venv/bin/di4c sample -n 2 # more\n\n"
        "```\n$ di4c eval \\\n    --steps 1\n```\n\n```text\ndi4c distill prints this\n```\n\n"
        "Inline `di4c recipes`, `di4c distill\n--force` and `di4c` in words.\n\n    di4c eval | tail -n 1\n"
    )
    assert commands(page) == [
        "di4c",
        "di4c teachers --json",
        "VAR=1 .venv/bin/di4c sample -n 2",
        "di4c eval --steps 1",
        "di4c distill --force",
        "di4c eval | tail -n 1",
    ]
    assert overlooked(page) == []
    assert overlooked("Like this:\n    sudo di4c eval -n 3\n") == ["sudo di4c eval -n 3"]
    assert overlooked("With `sudo di4c eval -n 3` too.") == ["sudo di4c eval -n 3"]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.relative_to(ROOT / "recipes").as_posix())
def test_recipe_header_runs_the_recipe(recipe: Path, judge_folder: Path) -> None:
    """By a dry run, where the command has one."""
    command = header(recipe)
    if not exempt(command):
        lay_out(judge_folder)
        run(command, flags=("--dry-run",) if re.search(" (distill|sweep) ", command) else ())


def test_page_names_existing_targets_and_extras() -> None:
    """Make targets and extras can be looked up, even if they are not run."""
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M)
    project = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2]
    extras = re.findall(r"^(\w+) = \[", project.partition("\n[")[0], re.M)
    for page in ALL:
        text = page.read_text(encoding="utf-8")
        assert set(re.findall(r"^    make (\w+)|`make (\w+)`", text, re.M)) <= {
            pair for target in targets for pair in ((target, ""), ("", target))
        }
        assert set(re.findall(r"di4c\[(\w+)\]", text)) <= set(extras), page.name


@pytest.mark.parametrize("page", ALL, ids=lambda page: "/".join(page.parts[-2:]))
def test_page_names_existing_commands(page: Path) -> None:
    for name in re.findall(r"`di4c ([a-z][a-z-]*)\b", page.read_text(encoding="utf-8")):
        assert name in COMMANDS, name


@pytest.mark.parametrize("name", ["README.md", "docs/api.md", "docs/troubleshooting.md"])
def test_page_python_runs(name: str) -> None:
    """Indented blocks that begin with an import are Python, and run."""
    blocks = re.findall(r"(?:^ {4}.*\n|^\n(?= {4}))+", (ROOT / name).read_text(encoding="utf-8"), re.M)
    code = [re.sub(r"^ {4}", "", block, flags=re.M) for block in blocks if re.match(r"\s*(import|from) ", block)]
    assert code
    for block in code:
        exec(compile(block.lstrip("\n"), name, "exec"), {})


def test_page_links_lead_somewhere() -> None:
    for page in ALL:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert target.startswith("http") or (page.parent / target).exists(), (page.name, target)


def test_page_names_existing_tests() -> None:
    """SECURITY.md and docs/reliability.md name the tests behind their promises."""
    known = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.M)
    }
    for page in (ROOT / "SECURITY.md", ROOT / "docs" / "reliability.md"):
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"\b(test_\w+)\b(?!\.py|/)", text):
            assert name in known, (page.name, name)
        for path in re.findall(r"tests/[\w/]+\.py", text):
            assert (ROOT / path).is_file(), (page.name, path)
