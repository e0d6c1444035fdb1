"""The choice of the implementation, on processors as torch and the system report them."""

from __future__ import annotations

import pytest
import torch

from linformer_kit.operator.kernels.processor import Processor

EVERY_FORMAT = frozenset({torch.float32, torch.bfloat16, torch.float16})
AVX512 = {"avx2": True, "avx512_f": True}
RECORDED = {
    "AVX-512 with bfloat16": Processor(AVX512 | {"avx512_bf16": True}, "AVX512", False, True, EVERY_FORMAT),
    "AMX": Processor(AVX512 | {"avx512_bf16": True, "amx_bf16": True}, "AVX512", True, True, EVERY_FORMAT),
    # oneDNN emulates bfloat16 there.
    "AVX-512 without bfloat16": Processor(AVX512, "AVX512", True, True, frozenset({torch.float32, torch.bfloat16})),
    "AVX2": Processor({"avx2": True, "avx512_f": False}, "AVX2", False, True, frozenset({torch.float32})),
    "ARM with both": Processor({"neon": True, "bf16": True, "fp16_arith": True}, "DEFAULT", False, False, EVERY_FORMAT),
    "not known to torch": Processor({}, "DEFAULT", False, False, frozenset()),
}


@pytest.mark.parametrize(
    ("name", "float32_by_onednn", "formats"),  # the formats with instructions
    [
        ("AVX-512 with bfloat16", True, {torch.bfloat16}),
        ("AMX", False, {torch.bfloat16}),
        ("AVX-512 without bfloat16", False, set()),
        ("AVX2", False, set()),
        ("ARM with both", False, {torch.bfloat16, torch.float16}),
        ("not known to torch", False, {torch.bfloat16, torch.float16}),  # torch decides
    ],
)
def test_products(name, float32_by_onednn, formats):
    recorded = RECORDED[name]
    assert recorded.prefers_onednn(torch.float32) == float32_by_onednn
    assert {dtype for dtype in (torch.bfloat16, torch.float16) if recorded.has_instructions(dtype)} == formats


def test_attention_by_products():
    assert {name for name, recorded in RECORDED.items() if recorded.attends_by_products} == {"AVX-512 with bfloat16"}
