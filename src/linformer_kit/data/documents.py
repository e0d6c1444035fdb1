"""Files to documents: one string each, read lazily, checked on the way.

| file                | one document is                                                                      |
|---------------------|--------------------------------------------------------------------------------------|
| .txt .py .md        | by the rule `document`:                                                              |
| ... `file`          | the whole file                                                                       |
| ... `line`          | a line that is not blank                                                             |
| ... `blank_line`    | a block of lines between blank lines                                                 |
| ... `wikitext`      | an article: from a heading ` = Title = ` alone between blank lines up to the next    |
| ... `auto`          | `wikitext` if the first line that is not blank is such a heading, else `file`        |
| .jsonl .json        | the text column of one line, which holds one JSON object                             |
| .csv                | the text column of one row, fields quoted with " where needed                        |
| .tsv                | the text column of one row; quotes mean nothing, as in GLUE                          |
| .parquet            | the text column of one row                                                           |

All text is UTF-8, with or without a byte order mark. Documents without a visible character are dropped.
"""

from __future__ import annotations

import csv
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, tee
from pathlib import Path
from typing import Any, TextIO

import pyarrow
import pyarrow.parquet

from linformer_kit.data.validate import check_column, check_field_count, check_text, check_utf8, parse_json_row
from linformer_kit.errors import InputError

# One `=` each side; ` = = Section = = ` is a deeper heading.
_HEADING = re.compile(r"\s*= [^=\s](?:.*[^=\s])? =\s*")
_PARQUET_ROWS = 256
# The csv module's own limit, 128 KiB, is shorter than many documents. The largest that every platform takes:
_LONGEST_FIELD = 2**31 - 1


def read_documents(paths: Iterable[Path], *, document: str, column: str) -> Iterator[str]:
    """Read all documents of some files, in the order of the files.

    Args:
        paths: Files whose suffixes are known.
        document: Rule for text files, a key of `RULES`.
        column: Text column of the other files.

    Yields:
        The documents that are not blank.

    Raises:
        InputError: At the first thing that cannot be read, with its file and line.
    """
    for path in paths:
        read_table = TABLE_READERS.get(path.suffix.lower())
        documents = RULES[document](path) if read_table is None else read_table(path, column)
        yield from (text for text in documents if text.strip())


@contextmanager
def _open_text(path: Path, newline: str | None = None) -> Iterator[TextIO]:
    try:
        with path.open(encoding="utf-8-sig", newline=newline) as file:
            yield file
    except UnicodeDecodeError:
        check_utf8(path)  # knows the offset in the file; the error at hand only that in a buffer
        raise


def _whole_file(path: Path) -> Iterator[str]:
    with _open_text(path) as file:
        yield file.read()


def _lines(path: Path) -> Iterator[str]:
    with _open_text(path) as file:
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
    # The blank lines around it tell a heading from a line of a formula or legend such as ` = Played , W = `.
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
    except (SyntaxError, UnicodeDecodeError):  # SyntaxError: a coding that Python does not know
        return


def _json_rows(path: Path, column: str) -> Iterator[str]:
    with _open_text(path) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                source = f"{path} line {number}"
                row = parse_json_row(line, source=source)
                check_column(source, column, list(row))
                yield check_text(row[column], source=source, column=column)


def _delimited_rows(path: Path, column: str) -> Iterator[str]:
    dialect: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if path.suffix.lower() == ".tsv" else {}
    csv.field_size_limit(_LONGEST_FIELD)
    with _open_text(path, newline="") as file:
        rows = csv.reader(file, strict=True, **dialect)
        try:
            header = next(rows, [])
            check_column(path, column, header)
            last_line = rows.line_num
            for row in rows:
                # A quoted field may hold line breaks: name the line where the row starts.
                source, last_line = f"{path} line {last_line + 1}", rows.line_num
                if row:
                    check_field_count(row, header, source=source)
                    yield row[header.index(column)]
        except csv.Error as error:
            raise InputError(f"{path} line {rows.line_num}: bad quoting ({error}); expected CSV") from None


def _parquet_rows(path: Path, column: str) -> Iterator[str]:
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid:
        raise InputError(f"{path}: not a Parquet file, though its suffix says so") from None
    with file:
        check_column(path, column, file.schema_arrow.names)
        batches = file.iter_batches(batch_size=_PARQUET_ROWS, columns=[column])
        values = (value for batch in batches for value in batch.column(0).to_pylist())
        for number, value in enumerate(values, start=1):
            yield check_text(value, source=f"{path} row {number}", column=column)


RULES: dict[str, Callable[[Path], Iterator[str]]] = {
    "auto": _articles_or_whole_file,
    "file": _whole_file,
    "line": _lines,
    "blank_line": _blocks,
    "wikitext": _articles,
    # Only for the built-in corpus: the coding that the file declares, and no document if that fails.
    "python_source": _python_source,
}

TABLE_READERS: dict[str, Callable[[Path, str], Iterator[str]]] = {
    ".jsonl": _json_rows,
    ".json": _json_rows,
    ".csv": _delimited_rows,
    ".tsv": _delimited_rows,
    ".parquet": _parquet_rows,
}
