"""Pages in a browser: pictures load without a network."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from linformer_kit.report.base import write_report
from tests.report.test_page import draw, markdown, results_of

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--virtual-time-budget=2000", "--dump-dom"),
)
pytestmark = [pytest.mark.e2e, pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome")]


def rendered(page: Path, script: str) -> str:
    """The document after a script that runs when all has loaded."""
    copy = page.with_name("with-script.html")
    script = f"<script>addEventListener('load', () => {{ {script} }})</script>"
    copy.write_text(page.read_text(encoding="utf-8").replace("</body>", f"{script}</body>"), encoding="utf-8")
    command = [BROWSER, *OPTIONS, f"--user-data-dir={page.parent / 'browser'}", copy.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def test_a_result_in_a_browser(tmp_path):
    write_report(results_of("distill"), tmp_path, "metrics", markdown, draw)
    document = rendered(tmp_path / "report.html", "document.title = document.images[0].naturalWidth + ' pixels'")
    assert re.search(r"<title>[1-9]\d* pixels</title>", document) and "<td>1.25</td>" in document
