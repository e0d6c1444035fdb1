"""The site and the pictures of the pages: what is generated and checked, without the program that makes HTML."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from tests.documentation.pages import PAGES, ROOT


def script(path: str) -> ModuleType:
    """A script of the repository as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def build() -> ModuleType:
    return script("website/build.py")


@pytest.fixture
def pages(build, tmp_path, monkeypatch) -> Path:
    """The folder of the site's pages, copied and generated."""
    monkeypatch.setattr(build, "BUILD", tmp_path)
    monkeypatch.setattr(build, "PAGES", tmp_path / "pages")
    build.write_pages()
    return tmp_path / "pages"


def navigation(entries: list[dict]) -> list[str]:
    """All pages of a navigation, with those of its sections."""
    values = [value for entry in entries for value in entry.values()]
    return [page for value in values for page in ([value] if isinstance(value, str) else navigation(value))]


def test_every_page_is_in_the_navigation(build, pages):
    listed = navigation(tomllib.loads(build.settings())["project"]["nav"])
    assert all((pages / page).is_file() for page in listed)
    guides = {f"docs/{name}" for name in PAGES if name != "README.md"}
    results = {page.relative_to(pages).as_posix() for page in (pages / "benchmarks").rglob("*.md")}
    assert sorted(listed) == sorted({*listed}) and guides | results <= {*listed}


def test_links_lead_to_pages_and_headings_of_the_site(pages):
    def headings(page: Path) -> set[str]:
        """Anchors of a page, by the rule of the program that makes HTML."""
        titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}

    broken = []
    for page in pages.rglob("*.md"):
        text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if "://" not in link and not (target.exists() and (not anchor or anchor in headings(target))):
                broken.append(f"{page.relative_to(pages)}: {link}")
    assert not broken


def test_the_references_have_all_names_and_commands_and_at_most_twelve_pictures(build, pages):
    python = (pages / "reference" / "python.md").read_text(encoding="utf-8")
    assert "::: linformer_kit.linearized.linearize.linearize\n" in python
    assert python.count("\n::: ") == sum(map(len, build.TOPICS.values()))
    commands = (pages / "reference" / "commands.md").read_text(encoding="utf-8")
    assert commands.count("\nusage: linformer ") == len(build.COMMANDS)
    assert "### linformer bench\n" in commands and "\n        Values of n in tokens." in commands
    gallery = (pages / "reference" / "gallery.md").read_text(encoding="utf-8")
    assert gallery.count("\n![") == len(build.GALLERY) <= 12


def test_pictures_are_drawn(tmp_path):
    draw = script("website/draw.py")
    draw.windows(tmp_path / "windows.png")
    draw.causal(tmp_path / "causal.png")
    for tall in (False, True):
        draw.linformer(tmp_path / f"linformer-{tall}.png", tall=tall)
        draw.visible(tmp_path / f"visible-{tall}.png", tall=tall)
    assert len(list(tmp_path.glob("*.png"))) == 6
