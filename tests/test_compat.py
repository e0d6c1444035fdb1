"""The classes of the package `linformer`, against the package itself."""

from __future__ import annotations

import copy
import itertools
import math
import pickle

import pytest
import torch
from torch import nn

import linformer_kit as lk
from linformer_kit import compat
from tests.conftest import doubled, randomise, replica_of

N, WIDTH, HEADS, DEPTH = 37, 15, 3, 2
# k below and above n, as in the package; one head of keys and values; W_V = W_K and F = E.
OPTIONS = list(itertools.product((7, 41), (False, True), (False, True)))
every_option = pytest.mark.parametrize(("k", "one", "tied"), OPTIONS)


def attention(k=7, one=False, tied=False, package=compat, dim_head=None, **options):
    return package.LinformerSelfAttention(WIDTH, N, k, HEADS, dim_head, one, tied, **options)


def stack(k=7, one=False, tied=False, package=compat, dim_head=None, **options):
    return package.Linformer(WIDTH, N, DEPTH, k, HEADS, dim_head, one, tied, **options)


def language_model(k=7, one=False, tied=False, package=compat, dim_head=None, **options):
    return package.LinformerLM(101, WIDTH, N, DEPTH, k, HEADS, dim_head, one, tied, **options)


MODELS = (attention, stack, language_model)


def ready(model):
    """In float64 and without dropout, with weights that all count."""
    return randomise(model.double(), scale=0.3).eval()


def inputs(build, length=31):
    shape = (2, length)
    return torch.randint(101, shape) if build is language_model else torch.randn(*shape, WIDTH).double()


def pair(build, *options, **more):
    """A model of the package, and ours with the same weights."""
    package = pytest.importorskip("linformer")
    theirs, ours = ready(build(*options, package=package, **more)), build(*options, **more).double().eval()
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


@every_option
def test_keys_of_another_sequence(k, one, tied):
    (theirs, ours), x, context = pair(attention, k, one, tied), inputs(attention, 5), inputs(attention, N)
    mask = torch.ones(2, N).bool()
    mask[0, :11] = mask[1, 3] = False
    torch.testing.assert_close(ours(x, context=context), theirs(x, context=context), rtol=0, atol=1e-10)
    rows = zip(x, context, mask, strict=True)
    expected = torch.cat([theirs(row[None], context=other[None, real]) for row, other, real in rows])
    torch.testing.assert_close(ours(x, context, mask), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("build", MODELS)
def test_replicas_of_data_parallel_have_weights_of_their_own(build):
    model, x = ready(build()), inputs(build)
    before = model(x)
    torch.testing.assert_close(replica_of(model)(x), doubled(model)(x))
    assert torch.equal(model(x), before)


@pytest.mark.parametrize("build", MODELS)
def test_a_mask_gives_the_output_of_the_tokens_alone(build):
    """Padding after, before and inside; what it holds reaches no output and no gradient."""
    model, x = ready(build(one=True)), inputs(build)
    for real in (torch.arange(31) < 19, torch.arange(31) >= 11, torch.arange(31) % 3 != 0):
        garbled = x.clone()
        garbled[:, ~real] = 0 if build is language_model else math.nan
        out = model(garbled, mask=real.expand(2, -1))
        torch.testing.assert_close(out[:, real], model(x[:, real]), rtol=0, atol=1e-10)
        out[:, real].sum().backward()
        assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_a_map_that_is_replaced_or_hooked_is_used():
    model, x, seen = ready(attention(tied=True)), inputs(attention), []
    model.to_q.register_forward_hook(lambda *_: seen.append("to_q"))
    before = model(x)
    model.to_k = nn.Linear(WIDTH, WIDTH, bias=False).double()
    assert seen == ["to_q"] and not torch.allclose(model(x), before)


@pytest.mark.parametrize("build", MODELS)
def test_copies_are_independent(build):
    model, x = ready(build()), inputs(build)
    expected = model(x)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(copied(x), expected)
        next(parameter for name, parameter in copied.named_parameters() if "proj_k" in name).data.zero_()
        assert not torch.equal(copied(x), expected) and torch.equal(model(x), expected)


@pytest.mark.e2e
@every_option
@pytest.mark.parametrize("build", MODELS)
def test_equals_the_package(build, k, one, tied):
    """Start, names and order of weights, outputs, gradients; state dicts load both ways."""
    package = pytest.importorskip("linformer")
    models = []
    for module in (package, compat):
        torch.manual_seed(5)
        models.append(build(k, one, tied, module, dropout=0.3))
    theirs, ours = models
    assert [name for name, _ in theirs.named_parameters()] == [name for name, _ in ours.named_parameters()]
    assert all(map(torch.equal, theirs.parameters(), ours.parameters()))
    ours.load_state_dict(ready(theirs).state_dict())
    theirs.load_state_dict(ours.double().eval().state_dict())
    for length in (N, 31):
        x = inputs(build, length)
        torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-10)
    for model in models:
        model(x).square().sum().backward()
    for one_, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one_.grad, other.grad, rtol=1e-9, atol=1e-9)
    converted = lk.from_linformer(theirs)
    got = converted(x, x, x)[0] if build is attention else converted(x)[0]
    torch.testing.assert_close(got, theirs(x), rtol=0, atol=1e-10)


@every_option
def test_conversion(k, one, tied, tmp_path):
    model, x = ready(attention(k, one, tied, dropout=0.3)), inputs(attention)
    mask = (torch.arange(31) < 19).expand(2, -1)
    for source, heads in ((model, None), (model.state_dict(), HEADS), (model.state_dict(), None if one else HEADS)):
        ours = lk.from_linformer(source, heads)
        assert type(ours) is lk.LinformerAttention and not ours.training
        torch.testing.assert_close(ours(x, x, x, ~mask)[0], model(x, mask=mask), rtol=0, atol=1e-10)
    assert lk.from_linformer(model).dropout == 0.3
    parallel = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
    assert torch.equal(lk.from_linformer(parallel, HEADS)(x, x, x)[0], lk.from_linformer(model)(x, x, x)[0])
    model = ready(stack(k, one, tied, dropout=0.3))
    ours = lk.from_linformer(model)
    torch.testing.assert_close(ours(x, mask)[0][mask], model(x, mask)[mask], rtol=0, atol=1e-10)
    assert ours.config.attention_probs_dropout_prob == ours.config.hidden_dropout_prob == 0.3
    ours.save_pretrained(tmp_path)
    again = lk.LinformerEncoder.from_pretrained(tmp_path, dtype=torch.float64)
    torch.testing.assert_close(again(x, mask)[0], ours(x, mask)[0], rtol=0, atol=1e-12)
    model, ids = ready(language_model(k, one, tied)), inputs(language_model)
    for source in (model, model.state_dict()):
        ours = lk.from_linformer(source, HEADS)
        assert type(ours) is lk.LinformerForMaskedLM
        torch.testing.assert_close(ours(ids, mask).logits[mask], model(ids, mask)[mask], rtol=0, atol=1e-10)
    ours.save_pretrained(tmp_path / "words")
    again = lk.LinformerForMaskedLM.from_pretrained(tmp_path / "words", dtype=torch.float64)
    torch.testing.assert_close(again(ids, mask).logits, ours(ids, mask).logits, rtol=0, atol=1e-12)


@pytest.mark.parametrize("build", MODELS)
@pytest.mark.parametrize(("one", "tied"), itertools.product((False, True), repeat=2))
def test_heads_may_have_another_width(build, one, tied):
    (theirs, ours), x = pair(build, 7, one, tied, dim_head=11), inputs(build)
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-10)
    with pytest.raises(lk.InputError, match=r"^dim_head: expected dim / heads, got 'dim 15 and heads × dim_head 33'$"):
        lk.from_linformer(theirs)


ROWS = torch.zeros(1, 31, WIDTH)
WRONG = {
    "reversible: expected False": lambda: stack(reversible=True),
    "dim_head: expected a positive integer, got 0": lambda: compat.Linformer(WIDTH, N, 1, heads=3, dim_head=0),
    "heads: expected a divisor of dim 15, got None": lambda: compat.LinformerSelfAttention(WIDTH, N, heads=None),
    "dim: expected a positive integer, got '8'": lambda: compat.LinformerLM(7, "8", N, 1),
    "num_tokens: expected a positive integer, got None": lambda: compat.LinformerLM(None, WIDTH, N, 1),
    "depth: expected a positive integer, got 1.5": lambda: compat.Linformer(WIDTH, N, 1.5, heads=3),
    "k: expected a positive integer, got 0": lambda: attention(k=0),
    "x: expected a tensor of int64 or int32, got list": lambda: language_model()([[1]]),
    "x: expected ids from 0 to .*, got -1": lambda: language_model()(-torch.ones(1, 31).long()),
    r"x: expected floating point \[batch, sequence, 15\], got list": lambda: stack()([[1.0]]),
    "x: expected torch.float32, as the weights are, got torch.float64": lambda: stack()(ROWS.double()),
    "context: expected a tensor, got 'list'": lambda: attention()(ROWS, [[1.0]], [[True]]),
    r"mask: expected bool \[1, 31\], True at real tokens, got 'list'": lambda: stack()(ROWS, mask=[[True] * 31]),
    r"mask: expected bool \[1, 31\], .* got 'torch.int64": lambda: stack()(ROWS, mask=torch.ones(1, 31).long()),
    "sequence length: expected at most 37, got 41": lambda: stack()(torch.zeros(1, 41, WIDTH)),
    "source: expected tensors by name, got {'list'}": lambda: lk.from_linformer({"to_q.weight": [[1.0]]}),
    "source: expected a LinformerSelfAttention, a": lambda: lk.from_linformer(nn.Linear(3, 3)),
    "heads: expected those of the source, a .*, got None": lambda: lk.from_linformer(stack().state_dict()),
    "heads: expected those of the source, a .*, got 5": lambda: lk.from_linformer(stack(), 5),
    "dim_head: expected dim / heads": lambda: lk.from_linformer({"to_q.weight": torch.ones(11, WIDTH)}, 3),
    "source: .* KeyError: 'to_k.weight'": lambda: lk.from_linformer({"to_q.weight": torch.ones(WIDTH, WIDTH)}, 3),
    "source: .* Unexpected key.*extra": lambda: lk.from_linformer(stack().state_dict() | {"extra": ROWS}, 3),
}


@pytest.mark.unchecked
@pytest.mark.parametrize("message", WRONG)
def test_rejected(message):
    with pytest.raises(lk.InputError, match=message):
        WRONG[message]()


@pytest.mark.unchecked
def test_arguments_that_the_package_ignores_are_ignored_with_a_warning():
    """By the attention; the package takes no others in its models either."""
    model, x = ready(attention()), inputs(attention)
    with pytest.warns(UserWarning, match="^LinformerSelfAttention ignores input_mask, context_mask, as the package "):
        assert torch.equal(model(x, input_mask=torch.ones(2, 31).bool(), context_mask=None), model(x))
    for build in (stack, language_model):
        with pytest.raises(TypeError, match="input_mask"):
            build()(inputs(build), input_mask=torch.ones(2, 31).bool())
