"""Collected only if network tests are requested: importing these tests downloads the code that they run."""

from __future__ import annotations

from pathlib import Path

import pytest

# Of transformers' tests.
_MARKERS = (
    "accelerate_tests",
    "flash_attn_test",
    "flash_attn_3_test",
    "flash_attn_4_test",
    "flex_attention_test",
    "generate",
    "torch_compile_test",
    "torch_export_test",
)


def pytest_configure(config: pytest.Config) -> None:
    for marker in _MARKERS:
        config.addinivalue_line("markers", f"{marker}: of transformers' tests")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    wanted = config.getoption("markexpr").replace("not network", "")
    return True if collection_path.name.startswith("test_") and "network" not in wanted else None
