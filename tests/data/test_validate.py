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


def test_utf8_passes_characters_cut_by_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(validate, "_CHUNK_BYTES", 2)
    path = tmp_path / "notes.txt"
    path.write_text("€𝄞é" * 11, encoding="utf-8")
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


def test_missing_file(tmp_path):
    with fails(f"train_file: no such file or folder: {tmp_path / 'no.txt'}"):
        find_files([str(tmp_path / "no.txt")], field="train_file")


@pytest.mark.parametrize("pattern", ["", "*.txt", "**/*"])
def test_folder_or_glob_without_text(tmp_path, pattern):
    (tmp_path / "picture.png").write_bytes(b"x")
    given = str(tmp_path / pattern)
    suffixes = ".txt .py .md .jsonl .json .csv .tsv .parquet"
    with fails(f"train_file: {given} matches no file; expected files that end in {suffixes}"):
        find_files([given], field="train_file")


def test_unknown_suffix(tmp_path):
    path = tmp_path / "book.epub"
    path.write_text("text")
    suffixes = ".txt .py .md .jsonl .json .csv .tsv .parquet"
    with fails(f"validation_file: {path} has suffix '.epub'; expected one of {suffixes}"):
        find_files([str(path)], field="validation_file")


def test_empty_file(tmp_path):
    path = tmp_path / "notes.txt"
    path.touch()
    with fails(f"train_file: {path} is empty; expected text"):
        find_files([str(path)], field="train_file")


def test_empty_file_in_a_folder_is_no_error(tmp_path):
    (tmp_path / "__init__.py").touch()
    assert len(find_files([str(tmp_path)], field="train_file")) == 1


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("rows.csv", "id,body\n1,x\n", ""),
        ("rows.tsv", "id\tbody\n1\tx\n", ""),
        ("rows.jsonl", '{"text": "x"}\n\n{"id": 1, "body": "x"}\n', " line 3"),
    ],
)
def test_missing_column_names_those_that_exist(tmp_path, name, content, place):
    path = tmp_path / name
    path.write_text(content)
    with fails(f"{path}{place}: no column 'text' (text_column); it has 'id', 'body'"):
        read(path)


@pytest.mark.parametrize(
    ("name", "content"), [("rows.csv", "text,id,text\nx,1,y\n"), ("rows.tsv", "text\tid\ttext\nx\t1\ty\n")]
)
def test_a_column_of_which_there_are_two(tmp_path, name, content):
    path = tmp_path / name
    path.write_text(content)
    with fails(f"{path}: expected one column 'text' (text_column), got 2 of that name"):
        read(path)
    assert read(path, column="id") == ["1"]


def test_no_columns_at_all(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("\ntext\nx\n")
    with fails(f"{path}: no column 'text' (text_column); it has none"):
        read(path)


def test_a_parquet_file_with_a_damaged_page(tmp_path):
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["some text"] * 1000}), path)
    content = bytearray(path.read_bytes())
    content[4:60] = b"\xff" * 56
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}: expected a whole Parquet file, got .+$"):
        read(path)


def test_missing_column_in_parquet(tmp_path):
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"id": [1], "body": ["x"]}), path)
    with fails(f"{path}: no column 'text' (text_column); it has 'id', 'body'"):
        read(path)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"text": "x"', "not JSON (Expecting ',' delimiter); expected one object per line"),
        ('{"text" "x"}', "not JSON (Expecting ':' delimiter); expected one object per line"),
        ("plain text", "not JSON (Expecting value); expected one object per line"),
        (
            "[" * 100_000,
            "not JSON (maximum recursion depth exceeded",
        ),
        ('["x"]', "JSON list; expected one object per line"),
        ('{"text": 7}', "'text' is int; expected a string"),
        ('{"text": "x", "text": "y"}', "expected 'text' once, got it twice"),
        ('{"text": null}', "'text' is NoneType; expected a string"),
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


def test_parquet_with_something_that_is_not_text(tmp_path):
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["x", "y", None]}), path)
    with fails(f"{path} row 3: 'text' is NoneType; expected a string"):
        read(path)


def test_file_that_is_only_called_parquet(tmp_path):
    path = tmp_path / "rows.parquet"
    path.write_text("text")
    with fails(f"{path}: not a Parquet file, though its suffix says so"):
        read(path)


def test_an_empty_name_is_not_the_folder_one_stands_in():
    """As from an unset shell variable."""
    with fails("train_file: expected a file, a folder or a glob, got an empty name"):
        find_files([""], field="train_file")
