"""Every bad input gives one line with the place, what was expected and what was found."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from linformer_kit.data import validate
from linformer_kit.data.documents import read_documents
from linformer_kit.data.files import find_files
from linformer_kit.errors import InputError


def read(path: Path, column: str = "text") -> list[str]:
    return list(read_documents([path], document="auto", column=column))


def fails(message: str):
    return pytest.raises(InputError, match=f"^{re.escape(message)}$")


@pytest.mark.parametrize(
    ("content", "offset", "byte"),
    [
        (b"abc\xffdef", 3, "ff"),
        ("abcdé".encode()[:-1], 4, "c3"),  # cut inside a character at the end
        ("aaaaaa€".encode()[:-1] + b"x", 6, "e2"),  # a bad character across the border of two chunks
        (b"\xe2\x82\xac" * 5 + b"\x80", 15, "80"),
    ],
)
def test_utf8_offset_is_exact_across_chunks(tmp_path, monkeypatch, content, offset, byte):
    monkeypatch.setattr(validate, "_CHUNK_BYTES", 7)
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with fails(f"{path}: not UTF-8 at byte {offset} (0x{byte}); expected UTF-8 text"):
        validate.check_utf8(path)


@pytest.mark.parametrize("name", ["notes.txt", "rows.jsonl", "rows.csv"])
def test_reading_reports_bad_bytes_by_offset(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"text\n" * 5000 + b"\xff")
    if name == "rows.jsonl":
        path.write_bytes(b'{"text": "x"}\n' * 5000 + b"\xff")
    offset = path.stat().st_size - 1
    with fails(f"{path}: not UTF-8 at byte {offset} (0xff); expected UTF-8 text"):
        read(path)


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("rows.csv", "id,body\n1,x\n", ""),
        ("rows.jsonl", '{"text": "x"}\n\n{"id": 1, "body": "x"}\n', " line 3"),
    ],
)
def test_missing_column_names_those_that_exist(tmp_path, name, content, place):
    path = tmp_path / name
    path.write_text(content)
    with fails(f"{path}{place}: no column 'text' (text_column); it has 'id', 'body'"):
        read(path)


def test_a_column_of_which_there_are_two(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("text,id,text\nx,1,y\n")
    with fails(f"{path}: expected one column 'text' (text_column), got 2 of that name"):
        read(path)
    assert read(path, column="id") == ["1"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("no.txt", "no such file or folder: {}"),
        ("book.epub", "{} has suffix '.epub'; expected one of .txt .py .md .jsonl .json .csv .tsv .parquet"),
        ("empty.txt", "{} is empty; expected text"),
        ("*.png.txt", "{} matches no file; expected files that end in .txt .py .md .jsonl .json .csv .tsv .parquet"),
    ],
)
def test_no_file_to_read(tmp_path, given, message):
    (tmp_path / "book.epub").write_text("text")
    (tmp_path / "empty.txt").touch()
    path = str(tmp_path / given)
    with fails(f"train_file: {message.format(path)}"):
        find_files([path], field="train_file")


def test_a_parquet_file_with_a_damaged_page(tmp_path):
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["some text"] * 1000}), path)
    content = bytearray(path.read_bytes())
    content[4:60] = b"\xff" * 56
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}: expected a whole Parquet file, got .+$"):
        read(path)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"text": "x"', "not JSON (Expecting ',' delimiter); expected one object per line"),
        ("[" * 100_000, "not JSON (maximum recursion depth exceeded"),
        ('["x"]', "JSON list; expected one object per line"),
        ('{"text": 7}', "'text' is int; expected a string"),
        ('{"text": "x", "text": "y"}', "expected 'text' once, got it twice"),
        (
            r'{"text": "ab\ud800"}',
            "'text' has half a surrogate pair, U+D800, at character 2; expected whole Unicode characters",
        ),
    ],
)
def test_bad_json_line_is_named(tmp_path, line, problem):
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"text": "good"}}\n{line}\n')
    with pytest.raises(InputError, match=f"^{re.escape(f'{path} line 2: {problem}')}"):
        read(path)


@pytest.mark.parametrize(("row", "got"), [("x,1", 2), ("x,1,2,3,4", 5)])
def test_ragged_csv_row_is_named_by_the_line_where_it_starts(tmp_path, row, got):
    path = tmp_path / "rows.csv"
    path.write_text(f'text,a,b\n"two\nlines",1,2\n\n{row}\n')
    with fails(f"{path} line 5: expected 3 fields as in the header, got {got}"):
        read(path)


def test_open_quote_in_csv(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('text\ngood\n"open\n')
    with fails(f"{path} line 3: bad quoting (unexpected end of data); expected CSV"):
        read(path)
