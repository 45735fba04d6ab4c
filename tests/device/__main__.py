"""Prints what published recipes ask of a GPU: `python -m tests.device [RECIPE …]`. All times are modelled.

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
        watch, _, batch = published_step(name)
        peak = watch.memory.peak / 2**30
        figures = [f"{batch}", f"{len(watch.kernels)}", f"{sum(watch.waits.values())}", f"{peak:.1f}"]
        print(f"| {name} | " + " | ".join(figures + [f"{seconds(watch, gpu):.2f}" for gpu in GPUS]) + " |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.device", description=__doc__)
    parser.add_argument("recipes", nargs="*", help="recipes; default: all published ones")
    parser.add_argument("--mutate", action="store_true", help="remove the device arguments of the package")
    parser.add_argument("--only", nargs=2, action="append", metavar=("SITE", "CASE"), default=[], help="one of them")
    given = parser.parse_args()
    if given.mutate:
        sys.exit(min(mutate.main(given.only), 1))
    main(given.recipes)
