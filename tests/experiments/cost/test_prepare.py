"""The number format of a measurement where none is given."""

from __future__ import annotations

import pytest
import torch

from linformer_kit.experiments import prepare
from linformer_kit.settings.bench import LongSettings


@pytest.mark.parametrize(
    ("device", "has_instructions", "expected"),
    [("cpu", True, "bfloat16"), ("cpu", False, "float32"), ("cuda", False, "bfloat16")],
)
def test_auto_is_a_format_that_the_device_has_instructions_for(monkeypatch, device, has_instructions, expected):
    monkeypatch.setattr(prepare, "use_bf16", lambda asked, on_cpu: has_instructions)
    settings = prepare.with_dtype(LongSettings(), torch.device(device))
    assert settings.dtype == expected and prepare.torch_dtype(settings) == getattr(torch, expected)


def test_a_given_format_stays():
    settings = LongSettings(dtype="float16")
    assert prepare.with_dtype(settings, torch.device("cpu")) is settings
