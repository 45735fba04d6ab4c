"""Scorers by name. Importing this package registers the built-in ones."""

from di4c_cli.evaluation.scorers import exact, features, memorisation, text
from di4c_cli.evaluation.scorers.base import (
    Scorer,
    ScorerContext,
    check_scorers,
    figure_of,
    make_scorers,
    register_scorer,
)

__all__ = ["Scorer", "ScorerContext", "check_scorers", "figure_of", "make_scorers", "register_scorer"]
__all__ += ["exact", "features", "memorisation", "text"]
