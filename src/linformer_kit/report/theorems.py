"""Report on Theorems 1 and 2: errors against k, and the k and the bounds of the theorems."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from linformer_kit.report.base import code, environment_line, table, write_report
from linformer_kit.report.theorems_figures import FIRST, SECOND, draw_errors

# The figures: file name, theorem, error measure, whether the theorem bounds it, title.
_PICTURES = (
    ("theorem1", "theorem1", "vector", True, "Theorem 1: ‖P̃w − Pw‖ / ‖Pw‖ for the columns w of V"),
    (
        "theorem2",
        "theorem2",
        "stated",
        True,
        "Theorem 2: ‖softmax(wEᵀ)FV − softmax(w)V‖ / (‖softmax(w)‖·‖V‖) for the rows w of the scores",
    ),
    (
        "theorem2-relative",
        "theorem2",
        "relative",
        False,
        "The same error relative to the output: ‖softmax(wEᵀ)FV − softmax(w)V‖ / ‖softmax(w)V‖",
    ),
)
MOST_TIMES_N = 8  # k above n, which saves nothing but may satisfy the bound, is tried in small steps up to 8n


def write_theorems_report(results: dict[str, Any], folder: Path) -> str:
    """Write `theorems.json`, `theorems.md`, `theorem1.png`, `theorem2.png` and `theorem2-relative.png`, as SVG too.

    Args:
        results: Results of `theorems.trials.theorems`.
        folder: Output folder.

    Returns:
        The Markdown text.
    """
    return write_report(results, folder, "theorems", theorems_markdown, _draw)


def _draw(results: dict[str, Any], folder: Path) -> None:
    for name, theorem, measure, bounded, title in _PICTURES:
        draw_errors(results, theorem, measure, folder / f"{name}.png", title=title, bounded=bounded)


def theorems_markdown(results: dict[str, Any]) -> str:
    """The k of the theorems, their bounds and the measurements, as Markdown."""
    settings = results["settings"]
    confidence = f"{100 * results['cases'][0]['confidence']:.0f} %"
    lines = [
        "# Theorems 1 and 2",
        "",
        f"Random: Q, K and V of independent standard normal numbers, d {settings['head_dim']}. "
        f"{_of_model(settings)}Seed {settings['seed']}; {results['seconds']:,.0f} s. "
        f"{environment_line(results['environment'])}",
        "",
        "## Theorem 1",
        "",
        "P̃ = P·Rᵀ·R with the k of the theorem. Promised: its lower bound of the probability, "
        "1 - 2n·exp(-(ε² - ε³)k/4); corrected: with 4n, as Johnson-Lindenstrauss gives for inner products; below 0 "
        "it is vacuous. Held: share of the columns w of V with ‖P̃w - Pw‖ ≤ ε‖Pw‖; of entries with |x̃w - xw| ≤ ε|xw|, "
        f"x a row of P, as in the proof; and with |x̃w - xw| ≤ ε‖x‖‖w‖. k needed: the smallest k tried, up to "
        f"{MOST_TIMES_N}n, from which on {confidence} of the columns held; k by variance: the k for which the mean "
        "square of the error is ε², median over columns. k above n saves nothing. In brackets: ratio to the theorem's.",
        "",
        *table(
            [
                "attention",
                "n",
                "ε",
                "k",
                "promised",
                "corrected",
                "error",
                "columns held",
                "entries held",
                "with ‖x‖‖w‖",
                "k needed",
                "k by variance",
            ],
            [_first_row(case, place) for case in results["cases"] for place in range(len(settings["epsilons"]))],
        ),
        "",
        "## Theorem 2",
        "",
        "E = δR and F = e^(-δ)R, δ = 1/2ⁿ, with the k of the appendix. Promised: its lower bound of the probability "
        "for one query, 1 - 2d·exp(-(ε² - ε³)k/4), or, where k is 9·ln d/(ε² - ε³), with the 4d² events of that proof. "
        "Held: share of the queries with an error of at most ε‖softmax(w)‖‖V‖ (Frobenius), as in the theorem, and "
        "of at most ε‖softmax(w)V‖. Answer 0: the share held, as in the theorem, by an output of zeros.",
        "",
        *table(
            ["attention", "n", "ε", "k", "promised", "error", "held", "answer 0", "held, relative"],
            [_second_row(case, place) for case in results["cases"] for place in range(len(settings["epsilons"]))],
        ),
        "",
        f"The smallest k tried for which {confidence} of the queries have a relative error of at most ε:",
        "",
        *_needed_table(results),
        "",
        "Errors are geometric means.",
        "",
        "## Steps of the proofs",
        "",
        "Random attention. Rank 1: P̃ = P·w·wᵀ/‖w‖² for one w; rank d: P̃ = P·V·V⁺ for all of V. Scores A = QKᵀ/√d. From "
        "uniform: the largest |k·weight - 1| of softmax(δ·A·Rᵀ), with the k of Theorem 2 for ε 0.5.",
        "",
        *table(
            ["n", "d", "error, rank 1", "error, rank d", "rank of A", "rank of exp(A)", "δ = 1/2ⁿ", "from uniform"],
            [_appendix_row(entry) for entry in results["appendix"]],
        ),
    ]
    if not results.get("complete", True):
        lines += ["", "Interrupted: not all kinds of attention were measured."]
    return "\n".join(lines) + "\n"


def _of_model(settings: dict[str, Any]) -> str:
    if settings["model"] is None:
        return ""
    fitted = (
        f"; E and F fitted to {settings['fit_samples']} others in {settings['fit_steps']:,} updates"
        if settings["fit_steps"]
        else ""
    )
    return f"Model: {code(settings['model'])} on {settings['samples']} sequences of {settings['text']}{fitted}. "


def _first_row(case: dict[str, Any], place: int) -> list[str]:
    bound = case["bounds"][place]
    k = bound["theorem1_dim"]
    entry = _at(case["theorem1"][FIRST], k)
    tried = [each for each in case["theorem1"][FIRST] if each["k"] <= MOST_TIMES_N * case["n"]]
    needed = _needed(tried, "vector", place, case)
    by_variance = case["variance_dim"] / bound["epsilon"] ** 2
    return [
        *_of_case(case),
        f"{bound['epsilon']}",
        f"{k:,}",
        _promise(bound["theorem1_failure"]),
        _promise(bound["theorem1_failure_corrected"]),
        f"{entry['vector']['error']:.2f}",
        *(f"{entry[measure]['held'][place]:.3f}" for measure in ("vector", "row", "corrected")),
        "none" if needed is None else f"{needed:,} ({needed / k:.1f})",
        f"{by_variance:,.0f} ({by_variance / k:.1f})",
    ]


def _second_row(case: dict[str, Any], place: int) -> list[str]:
    bound = case["bounds"][place]
    k = bound["theorem2_dim"]
    entry = _at(case["theorem2"][SECOND], k)
    return [
        *_of_case(case),
        f"{bound['epsilon']}",
        f"{k:,}",
        _promise(bound["theorem2_failure"]),
        f"{entry['relative']['error']:.2f}",
        f"{entry['stated']['held'][place]:.3f}",
        f"{case['theorem2']['answer 0'][0]['stated']['held'][place]:.3f}",
        f"{entry['relative']['held'][place]:.3f}",
    ]


def _needed_table(results: dict[str, Any]) -> list[str]:
    methods = list(dict.fromkeys(method for case in results["cases"] for method in case["theorem2"]))
    rows = [
        [
            *_of_case(case),
            f"{epsilon}",
            *(
                _count(_needed(case["theorem2"][method], "relative", place, case)) if method in case["theorem2"] else ""
                for method in methods
            ),
        ]
        for case in results["cases"]
        for place, epsilon in enumerate(results["settings"]["epsilons"])
    ]
    return table(["attention", "n", "ε", *methods], rows)


def _appendix_row(entry: dict[str, Any]) -> list[str]:
    return [
        f"{entry['n']:,}",
        f"{entry['d']}",
        f"{entry['rank_one_error']:.0e}",
        f"{entry['rank_d_error']:.0e}",
        f"{entry['rank_of_scores']:,}",
        f"{entry['rank_of_exponential']:,}",
        f"{entry['delta']:.0e}" if entry["delta"] else "0 (underflow)",
        f"{entry['largest_deviation_from_uniform']:.0e}",
    ]


def _needed(entries: list[dict[str, Any]], measure: str, place: int, case: dict[str, Any]) -> int | None:
    """The smallest k such that the bound holds with the given confidence for it and all larger ones tried."""
    needed = None
    for entry in reversed(entries):
        if entry[measure]["held"][place] < case["confidence"]:
            break
        needed = entry["k"]
    return needed


def _at(entries: Iterable[dict[str, Any]], k: int) -> dict[str, Any]:
    return next(entry for entry in entries if entry["k"] == k)


def _of_case(case: dict[str, Any]) -> list[str]:
    return [case["name"], f"{case['n']:,}"]


def _promise(failure: float) -> str:
    return f"{1 - failure:.2f}"


def _count(needed: int | None) -> str:
    return "none" if needed is None else f"{needed:,}"
