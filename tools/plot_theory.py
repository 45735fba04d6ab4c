"""Draw docs/theory.png: python -m tools.plot_theory"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from tests.helpers.enumeration import Example, distil

TARGET = Path(__file__).parents[1] / "docs" / "theory.png"
LATENTS = [1, 2, 4, 8, 16]


def main() -> None:
    example = Example()
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), constrained_layout=True)
    counts = [2**k for k in range(10)]
    left.loglog(counts, [example.bound(n) for n in counts], "s--", color="0.6", label="sum of one-step distances")
    left.loglog(counts, [example.error(n) for n in counts], "o-", label="N-step analytical sampling")
    scale = 512 * example.error(512)
    left.loglog(counts[2:], [scale / n for n in counts[2:]], ":", color="k", label="slope −1")
    left.set(xlabel="sampling steps N", ylabel="total variation to the data", title="Theorem 1")
    left.legend()
    results = [distil(example, steps=8, latents=count, iterations=2000) for count in LATENTS]
    right.loglog(LATENTS, [r["bound"] for r in results], "s--", color="0.6", label="bound from the losses")
    right.loglog(LATENTS, [r["student"] for r in results], "o-", label="student, one step")
    right.axhline(results[0]["one_step_teacher"], color="C3", label="teacher, one step")
    right.set(xlabel="latents in the mixture", ylabel="total variation to the 8-step teacher", title="Theorem 2")
    right.set_xticks(LATENTS, [str(count) for count in LATENTS])
    right.minorticks_off()
    right.legend()
    figure.savefig(TARGET, dpi=110)
    for count, result in zip(LATENTS, results):
        print(count, result)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
