"""The table of linearised encoders."""

from __future__ import annotations

import json

import pytest

from linformer_kit.commands.cli import main
from linformer_kit.experiments.quality import families
from tests.conftest import fail


@pytest.mark.e2e
def test_command(tmp_path, monkeypatch, capsys):
    few = {name: families.FAMILIES[name] for name in ("bert", "modernbert", "vit")}
    monkeypatch.setattr(families, "FAMILIES", few)
    main(["bench", "families", "--output_dir", str(tmp_path / "out"), "--seed", "5"])
    results = json.loads((tmp_path / "out" / "families.json").read_text())
    assert list(results["families"]) == list(few) and results["settings"] == {"seed": 5}
    printed = capsys.readouterr().out
    assert printed.startswith((tmp_path / "out" / "families.md").read_text())
    assert "| modernbert | `ModernBertModel` | 61 | 1, 2 local kept |" in printed
    assert "(images: no padding)" in printed


def test_refused(tmp_path, capsys):
    assert "seed: expected 0 to" in fail(capsys, "bench", "families", "--seed", "-1", "--output_dir", tmp_path / "out")
