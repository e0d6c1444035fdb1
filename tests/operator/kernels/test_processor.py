"""The choice of the implementation, on processors as torch and the system report them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from linformer_kit.operator.kernels import processor
from linformer_kit.operator.kernels.processor import Processor

EVERY_FORMAT = frozenset({torch.float32, torch.bfloat16, torch.float16})
AVX512 = {"avx2": True, "avx512_f": True}
RECORDED = {
    "AVX-512 with bfloat16": Processor(AVX512 | {"avx512_bf16": True}, "AVX512", False, True, EVERY_FORMAT),
    "the same of Intel": Processor(AVX512 | {"avx512_bf16": True}, "AVX512", True, True, EVERY_FORMAT),
    "AMX": Processor(AVX512 | {"avx512_bf16": True, "amx_bf16": True}, "AVX512", True, True, EVERY_FORMAT),
    "AMX with float16": Processor(
        AVX512 | dict.fromkeys(("avx512_bf16", "amx_bf16", "avx512_fp16", "amx_fp16"), True),
        "AVX512",
        True,
        True,
        EVERY_FORMAT,
    ),
    # oneDNN emulates bfloat16 there.
    "AVX-512 without bfloat16": Processor(AVX512, "AVX512", True, True, frozenset({torch.float32, torch.bfloat16})),
    "AVX2": Processor({"avx2": True, "avx512_f": False}, "AVX2", False, True, frozenset({torch.float32})),
    "ARM with both": Processor({"neon": True, "bf16": True, "fp16_arith": True}, "DEFAULT", False, False, EVERY_FORMAT),
    "ARM without": Processor({"neon": True, "bf16": False}, "DEFAULT", False, False, frozenset({torch.float32})),
    "not known to torch": Processor({}, "DEFAULT", False, False, frozenset()),
}


@pytest.mark.parametrize(
    ("name", "float32_by_onednn", "formats"),  # the formats with instructions
    [
        ("AVX-512 with bfloat16", True, {torch.bfloat16}),
        ("the same of Intel", False, {torch.bfloat16}),
        ("AMX", False, {torch.bfloat16}),
        ("AMX with float16", False, {torch.bfloat16, torch.float16}),
        ("AVX-512 without bfloat16", False, set()),
        ("AVX2", False, set()),
        ("ARM with both", False, {torch.bfloat16, torch.float16}),
        ("ARM without", False, set()),
        ("not known to torch", False, {torch.bfloat16, torch.float16}),  # torch decides
    ],
)
def test_products(name, float32_by_onednn, formats):
    recorded = RECORDED[name]
    assert recorded.onednn_is_faster == float32_by_onednn
    assert {dtype for dtype in (torch.bfloat16, torch.float16) if recorded.has_instructions(dtype)} == formats


@pytest.mark.parametrize(
    ("name", "inference", "training", "longer", "dropout"),
    [
        ("AVX-512 with bfloat16", True, True, True, True),
        ("AMX", False, True, False, True),
        ("AVX2", False, False, False, False),
        ("ARM with both", False, False, False, False),
    ],
)
def test_attention_in_blocks(name, inference, training, longer, dropout):
    attends = RECORDED[name].attends_in_blocks
    assert attends(512, 128, dropout=0.0, gradient=False) == inference
    assert attends(767, 256, dropout=0.0, gradient=True) == training
    assert attends(768, 256, dropout=0.0, gradient=True) == longer
    assert attends(512, 257, dropout=0.0, gradient=True) == longer
    assert attends(4096, 4096, dropout=0.1, gradient=True) == dropout


@pytest.mark.parametrize("name", ["AVX-512 with bfloat16", "ARM with both"])
def test_instructions_that_onednn_may_not_use(name):
    """ONEDNN_MAX_CPU_ISA says so."""
    without = RECORDED[name]._replace(onednn=frozenset({torch.float32}))
    assert not without.bfloat16_in_blocks and not without.has_instructions(torch.bfloat16)
    assert without.has_instructions(torch.float32) and without.has_instructions(torch.float64)


def test_without_mkl_or_onednn_float32_is_left_to_torch():
    fast = RECORDED["AVX-512 with bfloat16"]
    assert fast.onednn_is_faster
    assert not fast._replace(has_mkl=False).onednn_is_faster
    assert not fast._replace(onednn=frozenset()).onednn_is_faster
    assert not fast._replace(vectors="AVX2").onednn_is_faster


def test_this_processor():
    here = Processor.here()
    assert here is Processor.here()
    assert (torch.float32 in here.onednn) == processor.has_onednn()


@pytest.mark.parametrize(
    ("text", "intel"), [("vendor_id\t: GenuineIntel\n", True), ("vendor_id\t: AuthenticAMD\n", False), (None, False)]
)
def test_whose_processor(monkeypatch, text, intel):
    def read(_):
        if text is None:
            raise PermissionError("/proc/cpuinfo")
        return text

    monkeypatch.setattr(processor.Path, "read_text", read)
    monkeypatch.setattr(processor.platform, "processor", lambda: "AMD64 Family 25")
    assert processor._is_intel() == intel


@pytest.mark.e2e
@pytest.mark.skipif(not processor.has_onednn(), reason="torch without oneDNN")
def test_onednn_with_fewer_instructions_than_the_processor_has():
    script = (
        "import torch; from linformer_kit.operator import kernels; from linformer_kit.operator.kernels.processor import Processor\n"
        "x, linear = torch.ones(1024, 64).bfloat16(), torch.nn.Linear(64, 64).bfloat16()\n"
        "with torch.no_grad(): print(kernels.apply_linear(linear, x).shape, torch.bfloat16 in Processor.here().onednn)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"ONEDNN_MAX_CPU_ISA": "SSE41"},
        capture_output=True,
        text=True,
    )
    assert ran.stdout == "torch.Size([1024, 64]) False\n", ran.stderr
