"""Results as tables in the paper's shape: models down, ways of sampling across, its figures beside ours."""

from __future__ import annotations

from di4c_cli.evaluation.result import Cell, Figure, Results

NAMES = {
    "frechet": "Fréchet distance",
    "kid": "KID",
    "is": "inception score",
    "precision": "precision",
    "recall": "recall",
    "bits_per_char": "bits per character",
    "bits_per_byte": "bits per byte",
    "entropy": "unigram entropy",
    "distinct": "distinct bigrams",
    "perplexity": "generative perplexity",
    "perplexity_strict": "generative perplexity (strict)",
    "self_bleu": "Self-BLEU",
    "mauve": "MAUVE",
    "tv": "total variation",
    "kl": "KL(data ‖ model)",
}
ARROWS = {"lower": "↓", "higher": "↑", "neither": ""}


def metric_title(results: Results, metric: str) -> str:
    """Name, unit and which way is better."""
    figure = next(cell.figures[metric] for cell in results.cells if metric in cell.figures)
    unit = f" ({figure.unit})" if figure.unit else ""
    return f"{NAMES.get(metric, metric)}{unit} {ARROWS[figure.better]}".strip()


def number(value: float) -> str:
    """Four significant digits, without exponents for the sizes that occur."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:.0f}"
    if abs(value) >= 0.001:
        digits = f"{value:.4g}"
        return digits
    return f"{value:.2e}"


def figure_text(figure: Figure) -> str:
    """`12.3 ±0.4`: the half width of the 95 % interval."""
    text = number(figure.value)
    if figure.low is not None and figure.high is not None:
        text += f" ±{(figure.high - figure.low) / 2:.2g}"
    return text


def cell_text(cell: Cell | None, metric: str, paper: float | None = None) -> str:
    """Ours, and in brackets the paper's."""
    ours = figure_text(cell.figures[metric]) if cell is not None and metric in cell.figures else "–"
    return ours if paper is None else f"{ours} [{number(paper)}]"


def metric_table(
    results: Results, metric: str, paper: dict[tuple[str, str], dict[str, float]] | None = None
) -> tuple[list[str], list[list[str]]]:
    """Header and rows for one metric; `paper` adds cells that were not run here."""
    published = dict(paper or {})
    for cell in results.cells:
        if cell.paper:
            published[cell.key] = cell.paper
    keys = list(dict.fromkeys([*(cell.key for cell in results.cells), *published]))
    rows, columns = list(dict.fromkeys(k[0] for k in keys)), list(dict.fromkeys(k[1] for k in keys))
    body = []
    for row in rows:
        cells = [
            cell_text(results.cell(row, column), metric, published.get((row, column), {}).get(metric))
            for column in columns
        ]
        body.append([row, *cells])
    return ["", *columns], body


def overview(results: Results) -> tuple[list[str], list[list[str]]]:
    """All figures of all cells: one line a cell, one column a metric."""
    metrics = results.metrics
    header = ["model", "sampling", *(metric_title(results, metric) for metric in metrics)]
    body = [
        [cell.row, cell.column, *(cell_text(cell, metric, cell.paper.get(metric)) for metric in metrics)]
        for cell in results.cells
    ]
    return header, body
