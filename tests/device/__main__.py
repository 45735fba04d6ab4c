"""Prints what published recipes ask of a GPU: `python -m tests.device [RECIPE …]`. All times are modelled.

A step of several micro-batches is one of them, with its update of the weights, times their number.
With `--mutate` it shows instead that the parity cases notice every device argument that is removed.
"""

from __future__ import annotations

import argparse
import sys

from tests.device import mutate


def main(names: list[str]) -> None:
    """One line for each recipe."""
    # not at the top: mutations need a process without the package
    from tests.device.roofline import GPUS, seconds
    from tests.device.steps import published_recipes, published_step

    print("| recipe | batch | kernels | waits | GiB | " + " | ".join(f"{gpu.name}, s" for gpu in GPUS) + " |")
    print("|---|" + "---|" * (4 + len(GPUS)))
    for name in names or published_recipes():
        watch, recipe, batch = published_step(name)
        passes, peak = recipe.training.batch // batch, watch.memory.peak / 2**30
        counts = [recipe.training.batch, passes * len(watch.kernels), passes * sum(watch.waits.values())]
        times = [f"{passes * seconds(watch, gpu):.2f}" for gpu in GPUS]
        print(f"| {name} | " + " | ".join([*map(str, counts), f"{peak:.1f}", *times]) + " |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.device", description=__doc__)
    parser.add_argument("recipes", nargs="*", help="recipes; default: all published ones")
    parser.add_argument("--mutate", action="store_true", help="remove the device arguments of the package")
    parser.add_argument("--only", nargs=2, action="append", metavar=("SITE", "CASE"), default=[], help="one of them")
    given = parser.parse_args()
    if given.mutate:
        sys.exit(min(mutate.main(given.only), 1))
    main(given.recipes)
