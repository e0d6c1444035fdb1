"""What one document is, for each kind of file and rule."""

from __future__ import annotations

import pyarrow
import pyarrow.parquet
import pytest

from linformer_kit.data.documents import read_documents
from linformer_kit.data.files import find_files, standard_library

WIKITEXT = """
 = First =

 text one

 = = Deeper = =

 text two
 = Played , W =
 more

 = Ties =
 legend
 = Losses =

 more

 = Second =

 x
"""


def read(path, document="auto", column="text"):
    return list(read_documents([path], document=document, column=column))


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ("file", ["\n one\n two\n\n \n\nthree\n"]),
        ("auto", ["\n one\n two\n\n \n\nthree\n"]),
        ("line", [" one", " two", "three"]),
        ("blank_line", [" one\n two", "three"]),
        ("wikitext", [" one\n two\n\n \n\nthree"]),
    ],
)
def test_rules_for_text(tmp_path, document, expected):
    assert read(write(tmp_path / "notes.txt", "\n one\n two\n\n \n\nthree\n"), document) == expected


@pytest.mark.parametrize("document", ["auto", "wikitext"])
def test_articles_start_at_headings_of_level_one_between_blank_lines(tmp_path, document):
    first, second = read(write(tmp_path / "wiki.txt", WIKITEXT), document)
    assert first.startswith(" = First =\n\n text one") and first.endswith("more")
    assert second == " = Second =\n\n x"


def test_tables(tmp_path):
    write(tmp_path / "a.csv", 'id,body\n1,"a, ""b""\nc"\n\n2,\n3,d\n')
    write(tmp_path / "a.tsv", 'id\tbody\n1\t"a" b\n2\td "\n')
    write(tmp_path / "a.jsonl", '{"body": "a\\nb"}\n\n{"body": " "}\n{"body": "d", "id": 3}\n')
    pyarrow.parquet.write_table(pyarrow.table({"id": [1, 2, 3], "body": ["a", "", "d"]}), tmp_path / "a.parquet")
    assert read(tmp_path / "a.csv", column="body") == ['a, "b"\nc', "d"]
    assert read(tmp_path / "a.tsv", column="body") == ['"a" b', 'd "']
    assert read(tmp_path / "a.jsonl", column="body") == ["a\nb", "d"]
    assert read(tmp_path / "a.parquet", column="body") == ["a", "d"]


def test_csv_field_longer_than_the_csv_module_allows_by_default(tmp_path):
    assert read(write(tmp_path / "a.csv", f"text\n{'x' * 200_003}\n")) == ["x" * 200_003]


@pytest.mark.parametrize(("name", "content"), [("a.txt", "é"), ("a.csv", "text\né"), ("a.json", '{"text": "é"}')])
def test_byte_order_mark_is_not_text(tmp_path, name, content):
    (tmp_path / name).write_text(content, encoding="utf-8-sig")
    assert read(tmp_path / name) == ["é"]


def test_files_folders_and_globs_together_give_each_file_once(tmp_path):
    for name in ["b.txt", "deep/er/a.MD", "deep/c.jsonl", "deep/picture.png", ".hidden/d.txt", "[e].txt", "[f]/f.py"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path / name, "x")
    patterns = [
        str(tmp_path / pattern) for pattern in ("deep", "**/*.jsonl", "b.txt", "[e].txt", "deep/../b.txt", "[f]")
    ]
    found = find_files(patterns, field="train_file")
    assert [path.name for path in found] == ["[e].txt", "f.py", "b.txt", "c.jsonl", "a.MD"]


@pytest.mark.parametrize("folder", ["site-packages", "a/tests", "a/idle_test/b", "a"])
def test_what_is_not_the_library_is_left_out(tmp_path, monkeypatch, folder):
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / "site-packages" / name))
    path = tmp_path / "site-packages" / "stdlib" / folder / "x.py"
    path.parent.mkdir(parents=True)
    write(path, "x")
    assert standard_library().paths == ((path,) if folder == "a" else ())


def test_source_is_decoded_as_it_declares_and_else_skipped(tmp_path):
    (tmp_path / "a.py").write_bytes("# coding: latin-1\nx = 'é'\n".encode("latin-1"))
    (tmp_path / "b.py").write_bytes(b"x = '\xe9'\n")
    (tmp_path / "c.py").write_bytes(b"# coding: no-such-coding\n")
    paths = sorted(tmp_path.iterdir())
    assert list(read_documents(paths, document="python_source", column="text")) == ["# coding: latin-1\nx = 'é'\n"]
