"""The two-dimensional benchmark of the E-MoE paper (table 2, appendix B.1): 8 modes and Swiss roll on a 50×50 grid.

    python -m benchmarks.plane --work /tmp/plane --density 8-modes --seeds 0,1,2
    python -m benchmarks.plane --work /tmp/plane --methods moment-matching --iterations 2000

Every seed has its own 20 000 training points. A teacher and one student of each method are trained by the real commands
(`di4c pretrain`, `di4c distill`) with the recipes `bench-2d/*`; finished runs in `--work` are used again, and stopped
ones resume. Validity is the share of 3000 samples whose distance, in symbol indices, to the nearest of 3000 training
points is at most the 90th percentile of the distances between those points and their nearest neighbours. Validity
rewards a model that leaves out the rim of the data; the total variation to the exact law of the 2500 states does not.
Prints a table of means over seeds with the published rows, then one JSON object as the last line.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np

import di4c_cli
from di4c_cli.cli.console import say, show_table

SYMBOLS, EDGE, POINTS = 50, 3.0, 20_000
JUDGED = 3000
"""Samples and training points of the validity."""
LAW_SAMPLES = 50_000
"""Samples of a model and, for the Swiss roll, 200 times as many points of the density, for the total variation."""
STEPS = (1, 2, 4, 8, 16, 32)
DENSITIES = ("8-modes", "swiss-roll")
METHODS = ("variational", "moment-matching")
PUBLISHED = {
    "8-modes": {
        "MDLM, published": (37.7, 68.1, 84.2, 90.9, 94.9, 97.0),
        "VADD, published": (91.8, 95.3, 97.3, 97.7, 98.5, 98.5),
        "E-MoE, published": (94.4, 96.6, 97.7, 98.3, 98.6, 98.7),
    },
    "swiss-roll": {
        "MDLM, published": (49.3, 73.1, 86.5, 91.9, 95.2, 96.9),
        "VADD, published": (93.8, 95.9, 97.1, 97.6, 98.2, 98.4),
        "E-MoE, published": (90.3, 92.6, 95.7, 96.4, 98.6, 97.9),
    },
}


def points(density: str, seed: int, count: int, part: str = "train") -> np.ndarray:
    """Points `(count, 2)` of a density. The centres of the 8 modes belong to the seed; Swiss rolls differ by noise."""
    centres = np.random.default_rng([seed, 8]).uniform(-2.5, 2.5, (8, 2))
    generator = np.random.default_rng([seed, *part.encode()])
    if density == "8-modes":
        return centres[generator.integers(0, 8, count)] + 0.09 * generator.standard_normal((count, 2))
    angle = 1.5 * math.pi * (1 + 2 * generator.random(count))
    roll = np.stack([angle * np.cos(angle), angle * np.sin(angle)], 1)
    return (roll + 0.45 * generator.standard_normal((count, 2))) / 7.5


def symbols(plane: np.ndarray) -> np.ndarray:
    """Cell numbers of points: each coordinate is cut by 49 equal edges on [-3, 3]."""
    return np.digitize(plane, np.linspace(-EDGE, EDGE, SYMBOLS - 1))


def frequencies(x: np.ndarray) -> np.ndarray:
    """Shares `(50, 50)` of the states."""
    return np.bincount(x[:, 0] * SYMBOLS + x[:, 1], minlength=SYMBOLS**2).reshape(SYMBOLS, SYMBOLS) / len(x)


def law(density: str, seed: int) -> np.ndarray:
    """The probabilities `(50, 50)` of a density: exact for the modes, counted in ten million points for the roll."""
    if density != "8-modes":
        return frequencies(symbols(points(density, seed, 200 * LAW_SAMPLES, "law")))
    centres = np.random.default_rng([seed, 8]).uniform(-2.5, 2.5, (8, 2))
    edges = np.linspace(-EDGE, EDGE, SYMBOLS - 1)
    below = np.vectorize(math.erf)((edges - centres[:, :, None]) / (0.09 * math.sqrt(2))) / 2 + 0.5
    cells = np.diff(below, prepend=0.0, append=1.0)  # (8, 2, 50)
    return np.einsum("mi,mj->ij", cells[:, 0], cells[:, 1]) / 8


def nearest(x: np.ndarray, real: np.ndarray, skip_itself: bool = False) -> np.ndarray:
    """The distance of every row of x to the nearest row of `real`."""
    distance = np.sqrt(((x[:, None].astype(np.float32) - real[None].astype(np.float32)) ** 2).sum(-1))
    if skip_itself:
        np.fill_diagonal(distance, np.inf)
    found: np.ndarray = distance.min(1)
    return found


def validity(x: np.ndarray, real: np.ndarray) -> float:
    """Percentage of samples as near to the data as 90 % of the data are to each other."""
    limit = np.percentile(nearest(real, real, skip_itself=True), 90)
    return float(100 * (nearest(x, real) <= limit).mean())


def run(*words: object) -> None:
    """A di4c command in a process of its own; a finished run returns at once."""
    done = subprocess.run([sys.executable, "-m", "di4c_cli", *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"di4c {' '.join(map(str, words))} failed:\n{done.stderr}")


def trained(density: str, seed: int, given: argparse.Namespace) -> dict[str, Path]:
    """The model folders of a density and a seed by row name."""
    work = given.work / f"{density}-{seed}"
    work.mkdir(parents=True, exist_ok=True)
    data = work / "points.npy"
    if not data.exists():
        np.save(data, symbols(points(density, seed, POINTS)).astype(np.int64))
    teacher = work / "teacher"
    run("pretrain", "--recipe", "bench-2d/teacher", "--data", data, "--seed", seed, "--out", teacher, *given.limit)
    folders = {"teacher": teacher / "teacher"}
    for method in given.methods:
        out = work / method
        flags = ("--data", data, "--seed", seed, "--out", out, *given.limit)
        run("distill", "--recipe", f"bench-2d/{method}", "--teacher", folders["teacher"], *flags)
        folders[method] = out / "student"
    return folders


def measure(density: str, seed: int, given: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Validity and total variation of every model at every number of steps."""
    folders, exact = trained(density, seed, given), law(density, seed)
    real = symbols(points(density, seed, POINTS))[:JUDGED]
    found: dict[str, dict[str, list[float]]] = {
        "data": {
            "validity": [validity(symbols(points(density, seed, JUDGED, "fresh")), real)] * len(STEPS),
            "variation": [variation(symbols(points(density, seed, LAW_SAMPLES, "fresh")), exact)] * len(STEPS),
        }
    }
    for name, folder in folders.items():
        model = di4c_cli.load(str(folder))
        samples = [model.sample(LAW_SAMPLES, steps=steps, seed=seed).numpy() for steps in STEPS]
        found[name] = {
            "validity": [validity(x[:JUDGED], real) for x in samples],
            "variation": [variation(x, exact) for x in samples],
        }
        say(f"{density}, seed {seed}, {name}: {json.dumps(found[name])}")
    return found


def variation(x: np.ndarray, exact: np.ndarray) -> float:
    """Total variation between the frequencies of samples and a law; samples of the law itself are not quite at 0."""
    return float(0.5 * np.abs(frequencies(x) - exact).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--density", choices=DENSITIES, help="only this one")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--methods", default=",".join(METHODS), help="students by recipe; empty: the teacher only")
    parser.add_argument("--iterations", type=int, help="of every training, instead of the recipe's")
    given = parser.parse_args()
    given.methods = [name for name in given.methods.split(",") if name]
    given.limit = ("--iterations", given.iterations) if given.iterations else ()
    seeds = [int(text) for text in given.seeds.split(",")]
    result = {}
    for density in [given.density] if given.density else DENSITIES:
        runs = [measure(density, seed, given) for seed in seeds]
        mean = {
            name: {figure: np.mean([one[name][figure] for one in runs], 0).tolist() for figure in runs[0][name]}
            for name in runs[0]
        }
        rows = [[name, *(f"{value:.1f}" for value in values)] for name, values in PUBLISHED[density].items()]
        rows += [[name, *(f"{value:.1f}" for value in figures["validity"])] for name, figures in mean.items()]
        show_table(f"{density}: validity in percent, mean of {len(seeds)} seeds", ["steps", *map(str, STEPS)], rows)
        rows = [[name, *(f"{value:.4f}" for value in figures["variation"])] for name, figures in mean.items()]
        title = f"{density}: total variation to the exact law, {LAW_SAMPLES} samples"
        show_table(title, ["steps", *map(str, STEPS)], rows)
        result[density] = {"seeds": seeds, "mean": mean, "runs": runs}
    print(json.dumps({"benchmark": "plane", "steps": STEPS, "densities": result}))


if __name__ == "__main__":
    main()
