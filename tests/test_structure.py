"""The tree's own rules: size of the package, unique class names, no import cycles, plain words, line lengths.

`lint-imports` checks the layers; `test_public.py` checks types and docstrings.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "di4c_cli"
MAX_PACKAGE_LINES = 28_000
MAX_FILE_LINES = 350
MAX_MARKDOWN_COLUMNS = 120
MAX_README_LINES, README_COLUMNS = 150, 100
MAX_PAGE_LINES = 200
LONG_PAGES = {"recipes.md": "generated: one row for every key and recipe, and tests compare it with the schemas"}
FORBIDDEN_WORDS = re.compile(r"\b(?:price|lesson|taught|fulfil|entrant)\b", re.IGNORECASE)
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "tools" / "README.md",
    ROOT / "SECURITY.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
BINARY = (".pyc", ".safetensors", ".npz", ".png", ".xz", ".gz", ".pt")
NOT_A_REASON = re.compile(r"#\s*(?:noqa|type: ignore|pragma)\S*(?: [A-Z]+\d+)?")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
IMPORTS = (ast.Import, ast.ImportFrom)


def sources() -> Iterator[Path]:
    yield from sorted(PACKAGE.rglob("*.py"))


def line_count(path: Path) -> int:
    return len(path.read_bytes().splitlines())


def local_imports(tree: ast.Module) -> dict[int, int]:
    """First and last line of every import that stands inside a function."""
    return {
        node.lineno: node.end_lineno or node.lineno
        for function in ast.walk(tree)
        if isinstance(function, FUNCTIONS)
        for node in ast.walk(function)
        if isinstance(node, IMPORTS)
    }


def unexplained(text: str) -> list[int]:
    """Lines of function-local imports with no comment on them or above; a comment above a block is for all of it."""
    lines = text.splitlines()
    spans = local_imports(ast.parse(text))
    ends = {last: first for first, last in spans.items()}

    def explained(first: int) -> bool:
        beside = (lines[first - 1], lines[spans[first] - 1])
        if any("#" in NOT_A_REASON.sub("", line) for line in beside):
            return True
        above = lines[first - 2].strip()
        if above.startswith("#"):
            return bool(NOT_A_REASON.sub("", above).strip("# "))
        return first - 1 in ends and explained(ends[first - 1])

    return sorted(first for first in spans if not explained(first))


def import_cycle(package: str, root: Path = ROOT) -> list[str]:
    """Modules of one cycle of module-level imports outside TYPE_CHECKING; empty if there is none."""
    grimp = pytest.importorskip("grimp")
    graph = grimp.build_graph(package, exclude_type_checking_imports=True, cache_dir=None)
    imported: dict[str, set[str]] = {}
    for module in graph.modules:
        path = root.joinpath(*module.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        local = local_imports(ast.parse(path.read_text(encoding="utf-8")))
        imported[module] = {
            other
            for other in graph.find_modules_directly_imported_by(module)
            for detail in graph.get_import_details(importer=module, imported=other)
            if detail["line_number"] not in local
        }
    try:
        list(TopologicalSorter(imported).static_order())
    except CycleError as error:
        return list(error.args[1])
    return []


def test_package_stays_small() -> None:
    assert sum(map(line_count, sources())) <= MAX_PACKAGE_LINES


def test_file_stays_short() -> None:
    paths = [path for top in ("di4c_cli", "tests", "tools", "benchmarks") for path in (ROOT / top).rglob("*.py")]
    lengths = {str(path.relative_to(ROOT)): line_count(path) for path in paths}
    assert {name: count for name, count in lengths.items() if count > MAX_FILE_LINES} == {}


def test_class_name_is_used_once() -> None:
    places = defaultdict(list)
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_modules_have_no_import_cycle() -> None:
    assert import_cycle("di4c_cli") == []


def test_import_cycle_counts_module_level_imports_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ring import b\n"
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "ring").mkdir()
    for name, text in {"__init__": "", "a": "from ring import b\n", "b": "from ring.c import x\n"}.items():
        (tmp_path / "ring" / f"{name}.py").write_text(text)
    for text, cycle in {
        "def f():\n    from ring import b\n": [],
        guarded: [],
        "from ring import b\n": ["ring.b", "ring.c"],
    }.items():
        (tmp_path / "ring" / "c.py").write_text(text)
        assert sorted(set(import_cycle("ring", tmp_path))) == cycle


def test_function_local_import_has_a_reason() -> None:
    silent = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sources()
        if PACKAGE / "cli" not in path.parents
        for line in unexplained(path.read_text(encoding="utf-8"))
    ]
    assert silent == []


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        ("import os  # slow", []),
        ("# slow\n    import os\n    import re", []),
        ("import os  # noqa: F401", [2]),
        ("# noqa\n    import os", [3]),
        ("x = 1\n    import os\n    from re import (\n        sub,\n    )  # rare", [3]),
        ("if True:\n        import os", [3]),
    ],
)
def test_unexplained_finds_imports_without_a_comment(body: str, lines: list[int]) -> None:
    assert unexplained(f"def f():\n    {body}\n") == lines


def test_words_of_the_project_are_plain() -> None:
    files = [ROOT / "README.md", *(path for top in (PACKAGE, ROOT / "docs") for path in top.rglob("*"))]
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files
        if path.is_file() and path.suffix not in BINARY
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if FORBIDDEN_WORDS.search(line)
    ]
    assert found == []


def too_wide(page: Path, table: bool) -> list[int]:
    """Numbers of the lines beyond the columns; what a command printed (fences of `text`) stands as it is."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"^```text\n.*?^```$", lambda m: "\n" * m[0].count("\n"), text, flags=re.M | re.S)
    return [
        number
        for number, line in enumerate(text.splitlines(), start=1)
        if len(line) > MAX_MARKDOWN_COLUMNS and line.lstrip().startswith("|") == table and "http" not in line
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_markdown_prose_fits_the_columns(page: Path) -> None:
    assert too_wide(page, table=False) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_markdown_table_fits_the_columns(page: Path) -> None:
    """A row cannot be wrapped: one that holds a URL may be wider."""
    assert too_wide(page, table=True) == []


def test_readme_is_short_and_narrow() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) < MAX_README_LINES
    assert [number for number, line in enumerate(lines, start=1) if len(line) > README_COLUMNS] == []


def test_page_is_short() -> None:
    lengths = {path.name: line_count(path) for path in (ROOT / "docs").glob("*.md")}
    assert {name for name, lines in lengths.items() if lines >= MAX_PAGE_LINES} <= LONG_PAGES.keys()


def test_index_names_every_page() -> None:
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs" / "index.md").read_text(encoding="utf-8")))
    assert listed == {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}


def test_files_have_no_conflict_markers() -> None:
    marker = re.compile(r"^(?:<<<<<<<|>>>>>>>) ", re.M)
    tops = ("di4c_cli", "docs", "tests", "tools", "benchmarks", "recipes")
    files = [*ROOT.glob("*.*"), *(path for top in tops for path in (ROOT / top).rglob("*"))]
    texts = [path for path in files if path.suffix in (".py", ".md", ".yaml", ".toml", ".txt", ".json")]
    found = [path for path in texts if path.is_file() and marker.search(path.read_text(encoding="utf-8"))]
    assert [str(path.relative_to(ROOT)) for path in found] == []


def test_test_folders_are_packages() -> None:
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []


def test_tests_leave_the_import_path_alone() -> None:
    edit = re.compile(r"sys\.path\.(?:insert|append)\b")
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")}
    assert [str(path) for path, text in texts.items() if edit.search(text) and path != Path(__file__)] == []


def test_citation_has_the_version_of_the_package() -> None:
    version = re.findall(r'^__version__ = "(.*)"$', (PACKAGE / "__init__.py").read_text(encoding="utf-8"), re.M)
    assert re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.M) == version
