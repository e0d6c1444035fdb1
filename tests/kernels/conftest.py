"""What the tests of the faster ways share."""

from __future__ import annotations

import pytest

from linformer_kit.kernels import softmax, tokens


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks so small that models of a test run in many."""
    monkeypatch.setattr(tokens, "_BLOCK_TOKENS", 2)
    monkeypatch.setattr(tokens, "_BLOCK_ELEMENTS", 1)
    monkeypatch.setattr(softmax, "_SCORES", 67)
