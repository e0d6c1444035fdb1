"""Pages in a browser: pictures load without a network, tables sort, links open their result."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from linformer_kit.commands.cli import main
from linformer_kit.report.base import write_report
from tests.report.test_page import draw, markdown, results_of

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--virtual-time-budget=2000", "--dump-dom"),
)
LOADED = "document.title = [...document.images].filter(image => image.naturalWidth).length + ' pictures'"

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome")]


def rendered(page: Path, script: str, fragment: str = "") -> str:
    """The document after a script that runs when all has loaded."""
    copy = page.with_name("with-script.html")
    script = f"<script>addEventListener('load', () => {{ {script} }})</script>"
    copy.write_text(page.read_text(encoding="utf-8").replace("</body>", f"{script}</body>"), encoding="utf-8")
    command = [BROWSER, *OPTIONS, f"--user-data-dir={page.parent / 'browser'}", f"{copy.as_uri()}{fragment}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.fixture
def runs(tmp_path) -> Path:
    """Three trainings whose losses have another order as text than as numbers."""
    for name, loss in {"a": 10.5, "b": 9.25, "c": 100.0}.items():
        (tmp_path / name).mkdir()
        curve = {"loss": [[0, 200.0], [10, loss]]}
        write_report(results_of("distill", curve=curve, updates=10), tmp_path / name, "metrics", markdown, draw)
    return tmp_path


def test_one_result_in_a_browser(runs):
    document = rendered(runs / "a" / "report.html", LOADED)
    assert "<title>1 pictures</title>" in document and "<td>1.25</td>" in document


def test_many_results_in_a_browser(runs):
    page = runs / "all.html"
    main(["report", str(runs), "--output", str(page)])
    head = "[...document.querySelectorAll('th')].find(head => head.textContent == 'loss')"
    pages = [rendered(page, f"{head}.click();" * clicks) for clicks in range(3)]
    orders = [re.findall(r"<tr><td>([abc])</td>", document) for document in pages]
    assert orders == [["a", "b", "c"], ["b", "a", "c"], ["c", "a", "b"]]
    document = rendered(page, LOADED, "#result-2")
    assert re.findall(r"<details id=\"(result-\d)\" open", document) == ["result-2"]
    assert int(re.search(r"<title>(\d+) pictures", document)[1]) >= 4  # a curve of all, and one of each result
