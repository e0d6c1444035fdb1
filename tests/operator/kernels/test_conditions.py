"""The plain implementation is used if code is transformed or mixes dtypes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad

from linformer_kit.operator import kernels
from linformer_kit.operator.kernels import conditions, products
from tests.operator.kernels.inputs import attention_inputs
from tests.operator.kernels.test_tokens import model_of


def test_transformed_functions_take_the_plain_way(monkeypatch):
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)
    weight = torch.randn(64, 512)
    inputs = torch.randn(3, 64, 512)
    mapped = torch.func.vmap(lambda rows: kernels.linear(rows, weight))(inputs)
    torch.testing.assert_close(mapped, F.linear(inputs, weight), rtol=1e-4, atol=1e-4)
    tensors, _ = attention_inputs((2, 3, 5, 7, 11), torch.bfloat16, "none")
    context = torch.func.vmap(lambda q, k, v: kernels.attention(q[None], k[None], v[None])[0])(*tensors)
    torch.testing.assert_close(context, F.scaled_dot_product_attention(*tensors))


def test_training_in_mixed_precision():
    """Autocast brings bfloat16 to the attention and float32 to the parameters; gradients are those of torch's attention."""
    model = model_of(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0).float().train()
    ids = torch.randint(5, 101, (2, 31))
    gradients = []
    for enabled in (True, False):
        with torch.backends.mkldnn.flags(enabled=enabled), torch.autocast("cpu", torch.bfloat16):
            loss = model(ids).last_hidden_state.float().square().mean()
        gradients.append(torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad]))
    for ours, plain in zip(*gradients, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, plain, rtol=0.1, atol=0.02 * plain.abs().max().item() + 1e-6)


def test_forward_differentiation_takes_the_plain_way(monkeypatch):
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)
    inputs, tangent, weight = torch.randn(64, 512), torch.randn(64, 512), torch.randn(64, 512)
    with forward_ad.dual_level(), torch.no_grad():
        output = kernels.linear(forward_ad.make_dual(inputs, tangent), weight)
        torch.testing.assert_close(forward_ad.unpack_dual(output).tangent, F.linear(tangent, weight))


def test_many_gradients_at_once(monkeypatch):
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)
    inputs, weight = torch.randn(64, 512, requires_grad=True), torch.randn(64, 512, requires_grad=True)
    output = kernels.linear(inputs, weight)
    assert type(output.grad_fn).__name__ == "_LinearBackward"
    upstream = torch.randn(3, 64, 64)
    batched = torch.autograd.grad(output, (inputs, weight), upstream, retain_graph=True, is_grads_batched=True)
    for index, grad in enumerate(upstream):
        for ours, one in zip(
            batched, torch.autograd.grad(output, (inputs, weight), grad, retain_graph=True), strict=True
        ):
            torch.testing.assert_close(ours[index], one, rtol=1e-3, atol=1e-3)


def test_plain_ends_with_its_block_and_with_errors():
    with kernels.plain():
        with kernels.plain():
            pass
        assert conditions.must_be_plain()
    assert not conditions.must_be_plain()
    with pytest.raises(ZeroDivisionError), kernels.plain():
        raise ZeroDivisionError
    assert not conditions.must_be_plain()


def test_tracing_is_plain():
    seen = []

    def traced(x):
        seen.append(conditions.must_be_plain())
        return x + 1

    torch.jit.trace(traced, torch.ones(2), check_trace=False)
    assert seen == [True]


@pytest.mark.parametrize(
    ("text", "intel"), [("vendor_id\t: GenuineIntel\n", True), ("vendor_id\t: AuthenticAMD\n", False), (None, False)]
)
def test_whose_processor(monkeypatch, text, intel):
    def read(_):
        if text is None:
            raise PermissionError("/proc/cpuinfo")
        return text

    monkeypatch.setattr(conditions.Path, "read_text", read)
    monkeypatch.setattr(conditions.platform, "processor", lambda: "AMD64 Family 25")
    assert conditions._is_intel() == intel


@pytest.mark.parametrize(
    ("capabilities", "onednn", "fast"),
    [
        ({"avx512_bf16": True}, True, True),
        ({"avx512_bf16": True}, False, False),  # ONEDNN_MAX_CPU_ISA says so
        ({"avx512_bf16": True, "amx_bf16": True}, True, False),
        ({"avx512_f": True}, True, False),
        ({}, True, False),
    ],
)
def test_blocks_of_bfloat16_where_they_were_measured(monkeypatch, capabilities, onednn, fast):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    monkeypatch.setattr(conditions, "onednn_has", lambda dtype: onednn)
    assert conditions.bfloat16_in_blocks.__wrapped__() == fast


RECORDED = {
    "AVX-512 with bfloat16": ({"avx2": True, "avx512_f": True, "avx512_bf16": True}, True, False),
    "AVX-512 with bfloat16 and AMX": ({"avx512_f": True, "avx512_bf16": True, "amx_bf16": True}, True, False),
    "AMX with float16": ({"avx512_bf16": True, "amx_bf16": True, "avx512_fp16": True, "amx_fp16": True}, True, True),
    "AVX-512 without bfloat16": ({"avx2": True, "avx512_f": True, "avx512_bf16": False}, False, False),
    "AVX2": ({"avx2": True, "avx512_f": False}, False, False),
    "ARM with both": ({"neon": True, "bf16": True, "fp16_arith": True}, True, True),
    "ARM without": ({"neon": True, "bf16": False}, False, False),
    "not known to torch": ({}, True, True),
}


@pytest.mark.parametrize("name", RECORDED)
def test_instructions_of_recorded_processors(monkeypatch, name):
    capabilities, *expected = RECORDED[name]
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    monkeypatch.setattr(conditions, "onednn_has", lambda dtype: True)
    has = conditions.has_instructions.__wrapped__
    assert [has(dtype) for dtype in (torch.bfloat16, torch.float16)] == expected
    assert has(torch.float32) and has(torch.float64)
    monkeypatch.setattr(conditions, "onednn_has", lambda dtype: False)  # ONEDNN_MAX_CPU_ISA says so
    assert has(torch.bfloat16) == (not capabilities)


@pytest.mark.e2e
@pytest.mark.skipif(not conditions.has_onednn(), reason="torch without oneDNN")
def test_onednn_with_fewer_instructions_than_the_processor_has():
    script = (
        "import torch; from linformer_kit.operator import kernels; from linformer_kit.operator.kernels import conditions\n"
        "x, linear = torch.ones(1024, 64).bfloat16(), torch.nn.Linear(64, 64).bfloat16()\n"
        "with torch.no_grad(): print(kernels.apply_linear(linear, x).shape, conditions.onednn_has(torch.bfloat16))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"ONEDNN_MAX_CPU_ISA": "SSE41"},
        capture_output=True,
        text=True,
    )
    assert ran.stdout == "torch.Size([1024, 64]) False\n", ran.stderr
