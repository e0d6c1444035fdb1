"""Logistic regression on the words of SST-2, IMDB, QNLI and QQP: what a classifier reaches without the order of words.

Usage: python bag_of_words.py DATA_DIR OUT.json [--max_train_samples N] [--max_eval_samples N]
(options as for `linformer bench table2`, which draws the same texts)

Features say which words a text has; of a pair, how many of its two texts have each word, or with `shared` which words
both have and which one alone has. The inverse strength C of the regularisation is chosen on the validation texts, as
`bench table2` chooses learning rates.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import sklearn
import torch
from scipy.sparse import hstack, spmatrix
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from linformer_kit.data.examples import Example
from linformer_kit.data.labelled import LabelledTexts, load_labelled
from linformer_kit.environment import environment
from linformer_kit.settings import FinetuneSettings

TASKS = {"sst2": [False], "imdb": [False], "qnli": [False, True], "qqp": [False, True]}  # with `shared` or not
STRENGTHS = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0]


def parts(example: Example) -> list[str]:
    """The text, or the two texts of a pair."""
    return [example.text] if example.text_pair is None else [example.text, example.text_pair]


def features(words: CountVectorizer, examples: list[Example], *, shared: bool) -> spmatrix:
    each = [words.transform(column) for column in zip(*map(parts, examples), strict=True)]
    if not shared:
        return sum(each[1:], start=each[0])
    both = each[0].multiply(each[1])
    return hstack([both, each[0] + each[1] - 2 * both]).tocsr()


def measure(task: str, texts: LabelledTexts, *, shared: bool) -> dict[str, Any]:
    words = CountVectorizer(token_pattern=r"\w+|[^\w\s]", binary=True)
    words.fit(" ".join(parts(example)) for example in texts.train)
    inputs, measured = (features(words, examples, shared=shared) for examples in (texts.train, texts.validation))
    labels, expected = (
        [texts.labels.target(example, column=texts.columns.label) for example in examples]
        for examples in (texts.train, texts.validation)
    )
    accuracy = {
        strength: LogisticRegression(C=strength, max_iter=1000).fit(inputs, labels).score(measured, expected)
        for strength in STRENGTHS
    }
    best = max(accuracy, key=lambda strength: accuracy[strength])
    sizes = {"train": len(labels), "validation": len(expected), "words": len(words.vocabulary_)}
    return {"task": task, "shared": shared, **sizes, "C": best, "accuracy": accuracy[best], "by_C": accuracy}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data_dir")
    parser.add_argument("out", type=Path)
    for most in ("--max_train_samples", "--max_eval_samples"):
        parser.add_argument(most, type=int)
    given = vars(parser.parse_args())
    out = given.pop("out")
    results = []
    for task, ways in TASKS.items():
        texts = load_labelled(FinetuneSettings(model="", task=task, **given))
        for shared in ways:
            results.append(measure(task, texts, shared=shared))
            print(task, "shared words" if shared else "words", f"{100 * results[-1]['accuracy']:.2f} %")
    here = {**environment(torch.device("cpu")), "scikit-learn": sklearn.__version__}
    out.write_text(json.dumps({"environment": here, "results": results}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
