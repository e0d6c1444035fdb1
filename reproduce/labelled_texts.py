"""Labelled long texts, divided for `reproduce.finetuning` and `reproduce.few_labels`.

    python -m reproduce.labelled_texts SET SOURCE OUTPUT

- reviews: of a JSON Lines file with `fold`: folds 8 and 9 to test, 7 for validation, others to learn from.
- imdb: of a folder with train.jsonl and test.jsonl, those of more than 400 words, nearly all over 512 tokens.
- authors: of a folder of `Author___Title.txt`, 1,500 words at a time, without the first 300: of each author the last
  book to test, the one before for validation.

Texts are drawn with the seed 0, at most as many as `MOST` says. Columns: `text` and `label`.
"""

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from linformer_cli.cli import errors_reported
from linformer_cli.errors import InputError, input_errors

MOST = {"train": 1200, "validation": 200, "test": 600}


def lines(path: Path) -> list[dict]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def reviews(path: Path) -> Iterator[tuple[str, str, str]]:
    for row in lines(path):
        yield {7: "validation", 8: "test", 9: "test"}.get(row["fold"], "train"), row["text"], row["label"]


def imdb(folder: Path) -> Iterator[tuple[str, str, str]]:
    for name in ("train", "test"):
        for number, row in enumerate(row for row in lines(folder / f"{name}.jsonl") if len(row["text"].split()) > 400):
            part = "validation" if name == "train" and number % 8 == 0 else name
            yield part, row["text"].replace("<br />", "\n"), row["label"]


def authors(folder: Path) -> Iterator[tuple[str, str, str]]:
    books = defaultdict(list)
    for path in sorted(folder.glob("*___*.txt")):
        books[path.name.split("___")[0]].append(path)
    for author, (*others, validation, test) in books.items():
        parts = {**dict.fromkeys(others, "train"), validation: "validation", test: "test"}
        for path, part in parts.items():
            words = path.read_text(encoding="utf-8", errors="replace").split()
            for start in range(300, len(words) - 1500, 1500):
                yield part, " ".join(words[start : start + 1500]), author


SETS = {"reviews": reviews, "imdb": imdb, "authors": authors}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        "python -m reproduce.labelled_texts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("set", choices=SETS, help="how the texts are divided")
    parser.add_argument("source", type=Path, help="file or folder of the texts")
    parser.add_argument("output", type=Path, help="folder for train.jsonl, validation.jsonl and test.jsonl")
    given = parser.parse_args(arguments)
    found = defaultdict(list)
    with errors_reported():
        with input_errors(f"source: expected the texts of {given.set} (see --help), got {given.source}"):
            for part, text, label in SETS[given.set](given.source):
                found[part].append({"text": text, "label": label})
        if found.keys() != MOST.keys():
            kinds = ", ".join(found) or "none"
            raise InputError(f"source: expected texts to learn from, for validation and to test, got {kinds}")
        given.output.mkdir(parents=True, exist_ok=True)
        for part, rows in found.items():
            drawn = random.Random(0).sample(rows, min(MOST[part], len(rows)))
            text = "".join(json.dumps(row) + "\n" for row in drawn)
            (given.output / f"{part}.jsonl").write_text(text, encoding="utf-8")
            print(f"{part}: {len(drawn)} of {len(rows)} texts, {len({row['label'] for row in drawn})} classes")


if __name__ == "__main__":
    main()
