"""The description of the machine in results."""

from __future__ import annotations

import pytest
import torch

from linformer_kit.environment import environment, use_bf16
from linformer_kit.operator.kernels import Processor


def test_the_machine_is_named():
    told = environment(torch.device("cpu"))
    assert told["device"] and told["threads"] == torch.get_num_threads() and told["torch"] == torch.__version__


@pytest.fixture
def processor(monkeypatch):
    """Call it with whether the processor has bf16 instructions."""

    def give(bf16):
        onednn = frozenset({torch.float32, torch.bfloat16})
        here = Processor.here()._replace(capabilities={"avx512_f": True, "avx512_bf16": bf16}, onednn=onednn)
        monkeypatch.setattr(Processor, "here", staticmethod(lambda: here))

    return give


@pytest.mark.parametrize(("asked", "result"), [("true", True), ("false", False)])
@pytest.mark.parametrize("available", [True, False])
def test_what_is_asked_for_wins(processor, available, asked, result):
    processor(available)
    assert use_bf16(asked, on_cpu=True) is result


@pytest.mark.parametrize("available", [True, False])
def test_auto_is_what_the_gpu_has_and_does_not_emulate(monkeypatch, available):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: available or including_emulation)
    assert use_bf16("auto", on_cpu=False) is available
