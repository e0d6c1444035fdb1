"""Every faster way gives the numbers of the plain one, and is taken only where nobody can tell."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import linformer_kit as lk
from linformer_kit import functional, kernels
from linformer_kit.modeling import LinformerLayer

# batch, heads, query_len, keys, head_dim
SHAPES = [(1, 3, 29, 7, 5), (5, 3, 29, 7, 5), (3, 2, 1, 1, 1), (2, 1, 53, 31, 11), (7, 3, 2, 13, 3)]


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks so small that models of a test run in many."""
    monkeypatch.setattr(kernels, "_BLOCK_TOKENS", 5)
    monkeypatch.setattr(kernels, "_BLOCK_ELEMENTS", 1)
    monkeypatch.setattr(kernels, "_SCORES", 67)


def heads_of(batch, heads, length, head_dim, dtype):
    """As a linear map leaves them: positions before heads in memory."""
    return (
        torch.randn(batch, length, heads * head_dim, dtype=dtype).view(batch, length, heads, head_dim).transpose(1, 2)
    )


def attention_inputs(shape, dtype, masked):
    batch, heads, query_len, keys, head_dim = shape
    sizes = [(query_len, head_dim), (keys, head_dim), (keys, head_dim)]
    tensors = [heads_of(batch, heads, length, width, dtype) for length, width in sizes]
    mask = torch.arange(keys) < torch.randint(1, keys + 1, (batch if masked == "each" else 1, 1))
    return tensors, None if masked == "none" else mask[:, None, None]


@given(st.integers(0, 9), st.integers(0, 40), st.integers(1, 50))
def test_blocks_cover_a_batch_once(batch, length, tokens):
    seen = torch.zeros(batch, length, dtype=torch.int)
    sizes = set()
    for samples, rows in kernels.blocks(batch, length, tokens):
        seen[samples, rows] += 1
        assert 0 < seen[samples, rows].numel() <= tokens
        sizes.add(rows.stop - rows.start)
    assert (seen == 1).all()
    assert not sizes or max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("masked", ["none", "all alike", "each"])
@pytest.mark.parametrize("shape", SHAPES)
def test_block_attention_is_attention(small_blocks, shape, masked):
    """Outputs and gradients, in double precision, with several blocks to a sequence and several sequences to a block."""
    tensors, mask = attention_inputs(shape, torch.float64, masked)
    for tensor in tensors:
        tensor.requires_grad_()
    results = []
    for attend in (kernels._BlockAttention.apply, lambda q, k, v, m, _: F.scaled_dot_product_attention(q, k, v, m)):
        context = attend(*tensors, mask, None)
        weights = torch.sin(torch.arange(context.numel(), dtype=torch.float64)).view(context.shape)
        results.append([context, *torch.autograd.grad((context * weights).sum(), tensors)])
    for ours, plain in zip(*results, strict=True):
        assert torch.allclose(ours, plain, rtol=1e-10, atol=1e-10)
    with torch.no_grad():
        assert torch.equal(kernels._block_attention(*tensors, mask), results[0][0])


@pytest.mark.parametrize("drop", [None, kernels._Dropout(0.3, seed=5)], ids=["whole", "dropout"])
def test_block_attention_by_numerical_differentiation(small_blocks, drop):
    tensors, mask = attention_inputs((2, 2, 7, 3, 2), torch.float64, "each")
    assert torch.autograd.gradcheck(
        lambda *t: kernels._BlockAttention.apply(*t, mask, drop), [t.requires_grad_() for t in tensors]
    )


def test_dropout_in_blocks():
    """By its definition: each weight is 0 with the probability, else over 1 less it; other seeds drop other weights."""
    query, key = torch.zeros(3, 2, 4001, 1), torch.zeros(3, 2, 97, 1)
    value = torch.eye(97).expand(3, 2, -1, -1)  # the context is the weights
    weights = 97 * kernels._block_attention(query, key, value, None, kernels._Dropout(0.3, seed=1))
    dropped = weights == 0
    assert torch.allclose(weights[~dropped], torch.tensor(1 / 0.7), rtol=1e-4)
    deviation = (0.3 * 0.7) ** 0.5
    assert abs(dropped.double().mean() - 0.3) < 4 * deviation / dropped.numel() ** 0.5
    for dim in ((0, 1, 2), (0, 1, 3), (2, 3)):
        shares = dropped.double().mean(dim)
        assert (shares - 0.3).abs().max() < 5 * deviation / (dropped.numel() / shares.numel()) ** 0.5
    again = kernels._block_attention(query, key, value, None, kernels._Dropout(0.3, seed=1))
    other = kernels._block_attention(query, key, value, None, kernels._Dropout(0.3, seed=2))
    assert torch.equal(97 * again, weights)
    assert 0.05 < (dropped & (other == 0)).double().mean() < 0.13
    everything = kernels._block_attention(query, key, value, None, kernels._Dropout(0.99999, seed=1))
    assert everything.isfinite().all()


@pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="no bfloat16 instructions")
def test_dropout_follows_the_global_seed():
    tensors, _ = attention_inputs((2, 3, 31, 7, 4), torch.bfloat16, "none")
    first, second, again = (
        (torch.manual_seed(seed), kernels.attention(*tensors, dropout=0.5))[1] for seed in (3, 4, 3)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_attention_weights_are_not_kept_for_the_backward_pass():
    tensors, _ = attention_inputs((2, 3, 101, 97, 2), torch.float64, "none")
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.numel()), lambda _: None):
        kernels._BlockAttention.apply(
            *(tensor.requires_grad_() for tensor in tensors), None, kernels._Dropout(0.1, seed=0)
        )
    assert max(kept) < 2 * 3 * 101 * 97


@pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="no bfloat16 instructions")
@pytest.mark.parametrize("shape", [(1, 12, 1000, 256, 64), (3, 3, 211, 67, 32), (2, 3, 61, 13, 24)])
def test_bfloat16_is_within_its_rounding(shape):
    """At most twice the error that the plain softmax makes in the same precision, for outputs and gradients."""
    tensors, _ = attention_inputs(shape, torch.bfloat16, "none")
    exact = [tensor.double().requires_grad_() for tensor in tensors]
    rounded = [tensor.requires_grad_() for tensor in tensors]
    assert kernels._attends_in_blocks(*rounded)

    def softmax_attention(query, key, value):
        return functional.context_mapping(query, key) @ value

    def results(attend, inputs):
        context = attend(*inputs)
        return [context, *torch.autograd.grad(context, inputs, torch.ones_like(context))]

    truth, plain, ours = (
        results(softmax_attention, exact),
        results(softmax_attention, rounded),
        results(kernels.attention, rounded),
    )
    for right, theirs, mine in zip(truth, plain, ours, strict=True):
        error, allowed = ((got.double() - right).abs().max().item() for got in (mine, theirs))
        assert error <= 2 * allowed


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1031,), (3, 347), (2, 3, 173)])
def test_float32_maps_through_onednn(monkeypatch, shape, bias):
    """Outputs and gradients; torch's own map sums in another order, so an error of five of its is no loss of precision."""
    monkeypatch.setattr(kernels, "_onednn_is_faster", lambda: True)
    inputs, weight = torch.randn(*shape, 31), torch.randn(37, 31)
    offset = torch.randn(37) if bias else None
    assert kernels._suits_onednn(inputs, weight)
    tensors = [tensor for tensor in (inputs, weight, offset) if tensor is not None]

    def results(function, dtype):
        given = [tensor.to(dtype).requires_grad_() for tensor in tensors]
        output = function(*given)
        upstream = torch.cos(torch.arange(output.numel(), dtype=dtype)).view(output.shape)
        return [output, *torch.autograd.grad(output, given, upstream)]

    truth, plain, ours = (
        results(F.linear, torch.float64),
        results(F.linear, torch.float32),
        results(kernels.linear, torch.float32),
    )
    assert type(ours[0].grad_fn).__name__ == "_OneDNNLinearBackward"
    for right, theirs, mine in zip(truth, plain, ours, strict=True):
        error, allowed = ((got.double() - right).abs().max().item() for got in (mine, theirs))
        assert error <= 5 * allowed + 1e-6
    with torch.no_grad():
        assert torch.equal(kernels.linear(*tensors), ours[0])
    frozen = kernels.linear(inputs, weight.clone().requires_grad_(), offset)
    frozen.sum().backward()


@pytest.mark.parametrize("batch", [0, 1, 3])
@pytest.mark.parametrize("fast", [True, False])
def test_compress(monkeypatch, batch, fast):
    monkeypatch.setattr(kernels, "_onednn_is_faster", lambda: fast)
    matrix, hidden = torch.randn(31, 337, requires_grad=True), torch.randn(batch, 337, 149, requires_grad=True)
    compressed = kernels.compress(matrix, hidden)
    expected = torch.einsum("kn,bnd->bkd", matrix.double(), hidden.double())
    torch.testing.assert_close(compressed.double(), expected, rtol=1e-5, atol=1e-4)
    for ours, plain in zip(
        torch.autograd.grad(compressed.sum(), (matrix, hidden)),
        torch.autograd.grad(expected.sum(), (matrix, hidden)),
        strict=True,
    ):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)


# --- Whole layers in blocks ---

KINDS = [
    *(
        {"projection": name, "sharing": sharing}
        for name, sharing in itertools.product(("linear", "mean_pool", "conv"), ("none", "layerwise"))
    ),
    {"projection": "max_pool"},
    {"projection": "random", "shorter_input": "stretch"},
    {"sharing": "none", "projected_dim": [[7, 5, 3], [2, 2, 4]]},
    {"projection": "mean_pool", "shorter_input": "stretch", "projected_dim": [11, 5]},
    {"type_vocab_size": 2, "bias_order": "after_projection"},
    {"attention": "full"},
]


def model_of(**fields):
    sizes = {
        "vocab_size": 101,
        "max_position_embeddings": 37,
        "projected_dim": 7,
        "hidden_size": 33,
        "num_attention_heads": 3,
        "num_hidden_layers": 2,
        "intermediate_size": 29,
    }
    torch.manual_seed(0)
    return lk.LinformerModel(lk.LinformerConfig(**{**sizes, **fields})).double().eval()


def padded(batch, length):
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, length // 2 :] = 0
    mask[-1, :3] = 0
    return mask


@pytest.mark.parametrize("mask", [None, padded(4, 31)], ids=["whole", "padded"])
@pytest.mark.parametrize("fields", KINDS, ids=str)
def test_blocks_of_tokens_give_what_the_whole_gives(monkeypatch, small_blocks, fields, mask):
    model = model_of(**fields)
    ids = torch.randint(5, 101, (4, 31))
    whole = model(ids, mask, output_hidden_states=True)
    real = slice(None) if mask is None else mask.bool()
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            assert runs_in_blocks(monkeypatch, model, ids, attention_mask=mask)
            blocked = model(ids, mask)
            kept = model(ids, mask, output_hidden_states=True)
        assert torch.allclose(blocked.last_hidden_state[real], whole.last_hidden_state[real], rtol=0, atol=1e-11)
        for ours, plain in zip(kept.hidden_states, whole.hidden_states, strict=True):
            assert torch.allclose(ours[real], plain[real], rtol=0, atol=1e-11)


def test_short_texts_share_blocks(small_blocks):
    model = model_of()
    ids = torch.randint(5, 101, (13, 2))
    with torch.no_grad():
        assert torch.allclose(
            model(ids).last_hidden_state, torch.cat([model(row[None]).last_hidden_state for row in ids])
        )


def test_inputs_are_never_overwritten(small_blocks):
    model = model_of()
    embeds = torch.randn(2, 31, 33, dtype=torch.float64)
    given = embeds.clone()
    with torch.no_grad():
        first = model(inputs_embeds=embeds).last_hidden_state
        assert torch.equal(embeds, given)
        hidden = model.embeddings(embeds, torch.arange(31)[None], None)
        kept = hidden.clone()
        second = model.encoder(hidden, None, output_attentions=False, output_hidden_states=False).last_hidden_state
    assert torch.equal(hidden, kept)
    assert torch.equal(first, second)


class LargestTensor(TorchDispatchMode):
    """The most elements of any tensor that is made, and the memories of that many."""

    def __init__(self):
        super().__init__()
        self.memories = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.memories[tensor.untyped_storage().data_ptr()] = (
                    tensor.untyped_storage().nbytes() // tensor.itemsize
                )
        return result


def test_inference_holds_the_hidden_states_once(small_blocks):
    """Of everything that grows with the text only the hidden states themselves are as large as they are."""
    model = model_of(max_position_embeddings=997, projected_dim=3, intermediate_size=131)
    ids = torch.randint(5, 101, (1, 997))
    with torch.no_grad(), LargestTensor() as made:
        model(ids)
    assert sorted(made.memories.values())[-1] == 997 * 33
    assert sum(size > 997 * 33 // 2 for size in made.memories.values()) == 1


def runs_in_blocks(monkeypatch, model, ids, **arguments):
    """Run, and tell whether the layers ran in blocks."""
    seen = []
    forward = LinformerLayer._forward_in_blocks
    monkeypatch.setattr(LinformerLayer, "_forward_in_blocks", lambda *a: seen.append(1) or forward(*a))
    model(ids, **arguments)
    return bool(seen)


def test_hooks_see_the_whole(small_blocks):
    """Whatever listens to a part sees all tokens at once, and what it keeps is not overwritten."""
    model = model_of()
    ids = torch.randint(5, 101, (2, 31))
    whole = model(ids, output_hidden_states=True)
    for name, part in model.named_modules():
        if not name or isinstance(part, nn.ModuleList):
            continue
        kept = []
        handle = part.register_forward_hook(
            lambda *a, kept=kept: kept.append((a[2], a[2].clone())) if isinstance(a[2], torch.Tensor) else None
        )
        with torch.no_grad():
            output = model(ids).last_hidden_state
        handle.remove()
        assert torch.allclose(output, whole.last_hidden_state, atol=1e-11)
        for value, copy in kept:
            assert torch.equal(value, copy), name
    kept = []
    handles = [
        layer.register_forward_hook(lambda _, __, output: kept.append(output[0])) for layer in model.encoder.layers
    ]
    with torch.no_grad():
        model(ids)
    for handle in handles:
        handle.remove()
    for got, expected in zip(kept, whole.hidden_states[1:], strict=True):
        assert torch.allclose(got, expected, atol=1e-11)
    shapes = []
    handle = model.encoder.layers[1].fc1.register_forward_pre_hook(lambda _, inputs: shapes.append(inputs[0].shape))
    with torch.no_grad():
        model(ids)
    handle.remove()
    assert shapes == [(2, 31, 33)]


@pytest.mark.parametrize("how", ["gradients", "training", "autocast", "attentions", "few tokens", "nothing of these"])
def test_blocks_only_where_nobody_can_tell(monkeypatch, small_blocks, how):
    model = model_of()
    ids = torch.randint(5, 101, (1, 5 if how == "few tokens" else 31))
    if how == "training":
        model.train()
    with torch.set_grad_enabled(how == "gradients"), torch.autocast("cpu", enabled=how == "autocast"):
        blocked = runs_in_blocks(monkeypatch, model, ids, output_attentions=how == "attentions")
    assert blocked == (how == "nothing of these")


def test_plain_on_request(monkeypatch, small_blocks):
    monkeypatch.setattr(kernels, "_onednn_is_faster", lambda: True)
    model = model_of()
    ids = torch.randint(5, 101, (1, 31))
    weight = torch.randn(1024, 1024)
    vectors = torch.randn(1, 2, 3, 5, dtype=torch.bfloat16)
    with torch.no_grad():
        fast = kernels._suits_onednn(weight, weight), kernels._attends_in_blocks(vectors, vectors, vectors)
        with kernels.plain():
            assert not runs_in_blocks(monkeypatch, model, ids)
            assert not kernels._suits_onednn(weight, weight)
            assert not kernels._attends_in_blocks(vectors, vectors, vectors)
        assert fast == (kernels._suits_onednn(weight, weight), kernels._attends_in_blocks(vectors, vectors, vectors))
        assert fast[0]
        assert runs_in_blocks(monkeypatch, model, ids)


def test_a_replaced_map_runs(small_blocks):
    """What stands in the place of a linear map, an adapter say, is called."""

    class Doubled(nn.Linear):
        def forward(self, inputs):
            return 2 * super().forward(inputs)

    model = model_of()
    ids = torch.randint(5, 101, (1, 31))
    for layer in model.encoder.layers:
        for owner, name in ((layer, "fc1"), (layer, "fc2"), (layer.self_attn, "q_proj"), (layer.self_attn, "out_proj")):
            old = getattr(owner, name)
            new = Doubled(old.in_features, old.out_features).double()
            new.load_state_dict(old.state_dict())
            setattr(owner, name, new)
    with torch.no_grad():
        blocked = model(ids).last_hidden_state
    assert torch.allclose(blocked, model(ids).last_hidden_state, atol=1e-11)
    assert not torch.allclose(blocked, model_of()(ids).last_hidden_state, atol=1e-3)


def test_transformed_functions_take_the_plain_way(monkeypatch):
    monkeypatch.setattr(kernels, "_onednn_is_faster", lambda: True)
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
