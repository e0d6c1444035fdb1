"""Pieces of books with their authors: to learn from, of chapters held out, and of books held out.

python texts.py BOOKS OUTPUT reads `Author___Title.txt` and writes `train.jsonl`, `chapters.jsonl` (the last fifth of
the same books) and `books.jsonl` (of each author the last book by name), with columns `text`, `label` and `title`. A
piece has 3,000 words, about 4,096 tokens; the first 300 words of a book, which name its author, are left out.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

PIECE, FRONT = 3000, 300


def pieces(words: list[str]) -> list[str]:
    """All whole pieces, one after the other."""
    return [" ".join(words[start : start + PIECE]) for start in range(0, len(words) - PIECE + 1, PIECE)]


def main(books: Path, output: Path) -> None:
    of_author = defaultdict(list)
    for path in sorted(books.glob("*___*.txt")):
        of_author[path.name.split("___")[0].replace("_", " ")].append(path)
    found = defaultdict(list)
    for author, paths in of_author.items():
        for path in paths:
            words = path.read_text(encoding="utf-8", errors="replace").split()[FRONT:]
            title = path.stem.split("___")[1].replace("_", " ")
            if path == paths[-1]:
                parts = {"books": words}
            else:
                parts = {"train": words[: len(words) * 4 // 5], "chapters": words[len(words) * 4 // 5 :]}
            for name, part in parts.items():
                found[name] += [{"text": text, "label": author, "title": title} for text in pieces(part)]
    output.mkdir(parents=True, exist_ok=True)
    for name, rows in found.items():
        (output / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        print(f"{name}: {len(rows)} pieces of {len({row['label'] for row in rows})} authors")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
