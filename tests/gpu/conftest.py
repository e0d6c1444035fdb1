"""Tests that need an accelerator: `pytest -m gpu tests/gpu`. `LINFORMER_TEST_DEVICE` names another device: `cpu` tries the tests."""

from __future__ import annotations

import os

import pytest
import torch

from linformer_kit.report.environment import best_device
from tests.faults.conftest import corpus, encoder, teacher, texts  # noqa: F401

_NAME = "LINFORMER_TEST_DEVICE"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(os.path.dirname(__file__)):
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def device() -> torch.device:
    named = os.environ.get(_NAME)
    device = torch.device(named) if named else best_device()
    if device.type == "cpu" and not named:
        pytest.skip(f"no accelerator here; {_NAME}=cpu runs these tests on the CPU")
    return device


@pytest.fixture(autouse=True)
def _full_precision():
    """Convolutions in float32, which cuDNN else rounds to TF32."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before
