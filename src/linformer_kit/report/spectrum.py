"""Report of the spectrum of attention, as in Figure 1: curves of the layers, and layers × heads at one rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.ticker import MaxNLocator

from linformer_kit.report.base import code, environment_line, table, write_report
from linformer_kit.report.figures import new_figure, save_figure, show_grid

# Figure 1, right: RoBERTa-large on Wiki103, n 512, at the 128th largest singular value; read off the colour bar.
_PAPER_AT, _PAPER_OF, _PAPER_SHARES = 128, 512, (0.88, 0.96)
_ENERGY = 0.9
_NUMBERED_CELLS = 16  # layers or heads up to which the cells of the heat map show numbers


def write_spectrum_report(results: dict[str, Any], folder: Path) -> str:
    """Write `spectrum.json`, `spectrum.md` and `spectrum.png`, as SVG too.

    Args:
        results: Results of `spectrum.figure1.spectrum`.
        folder: Output folder.

    Returns:
        The Markdown text.
    """
    return write_report(results, folder, "spectrum", spectrum_markdown, draw_spectrum)


def spectrum_markdown(results: dict[str, Any]) -> str:
    """The shares of each layer as Markdown, with the paper's if measured under the same conditions."""
    curves, at = np.array(results["cumulative"]), results["at"]
    every = f"all {curves.shape[-1]}" if results["leading"] is None else "all"
    shares = curves[..., at - 1]
    lines = ["# Spectrum of attention", "", _described(results), ""]
    rows = [
        [
            str(layer),
            f"{each.mean():.3f}",
            f"{each.min():.3f} to {each.max():.3f}",
            f"{np.mean(np.array(results['spread'])[layer, :, at - 1]):.3f}",
            _reached(curves[layer].mean(axis=0)),
        ]
        for layer, each in enumerate(shares)
    ]
    header = ["layer", f"share of the {at} largest", "heads", "± over texts", f"rank for {_ENERGY}"]
    lines += table(header, rows)
    lines += [
        "",
        f"Share: σ_1 + … + σ_{at} of the context mapping over the sum of {every}, the mean over heads and texts. "
        f"All heads of all layers: {shares.min():.3f} to {shares.max():.3f}, mean {shares.mean():.3f}. Rank for "
        f"{_ENERGY}: the number of singular values with that share, by the mean of the heads.",
    ]
    if (at, results["seq_len"]) == (_PAPER_AT, _PAPER_OF):
        low, high = _PAPER_SHARES
        lines += ["", f"The paper's Figure 1, RoBERTa-large on Wiki103, at the same rank: {low} to {high}."]
    if results["leading"] is not None and np.max(results["error"]) > 0:
        lines += [
            "",
            f"Only the {results['leading']} largest singular values were computed, by a randomised decomposition; the "
            f"sum of the others is estimated, so shares may be off by about {np.max(results['error']):.4f}.",
        ]
    if not results["complete"]:
        lines += ["", "Interrupted: fewer texts than requested."]
    if "chosen" in results:
        lines += ["", *_chosen(results["chosen"])]
    return "\n".join(lines) + "\n"


def _described(results: dict[str, Any]) -> str:
    length = f"{results['seq_len']} tokens each" if results["packing"] else f"up to {results['seq_len']} tokens each"
    return (
        f"Model: {code(results['model'])} ({results['model_type']}{_kind(results)}). Text: {results['text']}, "
        f"{results['samples']:,} sequences of {length}, {results['tokens']:,} tokens; {results['seconds']:,.0f} s. "
        f"{environment_line(results['environment'])}"
    )


def _kind(results: dict[str, Any]) -> str:
    """What is not as usual of the weights; results of earlier versions have no settings."""
    untrained = ", random weights" if results["untrained"] else ""
    unprojected = ", before projection" if (results.get("settings") or {}).get("unprojected") else ""
    return untrained + unprojected


def _reached(curve: np.ndarray) -> str:
    enough = curve >= _ENERGY
    return f"{int(enough.argmax()) + 1:,}" if enough.any() else f"over {len(curve):,}"


def _chosen(chosen: dict[str, Any]) -> list[str]:
    dims = chosen["projected_dim"]
    total, heads = int(np.sum(dims)), sum(map(len, dims))
    kind = {"total": "most energy in total", "least": "most energy for the head with the least"}[chosen["aim"]]
    aim = (
        f"at least {chosen['energy']} of each head"
        if chosen["budget"] is None
        else f"{chosen['budget']:,} slots, {kind}"
    )
    header = ["layer", *(f"head {head}" for head in range(len(dims[0])))]
    return [
        f"## Chosen k, for {aim}",
        "",
        *table(header, [[str(layer), *map(str, row)] for layer, row in enumerate(dims)]),
        "",
        f"{total:,} slots, {total / heads:,.1f} per head; they keep {chosen['kept']:.3f} of the singular values, the "
        "mean over heads. Settings for `linformer pretrain`: `projected_dims.yaml`.",
    ]


def draw_spectrum(results: dict[str, Any], folder: Path) -> None:
    """Plot Figure 1: cumulative curves of the layers on the left, layers × heads at one rank on the right.

    Args:
        results: As for `write_spectrum_report`.
        folder: Output folder.
    """
    curves, at = np.array(results["cumulative"]), results["at"]
    layers, heads, rank = curves.shape
    figure, (left, right) = new_figure((11, 4.4), 1, 2)
    colors = colormaps["viridis"]
    ranks = np.arange(1, rank + 1)
    for layer in range(layers):
        color = colors(layer / max(1, layers - 1) * 0.92)
        mean = curves[layer].mean(axis=0)
        spread = np.array(results["spread"])[layer].mean(axis=0)
        left.plot(ranks, mean, color=color, label=f"layer {layer}")
        left.fill_between(ranks, mean - spread, np.minimum(mean + spread, 1), color=color, alpha=0.15, linewidth=0)
    left.axvline(at, color="grey", linewidth=0.8, linestyle="--")
    left.text(at, 0.02, f" {at}", color="grey", fontsize=8)
    left.set_xlim(0, rank)
    left.set_ylim(0, 1.02)
    left.set_xlabel("index of singular value, the largest first")
    left.set_ylabel("normalised cumulative singular value")
    left.set_title("Mean over heads; shaded: ± one deviation over texts", fontsize=10)
    left.legend(fontsize=8, ncols=1 + (layers > 8), loc="lower right")
    show_grid(left)
    shares = curves[..., at - 1]
    image = right.imshow(shares, cmap="viridis", aspect="auto")
    right.set_xlabel("head")
    right.set_ylabel("layer")
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.yaxis.set_major_locator(MaxNLocator(integer=True))
    of_all = f" of {rank}" if results["leading"] is None else ""
    right.set_title(f"Share of the {at} largest{of_all}", fontsize=10)
    if max(layers, heads) <= _NUMBERED_CELLS:
        middle = (shares.min() + shares.max()) / 2
        for layer in range(layers):
            for head in range(heads):
                share = shares[layer, head]
                color = "white" if share < middle else "black"
                text = f"{share:.2f}".removeprefix("0")
                right.text(head, layer, text, ha="center", va="center", fontsize=7, color=color)
    figure.colorbar(image, ax=right)
    title = f"Spectrum of attention: {results['model']}{_kind(results)}, n {results['seq_len']}"
    figure.suptitle(title, fontsize=11, parse_math=False)
    save_figure(figure, folder / "spectrum.png", vector=True)
