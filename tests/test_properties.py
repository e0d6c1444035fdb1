"""What must hold for every projection, sharing, length and padding: sizes are drawn, the reference is plain.

Everything here is in float64, so that exact means exact; `operator/test_reference` has the reference by hand.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from linformer_kit import LinformerAttention
from linformer_kit.operator.kernels import softmax
from linformer_kit.operator.projections import PROJECTIONS, MaxPoolProjection
from tests.conftest import BIAS_ORDERS, SHARINGS, SHORTER_INPUTS, pairs_of, randomise, shorter_inputs
from tests.reference.attention import attention_reference

WINDOWS = [0, 0, 1, 2, 5, 8, 70]
GLOBAL = [0, 0, 1, 3]
NESTED = [name for name in PROJECTIONS if name != "conv"]  # heads may differ in k
WINDOWED = [name for name, kind in PROJECTIONS.items() if kind.windowed]


@pytest.fixture(scope="module", autouse=True)
def _several_blocks():
    """Cut even short texts into several blocks of rows."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("linformer_kit.operator.window._ROWS", 3)
        patched.setattr(softmax, "_COLUMNS", 1000)
        patched.setattr(softmax, "_SCORES", 200)
        yield


@dataclass
class Case:
    """A layer and inputs for it; True in `padding` where padded, at least one real token in each sequence."""

    layer: LinformerAttention
    inputs: Tensor
    padding: Tensor | None

    @property
    def real(self) -> Tensor:
        return torch.ones(self.inputs.shape[:2], dtype=torch.bool) if self.padding is None else ~self.padding


def bias_orders(name: str, sharing: str) -> list[str]:
    """Those that a projection allows."""
    is_one_map = PROJECTIONS[name].commutes and (sharing != "none" or name in ("mean_pool", "random"))
    return list(BIAS_ORDERS) if is_one_map else ["before_projection"]


@st.composite
def cases(
    draw,
    *,
    padded: bool | None = None,
    names: list[str] | None = None,
    windows: list[int] = WINDOWS,
    causal: bool | None = None,
) -> Case:
    heads, head_dim = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    n = draw(st.integers(1, 29))
    length = draw(st.integers(1, n))
    name = draw(st.sampled_from(names or list(PROJECTIONS)))
    sharing, slots = draw(st.sampled_from(SHARINGS)), st.integers(1, n)
    by_head = draw(st.booleans()) and name in NESTED
    dims = draw(st.lists(slots, min_size=heads, max_size=heads) if by_head else slots)
    wanted = "prefix" if causal else draw(st.sampled_from(SHORTER_INPUTS))
    fields, window = shorter_inputs({"projection": name, "sharing": sharing}, wanted), draw(st.sampled_from(windows))
    if causal is None:
        may_be_causal = name in WINDOWED and fields["shorter_input"] == "prefix" and windows is WINDOWS
        causal = may_be_causal and draw(st.booleans())
    if causal:  # at least as many tokens as a slot stands for
        window += -(-n // min(dims if by_head else [dims]))
    torch.manual_seed(draw(st.integers(0, 2**16)))
    layer = LinformerAttention(
        heads * head_dim,
        heads,
        n,
        dims,
        **fields,
        bias=draw(st.booleans()),
        bias_order=draw(st.sampled_from(bias_orders(name, sharing))),
        sliding_window=window,
        global_tokens=draw(st.sampled_from(GLOBAL)),
        causal=causal,
    )
    batch = draw(st.integers(1, 3))
    padding = None
    if draw(st.booleans()) if padded is None else padded:
        padding = torch.rand(batch, length) < draw(st.sampled_from([0.1, 0.5, 0.9]))
        padding[torch.arange(batch), torch.randint(length, (batch,))] = False
    return Case(randomise(layer).double(), torch.randn(batch, length, heads * head_dim, dtype=torch.float64), padding)


def gradients_of(total: Tensor, wanted: list[Tensor]) -> tuple[Tensor, ...]:
    """Zeros for what is not used: E and F, if all tokens are global ones."""
    return torch.autograd.grad(total, wanted, allow_unused=True, materialize_grads=True)


def assert_equals_reference(case: Case) -> None:
    """Outputs and all gradients."""
    inputs = case.inputs.requires_grad_()
    wanted = [inputs, *case.layer.parameters()]
    outputs = (
        case.layer(inputs, inputs, inputs, case.padding)[0],
        attention_reference(case.layer, *[inputs] * 3, case.padding),
    )
    direction = torch.randn_like(inputs)[case.real]
    gradients = [gradients_of((out[case.real] * direction).sum(), wanted) for out in outputs]
    torch.testing.assert_close(outputs[0][case.real], outputs[1][case.real], rtol=1e-10, atol=1e-10)
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10 * theirs.abs().max().clamp(min=1).item())


@given(cases())
def test_equals_the_plain_reference(case):
    assert_equals_reference(case)


@given(cases(names=WINDOWED, causal=True))
def test_causal_attention_equals_the_plain_reference(case):
    assert_equals_reference(case)


@given(cases(names=WINDOWED, causal=True), st.data())
def test_causal_attention_depends_on_all_earlier_tokens_and_on_no_later_one(case, data):
    position = data.draw(st.integers(0, case.inputs.shape[1] - 1))
    inputs, real = case.inputs.requires_grad_(), case.real[:, position]
    out = case.layer(inputs, inputs, inputs, case.padding, need_weights=data.draw(st.booleans()))[0]
    (gradient,) = torch.autograd.grad(out[real, position].cos().sum(), inputs)
    assert not gradient[:, position + 1 :].any()
    seen = case.real[real, : position + 1]
    if not isinstance(case.layer.projection, MaxPoolProjection):
        assert gradient[real, : position + 1][seen].any(dim=-1).all()
    other = torch.cat([case.inputs[:, : position + 1], torch.randn_like(case.inputs)[:, position + 1 :]], dim=1)
    again = case.layer(other, other, other, case.padding)[0]
    once = case.layer(inputs, inputs, inputs, case.padding)[0]
    assert torch.equal(again[real, : position + 1][seen], once[real, : position + 1][seen])


SOME_SIZES = [(29, 7, 29), (28, 7, 28), (29, 7, 13), (28, 7, 13), (29, 7, 5)]


@pytest.mark.parametrize(
    ("name", "sharing", "sizes", "masked", "bias_order", "shorter_input", "window", "tokens"),
    pairs_of(PROJECTIONS, SHARINGS, SOME_SIZES, [False, True], BIAS_ORDERS, SHORTER_INPUTS, [0, 5], [0, 2]),
)
def test_equals_the_plain_reference_in_every_combination(
    name, sharing, sizes, masked, bias_order, shorter_input, window, tokens
):
    n, k, length = sizes
    options = shorter_inputs({"projection": name, "sharing": sharing}, shorter_input)
    options |= {"bias_order": bias_order if bias_order in bias_orders(name, sharing) else "before_projection"}
    options |= {"sliding_window": window, "global_tokens": tokens}
    layer = randomise(LinformerAttention(6, 2, n, k, **options)).double()
    padding = padding_of(length) if masked else None
    assert_equals_reference(Case(layer, torch.randn(4, length, 6, dtype=torch.float64), padding))


def padding_of(length: int) -> Tensor:
    """Of four sequences: right, left, holes, none."""
    padding = torch.zeros(4, length, dtype=torch.bool)
    padding[0, length - length // 3 :] = padding[1, : length // 3] = padding[2, 1::3] = True
    return padding


UNBOUNDED = [
    {"projection": None},
    {"projection": None, "causal": True, "bias": False},
    {"projection": "dynamic", "projected_dim": [5, 7], "sharing": "none"},
    {"projection": "dynamic", "projected_dim": 7, "sharing": "headwise"},
]


@pytest.mark.parametrize("length", [1, 41])
@pytest.mark.parametrize("arguments", UNBOUNDED)
def test_layers_without_a_longest_sequence_equal_the_plain_reference(arguments, length):
    layer = randomise(LinformerAttention(6, 2, **arguments)).double()
    for padding in (None, padding_of(length)):
        assert_equals_reference(Case(layer, torch.randn(4, length, 6, dtype=torch.float64), padding))


@given(cases(padded=True), st.sampled_from([float("nan"), float("inf"), -1e30]))
def test_what_stands_in_padding_reaches_neither_output_nor_gradient(case, garbage):
    def run(content: float) -> tuple[Tensor, ...]:
        filled = case.inputs.masked_fill(case.padding[..., None], content)
        out = case.layer(filled, filled, filled, case.padding)[0][case.real]
        return out, *gradients_of(out.square().sum(), list(case.layer.parameters()))

    for clean, dirty in zip(run(0.0), run(garbage), strict=True):
        assert torch.equal(clean, dirty)


@given(cases(padded=True, windows=[0]))
def test_keys_of_another_length_than_the_queries(case):
    query = torch.randn(len(case.inputs), 7, case.inputs.shape[-1], dtype=torch.float64)
    value = torch.randn_like(case.inputs)
    out = case.layer(query, case.inputs, value, case.padding)[0]
    expected = attention_reference(case.layer, query, case.inputs, value, case.padding)
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)


@given(cases(padded=False, windows=[0]))
def test_exactly_k_slots(case):
    """At the longest length, whether or not k divides n; a head with fewer has zeros after its own."""
    projection, width = case.layer.projection, case.inputs.shape[-1]
    case.layer.global_tokens = 0
    inputs = torch.randn(2, projection.seq_len, width, dtype=torch.float64)
    out, weights = case.layer(inputs, inputs, inputs, need_weights=True)
    assert weights.shape == (2, case.layer.num_heads, projection.seq_len, projection.projected_dim)
    for head, slots in enumerate(projection.head_dims):
        assert (weights[:, head, :, :slots] > 0).all() and (weights[:, head, :, slots:] == 0).all()
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones_like(weights[..., 0]))
    torch.testing.assert_close(out, case.layer(inputs, inputs, inputs)[0], rtol=1e-10, atol=1e-10)


@given(cases(names=NESTED), st.data())
def test_fewer_slots_equal_the_plain_reference_and_back_is_exact(case, data):
    layer = case.layer
    if layer.causal:  # windows grow
        layer.sliding_window = layer.projection.seq_len
    before = layer(case.inputs, case.inputs, case.inputs, case.padding)[0]
    layer.projected_dim = [data.draw(st.integers(1, k)) for k in layer.projection.head_dims]
    fewer = layer(case.inputs, case.inputs, case.inputs, case.padding)[0]
    expected = attention_reference(layer, case.inputs, case.inputs, case.inputs, case.padding)
    torch.testing.assert_close(fewer[case.real], expected[case.real], rtol=1e-10, atol=1e-10)
    layer.projected_dim = None
    assert torch.equal(layer(case.inputs, case.inputs, case.inputs, case.padding)[0], before)


@given(cases(padded=True))
def test_a_sequence_of_nothing_but_padding_stays_finite(case):
    case.padding[0] = True
    inputs = case.inputs.masked_fill(case.padding[..., None], float("nan"))
    out = case.layer(inputs, inputs, inputs, case.padding, need_weights=True)[0]
    plain = case.layer(inputs, inputs, inputs, case.padding)[0]
    assert out[0].isfinite().all() and plain[0].isfinite().all()
    gradients = gradients_of(out.sum() + plain.sum(), list(case.layer.parameters()))
    assert all(gradient.isfinite().all() for gradient in gradients)
