"""Logistic regression on the words of SST-2, IMDB, QNLI and QQP: what a classifier reaches without the order of words.

Usage: python bag_of_words.py DATA_DIR OUT.json    (DATA_DIR as for `linformer bench table2 --data_dir`)

Features say which words a text has; of a pair, how many of its two texts have each word, or with `shared` which words
both have and which one alone has. The inverse strength C of the regularisation is chosen on the validation texts, as
`bench table2` chooses learning rates.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import Any

import torch
from scipy.sparse import hstack, spmatrix
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from linformer_kit.environment import environment

STRENGTHS = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0]
PAIRS = {"qqp": ("question1", "question2", "is_duplicate"), "qnli": ("question", "sentence", "label")}

Texts = list[tuple[str, ...]]


def read(folder: Path, task: str, part: str) -> tuple[Texts, list[str]]:
    """Texts, two of them in a pair, and labels."""
    path = folder / f"{part}.{'jsonl' if task == 'imdb' else 'tsv'}"
    with path.open(encoding="utf-8") as file:
        if task == "imdb":
            rows = [json.loads(line) for line in file]
        else:
            rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    rows = [row for row in rows if None not in row and None not in row.values()]  # GLUE has incomplete rows
    *texts, label = PAIRS.get(task, ("text" if task == "imdb" else "sentence", "label"))
    return [tuple(row[name] for name in texts) for row in rows], [str(row[label]) for row in rows]


def features(words: CountVectorizer, texts: Texts, *, shared: bool) -> spmatrix:
    each = [words.transform(column) for column in zip(*texts, strict=True)]
    if not shared:
        return sum(each[1:], start=each[0])
    both = each[0].multiply(each[1])
    return hstack([both, each[0] + each[1] - 2 * both]).tocsr()


def measure(folder: Path, task: str, *, shared: bool) -> dict[str, Any]:
    (train, labels), (validation, expected) = (
        read(folder, task, part) for part in ("train", "test" if task == "imdb" else "dev")
    )
    words = CountVectorizer(token_pattern=r"\w+|[^\w\s]", binary=True).fit(" ".join(text) for text in train)
    inputs, measured = (features(words, texts, shared=shared) for texts in (train, validation))
    accuracy = {
        strength: LogisticRegression(C=strength, max_iter=1000).fit(inputs, labels).score(measured, expected)
        for strength in STRENGTHS
    }
    best = max(accuracy, key=lambda strength: accuracy[strength])
    sizes = {"train": len(train), "validation": len(validation), "words": len(words.vocabulary_)}
    return {"task": task, "shared": shared, **sizes, "C": best, "accuracy": accuracy[best], "by_C": accuracy}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    cases = [("sst2", False), ("imdb", False), ("qnli", False), ("qnli", True), ("qqp", False), ("qqp", True)]
    results = [measure(given.data_dir / task, task, shared=shared) for task, shared in cases]
    given.out.write_text(
        json.dumps({"environment": environment(torch.device("cpu")), "results": results}, indent=1) + "\n",
        encoding="utf-8",
    )
    for each in results:
        print(each["task"], "shared words" if each["shared"] else "words", f"{100 * each['accuracy']:.2f} %")


if __name__ == "__main__":
    main()
