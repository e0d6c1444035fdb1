"""How many labels an embedding of long texts needs before words alone are as good: accuracy by number of labels.

- words: TF-IDF of one and two words in succession (scikit-learn), of the labelled texts only.
- truncated (`cut`): embeddings of the encoder's first tokens (512 for MiniLM).
- pieces: means of the embeddings of pieces of that length, as `linformer embed --pieces`.
- linear: embeddings of up to n tokens by the encoder with linear attention, without training.

Each is the input of a logistic regression, whose strength of regularisation is chosen on the labelled texts by
cross-validation. The texts with labels are drawn several times, as many of each class, and all ways get the same ones.

    python -m reproduce.few_labels --model sentence-transformers/all-MiniLM-L6-v2 --data reviews imdb authors

A folder of `data` has train, validation and test, each `.jsonl` with `text` and `label`; labels are drawn of train and
validation together. With the number of all texts there is one draw.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import field
from pathlib import Path
from typing import Literal

import numpy as np
import pandas
from matplotlib.figure import Figure
from sentence_transformers import SentenceTransformer
from sklearn.decomposition import KernelPCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from tqdm import tqdm

from linformer_cli.errors import input_errors
from linformer_cli.settings.declare import Count, Folder, Measurement, ModelName, settings
from linformer_kit.inference.embed import Embedder
from linformer_kit.linearized.linearize import linearize
from linformer_kit.report.figures import show_grid
from reproduce.common import NAMES, Record, Results, ScriptSettings, markdown, mean_and_deviation, new_panels, run

Way = Literal["words", "cut", "pieces", "linear"]
WAYS: list[Way] = ["words", "cut", "pieces", "linear"]
STRENGTHS = (0.1, 1.0, 3.0, 10.0, 30.0, 100.0)  # C of the logistic regression
FOLDS = 5


@settings
class Settings(ScriptSettings):
    """Compare words and embeddings with few labels."""

    model: Measurement[ModelName]
    """Folder or hub id of a sentence encoder."""
    data: Measurement[list[Folder]]
    """Folders of labelled texts; their last parts are their names."""
    labels: Measurement[list[Count]] = field(default_factory=lambda: [20, 50, 100, 200, 400, 1200])
    """Numbers of labelled texts."""
    draws: Measurement[Count] = 20
    """Number of draws of labelled texts."""
    n: Measurement[Count] = 2048
    """Most tokens that linear attention reads."""
    batch_size: Measurement[Count] = 8
    """Texts, or pieces, per forward pass."""


def measure(settings: Settings, results: Results) -> None:
    """Add a record for each data set, way and number of labels: the accuracy of each draw."""
    for folder in map(Path, settings.data):
        learn, test = (read(folder, parts) for parts in (("train", "validation"), ("test",)))
        labels = learn["label"].to_numpy()
        for way in tqdm(WAYS, desc=folder.name):
            key = {"data": folder.name, "way": way}
            counts = [min(count, len(learn)) for count in settings.labels]
            missing = [count for count in counts if results.find(**key, labels=count) is None]
            if not missing:
                continue
            texts = [*learn["text"], *test["text"]]
            vectors = None if way == "words" else embed(settings, way, texts)
            tested = np.arange(len(learn), len(texts))
            for count in missing:
                draws = range(settings.draws if count < len(learn) else 1)
                accuracies = []
                for draw in draws:
                    rows = drawn(labels, count, draw)
                    found = regression(vectors, texts, rows, labels[rows], tested, draw)
                    accuracies.append(float((found == test["label"]).mean()))
                sizes = {"texts": len(learn), "tested": len(test), "classes": len(set(labels))}
                results.add(**key, labels=count, **sizes, accuracies=accuracies)


def read(folder: Path, parts: tuple[str, ...]) -> pandas.DataFrame:
    """The texts and labels of some parts of a data set."""
    frames = []
    for part in parts:
        with input_errors(f"data: expected {folder / part}.jsonl"):
            frames.append(pandas.read_json(folder / f"{part}.jsonl", lines=True, dtype=False)[["text", "label"]])
    return pandas.concat(frames, ignore_index=True)


def embed(settings: Settings, way: Way, texts: list[str]) -> np.ndarray:
    """Embeddings of texts, read in one way, float32 `[texts, width]`."""
    sentences = SentenceTransformer(settings.model, device="cpu")
    if way == "linear":
        linearize(sentences, max_position_embeddings=settings.n)
    embedder = Embedder(sentences, batch_size=settings.batch_size)
    embedder.truncate(embedder.longest)
    embedder.pieces = way == "pieces"
    return embedder.embed(texts)


def drawn(labels: np.ndarray, count: int, draw: int) -> np.ndarray:
    """Rows of texts at random, as many of each class or one more, where there are as many."""
    order = np.random.default_rng(draw).permutation(len(labels))
    frame = pandas.DataFrame({"row": order, "label": labels[order]})
    frame["turn"] = frame.groupby("label").cumcount()
    return frame.sort_values("turn", kind="stable")["row"].to_numpy()[:count]


def regression(
    vectors: np.ndarray | None, texts: list[str], rows: np.ndarray, labels: np.ndarray, tested: np.ndarray, seed: int
) -> np.ndarray:
    """The answers of a logistic regression for the tested rows, learnt from other rows; of words without vectors."""

    def inputs(learn: np.ndarray, ask: np.ndarray) -> list[np.ndarray]:
        if vectors is not None:
            return [vectors[learn], vectors[ask]]
        # A regression on words depends on the products of texts alone: components of all of them have the same answers
        # as the words themselves, and are many times fewer.
        words = make_pipeline(TfidfVectorizer(ngram_range=(1, 2)), KernelPCA(kernel="linear"))
        return [words.fit_transform([texts[row] for row in learn]), words.transform([texts[row] for row in ask])]

    classifier, accuracies = LogisticRegression(max_iter=1000), np.zeros(len(STRENGTHS))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for learn, held_out in KFold(FOLDS, shuffle=True, random_state=seed).split(rows):
            known, asked = inputs(rows[learn], rows[held_out])
            for number, strength in enumerate(STRENGTHS):
                classifier.set_params(C=strength).fit(known, labels[learn])
                accuracies[number] += classifier.score(asked, labels[held_out]) / FOLDS
        known, asked = inputs(rows, tested)
        return classifier.set_params(C=STRENGTHS[accuracies.argmax()]).fit(known, labels).predict(asked)


def table(content: Record) -> str:
    """Accuracy by number of labels, a table for each data set."""
    settings = content["settings"]
    parts = [
        "# Few labels",
        f"Accuracy on test texts, percent: mean and standard deviation of {settings['draws']} draws of labelled texts. "
        "Of long texts, words and pieces read everything, linear attention up to "
        f"{settings['n']:,} tokens. Linear, more: than words, mean over draws, and its standard error with that of the "
        "test texts, an upper bound, as it ignores that both ways have the same test texts.",
    ]
    for data, records in pandas.DataFrame(content["records"]).groupby("data", sort=False):
        row = records.iloc[0]
        counts = f"{row['texts']:,} texts to draw from, {row['tested']:,} test texts"
        rows = []
        for labels, group in records.groupby("labels"):
            by_way = {record["way"]: np.multiply(100, record["accuracies"]) for _, record in group.iterrows()}
            cells = {NAMES.get(way, way): mean_and_deviation(list(by_way[way]), 1) for way in WAYS if way in by_way}
            if {"words", "linear"} <= by_way.keys():
                more = by_way["linear"] - by_way["words"]
                share = np.clip(np.mean([by_way["linear"].mean(), by_way["words"].mean()]) / 100, 0, 1)
                error = math.hypot(
                    more.std(ddof=1) / math.sqrt(len(more)) if len(more) > 1 else 0.0,
                    100 * math.sqrt(2 * share * (1 - share) / row["tested"]),
                )
                cells["linear, more"] = f"{more.mean():+.1f} ± {error:.1f}"
            rows.append({"labelled texts": labels} | cells)
        parts.append(f"## {data}\n\n{row['classes']} classes; {counts}.\n\n{markdown(rows)}")
    return "\n\n".join(parts)


def draw(content: Record) -> Figure:
    """Accuracy by number of labels: a panel for each data set, a line for each way."""
    groups = list(pandas.DataFrame(content["records"]).groupby("data", sort=False))
    figure, panels = new_panels(len(groups), (5.0, 3.8))
    for axes, (data, records) in zip(panels, groups, strict=True):
        for marker, way in zip("sovD", WAYS, strict=True):
            of_way = records[records["way"] == way].sort_values("labels")
            if len(of_way):
                means = [100 * np.mean(each) for each in of_way["accuracies"]]
                deviations = [100 * np.std(each) for each in of_way["accuracies"]]
                label = NAMES.get(way, way)
                axes.errorbar(of_way["labels"], means, deviations, marker=marker, capsize=3, label=label)
        axes.set_xscale("log")
        ticks = sorted(set(records["labels"]))
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks], minor=False)
        axes.minorticks_off()
        axes.set(title=data, xlabel="labelled texts", ylabel="accuracy on test texts, %")
        show_grid(axes)
        axes.legend(fontsize=8)
    return figure


if __name__ == "__main__":
    run(Settings, measure, table, draw)
