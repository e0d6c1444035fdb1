"""Draw the pictures of the pages that no command draws: python website/draw.py [FOLDER]."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from linformer_kit.report.figures import new_figure, number_ticks, save_figure, show_grid

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
# Measured times of forward passes: label, folder.
TIMES = (
    ("AVX-512, bfloat16", "forward-bfloat16_epyc-2-cores_202611"),
    ("AVX2, float32", "forward-and-training-float32_zen3-2-cores_202611"),
)
PROJECTED_DIM = 256
# Lengths of the sides in the diagram: sequence, slots, width of a head.
N, K, D = 3.6, 1.3, 1.3
TOKENS, SLOTS, WEIGHTS = "#9ecae1", "#fdae6b", "#c7c7c7"


def matrix(
    axes: Axes, left: float, middle: float, width: float, height: float, name: str, size: str, color: str
) -> float:
    """Draw a matrix with its name inside and its size below; the x where it ends."""
    axes.add_patch(
        Rectangle((left, middle - height / 2), width, height, facecolor=color, edgecolor="black", linewidth=0.8)
    )
    axes.text(left + width / 2, middle, name, ha="center", va="center", fontsize=8)
    axes.text(left + width / 2, middle - height / 2 - 0.12, size, ha="center", va="top", fontsize=7)
    return left + width


def between(axes: Axes, left: float, middle: float, text: str) -> float:
    axes.text(left + 0.3, middle, text, ha="center", va="center", fontsize=10)
    return left + 0.6


def attention(axes: Axes, middle: float, slots: bool) -> None:
    """One row of the diagram: attention of one head, softmax(Q·Kᵀ/√d)·V, with keys of n tokens or k slots."""
    rows, letter = (K, "k") if slots else (N, "n")
    color = SLOTS if slots else TOKENS
    keys, values = ("(E·K)ᵀ", "F·V") if slots else ("Kᵀ", "V")
    axes.text(0, middle + N / 2 + 0.25, "Linformer" if slots else "Full attention", fontsize=10, weight="bold")
    end = matrix(axes, 0, middle, D, N, "Q", "n × d", TOKENS)
    end = between(axes, end, middle, "·")
    end = matrix(axes, end, middle, rows, D, keys, f"d × {letter}", color)
    end = between(axes, end, middle, "→")  # softmax of the product over √d
    end = matrix(axes, end, middle, rows, N, "P̄" if slots else "P", f"n × {letter}", WEIGHTS)
    end = between(axes, end, middle, "·")
    end = matrix(axes, end, middle, D, rows, values, f"{letter} × d", color)
    end = between(axes, end, middle, "=")
    matrix(axes, end, middle, D, N, "head", "n × d", TOKENS)


def time_saved(folder: str) -> tuple[list[int], list[float]]:
    """The measured lengths, and there the time of RobertaModel with SDPA over that of a Linformer."""
    results = json.loads((BENCHMARKS / folder / "table3_figure2.json").read_text(encoding="utf-8"))
    times = [row for row in results["records"] if (row["measured"], row["mode"]) == ("time", "forward")]
    full = {row["n"]: row["median_s"] for row in times if row["encoder"] == "roberta"}
    ours = {row["n"]: row["median_s"] for row in times if row["k"] == PROJECTED_DIM}
    return sorted(ours), [full[n] / ours[n] for n in sorted(ours)]


def window_times(n: int) -> dict[str, float]:
    """Seconds for one text of n tokens by way, of ModernBERT, as in the table of docs/linearize.md."""
    result = BENCHMARKS / "windows_zen4-2-cores_202611" / "float32" / "linearised.json"
    records = json.loads(result.read_text(encoding="utf-8"))["records"]
    return {record["way"]: record["median_s"] for record in records if record["n"] == n}


def windows(path: Path) -> None:
    """How long an encoder with windows takes for a long text, and what is the same afterwards."""
    ways = {"original": "original", "optimized": "optimized,\nsame outputs", "linearised": "linear,\napproximate"}
    figure, axes = new_figure((7, 2.4))
    bars = axes.barh([*ways.values()], [window_times(8192)[way] for way in ways], color=[WEIGHTS, TOKENS, SLOTS])
    axes.bar_label(bars, fmt="%.0f s", padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel("seconds for one text of 8,192 tokens, two cores, float32")
    axes.set_title("ModernBERT base", fontsize=10)
    save_figure(figure, path)


def draw_attention(axes: Axes) -> None:
    """Full attention above, equation 7 below."""
    attention(axes, 5.3, slots=False)
    attention(axes, 0, slots=True)
    axes.set_xlim(-0.1, 13.8)
    axes.set_ylim(-2.6, 7.8)
    axes.set_aspect("equal")
    axes.axis("off")


def draw_times(axes: Axes) -> None:
    """The time that a Linformer saves, by length."""
    for label, folder in TIMES:
        axes.plot(*time_saved(folder), marker="o", label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    number_ticks(axes.xaxis, ",.0f")
    number_ticks(axes.yaxis, "g", unit="×")
    axes.tick_params(labelsize=8)
    axes.set_xlabel("n, tokens in a sequence", fontsize=8)
    axes.set_ylabel("time of full attention (SDPA) over the Linformer's", fontsize=8)
    axes.set_title(f"Encoder 768 wide, k {PROJECTED_DIM}, forward pass, 2 cores", fontsize=9)
    show_grid(axes)
    axes.legend(fontsize=8)


def linformer(path: Path, *, tall: bool = False) -> None:
    """Equation 7 beside full attention, and the time that it saves; tall: one below the other, for phones."""
    figure, (diagram, times) = new_figure((4.4, 7.4), rows=2) if tall else new_figure((10, 4.2), columns=2)
    if not tall:
        diagram.get_gridspec().set_width_ratios([1.3, 1])
    draw_attention(diagram)
    draw_times(times)
    save_figure(figure, path)


def visible(path: Path, *, tall: bool = False) -> None:
    """What each token sees: with full attention, through slots, and with neighbours and a global token beside them."""
    n, slots, window = 24, 6, 5
    each = n // slots
    tokens = np.arange(n)
    own = np.abs(tokens[:, None] - tokens) <= window // 2
    own[:, 0] = True
    titles = (
        f"Full attention\n{n} tokens one by one",
        f"{slots} slots\neach the mean of {each} tokens",
        f"{slots} slots, {window} neighbours, 1 global token",
    )
    figure, panels = new_figure((4.4, 13), rows=3) if tall else new_figure((10, 4.2), columns=3)
    blues = colormaps["Blues"]
    for panel, title, exact in zip(panels, titles, (np.ones((n, n)), np.zeros((n, n)), own), strict=True):
        blurred = np.where(tokens // each % 2, 0.35, 0.2)[None].repeat(n, axis=0)
        panel.imshow(np.where(exact, 1.0, blurred), cmap=blues, vmin=0, vmax=1.2)
        panel.set_xticks(np.arange(-0.5, n, each) if not exact.all() else [], labels=[])
        panel.set_yticks([])
        panel.set_title(title, fontsize=9)
        panel.set_xlabel("keys and values (tokens)", fontsize=8)
        panel.set_ylabel("queries (tokens)", fontsize=8)
    figure.legend(
        handles=[
            Patch(color=blues(1 / 1.2), label="seen exactly"),
            Patch(color=blues(0.22), label="seen as a part of a slot"),
        ],
        loc="outside lower center",
        ncols=2,
        fontsize=8,
    )
    save_figure(figure, path)


def causal(path: Path) -> None:
    """What each token sees in causal attention: a global token, complete slots, and the tokens up to its own."""
    n, each, window = 24, 4, 6
    tokens = np.arange(n)
    queries, starts = tokens[:, None], np.arange(1, n, each)
    ends = np.minimum(starts + each, n)
    first = queries - window + 1  # the first token that a query sees exactly
    slots = (ends <= queries + 1) * np.clip(np.minimum(ends, first) - starts, 0, None) / (ends - starts)
    parts = (
        ("global", first > 0, ["0"]),
        ("slots", slots, [f"{start}–{end - 1}" for start, end in zip(starts, ends, strict=True)]),
        ("tokens", (first <= tokens) & (tokens <= queries), tokens),
    )
    figure, panels = new_figure((7.6, 5.4), columns=3, sharey=True, width_ratios=[len(names) for *_, names in parts])
    blues, oranges = colormaps["Blues"], colormaps["Oranges"]
    for panel, (title, seen, names) in zip(panels, parts, strict=True):
        color = oranges if title == "slots" else blues
        panel.imshow(np.where(seen, seen, np.nan), cmap=color, vmin=0, vmax=1.4, aspect="auto")
        panel.set_xticks(range(len(names)), labels=names, rotation=90 if title == "slots" else 0, fontsize=7)
        panel.set_yticks(tokens, labels=tokens, fontsize=7)
        panel.set_xticks(np.arange(-0.5, len(names)), minor=True)
        panel.set_yticks(np.arange(-0.5, n), minor=True)
        panel.grid(which="minor", color="lightgray", linewidth=0.5)
        panel.tick_params(which="both", length=0)
        panel.set_title(title, fontsize=9)
    panels[0].set_ylabel("queries (tokens)", fontsize=8)
    panels[1].set_xlabel("tokens of each", fontsize=8)
    figure.legend(
        handles=[
            Patch(color=blues(1 / 1.4), label="seen exactly"),
            Patch(color=oranges(1 / 1.4), label="seen as a slot"),
            Patch(color=oranges(0.5 / 1.4), label="the same, without the tokens seen exactly"),
            Patch(facecolor="white", edgecolor="gray", label="not seen"),
        ],
        loc="outside lower center",
        ncols=4,
        fontsize=8,
    )
    save_figure(figure, path)


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "pictures"
    windows(folder / "windows.png")
    causal(folder / "causal.png")
    for draw in (linformer, visible):
        draw(folder / f"{draw.__name__}.png")
        draw(folder / f"{draw.__name__}-tall.png", tall=True)
