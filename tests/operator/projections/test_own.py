"""A projection of a user, of each kind: the same as one of this package, or a clear rejection."""

from __future__ import annotations

import re

import pytest
import torch
import transformers
from torch import nn

from linformer_cli.settings import REGISTERED_PROJECTIONS
from linformer_kit import (
    InputError,
    LinearProjection,
    LinformerAttention,
    LinformerConfig,
    LinformerModel,
    linearize,
    register_projection,
)
from linformer_kit.operator.projections import (
    PROJECTIONS,
    MatrixProjection,
    MaxPoolProjection,
    SequenceProjection,
    WindowProjection,
)
from linformer_kit.operator.slots import merge_heads, split_heads

N, K, HEADS, EMBED = 19, 5, 3, 33


class Weighted(MatrixProjection):
    """Weighted sums of tokens, whose weights do not add up to 1: E for keys, twice E for values; by head if not shared."""

    learned = True
    by_text = False

    def __init__(self, *arguments, **named) -> None:
        super().__init__(*arguments, **named)
        self.weights = nn.Parameter(torch.randn(*() if self.sharing != "none" else (HEADS,), K, N))

    def matrices(self, source, lengths, slots):
        matrix = self.weights[..., :slots, :]
        if self.by_text:  # not zero at padding
            by_head = matrix.unsqueeze(0) if self.sharing != "none" else matrix
            matrix = by_head.expand(len(source), *by_head.shape)
        return matrix, 2 * matrix


class Same(MatrixProjection):
    """Says that E = F, and has two matrices."""

    def matrices(self, source, lengths, slots):
        matrix = torch.ones(slots, N)
        return matrix, 2 * matrix


class Largest(WindowProjection):
    """The largest token of each window."""

    def reduce(self, windows, tokens, are_values):
        inside = windows.of(merge_heads(tokens)).masked_fill(~windows.real[..., None], -1e9)
        return split_heads(inside.amax(dim=2), tokens.shape[1])


class Placed(MatrixProjection):
    """Slot i weighs real tokens by how near they are to its place in the text, with a learned width."""

    learned, bounded, always_tied = True, False, True

    def __init__(self, *arguments, **named) -> None:
        super().__init__(*arguments, **named)
        self.width = nn.Parameter(self.initial_values()["width"])

    def initial_values(self):
        return {"width": torch.ones(self.projected_dim)}

    def matrices(self, source, lengths, slots):
        batch, seq_len, _ = source.shape
        real = torch.full((batch,), seq_len) if lengths is None else lengths
        places = torch.arange(seq_len) / real.clamp(min=1)[:, None]  # from 0 to before 1 on real tokens
        centres = (torch.arange(slots)[:, None] + 0.5) / slots
        scores = -self.width[:slots, None] * (slots * (places[:, None] - centres)).square()
        matrix = scores.masked_fill(places[:, None] >= 1, -1e9).softmax(-1)[:, None].to(source.dtype)
        return matrix, matrix


@pytest.fixture
def registered():
    """A name for `Placed`, which no other test sees."""
    register_projection("placed", Placed)
    yield "placed"
    PROJECTIONS.pop("placed", None), REGISTERED_PROJECTIONS.discard("placed")


def compare(own, same, length):
    """Outputs with a projection of a user and with one of this package, for texts with padding."""
    layer = LinformerAttention(EMBED, HEADS, projection=own)
    other = LinformerAttention(EMBED, HEADS, projection=same)
    other.load_state_dict(
        {**other.state_dict(), **{name: each for name, each in layer.state_dict().items() if "proj." in name}}
    )
    x, padding = torch.randn(2, length, EMBED).double(), torch.arange(length) >= torch.tensor([[length], [3]])
    found, expected = (each.double()(x, x, x, padding)[0][~padding] for each in (layer, other))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sharing", ["headwise", "none"])
@pytest.mark.parametrize("length", [N, 4])
@pytest.mark.parametrize("by_text", [False, True])
def test_an_own_matrix_gives_what_that_of_the_package_gives(sharing, length, by_text):
    own, same = (kind(N, K, num_heads=HEADS, sharing=sharing) for kind in (Weighted, LinearProjection))
    own.by_text = by_text
    with torch.no_grad():
        same.key_projection.copy_(own.weights), same.value_projection.copy_(2 * own.weights)
    compare(own, same, length)


@pytest.mark.parametrize("length", [N, 4])
def test_own_windows_give_what_those_of_the_package_give(length):
    compare(Largest(N, K, num_heads=HEADS), MaxPoolProjection(N, K, num_heads=HEADS), length)


def test_an_own_projection_with_windows_may_be_causal():
    projection = Largest(N, K, num_heads=HEADS)
    layer = LinformerAttention(EMBED, HEADS, projection=projection, sliding_window=4, causal=True).double()
    x = torch.randn(2, N, EMBED, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(x, x, x)[0][:, 13].cos().sum(), x)
    assert gradient[:, :14].any() and not gradient[:, 14:].any()


def test_windows_need_a_longest_sequence(monkeypatch):
    monkeypatch.setattr(Largest, "bounded", False)
    with pytest.raises(InputError, match=r"^seq_len: expected a positive integer, got None$"):
        Largest(None, K, num_heads=HEADS)


def test_an_own_projection_without_resize_says_so():
    with pytest.raises(InputError, match=r"^projection: expected one with `change_length`, got Weighted$"):
        Weighted(N, K, num_heads=HEADS).resize(2 * N, "extend")
    placed = Placed(N, K, num_heads=HEADS)
    placed.resize(2 * N, "extend")  # nothing depends on n
    assert placed.seq_len == 2 * N
    placed.initial_values = lambda: {"width": torch.ones(placed.seq_len)}
    with pytest.raises(InputError, match=r"^projection: expected one with `change_length`, got Placed$"):
        placed.resize(N, "interpolate")


@pytest.mark.parametrize("batch", [2, HEADS])  # as many texts as heads are no matrix for each head
@pytest.mark.parametrize(
    ("sharing", "shape", "expected"),
    [
        ("headwise", (HEADS, K, N), f"[{K}, {N}], or [BATCH, 1, {K}, {N}]"),
        ("headwise", ("batch", K, N), f"[{K}, {N}], or [BATCH, 1, {K}, {N}]"),
        ("headwise", ("batch", HEADS, K, N), f"[{K}, {N}], or [BATCH, 1, {K}, {N}]"),
        ("headwise", (K - 1, N), f"[{K}, {N}], or "),
        ("headwise", (K, N - 1), f"[{K}, {N}], or "),
        ("none", (K, N), f"[{HEADS}, {K}, {N}], or [BATCH, 1 or {HEADS}, {K}, {N}]"),
        ("none", ("batch + 1", 1, K, N), f"[{HEADS}, {K}, {N}], or "),
    ],
)
def test_matrices_of_other_axes_are_rejected(sharing, shape, expected, batch, monkeypatch):
    layer = LinformerAttention(EMBED, HEADS, projection=Weighted(N, K, num_heads=HEADS, sharing=sharing))
    x, sizes = torch.randn(batch, N, EMBED), {"batch": batch, "batch + 1": batch + 1}
    right = torch.randn(*([] if sharing == "headwise" else [HEADS]), K, N)
    wrong = torch.randn([sizes.get(size, size) for size in shape])
    for matrices in ((wrong, wrong), (right, wrong)):
        monkeypatch.setattr(Weighted, "matrices", lambda self, source, lengths, slots, pair=matrices: pair)
        with pytest.raises(InputError, match=re.escape(f"matrices: expected {expected.replace('BATCH', str(batch))}")):
            layer(x, x, x)


def test_what_is_no_pair_of_matrices_and_slots_of_another_shape_are_rejected(monkeypatch):
    projection = Weighted(N, K, num_heads=HEADS)
    layer, x = LinformerAttention(EMBED, HEADS, projection=projection), torch.randn(2, N, EMBED)
    one = torch.randn(K, N)
    for returned in (one, None, (one, one, one), (one, None)):
        monkeypatch.setattr(Weighted, "matrices", lambda self, source, lengths, slots, given=returned: given)
        with pytest.raises(InputError, match=r"^matrices: expected E and F from Weighted, got "):
            layer(x, x, x)
    monkeypatch.setattr(Weighted, "matrices", lambda self, source, lengths, slots: (one, one))
    layer.projected_dim = K - 1  # fewer slots than the matrix has rows
    with pytest.raises(InputError, match=re.escape(f"matrices: expected [{K - 1}, {N}], or ")):
        layer(x, x, x)
    layer.projected_dim = None
    layer.projection = Same(N, K, num_heads=HEADS)
    with pytest.raises(InputError, match=r"^matrices: expected E twice from Same, whose E = F, got two matrices$"):
        layer(x, x, x)
    layer.projection = Largest(N, K, num_heads=HEADS)
    monkeypatch.setattr(Largest, "reduce", lambda self, windows, tokens, are_values: tokens)
    with pytest.raises(InputError, match=re.escape(f"reduce: expected [2, {HEADS}, {K}, 11], got [2, {HEADS}, {N}, ")):
        layer(x, x, x)


@pytest.mark.parametrize("sharing", ["headwise", "none"])
def test_one_matrix_for_each_text_serves_all_heads(sharing):
    projection = Placed(None, K, num_heads=HEADS, sharing=sharing)
    layer, x = LinformerAttention(EMBED, HEADS, projection=projection).eval(), torch.randn(HEADS, N, EMBED)
    together = layer(x, x, x)[0]
    torch.testing.assert_close(together[1:2], layer(x[1:2], x[1:2], x[1:2])[0], rtol=1e-5, atol=1e-6)


def test_a_registered_projection_is_that_of_configurations_linear_encoders_and_saved_models(registered, tmp_path):
    config = LinformerConfig(vocab_size=53, projected_dim=K, max_position_embeddings=N, projection=registered)
    sizes = {"hidden_size": EMBED, "num_attention_heads": HEADS, "num_hidden_layers": 2, "intermediate_size": 7}
    config.update(sizes)
    model = LinformerModel(config).eval()
    model.encoder.layers[1].self_attn.projection.width.data.mul_(2)
    ids, mask = torch.randint(3, 53, (2, N)), (torch.arange(N) < torch.tensor([[N], [3]])).long()
    alone = model(ids[1:, :3]).last_hidden_state
    torch.testing.assert_close(model(ids, attention_mask=mask).last_hidden_state[1:, :3], alone)
    model.save_pretrained(tmp_path)
    loaded = LinformerModel.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(ids).last_hidden_state, model(ids).last_hidden_state)
    assert "projection.width" in " ".join(loaded.state_dict())
    bert = transformers.BertModel(transformers.BertConfig(vocab_size=53, **sizes))
    assert linearize(bert, projected_dim=K, projection=registered)(ids).last_hidden_state.isfinite().all()
    assert isinstance(LinformerAttention(EMBED, HEADS, N, K, projection=registered).projection, Placed)
    PROJECTIONS.pop(registered), REGISTERED_PROJECTIONS.discard(registered)
    with pytest.raises(
        InputError, match=r"^projection: expected .*'dynamic', or a name for lk.register_projection, got placed$"
    ):
        LinformerModel.from_pretrained(tmp_path)


def test_what_cannot_be_registered_says_why():
    class Nothing(MatrixProjection):
        pass

    class Windowless(WindowProjection):
        pass

    class Bare(SequenceProjection):
        pass

    for kind, method in ((Nothing, "matrices"), (Windowless, "reduce"), (Bare, "forward")):
        message = rf"^projection: expected a class with the method `{method}`, got {kind.__name__}$"
        with pytest.raises(InputError, match=message):
            register_projection("nothing", kind)
        with pytest.raises(TypeError, match=method):
            kind(N, K, num_heads=HEADS)
    with pytest.raises(InputError, match=r"^projection: expected a subclass of SequenceProjection, got <class 'int'>$"):
        register_projection("nothing", int)
    for name in ("linear", "two words", 3):
        with pytest.raises(InputError, match=r"^name: expected a word that no projection of this package has, got "):
            register_projection(name, Placed)
    assert "nothing" not in PROJECTIONS
