"""Linear sentence embedders beside their original: how near, how fast.

Cosine of each model's embeddings to those of the first for the same texts, truncated to several lengths; time and
memory of a forward pass.

    linformer convert sentence-transformers/all-MiniLM-L6-v2 linear --in_place
    python -m reproduce.embeddings --models sentence-transformers/all-MiniLM-L6-v2 linear --text_file wikipedia

For 200 texts of up to 512 tokens each model takes a minute on two cores, time and memory another.

Results: benchmarks/embeddings-minilm-parts_zen4-2-cores_202611 (what neighbours, the first token and each layer are
worth without training: most) and benchmarks/embeddings-minilm-adapters_xeon-2-cores_202611 (the adapters that ship).
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pandas
import torch
from sentence_transformers.sentence_transformer.modules import Normalize
from transformers import PreTrainedModel

from linformer_kit.analysis.measure import in_fresh_process, interleaved, peak_bytes, summary
from linformer_kit.commands.output import set_up_logging
from linformer_kit.data.files import find_files
from linformer_kit.data.read import read_documents
from linformer_kit.environment import best_device
from linformer_kit.errors import InputError, renamed
from linformer_kit.inference.embedder import Embedder, load_embedder
from linformer_kit.linearized.classes import LinearizedModel
from linformer_kit.models.modeling import LinformerPreTrainedModel
from linformer_kit.models.positions import check_positions, longest_input, set_positions
from linformer_kit.settings import ResizeMode
from reproduce.common import Record, Results, by_name, markdown, run

CHARACTERS = 6  # of a token, more than the mean of a text
MOST_CHARACTERS = 100_000  # of a text; the rest is beyond every length
TOKENS = 4096  # of the forward pass that is timed
SECONDS = 60.0  # for all timed runs of one model at one length

Precision = Literal["float32", "mixed", "bfloat16"]


@dataclass(kw_only=True)
class Settings:
    """Settings of the script.

    Attributes:
        models: Folders or hub ids of sentence embedders; all are compared with the first. Their last parts are their
            names.
        text_file: Files, folders or globs of long texts for the cosine; default: no cosine.
        samples: Number of texts for the cosine.
        cosine_lengths: Lengths in tokens to which these texts are truncated.
        lengths: Values of n for time and memory; models with fewer positions are made longer for it.
        precision: All in float32 or bfloat16, or mixed: weights in float32, bfloat16 where the processor has it.
        batch_size: Texts in a forward pass.
        output_dir: New folder for the results, or one to continue; default: a new folder below runs/.
    """

    models: list[str]
    text_file: list[str] | None = None
    samples: int = 200
    cosine_lengths: list[int] = field(default_factory=lambda: [32, 128, 256, 512])
    lengths: list[int] = field(default_factory=lambda: [512, 4096])
    precision: Precision = "mixed"
    batch_size: int = 16
    output_dir: str | None = None


# What is measured


def measure(settings: Settings, results: Results) -> None:
    """Add the cosines and the costs of each model.

    Raises:
        InputError: for models and texts that cannot be used.
    """
    models = by_name(settings.models)
    passages = long_passages(settings.text_file, settings.samples, max(settings.cosine_lengths, default=0))
    embedders = {name: load(model, settings.precision, settings.batch_size) for name, model in models.items()}
    first = next(iter(embedders.values()))

    @functools.cache
    def reference(n: int) -> np.ndarray:
        return _truncated(first, passages, n)

    for n, (name, embedder) in itertools.product(settings.cosine_lengths if passages else (), embedders.items()):
        if embedder.width != first.width or embedder.longest < n:
            expected = f"embeddings of {first.width} numbers of texts of {n:,} tokens"
            raise InputError(f"{name}: expected {expected}, got {embedder.width} and {embedder.longest:,}")
        if results.find(measured="cosine", name=name, n=n) is None:
            cosine = (_truncated(embedder, passages, n) * reference(n)).sum(axis=1)
            results.add(measured="cosine", name=name, n=n, texts=len(passages), **mean_and_lowest(cosine))
    for n in settings.lengths:
        cases = {name: _pass(embedder, n) for name, embedder in embedders.items()}
        peaks = {name: (_peak, models[name], n, settings) for name in models}
        add_costs(results, cases, peaks, n=n, precision=settings.precision)


def load(name: str, precision: Precision, batch_size: int, *, field: str = "models") -> Embedder:
    """An embedder whose embeddings have length 1, also that of a plain encoder."""
    embedder = load_embedder(name, forward(precision, batch_size), field=field)
    if not isinstance(embedder.sentences[-1], Normalize):
        embedder.sentences.append(Normalize())
    return embedder


def forward(precision: Precision, batch_size: int) -> Any:
    """The settings of an `Embedder`."""
    dtype = "bfloat16" if precision == "bfloat16" else "float32"
    return SimpleNamespace(batch_size=batch_size, dtype=dtype, bf16="auto" if precision == "mixed" else "false")


def long_passages(text_file: list[str] | None, samples: int, tokens: int) -> list[str]:
    """Texts of more than a number of tokens, evenly spaced over all files; none without files."""
    if text_file is None:
        return []
    texts = read_documents(find_files(text_file, field="text_file"), document="auto", column="text")
    long = [text[:MOST_CHARACTERS] for text in texts if len(text) >= tokens * CHARACTERS]
    if len(long) < samples or samples < 1:
        enough = f"1 to {len(long)} (the texts of at least {tokens * CHARACTERS:,} characters)"
        raise InputError(f"samples: expected {enough}, got {samples}")
    return [long[place] for place in np.linspace(0, len(long) - 1, samples).astype(int)]


def _truncated(embedder: Embedder, texts: Sequence[str], n: int) -> np.ndarray:
    embedder.truncate(n)
    return embedder.embed(texts, f"{n} tokens")


def mean_and_lowest(cosine: np.ndarray) -> Record:
    """The fields of a record of cosines."""
    return {"cosine": float(cosine.mean()), "lowest": float(cosine.min())}


def add_costs(
    results: Results, cases: Mapping[str, Callable[[], object]], peaks: dict[str, tuple[Any, ...]], **key: object
) -> None:
    """Add the time of each case, alternating, and its peak memory, if any is missing.

    Args:
        results: The results.
        cases: What is timed, by name.
        peaks: For each, a function that returns its peak memory in bytes, and its arguments; called in a fresh process.
        key: Further fields of the records.
    """
    missing = [name for name in cases if results.find(measured="cost", name=name, **key) is None]
    if missing:
        timings = interleaved(cases, device=best_device(), seconds=SECONDS)
        torch.cuda.empty_cache()  # the processes that measure memory share the device
        for name in missing:
            peak = in_fresh_process(*peaks[name])
            results.add(measured="cost", name=name, **key, **summary(timings[name]), peak_bytes=peak)


def _pass(embedder: Embedder, n: int) -> Callable[[], object]:
    """A forward pass over random tokens, of the model made longer if need be."""
    model, device = lengthened(embedder.model, n), embedder.device
    ids = torch.randint(model.config.vocab_size, (max(1, TOKENS // n), n)).to(device)

    @torch.inference_mode()
    def run() -> object:
        with torch.autocast(device.type, torch.bfloat16, enabled=embedder.bf16):
            return model(input_ids=ids)

    return run


def _peak(name: str, n: int, settings: Settings) -> int:
    """Peak memory of `_pass` in bytes, in addition to the model's own."""
    set_up_logging()
    run = _pass(load(name, settings.precision, settings.batch_size), n)
    run()
    return peak_bytes(run, best_device())


def lengthened(model: PreTrainedModel, n: int, mode: ResizeMode = "interpolate") -> PreTrainedModel:
    """The model itself if it takes n tokens, else a longer copy; `mode` says how positions are resized.

    Raises:
        InputError: for a model that cannot be made longer.
    """
    if (longest_input(model) or n) >= n:
        return model
    model = copy.deepcopy(model)
    with renamed("seq_len", "lengths"), renamed("mode", "resize_mode"):
        if isinstance(model, (LinearizedModel, LinformerPreTrainedModel)):
            model.resize_sequence_length(n, mode=mode)
        else:
            check_positions(model, n, mode)
            set_positions(model, n, mode)
    return model


# Tables


def table(content: Record) -> str:
    """Cosine by length for each number of texts, and cost by length."""
    records = content["records"]
    parts = ["# Sentence embedders"]
    for texts, chosen in groups(records, "cosine", "texts"):
        parts += [
            f"Cosine to the embeddings of {chosen[0]['name']}, mean (lowest) of {texts} texts, by truncated length:",
            pivot(chosen, "model", lambda record: f"{record['n']:,} tokens", shown_cosine),
        ]
    costs = [record for record in records if record["measured"] == "cost"]
    if costs:
        first = {record["n"]: record["median_s"] for record in costs if record["name"] == costs[0]["name"]}
        parts += [
            f"A forward pass over {TOKENS:,} tokens ({content['settings']['precision']}), median of interleaved runs, "
            f"speed relative to {costs[0]['name']}, and memory beside the model's own:",
            pivot(costs, "model", lambda record: f"n {record['n']:,}", lambda record: _cost(record, first)),
        ]
    return "\n\n".join(parts)


def groups(records: list[Record], measured: str, key: str) -> Iterable[tuple[Any, list[Record]]]:
    """The records of one kind by a field, in their order."""
    groups: dict[Any, list[Record]] = {}
    for record in records:
        if record["measured"] == measured:
            groups.setdefault(record[key], []).append(record)
    return groups.items()


def pivot(records: list[Record], title: str, column: Callable[[Record], str], cell: Callable[[Record], str]) -> str:
    """A Markdown table with a row for each name, under a title, and a column for each value of `column`."""
    rows: dict[str, dict[str, str]] = {}
    for record in records:
        rows.setdefault(record["name"], {title: record["name"]})[column(record)] = cell(record)
    return markdown(pandas.DataFrame(rows.values()))


def _cost(record: Record, first: Mapping[int, float]) -> str:
    speed = f"{first[record['n']] / record['median_s']:.2f}×"
    return f"{1e3 * record['median_s']:,.0f} ms ({speed}), {record['peak_bytes'] / 2**20:,.0f} MiB"


def shown_cosine(record: Record) -> str:
    """Mean and, in brackets, the lowest cosine."""
    return f"{record['cosine']:.4f} ({record['lowest']:.4f})"


if __name__ == "__main__":
    run(Settings, measure, table)
