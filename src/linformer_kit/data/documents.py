"""Reader of documents: one string each, read lazily and checked.

| file                | one document is                                                                      |
|---------------------|--------------------------------------------------------------------------------------|
| .txt .py .md        | by the rule `document`:                                                              |
| ... `file`          | the whole file                                                                       |
| ... `line`          | a non-blank line                                                                     |
| ... `blank_line`    | a block of lines between blank lines                                                 |
| ... `wikitext`      | an article: from a heading ` = Title = ` between blank lines to the next heading     |
| ... `auto`          | `wikitext` if the first non-blank line is such a heading, else `file`                |
| .jsonl .json        | the text column of one row (`tables`)                                                |
| .csv .tsv .parquet  | the same                                                                             |

All text is UTF-8, with or without a byte order mark. Blank documents are dropped.
"""

from __future__ import annotations

import re
import tokenize
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, tee
from pathlib import Path

from linformer_kit.data.tables import READERS, open_text, read_table
from linformer_kit.data.validate import check_text

# One `=` on each side; ` = = Section = = ` is the heading of a section.
_HEADING = re.compile(r"\s*= [^=\s](?:.*[^=\s])? =\s*")


def read_documents(paths: Iterable[Path], *, document: str, column: str, setting: str = "text_column") -> Iterator[str]:
    """Read all documents of some files, in the order of the files.

    Args:
        paths: Files with supported suffixes.
        document: Rule for text files, a key of `RULES`.
        column: Text column of the other files.
        setting: Name of the setting of the column, for errors.

    Yields:
        The non-blank documents.

    Raises:
        InputError: At the first part that cannot be read, with file and line.
    """
    for path in paths:
        documents = _texts(path, column, setting) if path.suffix.lower() in READERS else RULES[document](path)
        yield from (text for text in documents if text.strip())


def _whole_file(path: Path) -> Iterator[str]:
    with open_text(path) as file:
        yield file.read()


def _lines(path: Path) -> Iterator[str]:
    with open_text(path) as file:
        yield from (line.rstrip("\n") for line in file)


def _blocks(path: Path) -> Iterator[str]:
    block: list[str] = []
    for line in chain(_lines(path), [""]):
        if line.strip():
            block.append(line)
        elif block:
            yield "\n".join(block)
            block = []


def _articles(path: Path) -> Iterator[str]:
    before, here, after = tee(_lines(path), 3)
    next(after, None)
    neighbours = zip(chain([""], before), here, chain(after, [""]), strict=False)  # `before` has one more, unused
    article: list[str] = []
    # Blank lines around it distinguish a heading from a line of a formula or legend such as ` = Played , W = `.
    for previous, line, following in neighbours:
        if not previous.strip() and not following.strip() and _HEADING.fullmatch(line):
            yield "\n".join(article).strip("\n")
            article = []
        article.append(line)
    yield "\n".join(article).strip("\n")


def _articles_or_whole_file(path: Path) -> Iterator[str]:
    first = next((line for line in _lines(path) if line.strip()), "")
    return _articles(path) if _HEADING.fullmatch(first) else _whole_file(path)


def _python_source(path: Path) -> Iterator[str]:
    try:
        with tokenize.open(path) as file:
            yield file.read()
    except (SyntaxError, UnicodeDecodeError):  # SyntaxError: an encoding that Python does not know
        return


def _texts(path: Path, column: str, setting: str) -> Iterator[str]:
    for source, row in read_table(path, {setting: column}):
        yield check_text(row[column], source=source, column=column)


RULES: dict[str, Callable[[Path], Iterator[str]]] = {
    "auto": _articles_or_whole_file,
    "file": _whole_file,
    "line": _lines,
    "blank_line": _blocks,
    "wikitext": _articles,
    # Only for the built-in corpus: reads the encoding that the file declares; skips the file if that fails.
    "python_source": _python_source,
}
