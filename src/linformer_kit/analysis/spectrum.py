"""`linformer spectrum`: the singular values of an encoder's attention on text, and the choice of k by them."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from matplotlib import colormaps
from matplotlib.axes import Axes
from tqdm import tqdm
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerBase

from linformer_cli.errors import InputError, renamed
from linformer_cli.outputs import check_writable
from linformer_cli.settings import SpectrumSettings, model_label
from linformer_kit.analysis.singular_values import Spectrum, attention_spectrum, choose_projected_dims
from linformer_kit.data.files import TextFiles, text_files
from linformer_kit.data.packing import blocks
from linformer_kit.data.read import read_documents
from linformer_kit.data.tokenizer import end_token_id, start_token_id
from linformer_kit.environment import WEIGHT_DTYPES, device_of, environment
from linformer_kit.files.folders import open_output_dir
from linformer_kit.files.writing import whole_folder, write_whole
from linformer_kit.interop.loading import input_length, load_model
from linformer_kit.report.base import code, environment_line, table, write_report
from linformer_kit.report.figures import new_figure, save_figure, show_grid

_DEFAULT_LENGTH = 512  # of Figure 1
_FILES_IN_TURN = 64  # open at the same time
_DIGITS = 6
_log = logging.getLogger(__name__)


def main(settings: SpectrumSettings) -> None:
    """Compute the spectrum of a model on texts; write its files and `projected_dims.yaml`, and print the Markdown.

    Raises:
        InputError: for texts or a model that cannot be used; nothing is written then.
    """
    check_writable(Path(settings.output_dir or "runs"))
    device = device_of(settings.device)
    files = text_files(settings.text_file, field="text_file", column=settings.text_column)
    model, tokenizer, *_ = load_model(settings.model, AutoModel, "an encoder")
    model.to(device, WEIGHT_DTYPES[settings.dtype])
    seq_len = sequence_length(model, tokenizer, settings.seq_len)
    started = time.perf_counter()
    spectrum = spectrum_of(model, sequences(files, tokenizer, seq_len=seq_len), settings.samples)
    results = {
        "command": "spectrum",
        "environment": environment(model.device),
        "model": model_label(settings.model),
        "model_type": model.config.model_type,
        "text": files.name,
        "seq_len": seq_len,
        "seconds": round(time.perf_counter() - started, 1),
        **spectrum_fields(spectrum),
        "energy": settings.energy,
        "projected_dim": choose_projected_dims(spectrum, energy=settings.energy),
    }
    folder = open_output_dir(settings.output_dir, command="spectrum")
    with whole_folder(folder) as part:
        text = write_report(results, part, spectrum_markdown(results, spectrum), name="spectrum")
        figure, axes = new_figure((6, 4.4))
        draw_curves(axes, spectrum, f"{results['model']}, n {seq_len}")
        save_figure(figure, part / "spectrum.png")
        write_whole(part / "projected_dims.yaml", _as_config(results))
    print(text)
    print(f"Saved in {folder}")


def _as_config(results: dict[str, Any]) -> str:
    """The chosen k as settings of `linformer pretrain`, with the sizes of their model."""
    layers, heads, _ = np.shape(results["cumulative"])
    sizes = {"num_hidden_layers": layers, "num_attention_heads": heads, "max_position_embeddings": results["seq_len"]}
    return yaml.safe_dump(
        {"model": sizes | {"projected_dim": results["projected_dim"]}}, sort_keys=False, default_flow_style=None
    )


def sequence_length(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, seq_len: int | None) -> int:
    """Tokens in a sequence: `seq_len`, or by default 512 as in Figure 1, or the model's maximum if that is less."""
    with renamed("max_length", "seq_len"):
        length = input_length(model, tokenizer, seq_len)
    return min(_DEFAULT_LENGTH, length) if seq_len is None else length


def sequences(files: TextFiles, tokenizer: PreTrainedTokenizerBase, *, seq_len: int) -> Iterator[list[int]]:
    """Token ids of one sequence after the other, read on demand, from up to 64 files in turn.

    The texts of a file are joined and cut into sequences of `seq_len` tokens, start and end included.

    Raises:
        InputError: for text that cannot be read, less text than a sequence, and a tokenizer without start and end
            tokens.
    """
    if start_token_id(tokenizer) is None or end_token_id(tokenizer) is None:
        raise InputError("model: expected a tokenizer with start and end tokens, got one without")

    def of_file(path: Path) -> Iterator[list[int]]:
        texts = read_documents([path], document=files.document, column=files.column)
        for block in chain.from_iterable(blocks(texts, tokenizer, seq_len - 1)):
            yield [*block.tolist(), end_token_id(tokenizer)]

    waiting, number = map(of_file, files.paths), 0
    opened = deque(islice(waiting, _FILES_IN_TURN))
    while opened:
        stream = opened.popleft()
        if (ids := next(stream, None)) is not None:
            yield ids
            number += 1
            opened.append(stream)
        else:
            opened.extend(islice(waiting, 1))
    if not number:
        raise InputError(f"text_file: expected enough for a sequence of {seq_len} tokens, got less in {files.name}")


def spectrum_of(model: PreTrainedModel, ids: Iterable[list[int]], samples: int) -> Spectrum:
    """The spectrum of a model on at most so many sequences of token ids, with a progress bar."""
    shown = tqdm(islice(ids, samples), total=samples, desc="Spectrum", unit=" sequences", dynamic_ncols=True, delay=2)
    batches = ({"input_ids": torch.tensor([sequence], device=model.device)} for sequence in shown)
    spectrum = attention_spectrum(model, batches)
    if spectrum.samples < samples:
        _log.warning("%s of the %s sequences asked for", f"{spectrum.samples:,}", f"{samples:,}")
    return spectrum


def spectrum_fields(spectrum: Spectrum) -> dict[str, Any]:
    """A spectrum as fields of JSON results."""
    curves = {name: np.round(getattr(spectrum, name), _DIGITS).tolist() for name in ("cumulative", "spread")}
    return {"samples": spectrum.samples, "tokens": spectrum.tokens, **curves}


def spectrum_markdown(results: dict[str, Any], spectrum: Spectrum) -> list[str]:
    """The shares of each layer, and its k, as lines of Markdown."""
    at, shares, energy = spectrum.quarter, spectrum.shares, results["energy"]
    return [
        "# Spectrum of attention",
        "",
        f"Model: {code(results['model'])} ({results['model_type']}). Text: {results['text']}, {results['samples']:,} "
        f"sequences of {results['seq_len']} tokens each, {results['tokens']:,} tokens; {results['seconds']:,.0f} s. "
        f"{environment_line(results['environment'])}",
        "",
        *share_table(spectrum, energy=energy),
        "",
        f"Share: σ_1 + … + σ_{at} of the context mapping over the sum of all {spectrum.cumulative.shape[-1]}, the mean "
        f"over heads and texts. All heads of all layers: {shares.min():.3f} to {shares.max():.3f}, mean "
        f"{shares.mean():.3f}. Rank for {energy}: the number of singular values with that share, by the mean of the "
        "heads; `projected_dims.yaml` has it as k of the layer.",
    ]


def share_table(spectrum: Spectrum, *, energy: float = 0.9) -> list[str]:
    """A table of the share of the largest quarter of the singular values, and the rank for an energy, by layer."""
    ranks = choose_projected_dims(spectrum, energy=energy)
    rows = [
        [str(layer), f"{share.mean():.3f}", f"{share.min():.3f} to {share.max():.3f}", f"{spread:.3f}", f"{rank:,}"]
        for layer, (share, spread, rank) in enumerate(
            zip(spectrum.shares, spectrum.spread[..., spectrum.quarter - 1].mean(axis=1), ranks, strict=True)
        )
    ]
    columns = ["layer", f"share of the {spectrum.quarter} largest", "heads", "± over texts", f"rank for {energy}"]
    return table(columns, rows)


def draw_curves(axes: Axes, spectrum: Spectrum, title: str) -> None:
    """Plot the mean over heads of the cumulative curve of each layer, and its deviation over texts (Figure 1, left)."""
    layers, _, rank = spectrum.cumulative.shape
    ranks, at = np.arange(1, rank + 1), spectrum.quarter
    for layer in range(layers):
        color = colormaps["viridis"](layer / max(1, layers - 1) * 0.92)
        mean, deviation = spectrum.cumulative[layer].mean(axis=0), spectrum.spread[layer].mean(axis=0)
        axes.plot(ranks, mean, color=color, label=f"layer {layer}")
        axes.fill_between(
            ranks, mean - deviation, np.minimum(mean + deviation, 1), color=color, alpha=0.15, linewidth=0
        )
    axes.axvline(at, color="grey", linewidth=0.8, linestyle="--")
    axes.text(at, 0.02, f" {at}", color="grey", fontsize=8)
    axes.set(xlim=(0, rank), ylim=(0, 1.02))
    axes.set_title(title, fontsize=10, parse_math=False)
    axes.set(xlabel="index of singular value, the largest first", ylabel="normalised cumulative singular value")
    axes.legend(fontsize=8, ncols=1 + (layers > 8), loc="lower right")
    show_grid(axes)
