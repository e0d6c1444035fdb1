"""`linformer report`."""

from __future__ import annotations

from pathlib import Path

from linformer_kit.errors import errors_named
from linformer_kit.files.writing import write_whole
from linformer_kit.report.runs import find_results, runs_page
from linformer_kit.settings import ReportSettings


def main(settings: ReportSettings) -> None:
    """Write the page and print its path."""
    found = find_results(Path(settings.folder))
    output = Path(settings.output)
    with errors_named(output):
        write_whole(output, runs_page(found))
    print(f"{len(found)} results in {output}")
