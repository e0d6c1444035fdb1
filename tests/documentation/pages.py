"""The steps of a documentation page: the commands and Python blocks of its fences, in order."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = {path.name: path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}

_FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_PROGRAMS = ("linformer", "pip", "pytest", "python", "torchrun")


@dataclass(frozen=True)
class Step:
    """A command or a Python block.

    Attributes:
        kind: `command` or `python`.
        text: A command on one line without its comment, or a block whole.
        line: Where it stands in the page.
    """

    kind: str
    text: str
    line: int

    @property
    def name(self) -> str:
        """Name, unique on its page: the first line."""
        return self.text.partition("\n")[0]


def steps(page: str) -> list[Step]:
    """All of a page, in order. A block of no language, or of a shell, holds commands; of others, only Python is run."""
    content = PAGES[page].read_text(encoding="utf-8")
    found, fences = [], len(re.findall(r"^ *```", content, re.MULTILINE))
    for match in _FENCED.finditer(content):
        indent, language, block = match.groups()
        text = "\n".join(row.removeprefix(indent) for row in block.rstrip().splitlines())
        fences -= 2
        found += _steps_of(language, text, line=content.count("\n", 0, match.start()) + 2)
    assert not fences, f"{page}: a fence that is not closed, or has another indent"
    return found


def _steps_of(language: str, text: str, line: int) -> list[Step]:
    if language == "python":
        return [Step("python", text, line)]
    if language not in ("", "bash", "sh"):
        return []
    assert text.split()[0] in _PROGRAMS, f"line {line}: expected a command, or a block marked as `text`"
    commands = []
    for number, row in enumerate(_joined(text.splitlines())):
        for command in row.split(" && "):
            words = shlex.split(command, comments=True)
            if words:
                commands.append(Step("command", shlex.join(words), line + number))
    return commands


def _joined(rows: list[str]) -> list[str]:
    """Lines of a shell, those that a backslash continues as one; the rest of them is empty."""
    joined: list[str] = []
    for row in reversed(rows):
        if row.endswith("\\"):
            row, joined[0] = row[:-1] + joined[0], ""
        joined.insert(0, row)
    return joined
