"""Pages: one HTML file that needs no network, of one result or of many."""

from __future__ import annotations

import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from linformer_kit.commands.cli import main
from linformer_kit.report.base import write_report
from linformer_kit.report.figures import new_figure, save_figure
from linformer_kit.report.page import html_of
from tests.conftest import fail_last_line

_VOID = {"meta", "img", "br", "hr"}
HOSTILE = "<script>alert(1)</script>"


class Page(HTMLParser):
    """Reads a page; every element has to be closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.names: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def results_of(command: str, **fields: object) -> dict[str, object]:
    environment = {"device": "a processor", "date": "2026-11-24", "torch": torch.__version__}
    return {"command": command, "environment": environment, "settings": {"seed": 3, "names": [HOSTILE]}, **fields}


def draw(results, folder: Path) -> None:
    figure, axes = new_figure((2, 1))
    axes.plot([1, 2])
    save_figure(figure, folder / "loss_curve.png")


def markdown(results) -> str:
    return f"# A report\n\n| model | loss |\n| --- | --- |\n| {HOSTILE} | 1.25 |\n"


def test_one_result(tmp_path):
    write_report(results_of("bench long"), tmp_path, "long", markdown, draw)
    text = (tmp_path / "report.html").read_text()
    page = Page(text)
    assert "<title>A report</title>" in text and "linformer bench long --config settings.yaml" in page.text
    assert "seed: 3" in page.text and "device: a processor" in page.text and f"torch: {torch.__version__}" in page.text
    assert {"table", "figure", "h1"} <= set(page.names) and "script" not in page.names
    assert page.text.count(HOSTILE) == 2  # as text, in the report and in the settings
    (image,) = page.addresses
    assert base64.b64decode(image.removeprefix("data:image/png;base64,")) == (tmp_path / "loss_curve.png").read_bytes()


def test_many_results(tmp_path, capsys):
    curve = {"loss": [[0, 3.5], [10, 1.25]], "cosine": [[0, 0.5], [10, 0.875]]}
    distilled = results_of("distill", curve=curve, updates=10, seconds=1234.5)
    seeds = [{"seed": seed, "curve": {"loss": [[5, seed / 8]], "accuracy": []}, "updates": 5} for seed in (1, 2)]
    pretrained = {"small": {"curve": [[0, 9.0], [7, 4.5]], "updates": 7, "seconds": 2.0}}
    for name, results in (
        ("distilled", distilled),
        ("tuned", results_of("finetune", runs=seeds)),
        ("pretrained", results_of("pretrain", models=pretrained)),
        ("measured", results_of("bench long")),
    ):
        (tmp_path / "runs" / name).mkdir(parents=True)
        write_report(results, tmp_path / "runs" / name, "metrics", markdown, draw)
    (tmp_path / "runs" / "other.json").write_text(json.dumps({"command": "no report beside it"}))
    main(["report", str(tmp_path / "runs"), "--output", str(tmp_path / "all.html")])
    assert capsys.readouterr().out == f"4 results in {tmp_path / 'all.html'}\n"
    text = (tmp_path / "all.html").read_text()
    page = Page(text)
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(<td>.*?)</tr>", text, re.DOTALL)]
    heading = re.findall(r"<th data-sort>(.*?)</th>", text)
    assert heading == ["run", "updates", "seconds", "cosine", "loss", "validation loss", "folder", "command", "date"]
    assert rows[:4] == [
        ["distilled", "10", "1,234", "0.875", "1.25", ""],
        ["pretrained", "7", "2", "", "", "4.5"],
        ["tuned, seed 1", "5", "", "", "0.125", ""],
        ["tuned, seed 2", "5", "", "", "0.25", ""],
    ]
    pictures = [address for address in page.addresses if address.startswith("data:image/png")]
    links = [address for address in page.addresses if address.startswith("#")]
    assert len(pictures) == 3 + 4  # a figure for each metric, and one of each result
    assert len(links) == 4 and all(f'id="{link[1:]}"' in text for link in links)
    assert len(page.addresses) == len(pictures) + len(links) and page.names.count("script") == 1


@pytest.mark.parametrize(
    ("content", "report"),
    [
        ('{"command": "distill"}', b"# x"),
        ('{"command": "pretrain", "models": []}', b"# x"),
        ('{"command": "distill", "curve": {"loss": [[0, 1, 2]]}}', b"# x"),
        ('{"command": "a", "environment": [1]}', b"# x"),
        ('{"command": "a"}', b"\xff\xfe"),
        ("[" * 100_000, b"# x"),
    ],
)
def test_results_that_cannot_be_shown_are_left_out(content, report, tmp_path, capsys, caplog):
    write_report(results_of("bench long"), tmp_path, "long", markdown)
    (tmp_path / "broken.json").write_text(content)
    (tmp_path / "broken.md").write_bytes(report)
    main(["report", str(tmp_path), "--output", str(tmp_path / "all.html")])
    assert capsys.readouterr().out.startswith("1 results in") and "left out" in caplog.text
    assert "broken.json" in caplog.text


def test_nothing_is_loaded_from_a_network():
    page = Page(str(html_of("![a picture](http://example.org/x.png) <img src=http://example.org/y.png>")))
    assert page.addresses in ([], ["http://example.org/x.png"]) and "img" not in page.names


@pytest.mark.parametrize("there", [False, True])
def test_no_results(there, tmp_path, capsys):
    folder = tmp_path / "runs"
    if there:
        folder.mkdir()
    error = fail_last_line(capsys, "report", str(folder))
    expected = "expected results (a .json beside its .md) below it" if there else "which is none"
    assert error.startswith("linformer: error: folder: expected") and expected in error
