"""`di4c eval`, `compare` and `report` through the real command: files, streams, mistakes in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from di4c_cli.cli.app import app
from di4c_cli.evaluation.results import Results
from tests.helpers.small_models import digits, judge_folder, save_pair, small_model, text_pair

__all__ = ["digits", "judge_folder", "text_pair"]


def run(*words: object) -> Result:
    texts = [str(word) for word in words]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["di4c", *texts])
        return CliRunner().invoke(app, texts)


def refused(*words: object) -> str:
    """A user's mistake: exit code 2, one sentence and no traceback; gives the sentence."""
    done = run(*words)
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith("di4c: ") or "di4c: " in done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""
    return done.stderr


@pytest.fixture(scope="module")
def evaluated(digits: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One evaluation that several tests look at."""
    out = tmp_path_factory.mktemp("evaluated") / "out"
    done = run("eval", "--student", digits[1], "--steps", "1,2", "-n", 40, "--out", out)
    assert done.exit_code == 0, done.output
    assert "In 1 step the student is" in done.stdout and "(Fréchet distance)" in done.stdout
    assert "n = 40, seed 0; measured by digits-classifier" in done.stderr
    return out


@pytest.mark.slow
def test_eval_writes_table_json_plot_and_page(evaluated: Path) -> None:
    names = sorted(path.name for path in evaluated.iterdir())
    assert names == ["parts", "quality.png", "report.html", "results.json", "samples"]
    results = Results.model_validate_json((evaluated / "results.json").read_bytes())
    assert [cell.key for cell in results.cells] == [
        ("teacher", "1 step"), ("teacher", "2 steps"), ("student", "1 step"), ("student", "2 steps")
    ]  # fmt: skip
    assert results.command.startswith("di4c eval --student") and "--steps 1,2 -n 40 --out" in results.command
    assert "--seed" not in results.command


@pytest.mark.slow
def test_eval_json_is_alone_on_stdout_and_equal_in_a_second_run(digits: tuple[Path, Path], evaluated: Path) -> None:
    done = run("eval", "--student", digits[1], "--steps", "1,2", "-n", 40, "--json", "--out", "again")
    assert done.exit_code == 0
    again, first = json.loads(done.stdout), json.loads((evaluated / "results.json").read_bytes())
    assert [cell["figures"] for cell in again["cells"]] == [cell["figures"] for cell in first["cells"]]


@pytest.mark.slow
def test_eval_and_report_write_into_the_run(digits: tuple[Path, Path], tmp_path: Path) -> None:
    run_folder = Path("runs") / "mine"
    save_pair(run_folder)
    (run_folder / "recipe.yaml").write_text("name: mine\n")
    done = run("eval", "--steps", "1", "-n", 24)
    assert done.exit_code == 0, done.output
    assert "the newest run here, runs/mine" in done.stderr
    assert (run_folder / "evaluation" / "report.html").is_file()
    assert run("report", run_folder).stdout.strip() == "runs/mine/evaluation/report.html"


@pytest.mark.slow
def test_compare_prints_verdicts(digits: tuple[Path, Path], evaluated: Path) -> None:
    run("eval", "--student", digits[1], "--steps", "1", "-n", 40, "--seed", 5, "--out", "other")
    done = run("compare", evaluated, "other")
    assert done.exit_code == 0 and "within noise" in done.stdout
    found = json.loads(run("compare", evaluated, "other", "--json").stdout)["differences"]
    assert {one["column"] for one in found} == {"1 step"} and len(found) == 2 * 6


@pytest.mark.slow
def test_compare_rejects_other_protocols(evaluated: Path) -> None:
    content = json.loads((evaluated / "results.json").read_bytes())
    content["protocol"] = "fashion"
    Path("other.json").write_text(json.dumps(content))
    assert "different protocols" in refused("compare", evaluated, "other.json")
    content["di4c_results"] = 99
    Path("newer.json").write_text(json.dumps(content))
    assert "newer di4c" in refused("compare", evaluated, "newer.json")
    Path("broken.json").write_text("{}")
    assert "is not a di4c result" in refused("compare", evaluated, "broken.json")
    assert "no result file" in refused("compare", evaluated, "nothing.json")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--steps", "0"], "not above 0"),
        (["--steps", "two"], "not a list of whole numbers"),
        (["--protocol", "cifar10"], "Did you mean"),
        (["--student", "nowhere-at-all"], "nowhere-at-all"),
        (["--model", "di4c-d"], "is not ROW=REF"),
        (["--model", "hybrid=digits"], "cannot name the row hybrid"),
        (["--model", "a=digits", "--model", "a=fashion"], "names the row a twice"),
        (["--sample-dtype", "float16"], "Choose one of: float64, float32"),
        (["--device", "abacus"], "no device 'abacus'"),
        (["--report-me"], "No such option"),
    ],
)
def test_eval_answers_mistakes_in_one_sentence(words: list[str], sentence: str) -> None:
    done = run("eval", *words)
    assert done.exit_code == 2 and sentence in done.stderr and done.stdout == ""
    assert not any(Path().iterdir()), "nothing is written"


def test_eval_rejects_an_out_folder_with_something_else(digits: tuple[Path, Path]) -> None:
    Path("mine").mkdir()
    (Path("mine") / "letter.txt").write_text("dear")
    assert "not an evaluation" in refused("eval", "--student", digits[1], "--out", "mine")
    assert [path.name for path in Path("mine").iterdir()] == ["letter.txt"]


@pytest.mark.slow
def test_eval_rejects_a_judge_without_tokenizer(text_pair: tuple[Path, Path], judge_folder: Path) -> None:
    bare = Path("bare")
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).write_bytes((judge_folder / name).read_bytes())
    assert "has no tokenizer" in refused("eval", "--student", text_pair[1], "--judge", "bare", "-n", 4)


def test_eval_rejects_references_too_small_or_of_another_size(digits: tuple[Path, Path]) -> None:
    np.save("few.npy", np.zeros((10, 8, 8), np.uint8))
    few = refused("eval", "--student", digits[1], "-n", 40, "--reference", "few.npy")
    assert "has 10 images, fewer than the 40 samples" in few
    np.save("large.npy", np.zeros((50, 32, 32, 3), np.uint8))
    large = refused("eval", "--student", digits[1], "-n", 40, "--reference", "large.npy")
    assert "reference 'large.npy' are 32×32, the samples 8×8" in large


@pytest.mark.slow
def test_eval_measures_samples_of_a_file(judge_folder: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, size=(30, 8, 8)).astype(np.uint8)
    np.save("mine.npy", images)
    done = run("eval", "--samples", "mine.npy", "--json")
    assert done.exit_code == 0, done.output
    (cell,) = json.loads(done.stdout)["cells"]
    assert cell["n"] == 30 and set(cell["figures"]) == {"frechet", "kid", "is", "precision", "recall"}
    Path("mine.txt").write_text("one two three\nfour five six\n")
    done = run("eval", "--samples", "mine.txt", "--judge", judge_folder, "--json")
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)["cells"][0]["figures"]
    assert list(figures) == ["perplexity", "perplexity_strict", "bits_per_byte", "distinct", "entropy"]


@pytest.mark.slow
def test_eval_of_saved_ids_equals_that_of_their_model(text_pair: tuple[Path, Path], judge_folder: Path) -> None:
    """Samples in shards are ids, so both perplexities are those of the model; a sheet of texts is read whole."""
    draw = ["--student", text_pair[1], "--steps", "2", "-n", "24"]
    assert run("sample", *draw, "--sample-dtype", "float32", "--out", "shards").exit_code == 0
    assert run("sample", *draw, "--sample-dtype", "float32", "--out", "sheet.txt").exit_code == 0
    judged = ["--judge", judge_folder, "--json"]
    saved = json.loads(run("eval", "--samples", "shards", *judged).stdout)["cells"][0]
    done = run("eval", *draw, "--sample-dtype", "float32", *judged)
    assert done.exit_code == 0, done.output
    drawn = next(cell for cell in json.loads(done.stdout)["cells"] if cell["row"] == "student")
    assert drawn["settings"]["dtype"] == "float32"
    for name in ("perplexity", "perplexity_strict", "entropy"):
        assert saved["figures"][name]["value"] == pytest.approx(drawn["figures"][name]["value"], rel=1e-6)
    sheet = json.loads(run("eval", "--samples", "sheet.txt", *judged).stdout)
    assert sheet["cells"][0]["n"] == 24 and "judge's tokens" in sheet["notes"][0]
    assert "takes no --sample-dtype" in refused("eval", "--samples", "sheet.txt", "--sample-dtype", "float32")


@pytest.mark.slow
def test_eval_shows_two_draws_side_by_side(text_pair: tuple[Path, Path], judge_folder: Path) -> None:
    flags = ["--steps", "1,2", "--judge", judge_folder, "-n", 2, "--sample-dtype", "float32,float64"]
    done = run("eval", "--teacher", text_pair[0], *flags, "--json", "--out", "out")
    assert done.exit_code == 0, done.output
    cells = json.loads(done.stdout)["cells"]
    assert [(cell["column"], cell["settings"]["dtype"]) for cell in cells[:3]] == [
        ("1 step, 32-bit", "float32"),
        ("1 step, 64-bit", "float64"),
        ("2 steps, 32-bit", "float32"),
    ]
    assert cells[0]["samples"] != cells[1]["samples"]


def test_eval_rejects_empty_sample_files() -> None:
    Path("empty.txt").write_text("\n\n")
    assert "holds no samples" in refused("eval", "--samples", "empty.txt", "--judge", "x")
    np.save("empty.npy", np.zeros((0, 8, 8), np.uint8))
    assert "holds no samples" in refused("eval", "--samples", "empty.npy")
    Path("folder").mkdir()
    assert "holds no samples" in refused("eval", "--samples", "folder")


@pytest.mark.slow
def test_eval_measures_a_small_space_exactly(tmp_path: Path) -> None:
    _, student = save_pair(tmp_path / "pair", "space")
    np.save("data.npy", small_model("teacher", 7, "space").sample(200, steps=3).numpy())
    done = run("eval", "--student", student, "--reference", "data.npy", "--steps", "1,2", "-n", 30, "--json")
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)["cells"][0]["figures"]
    assert figures["tv"]["interval"] == "exact" and 0 <= figures["tv"]["value"] <= 1 and figures["kl"]["value"] > 0


@pytest.mark.slow
def test_eval_lists_and_runs_protocols(digits: tuple[Path, Path]) -> None:
    listing = run("eval", "--protocol", "list")
    assert "cifar10-table1" in listing.stdout and "owt-mauve" in listing.stdout
    done = run("eval", "--student", digits[1], "--protocol", "imagenet-best", "--limit", 24, "--out", "best")
    assert done.exit_code == 0, done.output
    assert "[6.57]" in done.stdout and "di4c-d" in done.stdout, "rows without a model show the paper's figure"
    assert "fixes its own steps" in refused("eval", "--student", digits[1], "--protocol", "imagenet-best", "--steps", 2)
