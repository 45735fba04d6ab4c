"""The page: everything in one file, nothing from outside, and it opens in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from di4c_cli.errors import UserError
from di4c_cli.evaluation.pair import compare_pair
from di4c_cli.evaluation.result import Cell, Results
from di4c_cli.model import Model
from di4c_cli.report.latency import latency
from di4c_cli.report.locate import locate
from di4c_cli.report.page import page, write_page
from di4c_cli.report.sections import highlight, samples
from di4c_cli.report.svg import Series, line_chart, ticks
from di4c_cli.report.write import write_all

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")


SIDE = {"mean": 0.2, "std": 0.01, "p50": 0.2, "p95": 0.22, "samples_per_second": 50.0, "peak_mb": None}
BENCH = {
    "bench": "latency",
    "device": "cpu",
    "processor": "A processor",
    "threads": 2,
    "torch": "2",
    "results": [
        {
            "experiment": "small <digits>",
            "batch": 10,
            "settings": {"steps": 4},
            "sides": {"teacher": SIDE, "student": SIDE},
            "overhead": {"ratio": 1.01, "low": 1.0, "high": 1.02},
        }
    ],
}
"""The shape of `bench-latency`'s last line."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, teacher: Model, pupil: Model) -> Path:
    """A run folder with recipe, training record, latency and an evaluation."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "recipe.yaml").write_text("name: <b>small</b>\nteacher: small-digits\n")
    rows = [{"round": 1, "step": k, "loss": 1 / k, "consis": 2.0 / k} for k in range(1, 700)]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + '\n{"round": 1, "st')
    (folder / "latency.json").write_text("tables first\n" + json.dumps(BENCH))
    out = folder / "evaluation"
    results = compare_pair(teacher, pupil, (1, 2), n=40, gallery=out / "samples")
    write_all(results, out, "frechet", folder)
    return folder


def test_the_files_of_an_evaluation(run: Path) -> None:
    out = run / "evaluation"
    assert sorted(p.name for p in out.iterdir()) == ["quality.png", "report.html", "results.json", "samples"]
    assert Image.open(out / "quality.png").size == (832, 520)


def test_the_page_holds_everything_and_asks_for_nothing(run: Path) -> None:
    text = (run / "evaluation" / "report.html").read_text()
    for part in ("Quality against steps", "Samples", "Latency", "Training", "Recipe", "How these figures"):
        assert f"<h2>{part}" in text
    assert "&lt;b&gt;small&lt;/b&gt;" in text and "<b>small" not in text
    assert text.count("data:image/png;base64") == 4 and text.count("<svg") == 7
    assert not re.search(r'(src|href)="(?!data:)', text) and "http" not in text.replace(
        "http://www.w3.org", ""
    )


def test_latency_of_the_run_is_tabulated(run: Path, tmp_path: Path) -> None:
    text = latency(locate(run).results, run)
    assert "<td>0.2000 ± 0.0100</td>" in text and "student / teacher 1.010 (95 %: 1.000 to 1.020)" in text
    assert "A processor, cpu, 2 threads" in text and "Wall time of this evaluation</summary>" in text
    for content in ("{", "[1]", '{"results": [{"sides": 3}]}', '{"results": []}'):
        (tmp_path / "latency.json").write_text(content)
        plain = latency(locate(run).results, tmp_path)
        assert "measures it properly" in plain and "<details>" not in plain, content


def test_the_result_file_is_inside(run: Path) -> None:
    text = (run / "evaluation" / "report.html").read_text()
    inside = re.search(r'<script type="application/json" id="results">(.*?)</script>', text, re.S)
    assert inside is not None
    assert Results.model_validate_json(inside[1]) == locate(run).results


def test_hostile_names_stay_text(run: Path) -> None:
    results = locate(run).results.model_copy(update={"title": "</script><script>alert(1)</script>"})
    text = page(results, run / "evaluation")
    assert "<script>alert" not in text and text.count("</script>") == 1


def hostile(tree: Any, key: str = "") -> Any:
    """Every string of a result, keys of open dictionaries too, with a script in front."""
    script = "\"'><script>alert(1)</script>"
    if isinstance(tree, dict):
        free = key in ("figures", "settings", "packages", "detail", "provenance", "paper")
        return {f"{script}{k}" if free else k: hostile(v, "" if free else k) for k, v in tree.items()}
    if isinstance(tree, list):
        return [hostile(one, key) for one in tree]
    closed = key in ("interval", "better") or (key == "kind" and tree in ("features", "judge", "exact"))
    return f"{script}{tree}" if isinstance(tree, str) and not closed else tree


def test_every_string_of_a_result_stays_text(run: Path) -> None:
    tree = locate(run).results.model_dump(mode="json")
    tree["cells"][0] |= {"samples": ["one two"], "paper": {"frechet": 1.0}}
    for cell in tree["cells"][1:]:
        cell["samples"] = ["one three"]
    results = Results.model_validate(hostile(tree))
    text = page(results, run / "evaluation")
    assert text.count("<script") == 1 and text.count("</script>") == 1
    assert text.count("&lt;script&gt;alert(1)") > 50 and 'label=""' not in text


def test_pictures_outside_the_folder_are_not_taken_in(run: Path, tmp_path: Path) -> None:
    Image.new("L", (2, 2)).save(tmp_path / "secret.png")
    results = locate(run).results
    cell = results.cells[0].model_copy(update={"picture": f"../../{tmp_path.name}/secret.png"})
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    assert samples(results.model_copy(update={"cells": [cell]}), folder) == ""


def test_texts_are_marked_where_they_differ() -> None:
    assert (
        highlight("the old cat sat", "the new cat <sat>")
        == "the <mark>new</mark> cat <mark>&lt;sat&gt;</mark>"
    )
    cells = [
        Cell(row=row, column="4 steps", steps=4, n=1, seed=0, seconds=1, samples=[text])
        for row, text in (("teacher", "a b c"), ("student", "a x c"))
    ]
    shown = samples(_with_cells(cells), Path())
    assert "<mark>x</mark>" in shown and shown.count("<mark>") == 1


def _with_cells(cells: list[Cell]) -> Results:
    facts = {"protocol": "p", "title": "t", "created": "now", "seconds": 1, "device": "cpu", "threads": 1}
    return Results(**facts, packages={}, models=[], instruments=[], cells=cells)  # type: ignore[arg-type]


def test_locate_finds_runs_folders_files_and_the_newest(run: Path, tmp_path: Path) -> None:
    for path in (run, run / "evaluation", run / "evaluation" / "results.json"):
        place = locate(path)
        assert place.run == run and place.folder == run / "evaluation"
    with pytest.raises(UserError, match="no evaluation here yet"):
        locate(None)
    with pytest.raises(UserError, match="di4c eval --student"):
        locate(tmp_path)
    shutil.copytree(run, Path("runs") / "one")
    assert locate(None).folder == Path("runs/one/evaluation")


def test_charts_scale_and_label() -> None:
    assert ticks(0, 9.3) == [0, 2, 4, 6, 8, 10]
    svg = line_chart([Series("a", 0, [(1, 2.0), (4, 1.0)], [(1.5, 2.5), None])], "steps", "a & b")
    assert svg.count("<circle") == 2 and svg.count("<path") == 1 and 'aria-label="a &amp; b"' in svg
    assert line_chart([Series("a", 0, [])], "steps", "none") == ""


def _screenshot(file: Path, out: Path, size: str, *more: str) -> tuple[np.ndarray, str]:
    assert BROWSER is not None
    flags = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--enable-logging=stderr",
    ]
    flags += [
        f"--user-data-dir={out.parent / 'profile'}",
        f"--window-size={size}",
        f"--screenshot={out}",
        *more,
    ]
    done = subprocess.run(
        [BROWSER, *flags, file.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    return np.asarray(Image.open(out).convert("L")).astype(float), done.stderr


@pytest.mark.browser
@pytest.mark.skipif(BROWSER is None, reason="no chromium here: `apt-get install chromium` to run this")
def test_it_opens_in_a_browser_on_a_desk_on_a_phone_and_in_the_dark(run: Path, tmp_path: Path) -> None:
    file = write_page(locate(run).results, run / "evaluation", run, tmp_path / "page.html")
    desk, log = _screenshot(file, tmp_path / "desk.png", "1100,1600")
    assert "CONSOLE" not in log, log
    phone, log = _screenshot(file, tmp_path / "phone.png", "500,1600")
    assert "CONSOLE" not in log, log
    dark, _ = _screenshot(file, tmp_path / "dark.png", "1100,1600", "--blink-settings=preferredColorScheme=0")
    assert desk.shape == (1600, 1100) and phone.shape == (1600, 500)
    assert np.median(desk) > 230 > 60 > np.median(dark)
    for shot in (desk, phone, dark):
        assert shot.std() > 10, "something is drawn"
    # nothing sticks out to the right: the margin of the phone's page is empty
    assert np.ptp(phone[:, -8:]) < 3
