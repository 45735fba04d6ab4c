"""Every command line shown in README.md and docs/ is executed here, shortened by flags where it is long."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from di4c_cli.cli.app import COMMANDS, app

ROOT = Path(__file__).parents[2]
ELSEWHERE = {"extending.md": "test_extending.py"}
"""Pages whose commands need what other examples on them make."""
PAGES = [
    ROOT / "README.md",
    *sorted(path for path in (ROOT / "docs").glob("*.md") if path.name not in ELSEWHERE),
]
SHOWN = re.compile(
    r"^ {4,}\$? ?((?:di4c|python|make|accelerate|pip|tests/\S+) .*)$|`((?:di4c|python|make|accelerate|pip) [^`\n]+)`",
    re.M,
)
EXEMPT = {
    r"make \w+": "make targets",
    r"pip install .*": "installs packages",
    r"accelerate launch.*": "another launcher; tests/training/test_launch.py",
    r"di4c distill .*--(processes|accelerate-config)\b.*": "several processes; tests/training/test_launch.py",
    r"di4c [\w-]+ .*\b(sdtt-[1-7]|mdlm|maskgit-\w+)\b.*": "the real Hub; tests/hub has a stand-in",
    r"di4c .*--device (cuda|mps).*": "a GPU",
    r"di4c bench-(latency|train) .*--shape (paper|cifar10|imagenet|openwebtext|text-256)\b.*": "published sizes",
    r".*(\b(FILE|NAME|FOLDER|RUN|CHECKPOINT|SOURCE|REF)\b|user/name|…|<\w+>).*": "a pattern, with words to fill in",
    r"di4c push .*": "the real Hub; tests/hub/test_push.py",
    r"di4c .* \| .*": "a pipe of the shell",
    r"python (-m pytest|tests/|docs/|benchmarks/).*": "tools of the repository, with tests of their own",
    r"python -m di4c_cli": "tests/cli/test_app.py",
}
SHORT = {
    "distill": ["--iterations", "1", "--batch", "2", "--latents", "2"],
    "sample": ["-n", "2", "--steps", "1"],
    "eval": ["-n", "20", "--steps", "1"],
    "sweep": ["--iterations", "1", "--samples", "20", "--set", "training.batch=2"],
    "bench-latency": ["--steps", "1", "--batch-size", "1", "--warmup", "1"],
    "bench-train": ["--runs", "1", "--warmup", "0", "--sides", "ours"],
    "pretrain": ["--iterations", "1"],
}
"""Appended flags; of a flag given twice the last counts."""


def shown(page: Path) -> list[str]:
    """Command lines of a page in their order: of code blocks, and inline where they have an argument."""
    out = []
    for block, inline in SHOWN.findall(page.read_text(encoding="utf-8")):
        command = re.split(r"\s{2,}|\s+#", block or inline)[0].strip()
        if block or len(command.split()) > 2:
            out.append(command)
    return list(dict.fromkeys(out))


def exempt(command: str) -> bool:
    return any(re.fullmatch(pattern, command) for pattern in EXEMPT)


def run(command: str, number: int) -> None:
    """In this process; `> file` is honoured, a training run gets a folder of its own."""
    words = shlex.split(command)
    assert words[0] == "di4c", f"not a command of ours, and on no list of exemptions: {command}"
    target = None
    if ">" in words:
        target, words = words[-1], words[: words.index(">")]
    name = next(word for word in words[1:] if word in COMMANDS)
    words += SHORT.get(name, [])
    if name == "distill" and "--out" not in words:
        words += ["--out", f"runs/{number}"]
    done = CliRunner().invoke(app, words[1:])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, f"{command}: {done.stderr}"
    if target is not None:
        Path(target).write_text(done.stdout, encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_shown_works(page: Path) -> None:
    for number, command in enumerate(shown(page)):
        if not exempt(command):
            run(command, number)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_named_exists(page: Path) -> None:
    for name in re.findall(r"`di4c ([a-z-]+)\b", page.read_text(encoding="utf-8")):
        assert name in COMMANDS, name


def test_readme_python() -> None:
    """Indented blocks that begin with an import are Python, and run."""
    blocks = re.findall(r"(?:^ {4}.*\n|^\n(?= {4}))+", (ROOT / "README.md").read_text(encoding="utf-8"), re.M)
    code = [
        re.sub(r"^ {4}", "", block, flags=re.M) for block in blocks if re.match(r" {4}(import|from) ", block)
    ]
    for block in code:
        exec(compile(block, "README.md", "exec"), {})


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "docs" / "extending.md", ROOT / "SECURITY.md"]:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert target.startswith("http") or (page.parent / target).exists(), (page.name, target)


def test_tests_named_in_the_pages_exist() -> None:
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
