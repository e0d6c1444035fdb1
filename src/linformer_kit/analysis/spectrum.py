"""`linformer spectrum`: the singular values of an encoder's attention on text, and the choice of k by them."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from tqdm import tqdm
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerBase

from linformer_cli.errors import InputError, renamed
from linformer_cli.settings import SpectrumSettings, model_label
from linformer_kit.analysis.singular_values import Spectrum, attention_spectrum, choose_projected_dims
from linformer_kit.data.files import TextFiles, find_files, standard_library
from linformer_kit.data.packing import blocks
from linformer_kit.data.read import read_documents
from linformer_kit.data.tokenizer import end_token_id, start_token_id
from linformer_kit.environment import best_device, environment
from linformer_kit.files.folders import check_new_folder
from linformer_kit.files.runs import check_output_dir, open_output_dir
from linformer_kit.files.writing import whole_folder, write_whole
from linformer_kit.interop.loading import input_length, load_model
from linformer_kit.report.base import code, environment_line, table, write_json
from linformer_kit.report.figures import new_figure, save_figure, show_grid

_DEFAULT_ENERGY = 0.9
_DEFAULT_LENGTH = 512  # of Figure 1
_FILES_IN_TURN = 64  # open at the same time
_DIGITS = 6
_log = logging.getLogger(__name__)


def main(settings: SpectrumSettings) -> None:
    """Compute the spectrum of a model on texts; write `spectrum.json`, `.md` and `.png`, and print the Markdown.

    With `choose`, also `projected_dims.yaml`.

    Raises:
        InputError: for settings, texts or a model that cannot be used; nothing is written then.
    """
    if settings.output_dir is not None:
        check_new_folder("output_dir", settings.output_dir)
    check_output_dir(settings.output_dir, resume=False, overwrite=False)
    results = _measure(settings)
    text = spectrum_markdown(results)
    folder = open_output_dir(settings.output_dir, command="spectrum", overwrite=False)
    with whole_folder(folder) as part:
        write_json(results, part / "spectrum.json")
        write_whole(part / "spectrum.md", text)
        save_figure(draw_spectrum(results), part / "spectrum.png")
        if "chosen" in results:
            write_whole(part / "projected_dims.yaml", _as_config(results))
    print(text)
    print(f"Saved in {folder}")


def _measure(settings: SpectrumSettings) -> dict[str, Any]:
    """The content of `spectrum.json`."""
    files = find_texts(settings.text_file, document=settings.document, column=settings.text_column)
    model, tokenizer = load_model(settings.model, AutoModel, "an encoder")
    model.to(best_device())
    seq_len = sequence_length(model, tokenizer, settings.seq_len)
    started = time.perf_counter()
    ids = islice(sequences(files, tokenizer, seq_len=seq_len), settings.samples)
    first = list(islice(ids, 1))
    if not first:
        raise InputError(f"text_file: expected enough for a sequence of {seq_len} tokens, got less in {files.name}")
    choose = settings.choose or settings.energy is not None or settings.budget is not None
    if choose:  # raises errors of these settings before the long measurement
        _choose(settings, attention_spectrum(model, batches_of(iter(first), 1, model.device)))
    spectrum = attention_spectrum(model, batches_of(chain(first, ids), settings.samples, model.device))
    if spectrum.samples < settings.samples:
        _log.warning("%s of the %s sequences asked for", f"{spectrum.samples:,}", f"{settings.samples:,}")
    return {
        "command": "spectrum",
        "environment": environment(model.device),
        "model": model_label(settings.model),
        "model_type": model.config.model_type,
        "text": files.name,
        "seq_len": seq_len,
        "seconds": round(time.perf_counter() - started, 1),
        **spectrum_fields(spectrum),
        "at": max(1, spectrum.cumulative.shape[-1] // 4),
        **({"chosen": _choose(settings, spectrum)} if choose else {}),
    }


def sequence_length(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, seq_len: int | None) -> int:
    """Tokens in a sequence: `seq_len`, or by default 512 as in Figure 1, or the model's maximum if that is less."""
    with renamed("max_length", "seq_len"):
        length = input_length(model, tokenizer, seq_len)
    return min(_DEFAULT_LENGTH, length) if seq_len is None else length


def find_texts(text_file: list[str] | None, *, document: str = "auto", column: str = "text") -> TextFiles:
    """The files, folders or globs to read, as `TextFiles`; None: the source of the Python standard library."""
    if text_file is None:
        return standard_library()
    paths = find_files(text_file, field="text_file")
    return TextFiles(", ".join(Path(pattern).name for pattern in text_file), paths, document=document, column=column)


def sequences(files: TextFiles, tokenizer: PreTrainedTokenizerBase, *, seq_len: int) -> Iterator[list[int]]:
    """Token ids of one sequence after the other, read on demand, from up to 64 files in turn.

    The texts of a file are joined and cut into sequences of `seq_len` tokens, start and end included.

    Raises:
        InputError: for text that cannot be read, and a tokenizer without start and end tokens.
    """
    if start_token_id(tokenizer) is None or end_token_id(tokenizer) is None:
        raise InputError("model: expected a tokenizer with start and end tokens, got one without")

    def of_file(path: Path) -> Iterator[list[int]]:
        texts = read_documents([path], document=files.document, column=files.column)
        for block in chain.from_iterable(blocks(texts, tokenizer, seq_len - 1)):
            yield [*block.tolist(), end_token_id(tokenizer)]

    waiting = map(of_file, files.paths)
    opened = deque(islice(waiting, _FILES_IN_TURN))
    while opened:
        stream = opened.popleft()
        if (ids := next(stream, None)) is not None:
            yield ids
            opened.append(stream)
        else:
            opened.extend(islice(waiting, 1))


def batches_of(ids: Iterator[list[int]], total: int, device: torch.device) -> Iterator[dict[str, torch.Tensor]]:
    """Each sequence of token ids as arguments of a model, with a progress bar."""
    for sequence in tqdm(ids, total=total, desc="Spectrum", unit=" sequences", dynamic_ncols=True, delay=2):
        yield {"input_ids": torch.tensor([sequence], device=device)}


def spectrum_fields(spectrum: Spectrum) -> dict[str, Any]:
    """A spectrum as fields of JSON results."""
    curves = {name: np.round(getattr(spectrum, name), _DIGITS).tolist() for name in ("cumulative", "spread")}
    return {"samples": spectrum.samples, "tokens": spectrum.tokens, **curves}


def _choose(settings: SpectrumSettings, spectrum: Spectrum) -> dict[str, Any]:
    energy = _DEFAULT_ENERGY if settings.energy is None and settings.budget is None else settings.energy
    dims = choose_projected_dims(spectrum, energy=energy, budget=settings.budget)
    shares = [curves[:, k - 1] for curves, k in zip(spectrum.cumulative, dims, strict=True)]
    kept = round(float(np.mean(shares)), _DIGITS)
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
    lines = [
        "# Spectrum of attention",
        "",
        f"Model: {code(results['model'])} ({results['model_type']}). Text: {results['text']}, {results['samples']:,} "
        f"sequences of {results['seq_len']} tokens each, {results['tokens']:,} tokens; {results['seconds']:,.0f} s. "
        f"{environment_line(results['environment'])}",
        "",
        *share_table(curves, np.array(results["spread"]), at),
        "",
        f"Share: σ_1 + … + σ_{at} of the context mapping over the sum of all {curves.shape[-1]}, the mean over heads "
        f"and texts. All heads of all layers: {shares.min():.3f} to {shares.max():.3f}, mean {shares.mean():.3f}. Rank "
        f"for {_DEFAULT_ENERGY}: the number of singular values with that share, by the mean of the heads.",
    ]
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
    assert axes.figure is not None
    axes.figure.colorbar(image, ax=axes)
