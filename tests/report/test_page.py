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

from di4c_cli import model_folder
from di4c_cli.errors import UserError
from di4c_cli.evaluation.config import EvaluationConfig
from di4c_cli.evaluation.pipeline import prepare
from di4c_cli.evaluation.results import Cell, Results, load, run_folder
from di4c_cli.evaluation.steps_saved import steps_saved
from di4c_cli.model import Model
from di4c_cli.report.charts import Chart, Line, as_svg, steps_chart
from di4c_cli.report.latency import latency
from di4c_cli.report.page import locate, page, write_all, write_page
from di4c_cli.report.sections import highlight, samples

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
    for kind, model in (("teacher", teacher), ("student", pupil)):
        model_folder.save_folder(
            tmp_path_factory.getbasetemp() / "pair" / kind, model.config, model.denoiser, "# small\n"
        )
    pair = {kind: str(tmp_path_factory.getbasetemp() / "pair" / kind) for kind in ("teacher", "student")}
    results = prepare(EvaluationConfig(**pair, steps=[1, 2], n=40, out=out)).run()  # type: ignore[arg-type]
    shutil.rmtree(out / "parts")
    write_all(results, out, folder)
    return folder


@pytest.mark.slow
def test_write_all_writes_the_files_of_an_evaluation(run: Path) -> None:
    out = run / "evaluation"
    assert sorted(p.name for p in out.iterdir()) == ["quality.png", "report.html", "results.json", "samples"]
    assert Image.open(out / "quality.png").size == (832, 520)


def test_page_holds_everything_and_requests_nothing(run: Path) -> None:
    text = (run / "evaluation" / "report.html").read_text()
    for part in ("Quality against steps", "Samples", "Latency", "Training", "Recipe", "How these figures"):
        assert f"<h2>{part}" in text
    assert "&lt;b&gt;small&lt;/b&gt;" in text and "<b>small" not in text
    assert text.count("data:image/png;base64") == 4 and text.count("<svg") == 8
    assert not re.search(r'(src|href)="(?!data:|#)', text) and "http" not in text.replace("http://www.w3.org", "")


def test_latency_tabulates_the_measurement_of_the_run(run: Path, tmp_path: Path) -> None:
    text = latency(load(locate(run)), run)
    assert "<td>0.2000 ± 0.0100</td>" in text and "student / teacher 1.010 (95 %: 1.000 to 1.020)" in text
    assert "A processor, cpu, 2 threads" in text and "Wall time of this evaluation</summary>" in text
    for content in ("{", "[1]", '{"results": [{"sides": 3}]}', '{"results": []}'):
        (tmp_path / "latency.json").write_text(content)
        plain = latency(load(locate(run)), tmp_path)
        assert "measures it properly" in plain and "<details>" not in plain, content


def test_page_contains_the_result_file(run: Path) -> None:
    text = (run / "evaluation" / "report.html").read_text()
    inside = re.search(r'<script type="application/json" id="results">(.*?)</script>', text, re.S)
    assert inside is not None
    assert Results.model_validate_json(inside[1]) == load(locate(run))


def test_page_escapes_a_hostile_title(run: Path) -> None:
    results = load(locate(run)).model_copy(update={"title": "</script><script>alert(1)</script>"})
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


def test_page_escapes_every_string_of_a_result(run: Path) -> None:
    tree = load(locate(run)).model_dump(mode="json")
    tree["cells"][0] |= {"samples": ["one two"], "paper": {"frechet": 1.0}}
    for cell in tree["cells"][1:]:
        cell["samples"] = ["one three"]
    results = Results.model_validate(hostile(tree))
    text = page(results, run / "evaluation")
    assert text.count("<script") == 1 and text.count("</script>") == 1
    assert text.count("&lt;script&gt;alert(1)") > 50 and 'label=""' not in text


def test_samples_ignores_pictures_outside_the_folder(run: Path, tmp_path: Path) -> None:
    Image.new("L", (2, 2)).save(tmp_path / "secret.png")
    results = load(locate(run))
    cell = results.cells[0].model_copy(update={"picture": f"../../{tmp_path.name}/secret.png"})
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    assert samples(results.model_copy(update={"cells": [cell]}), folder) == ""


def test_samples_marks_words_that_differ() -> None:
    assert highlight("the old cat sat", "the new cat <sat>") == "the <mark>new</mark> cat <mark>&lt;sat&gt;</mark>"
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
        folder = locate(path).parent
        assert run_folder(folder) == run and folder == run / "evaluation"
    with pytest.raises(UserError, match="no evaluation here yet"):
        locate(None)
    with pytest.raises(UserError, match="di4c eval --student"):
        locate(tmp_path)
    shutil.copytree(run, Path("runs") / "one")
    assert locate(None).parent == Path("runs/one/evaluation")


def test_as_svg_is_labelled_deterministic_and_in_the_page_s_colours() -> None:
    line = Line("a $x$", "#6b7280", [(1, 2.0), (4, 1.0)], [(1.5, 2.5), None])
    chart = Chart("a & \\1 <b>", "steps $", "y", [line], step_axis=True, notes=[(1, 2.0, "<i>")])
    svg = as_svg(chart)
    assert svg == as_svg(chart) and svg.startswith("<svg viewBox=") and svg.endswith("</svg>")
    assert 'role="img" aria-label="a &amp; \\1 &lt;b&gt;"' in svg and "&lt;i&gt;" in svg and "steps $" in svg
    assert "var(--teacher)" in svg and "#6b7280" not in svg
    assert not re.search(r"date|metadata|<style|http|<script", svg)
    ids = re.findall(r' id="([^"]*)"', svg)
    assert ids and all(f"#{name}" in svg for name in ids)
    assert as_svg(Chart("none", "steps", "y", [Line("a", "#6b7280", [])])) == ""
    other = as_svg(Chart("another", "steps", "y", [line], step_axis=True))
    assert not set(ids) & set(re.findall(r' id="([^"]*)"', other)), "charts of one page share no id"


def test_steps_chart_shows_steps_saved_and_a_log_axis(run: Path) -> None:
    results = load(locate(run))
    cells = [cell.model_copy(update={"repeats": 2}) for cell in results.cells]
    for cell, value in zip(cells, (80.0, 40.0, 10.0, 5.0), strict=True):
        figure = cell.figures["frechet"].model_copy(update={"value": value, "repeats": [value, value]})
        cell.figures = {**cell.figures, "frechet": figure}
    results = results.model_copy(update={"cells": cells})
    results = results.model_copy(update={"steps_saved": steps_saved(results)})
    chart = steps_chart(results, "frechet")
    assert chart.log_y and chart.notes == [(1.0, 10.0, "≥2×")]
    text = page(results, run / "evaluation")
    assert "<h3>Steps saved at equal quality</h3>" in text and "≥2×" in text and "2 repeats" in text


def _screenshot(file: Path, out: Path, size: str, *more: str) -> tuple[np.ndarray, str]:
    assert BROWSER is not None
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr"]
    flags += [f"--user-data-dir={out.parent / 'profile'}", f"--window-size={size}", f"--screenshot={out}", *more]
    done = subprocess.run([BROWSER, *flags, file.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    return np.asarray(Image.open(out).convert("L")).astype(float), done.stderr


@pytest.mark.browser
@pytest.mark.skipif(BROWSER is None, reason="no chromium here: `apt-get install chromium` to run this")
def test_page_opens_in_a_browser_on_a_desk_on_a_phone_and_in_the_dark(run: Path, tmp_path: Path) -> None:
    file = write_page(load(locate(run)), run / "evaluation", run, tmp_path / "page.html")
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
