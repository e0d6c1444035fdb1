"""Pages: one HTML file that needs no network, of one result."""

from __future__ import annotations

import base64
from html.parser import HTMLParser
from pathlib import Path

import torch

from linformer_kit.report.base import html_of, write_report
from linformer_kit.report.figures import new_figure, save_figure

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
    write_report(results_of("bench long"), tmp_path, markdown, draw)
    text = (tmp_path / "report.html").read_text()
    page = Page(text)
    assert "<title>A report</title>" in text and "linformer bench long --config settings.yaml" in page.text
    assert "seed: 3" in page.text and "device: a processor" in page.text and f"torch: {torch.__version__}" in page.text
    assert {"table", "figure", "h1"} <= set(page.names) and "script" not in page.names
    assert page.text.count(HOSTILE) == 2  # as text, in the report and in the settings
    (image,) = page.addresses
    assert base64.b64decode(image.removeprefix("data:image/png;base64,")) == (tmp_path / "loss_curve.png").read_bytes()


def test_nothing_is_loaded_from_a_network():
    page = Page(str(html_of("![a picture](http://example.org/x.png) <img src=http://example.org/y.png>")))
    assert page.addresses in ([], ["http://example.org/x.png"]) and "img" not in page.names
