"""`linformer spectrum`: the singular values of an encoder's attention on text, and the choice of k by them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
import yaml
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from tqdm import tqdm
from transformers import AutoModel

from linformer_kit.analysis.choose import choose_projected_dims, kept_energy
from linformer_kit.analysis.singular_values import Spectrum, SpectrumMeter
from linformer_kit.analysis.texts import find_texts, sequence_length, sequences
from linformer_kit.environment import best_device, environment
from linformer_kit.errors import InputError
from linformer_kit.files.folders import check_new_folder
from linformer_kit.files.runs import check_output_dir, open_output_dir
from linformer_kit.files.writing import uninterrupted, whole_folder, write_whole
from linformer_kit.interop.loading import load_model
from linformer_kit.report.base import code, environment_line, table, write_json
from linformer_kit.report.figures import new_figure, save_figure, show_grid
from linformer_kit.settings import SpectrumSettings, recorded_name

_DEFAULT_ENERGY = 0.9
_DIGITS = 6
_NUMBERED_CELLS = 16  # layers or heads up to which the cells of the heat map show numbers
_log = logging.getLogger(__name__)


def main(settings: SpectrumSettings) -> None:
    """Measure, write, print."""
    spectrum(settings)


def spectrum(settings: SpectrumSettings) -> dict[str, Any]:
    """Compute the spectrum of a model on texts, and write numbers and figure.

    Files: `spectrum.json`, `spectrum.md`, `spectrum.png` and, with `choose`, `projected_dims.yaml`. Partial results are
    written also if Ctrl-C or a bad file ends the measurement, or if `budget` proves to be out of range.

    Returns:
        The content of `spectrum.json`.

    Raises:
        InputError: for settings, texts or a model that cannot be used; nothing is written before the first sequence.
    """
    if settings.output_dir is not None:
        check_new_folder("output_dir", settings.output_dir)
    check_output_dir(settings.output_dir, resume=False, overwrite=False)
    _check(settings)
    results, found, ended = _measure(settings)
    results["at"] = max(1, found.cumulative.shape[-1] // 4)  # singular values whose share the heat map shows
    try:
        if settings.choose:
            results["chosen"] = _choose(settings, found)
    except InputError as error:  # of texts that prove too short, raised after writing
        ended = ended or error
    folder = open_output_dir(settings.output_dir, command="spectrum", overwrite=False)
    with uninterrupted(), whole_folder(folder) as part:
        if "chosen" in results:
            write_whole(part / "projected_dims.yaml", _as_config(results))
        text = spectrum_markdown(results)
        write_json(results, part / "spectrum.json")
        write_whole(part / "spectrum.md", text)
        save_figure(draw_spectrum(results), part / "spectrum.png")
    print(text)
    print(f"Saved in {folder}")
    if ended is not None:
        raise ended
    return results


def _check(settings: SpectrumSettings) -> None:
    if settings.energy is not None and settings.budget is not None:
        raise InputError("energy, budget: expected at most one of them, got both")
    for name in ("energy", "budget"):
        value = getattr(settings, name)
        if value is not None and not settings.choose:
            raise InputError(f"{name}: expected none without --choose, got {value}")


def _measure(settings: SpectrumSettings) -> tuple[dict[str, Any], Spectrum, BaseException | None]:
    """The results, and the exception that ended the measurement early, if any."""
    files = find_texts(settings.text_file, document=settings.document, column=settings.text_column)
    model, tokenizer = load_model(settings.model, AutoModel, "an encoder")
    model.to(best_device())
    seq_len = sequence_length(model, tokenizer, settings.seq_len)
    meter = SpectrumMeter(model)
    started = time.perf_counter()
    ended: BaseException | None = None
    ids = islice(sequences(files, tokenizer, seq_len=seq_len, packing=settings.packing), settings.samples)
    try:
        for batch in batches_of(ids, settings.samples, model.device):
            meter.add(batch)
            if meter.samples == 1 and settings.packing and settings.choose:  # raise errors now, not at the end
                _choose(settings, meter.result())
    except (KeyboardInterrupt, InputError, OSError) as error:
        if meter.samples < (1 if isinstance(error, KeyboardInterrupt) else 2):
            raise
        ended = error
    if not meter.samples:
        raise InputError(f"text_file: expected enough for a sequence of {seq_len} tokens, got less in {files.name}")
    if meter.samples < settings.samples and ended is None:
        _log.warning("%s of the %s sequences asked for", f"{meter.samples:,}", f"{settings.samples:,}")
    found = meter.result()
    results = {
        "command": "spectrum",
        "environment": environment(model.device),
        "model": recorded_name(settings.model),
        "model_type": model.config.model_type,
        "text": files.name,
        "seq_len": seq_len,
        "packing": settings.packing,
        "complete": ended is None,
        "seconds": round(time.perf_counter() - started, 1),
        **spectrum_fields(found),
    }
    return results, found, ended


def spectrum_fields(found: Spectrum) -> dict[str, Any]:
    """A spectrum as fields of JSON results."""
    curves = {name: np.round(getattr(found, name), _DIGITS).tolist() for name in ("cumulative", "spread")}
    return {"samples": found.samples, "tokens": found.tokens, **curves}


def batches_of(ids: Iterator[list[int]], total: int, device: torch.device) -> Iterator[dict[str, torch.Tensor]]:
    """Each sequence of token ids as arguments of a model, with a progress bar."""
    with tqdm(total=total, desc="Spectrum", unit=" sequences", dynamic_ncols=True, delay=2) as bar:
        for sequence in ids:
            yield {"input_ids": torch.tensor([sequence], device=device)}
            bar.update()


def _choose(settings: SpectrumSettings, found: Spectrum) -> dict[str, Any]:
    energy = _DEFAULT_ENERGY if settings.energy is None and settings.budget is None else settings.energy
    dims = choose_projected_dims(found, energy=energy, budget=settings.budget)
    kept = round(kept_energy(found, dims), _DIGITS)
    return {"energy": energy, "budget": settings.budget, "projected_dim": dims, "kept": kept}


def _as_config(results: dict[str, Any]) -> str:
    """The chosen k as settings of `linformer pretrain`, with the sizes of their model."""
    layers, heads, _ = np.shape(results["cumulative"])
    model = {
        "max_position_embeddings": results["seq_len"],
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "projected_dim": results["chosen"]["projected_dim"],
    }
    return yaml.safe_dump({"model": model}, sort_keys=False, default_flow_style=None)


def spectrum_markdown(results: dict[str, Any]) -> str:
    """The shares of each layer, and the chosen k, as Markdown."""
    curves, at = np.array(results["cumulative"]), results["at"]
    shares = curves[..., at - 1]
    length = f"{results['seq_len']} tokens each" if results["packing"] else f"up to {results['seq_len']} tokens each"
    lines = [
        "# Spectrum of attention",
        "",
        f"Model: {code(results['model'])} ({results['model_type']}). Text: {results['text']}, {results['samples']:,} "
        f"sequences of {length}, {results['tokens']:,} tokens; {results['seconds']:,.0f} s. "
        f"{environment_line(results['environment'])}",
        "",
        *share_table(curves, np.array(results["spread"]), at),
        "",
        f"Share: σ_1 + … + σ_{at} of the context mapping over the sum of all {curves.shape[-1]}, the mean over heads "
        f"and texts. All heads of all layers: {shares.min():.3f} to {shares.max():.3f}, mean {shares.mean():.3f}. Rank "
        f"for {_DEFAULT_ENERGY}: the number of singular values with that share, by the mean of the heads.",
    ]
    if not results["complete"]:
        lines += ["", "Interrupted: fewer texts than requested."]
    if "chosen" in results:
        lines += ["", *_chosen(results["chosen"], curves.shape[1])]
    return "\n".join(lines) + "\n"


def share_table(curves: np.ndarray, spread: np.ndarray, at: int) -> list[str]:
    """The lines of a table of the share of the `at` largest singular values, by layer."""
    rows = []
    for layer, (heads, deviation) in enumerate(zip(curves, spread, strict=True)):
        shares = heads[:, at - 1]
        reached = np.append(heads.mean(axis=0) >= _DEFAULT_ENERGY, True)
        rows.append(
            [
                str(layer),
                f"{shares.mean():.3f}",
                f"{shares.min():.3f} to {shares.max():.3f}",
                f"{deviation[:, at - 1].mean():.3f}",
                f"{int(reached.argmax()) + 1:,}",
            ]
        )
    return table(["layer", f"share of the {at} largest", "heads", "± over texts", f"rank for {_DEFAULT_ENERGY}"], rows)


def _chosen(chosen: dict[str, Any], heads: int) -> list[str]:
    dims, budget = chosen["projected_dim"], chosen["budget"]
    aim = f"an energy of {chosen['energy']} in each layer" if budget is None else f"{budget:,} slots"
    return [
        f"## Chosen k, for {aim}",
        "",
        *table(["layer", "k of each head"], [[str(layer), f"{k:,}"] for layer, k in enumerate(dims)]),
        "",
        f"{heads * sum(dims):,} slots; they keep {chosen['kept']:.3f} of the singular values, the mean over heads. "
        "Settings for `linformer pretrain`: `projected_dims.yaml`.",
    ]


def draw_spectrum(results: dict[str, Any]) -> Figure:
    """Figure 1: cumulative curves of the layers on the left, layers × heads at one rank on the right.

    Args:
        results: The content of `spectrum.json`.
    """
    curves, at = np.array(results["cumulative"]), results["at"]
    figure, (left, right) = new_figure((11, 4.4), 1, 2)
    draw_curves(left, curves, np.array(results["spread"]), at)
    left.set_title("Mean over heads; shaded: ± one deviation over texts", fontsize=10)
    draw_shares(right, curves, at)
    title = f"Spectrum of attention: {results['model']}, n {results['seq_len']}"
    figure.suptitle(title, fontsize=11, parse_math=False)
    return figure


def draw_curves(axes: Axes, curves: np.ndarray, spread: np.ndarray, at: int) -> None:
    """Plot the mean over heads of the cumulative curves of each layer, with a line at one rank."""
    layers, _, rank = curves.shape
    ranks = np.arange(1, rank + 1)
    for layer in range(layers):
        color = colormaps["viridis"](layer / max(1, layers - 1) * 0.92)
        mean, deviation = curves[layer].mean(axis=0), spread[layer].mean(axis=0)
        axes.plot(ranks, mean, color=color, label=f"layer {layer}")
        axes.fill_between(
            ranks, mean - deviation, np.minimum(mean + deviation, 1), color=color, alpha=0.15, linewidth=0
        )
    axes.axvline(at, color="grey", linewidth=0.8, linestyle="--")
    axes.text(at, 0.02, f" {at}", color="grey", fontsize=8)
    axes.set(xlim=(0, rank), ylim=(0, 1.02))
    axes.set(xlabel="index of singular value, the largest first", ylabel="normalised cumulative singular value")
    axes.legend(fontsize=8, ncols=1 + (layers > 8), loc="lower right")
    show_grid(axes)


def draw_shares(axes: Axes, curves: np.ndarray, at: int) -> None:
    """Plot the share of the `at` largest singular values, layers × heads."""
    shares = curves[..., at - 1]
    image = axes.imshow(shares, cmap="viridis", aspect="auto")
    axes.set(xlabel="head", ylabel="layer")
    axes.set_title(f"Share of the {at} largest of {curves.shape[-1]}", fontsize=10)
    for numbered in (axes.xaxis, axes.yaxis):
        numbered.set_major_locator(MaxNLocator(integer=True))
    if max(shares.shape) <= _NUMBERED_CELLS:
        middle = (shares.min() + shares.max()) / 2
        for (layer, head), share in np.ndenumerate(shares):
            color = "white" if share < middle else "black"
            text = f"{share:.2f}".removeprefix("0")
            axes.text(head, layer, text, ha="center", va="center", fontsize=7, color=color)
    assert axes.figure is not None
    axes.figure.colorbar(image, ax=axes)
