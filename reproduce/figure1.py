"""Figure 1: the spectrum of attention of trained encoders, and of the same encoders before training.

The paper (section 3): most of the sum of the singular values of P is in its largest ones, 0.88 to 0.96 in the 128
largest of 512 (RoBERTa-large on Wiki103), more so in higher layers. This measures
several encoders, each also with random weights, and draws them side by side. 13 minutes for MiniLM on two cores.

    python -m reproduce.figure1 --models sentence-transformers/all-MiniLM-L6-v2 MY-TRANSFORMER --text_file WIKIPEDIA
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from tqdm import tqdm
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerBase, set_seed

from linformer_cli.errors import InputError, renamed
from linformer_cli.settings import model_label
from linformer_cli.settings.declare import Count, File, Measurement, ModelName, Seed, settings
from linformer_kit.analysis.singular_values import Spectrum, attention_spectrum, choose_projected_dims
from linformer_kit.data.files import TextFiles, text_files
from linformer_kit.data.packing import blocks
from linformer_kit.data.read import read_documents
from linformer_kit.data.tokenizer import end_token_id, start_token_id
from linformer_kit.interop.loading import input_length, load_model
from linformer_kit.report.environment import best_device
from linformer_kit.report.figures import new_figure, show_grid
from reproduce.common import Record, Results, ScriptSettings, run, table_lines

_DEFAULT_LENGTH = 512  # of Figure 1
_ENERGY = 0.9
_FILES_IN_TURN = 64  # open at the same time
_DIGITS = 6


@settings
class Settings(ScriptSettings):
    """Measure the singular values of attention."""

    models: Measurement[list[ModelName]]
    """Folders or hub ids of encoders."""
    text_file: Measurement[list[File] | None] = None
    """Files of texts; default: the source of the Python standard library."""
    seq_len: Measurement[Count | None] = None
    """n, tokens per sequence; default: 512, or the model's maximum."""
    samples: Measurement[Count] = 1000
    """Number of sequences."""
    untrained: Measurement[bool] = True
    """Measure each encoder with random weights too."""
    seed: Measurement[Seed] = 0
    """Seed of the random weights."""


def measure(settings: Settings, results: Results) -> None:
    """Add the spectrum of each encoder."""
    files = text_files(settings.text_file, field="text_file")
    for name, untrained in itertools.product(settings.models, (False, True)[: 1 + settings.untrained]):
        key = {"model": model_label(name), "untrained": untrained}
        if results.find(**key) is not None:
            continue
        model, tokenizer, *_ = load_model(name, AutoModel, "an encoder")
        if untrained:
            set_seed(settings.seed)
            model = AutoModel.from_config(model.config).eval()
        model.to(best_device())
        seq_len = sequence_length(model, tokenizer, settings.seq_len)
        started = time.perf_counter()
        ids = islice(sequences(files, tokenizer, seq_len=seq_len), settings.samples)
        shown = tqdm(ids, total=settings.samples, desc="Spectrum", unit=" sequences", dynamic_ncols=True, delay=2)
        batches = ({"input_ids": torch.tensor([sequence], device=model.device)} for sequence in shown)
        found = attention_spectrum(model, batches)
        if found.samples < settings.samples:
            raise InputError(f"samples: expected at most {found.samples} (of {files.name}), got {settings.samples}")
        results.add(**key, seq_len=seq_len, seconds=time.perf_counter() - started, **_fields(found))


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


def _fields(spectrum: Spectrum) -> dict[str, Any]:
    """A spectrum as fields of JSON results."""
    curves = {name: np.round(getattr(spectrum, name), _DIGITS).tolist() for name in ("cumulative", "spread")}
    return {"samples": spectrum.samples, "tokens": spectrum.tokens, **curves}


def table(content: Record) -> str:
    """The share of the largest quarter of the singular values by layer, as Markdown."""
    text = ", ".join(content["settings"]["text_file"] or ["the Python standard library"])
    parts = [
        f"""# Spectrum of attention (Figure 1)

Text: {text}.
Share: the sum of the largest singular values of the context mapping over the sum of all, the mean over heads and \
texts. Rank: the number of singular values with that share of the sum.
The paper has 0.88 to 0.96 for the 128 largest of 512, for RoBERTa-large on Wiki103."""
    ]
    for record in content["records"]:
        spectrum = _spectrum(record)
        parts += [
            f"## {_title(record)}",
            f"{record['samples']:,} sequences of {record['seq_len']} tokens, {record['seconds']:,.0f} s. All heads: "
            f"mean {spectrum.shares.mean():.3f}, {spectrum.shares.min():.3f} to {spectrum.shares.max():.3f}.",
            _shares_by_layer(spectrum),
        ]
    return "\n\n".join(parts)


def _shares_by_layer(spectrum: Spectrum) -> str:
    """A table of the share of the largest quarter of the singular values, and the rank for 0.9, as Markdown."""
    ranks = choose_projected_dims(spectrum, energy=_ENERGY)
    rows = [
        [str(layer), f"{share.mean():.3f}", f"{share.min():.3f} to {share.max():.3f}", f"{spread:.3f}", f"{rank:,}"]
        for layer, (share, spread, rank) in enumerate(
            zip(spectrum.shares, spectrum.spread[..., spectrum.quarter - 1].mean(axis=1), ranks, strict=True)
        )
    ]
    columns = ["layer", f"share of the {spectrum.quarter} largest", "heads", "± over texts", f"rank for {_ENERGY}"]
    return "\n".join(table_lines(columns, rows))


def draw(content: Record) -> Figure:
    """A row for each encoder: its curves, those of random weights where they were measured, and the heat map."""
    records = content["records"]
    trained = [record for record in records if not record["untrained"]]
    random = {record["model"]: record for record in records if record["untrained"]}
    columns = 3 if random else 2
    figure, grid = new_figure((4.4 * columns, 3.9 * len(trained)), len(trained), columns, squeeze=False)
    for row, record in zip(grid, trained, strict=True):
        for axes, each in zip(row, (record, random.get(record["model"]))[: columns - 1], strict=False):
            if each is None:
                axes.axis("off")
                continue
            _draw_curves(axes, _spectrum(each), _title(each))
        _draw_shares(row[-1], _spectrum(record))
    return figure


def _draw_curves(axes: Axes, spectrum: Spectrum, title: str) -> None:
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


def _draw_shares(axes: Axes, spectrum: Spectrum) -> None:
    """Plot the share of the largest quarter of the singular values, layers × heads."""
    image = axes.imshow(spectrum.shares, cmap="viridis", aspect="auto")
    axes.set(xlabel="head", ylabel="layer")
    axes.set_title(f"Share of the {spectrum.quarter} largest of {spectrum.cumulative.shape[-1]}", fontsize=10)
    for numbered in (axes.xaxis, axes.yaxis):
        numbered.set_major_locator(MaxNLocator(integer=True))
    assert axes.figure is not None
    axes.figure.colorbar(image, ax=axes)


def _spectrum(record: Record) -> Spectrum:
    return Spectrum(np.array(record["cumulative"]), np.array(record["spread"]), record["samples"], record["tokens"])


def _title(record: Record) -> str:
    return f"{record['model']}, random weights" if record["untrained"] else record["model"]


if __name__ == "__main__":
    run(Settings, measure, table, draw)
