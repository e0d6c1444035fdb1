"""How near linear sentence embedders are to their original.

Cosine of each model's embeddings to those of the first for the same texts, truncated to several lengths.

    linformer linearize sentence-transformers/all-MiniLM-L6-v2 linear
    python -m reproduce.embeddings --models sentence-transformers/all-MiniLM-L6-v2 linear --text_file wikipedia

`--exported` adds what `linformer export` made of the first model, in other number formats.
For 200 texts of up to 512 tokens each model takes a minute on two cores.
"""

from __future__ import annotations

import copy
import functools
import importlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize

from linformer_cli.errors import InputError, renamed
from linformer_cli.settings.declare import Count, Counts, File, Folder, Measurement, ModelName, settings
from linformer_kit.data.files import find_files
from linformer_kit.data.read import read_documents
from linformer_kit.data.tokenizer import Window
from linformer_kit.inference.embed import Embedder, load_embedder
from linformer_kit.report.environment import best_device, fast_dtype
from reproduce.common import Record, Results, ScriptSettings, by_name, markdown, run
from reproduce.long_texts import draw_texts

Precision = Literal["float32", "mixed", "bfloat16"]


@settings
class Settings(ScriptSettings):
    """Compare the embeddings of encoders."""

    models: Measurement[list[ModelName]]
    """Folders or hub ids of sentence embedders; all are compared with the first. Their last parts are their names."""
    exported: Measurement[list[Folder]] = field(default_factory=list)
    """Folders of `linformer export` with the first model."""
    text_file: Measurement[list[File]]
    """Files, folders or globs of long texts."""
    samples: Measurement[int] = 200
    """Number of texts, drawn at random."""
    cosine_lengths: Measurement[Counts] = field(default_factory=lambda: [32, 128, 256, 512])
    """Lengths in tokens to which the texts are truncated."""
    precision: Measurement[Precision] = "mixed"
    """All in float32 or bfloat16, or mixed: weights in float32, bfloat16 where the processor has it."""
    batch_size: Measurement[Count] = 16
    """Texts in a forward pass."""


def measure(settings: Settings, results: Results) -> None:
    """Add the cosines of each model."""
    embedders: dict[str, Embedder] = {}
    for name, folder in by_name([*settings.models, *settings.exported]).items():
        if folder in settings.exported:
            first = next(iter(embedders.values()))
            embedders[name] = Exported(copy.deepcopy(first.sentences), Path(folder), settings.batch_size)
        else:
            embedders[name] = load(folder, settings.precision, settings.batch_size)
    first, longest = next(iter(embedders.values())), max(settings.cosine_lengths)
    texts = read_documents(find_files(settings.text_file, field="text_file"), document="file", column="text")
    options = {"least": longest, "keep": longest, "count": settings.samples}
    passages = [text.text for text in draw_texts(texts, first.tokenizer, **options, field="samples")]

    for n, (name, embedder) in itertools.product(settings.cosine_lengths, embedders.items()):
        if embedder.width != first.width or embedder.longest < n:
            expected = f"embeddings of {first.width} numbers of texts of {n:,} tokens"
            raise InputError(f"{name}: expected {expected}, got {embedder.width} and {embedder.longest:,}")
    for n in settings.cosine_lengths:
        methods = {name: Method(embedder, n, settings.precision) for name, embedder in embedders.items()}
        add_cosines(results, "cosine", n, passages, methods, reference=next(iter(methods)))


class Exported(Embedder):
    """An embedder whose batches a file of `linformer export` computes."""

    def __init__(self, sentences: SentenceTransformer, folder: Path, batch_size: int) -> None:
        super().__init__(sentences, batch_size=batch_size, device="cpu")
        path = folder / "export.json"
        content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"outputs": []}
        if "sentence_embedding" not in content["outputs"]:
            raise InputError(f"exported: expected folders of `linformer export` with an embedder, got {folder}")
        self.longest = content["max_length"]
        kind = importlib.import_module(f"linformer_kit.export.{content['settings']['format']}_file")
        self.inputs, self.output = content["inputs"], content["outputs"].index("sentence_embedding")
        self.run = kind.runner(folder / kind.FILE, content["settings"]["dtype"])

    def forward(self, windows: Sequence[Window]) -> np.ndarray:
        batch = self.pad(windows)
        rows = self.run({name: batch[name].numpy() for name in self.inputs})[self.output]
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@dataclass(frozen=True)
class Method:
    """Embeddings of length 1 of texts, truncated at a number of tokens or by pieces of so many."""

    embedder: Embedder
    limit: int
    precision: Precision
    pieces: bool = False

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Embeddings, `[texts, embed]`."""
        self.embedder.truncate(self.limit)
        self.embedder.pieces = self.pieces
        device = best_device()
        dtype = fast_dtype("auto" if self.precision == "mixed" else "float32", device)
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            return self.embedder.embed(texts)


def add_cosines(
    results: Results, measured: str, n: int, texts: list[str], methods: Mapping[str, Method], *, reference: str
) -> None:
    """Add the mean and the lowest cosine of each method's embeddings to those of one of them.

    Also the share of texts whose nearest other text is the same.
    """
    expected = functools.cache(lambda: methods[reference](texts))
    for name, method in methods.items():
        if results.find(measured=measured, name=name, n=n) is None:
            found = method(texts)
            cosine, same = (found * expected()).sum(axis=1), nearest(found) == nearest(expected())
            scores = {"cosine": float(cosine.mean()), "lowest": float(cosine.min()), "same_nearest": float(same.mean())}
            results.add(measured=measured, name=name, n=n, texts=len(texts), **scores)


def nearest(rows: np.ndarray) -> np.ndarray:
    """The number of the nearest other row of each row."""
    products = rows @ rows.T
    np.fill_diagonal(products, -np.inf)
    return products.argmax(axis=1)


def load(name: str, precision: Precision, batch_size: int, *, field: str = "models") -> Embedder:
    """An embedder whose embeddings have length 1, also that of a plain encoder."""
    with renamed("model", field):
        embedder = load_embedder(name, **forward(precision, batch_size))
    if not isinstance(embedder.sentences[-1], Normalize):
        embedder.sentences.append(Normalize())
    return embedder


def forward(precision: Precision, batch_size: int) -> dict[str, Any]:
    """The options of an `Embedder`."""
    return {"batch_size": batch_size, "dtype": "bfloat16" if precision == "bfloat16" else "float32"}


def table(content: Record) -> str:
    """Cosine by length for each number of texts."""
    parts = ["# Sentence embedders"]
    for texts, chosen in groups(content["records"], "cosine", "texts"):
        parts += [
            f"Cosine to the embeddings of {chosen[0]['name']}, mean (lowest) of {texts} texts, by truncated length:",
            pivot(chosen, "model", lambda record: f"{record['n']:,} tokens", shown_cosine),
        ]
        if "same_nearest" in chosen[0]:
            parts += [
                "Texts whose nearest other text is the same, in percent:",
                pivot(chosen, "model", lambda record: f"{record['n']:,} tokens", shown_same),
            ]
    return "\n\n".join(parts)


def groups(records: list[Record], measured: str, key: str) -> Iterator[tuple[Any, list[Record]]]:
    """The records of one kind by a field, in their order."""
    chosen = [record for record in records if record["measured"] == measured]
    for value in dict.fromkeys(record[key] for record in chosen):
        yield value, [record for record in chosen if record[key] == value]


def pivot(records: list[Record], title: str, column: Callable[[Record], str], cell: Callable[[Record], str]) -> str:
    """A Markdown table with a row for each name, under a title, and a column for each value of `column`."""
    rows: dict[str, dict[str, str]] = {}
    for record in records:
        rows.setdefault(record["name"], {title: record["name"]})[column(record)] = cell(record)
    return markdown(rows.values())


def shown_cosine(record: Record) -> str:
    """Mean and, in brackets, the lowest cosine."""
    return f"{record['cosine']:.4f} ({record['lowest']:.4f})"


def shown_same(record: Record) -> str:
    """The share of equal nearest texts."""
    return f"{100 * record['same_nearest']:.1f}"


if __name__ == "__main__":
    run(Settings, measure, table)
