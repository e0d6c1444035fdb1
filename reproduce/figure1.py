"""Figure 1: the spectrum of attention of trained encoders, and of the same encoders before training.

The paper (section 3): most of the sum of the singular values of P is in its largest ones, 0.88 to 0.96 in the 128
largest of 512 (RoBERTa-large on Wiki103), more so in higher layers. `linformer spectrum` measures one encoder; this
measures several, each also with random weights, and draws them side by side. 13 minutes for MiniLM on two cores.

    python -m reproduce.figure1 --models sentence-transformers/all-MiniLM-L6-v2 MY-TRANSFORMER --text_file WIKIPEDIA
"""

from __future__ import annotations

import itertools
import time

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from transformers import AutoModel, set_seed

from linformer_cli.errors import InputError
from linformer_cli.settings import model_label
from linformer_cli.settings.declare import Count, File, Measurement, ModelName, Seed, settings
from linformer_kit.analysis.singular_values import Spectrum
from linformer_kit.analysis.spectrum import (
    draw_curves,
    sequence_length,
    sequences,
    share_table,
    spectrum_fields,
    spectrum_of,
)
from linformer_kit.data.files import text_files
from linformer_kit.environment import best_device
from linformer_kit.interop.loading import load_model
from linformer_kit.report.figures import new_figure
from reproduce.common import Record, Results, ScriptSettings, run


@settings
class Settings(ScriptSettings):
    """Measure the singular values of attention."""

    models: Measurement[list[ModelName]]  # Folders or hub ids of encoders.
    # Files of texts; default: the source of the Python standard library.
    text_file: Measurement[list[File] | None] = None
    seq_len: Measurement[Count | None] = None  # n, tokens per sequence; default: 512, or the model's maximum.
    samples: Measurement[Count] = 1000  # Number of sequences.
    untrained: Measurement[bool] = True  # Measure each encoder with random weights too.
    seed: Measurement[Seed] = 0  # Seed of the random weights.


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
        found = spectrum_of(model, sequences(files, tokenizer, seq_len=seq_len), settings.samples)
        if found.samples < settings.samples:
            raise InputError(f"samples: expected at most {found.samples} (of {files.name}), got {settings.samples}")
        results.add(**key, seq_len=seq_len, seconds=time.perf_counter() - started, **spectrum_fields(found))


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
            "\n".join(share_table(spectrum)),
        ]
    return "\n\n".join(parts)


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
            draw_curves(axes, _spectrum(each), _title(each))
        _draw_shares(row[-1], _spectrum(record))
    return figure


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
