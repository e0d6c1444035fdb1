"""The models: sizes, equality with RoBERTa, padding, saving, training."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForMaskedLM

import linformer_kit as lk
from linformer_kit import (
    InputError,
    LinformerConfig,
    LinformerForMaskedLM,
    LinformerModel,
)
from linformer_kit.operator.projections import PROJECTIONS
from tests.conftest import (
    ENCODERS,
    KINDS,
    SHARINGS,
    SHORTER_INPUTS,
    fields,
    randomise,
    shorter_inputs,
    tokens,
    values_of,
)

# Published with the official code: linformer_roberta_base, vocabulary 50,000, n 512, k 128, tied head.
OFFICIAL_PARAMETERS = {
    "none": 143_367_248,
    "headwise": 126_065_744,
    "key_value": 125_279_312,
    "layerwise": 124_558_416,
    "full": 124_492_880,
}
MATRICES = {"none": 288, "headwise": 24, "key_value": 12, "layerwise": 1, "full": 0}


@pytest.mark.parametrize("kind", OFFICIAL_PARAMETERS)
def test_parameters_and_matrices_are_the_official_ones(kind):
    with torch.device("meta"):
        model = LinformerForMaskedLM(LinformerConfig(vocab_size=50_000, position_offset=2, **fields(kind)))
    assert sum(parameter.numel() for parameter in model.parameters()) == OFFICIAL_PARAMETERS[kind]
    assert model.projection_matrix_count() == MATRICES[kind]


@pytest.mark.parametrize(("name", "sharing"), values_of(PROJECTIONS, SHARINGS))
def test_what_a_projection_adds_to_the_parameters(config, name, sharing):
    """Beyond those of full attention, at n 37, k 7, 2 layers of 3 heads of 11."""
    model, full = LinformerModel(config(projection=name, sharing=sharing)), LinformerModel(config(attention="full"))
    window = 6  # 37/7, rounded up
    sizes = {"linear": 7 * 37, "conv": 11 * window, "dynamic": 7 * 33}
    each = sizes.get(name, 0)
    count = {"none": 2 * 3 * 2, "headwise": 2 * 2, "key_value": 2, "layerwise": 1}[sharing] if each else 0
    if name == "dynamic" and sharing in ("none", "headwise"):  # E = F
        count //= 2
    assert model.num_parameters() - full.num_parameters() == count * each
    assert model.projection_matrix_count() == count


@pytest.mark.parametrize(
    ("sharing", "projected_dim", "rows"),
    [
        ("none", [[7, 5, 3], [2, 2, 2]], 2 * 3 * (7 + 2)),
        ("headwise", [[7, 5, 3], [2, 3, 2]], 2 * (7 + 3)),
        ("key_value", [[7, 5, 3], [2, 3, 2]], 7 + 3),
        ("layerwise", [[3, 2, 1], [2, 3, 5]], 5),
    ],
)
def test_a_k_for_each_layer_and_head(config, sharing, projected_dim, rows, tmp_path):
    model = randomise(LinformerModel(config(sharing=sharing, projected_dim=projected_dim))).eval()
    assert model.num_parameters() - LinformerModel(config(attention="full")).num_parameters() == rows * 37
    ids = tokens(2, 37)
    out = model(ids, output_attentions=True)
    for layer, weights in zip(projected_dim, out.attentions, strict=True):
        for head, slots in enumerate(layer if isinstance(layer, list) else [layer] * 3):
            assert (weights[:, head, :, :slots] > 0).all() and (weights[:, head, :, slots:] == 0).all()
    model.save_pretrained(tmp_path)
    assert torch.equal(LinformerModel.from_pretrained(tmp_path)(ids)[0], model(ids)[0])


@pytest.mark.parametrize("sharing", SHARINGS)
def test_full_attention_in_some_layers(config, sharing, tmp_path):
    """Each layer is that of a model with its kind of attention everywhere."""
    kinds = ["linformer", "full", "linformer"]
    changes = {"sharing": sharing, "num_hidden_layers": 3, "projected_dim": [7, 2, 5]}
    mixed = randomise(LinformerModel(config(attention=kinds, **changes)).eval())
    counts = {"none": 12, "headwise": 4, "key_value": 2, "layerwise": 1}  # of two layers with 3 heads
    assert mixed.projection_matrix_count() == counts[sharing]
    ids = tokens(2, 31)
    mask = torch.ones_like(ids)
    mask[0, :4] = 0  # on the left
    out = mixed(ids, mask, output_hidden_states=True, output_attentions=True)
    assert [weights.shape[-1] for weights in out.attentions] == [7, 31, 5]
    assert not out.attentions[1][0, ..., :4].any() and out.attentions[1][1].all()
    for layer, kind in enumerate(kinds):
        same = LinformerModel(config(attention=kind, **changes)).eval()
        same.load_state_dict(mixed.state_dict(), strict=False)
        expected, _ = same.encoder.layers[layer](out.hidden_states[layer][1:], None)
        assert torch.allclose(expected, out.hidden_states[layer + 1][1:], atol=1e-5)
    last = mixed(ids, mask).last_hidden_state
    mixed.save_pretrained(tmp_path)
    loaded = LinformerModel.from_pretrained(tmp_path)
    assert loaded.config.attention == kinds and torch.equal(loaded(ids, mask).last_hidden_state, last)
    mixed.set_projected_dim(3)
    fewer = mixed(ids, mask, output_attentions=True).attentions
    assert [weights.shape[-1] for weights in fewer] == [3, 31, 3]
    mixed.set_projected_dim()
    mixed.resize_sequence_length(74)
    assert torch.equal(mixed(ids, mask).last_hidden_state, last)


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_local_convolution_stands_beside_attention(config, norm_first):
    """It adds w_j ⊙ x_(t+j) of the real neighbours to what attention gives; a loop says which."""
    model = randomise(LinformerModel(config(local_convolution=5, norm_first=norm_first, num_hidden_layers=1)))
    (layer,) = model.double().eval().encoder.layers
    before, after = layer.self_attn_layer_norm, layer.final_layer_norm
    seen = {}
    layer.self_attn.register_forward_hook(lambda _, inputs, output: seen.update(x=inputs[0], attended=output[0]))
    for norm in (before, after):
        norm.register_forward_pre_hook(lambda norm, inputs: seen.update({norm: inputs[0]}))
    mask = torch.ones(2, 31, dtype=torch.long)
    mask[0, 19:] = 0
    model(tokens(2, 31), mask)
    x, weight, local = seen["x"], layer.local_convolution.weight, torch.zeros_like(seen["x"])
    for sample, length in enumerate((19, 31)):
        for t, j in itertools.product(range(length), range(5)):
            if 0 <= t + j - 2 < length:
                local[sample, t] += weight[:, j] * x[sample, t + j - 2]
    residual = (seen[before] if norm_first else x) + seen["attended"] + local
    summed = seen[after] if norm_first else seen[before]
    torch.testing.assert_close(summed[mask == 1], residual[mask == 1], rtol=0, atol=1e-10)


@pytest.mark.parametrize(("kind", "shorter_input", "layers"), values_of(ENCODERS, SHORTER_INPUTS, [2, 12]))
def test_padding_changes_nothing(config, kind, shorter_input, layers):
    """1 to 64 pads of random content: right, left, and everywhere; the tolerance is rounding in float32."""
    sizes = {"max_position_embeddings": 97, "projected_dim": 11, "num_hidden_layers": layers}
    model = LinformerModel(config(**sizes, **shorter_inputs(fields(kind), shorter_input)))
    model = randomise(model, scale=0.2).eval()
    ids = tokens(3, 31)
    with torch.no_grad():
        expected = model(ids).last_hidden_state
        for pads in (1, 2, 7, 31, 64):
            longer, mask = tokens(3, 31 + pads), torch.zeros(3, 31 + pads, dtype=torch.long)
            mask[0, :31] = mask[1, pads:] = mask[2, torch.randperm(31 + pads)[:31]] = 1
            longer[mask == 1] = ids.flatten()
            padded = model(longer, attention_mask=mask).last_hidden_state[mask == 1].view_as(expected)
            assert ((padded - expected).abs().max() / expected.abs().max()).item() < 1e-5


@pytest.mark.parametrize(("kind", "tied"), values_of(KINDS, [True, False]))
def test_saving_and_loading_is_exact(config, kind, tied, tmp_path):
    model = randomise(LinformerForMaskedLM(config(tie_word_embeddings=tied, **fields(kind)))).eval()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    assert type(loaded) is LinformerForMaskedLM
    assert loaded.state_dict().keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    assert (loaded.get_input_embeddings().weight is loaded.get_output_embeddings().weight) == tied
    ids = tokens(2, 31)
    assert torch.equal(loaded(ids).logits, model(ids).logits)


def test_fresh_parts_of_a_loaded_model_start_as_in_a_new_one(config, tmp_path):
    """A base model without its E and F: built on the meta device, they must not load as garbage."""
    model = LinformerModel(config())
    model.save_pretrained(tmp_path, state_dict={k: v for k, v in model.state_dict().items() if "projection" not in k})
    loaded = LinformerModel.from_pretrained(tmp_path)
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


@pytest.mark.parametrize("tied", [True, False])
def test_start_of_the_linear_maps(tied):
    sizes = {"vocab_size": 499, "hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 512}
    settings = {"num_hidden_layers": 1, "initializer_range": 0.03, "tie_word_embeddings": tied}
    normal = LinformerForMaskedLM(LinformerConfig(**sizes, **settings))
    lecun = LinformerForMaskedLM(LinformerConfig(**sizes, **settings, linear_initializer="lecun_normal"))
    assert normal.linformer.encoder.layers[0].fc2.weight.std().item() == pytest.approx(0.03, rel=0.05)
    assert lecun.linformer.encoder.layers[0].fc2.weight.std().item() == pytest.approx(512**-0.5, rel=0.05)
    assert lecun.linformer.encoder.layers[0].self_attn.q_proj.weight.std().item() == pytest.approx(128**-0.5, rel=0.05)
    assert lecun.lm_head.dense.weight.std().item() == pytest.approx(128**-0.5, rel=0.05)
    for embeddings in (lecun.lm_head.decoder, lecun.linformer.embeddings.word_embeddings):
        assert embeddings.weight.std().item() == pytest.approx(0.03, rel=0.05)


@pytest.mark.parametrize("kind", ["layerwise", "mean_pool", "window"])
def test_activation_checkpointing_gives_the_same_gradients(config, kind):
    model = randomise(LinformerForMaskedLM(config(hidden_dropout_prob=0.3, **fields(kind)))).train()
    ids, mask = tokens(3, 31), torch.ones(3, 31, dtype=torch.long)
    mask[0, 19:] = 0

    def gradients():
        torch.manual_seed(7)
        model.zero_grad()
        model(ids, attention_mask=mask, labels=ids).loss.backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    plain = gradients()
    calls = []
    model.linformer.encoder.layers[0].fc1.register_forward_hook(lambda *_: calls.append(1))
    model.activation_checkpointing_enable()
    checkpointed = gradients()
    assert len(calls) == 2  # forward, and once more for the backward pass
    assert all(torch.equal(a, b) for a, b in zip(plain, checkpointed, strict=True))


@pytest.mark.e2e
@pytest.mark.unchecked
def test_compiles_as_one_graph(config):
    kind = {**fields("window_norm_first"), "num_hidden_layers": 1}
    model = randomise(LinformerForMaskedLM(config(**kind))).train()
    ids, mask = tokens(2, 31), torch.ones(2, 31, dtype=torch.long)
    mask[0, 19:] = 0
    labels = ids.masked_fill(torch.rand(2, 31) > 0.3, -100)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    out = compiled(ids, attention_mask=mask, labels=labels)
    plain = model(ids, attention_mask=mask, labels=labels)
    torch.testing.assert_close(out.loss, plain.loss)
    assert out.logits.shape == (2, 31, 101)


def eager(model: LinformerModel, embeds: torch.Tensor) -> Any:
    return model


def compiled(model: LinformerModel, embeds: torch.Tensor) -> Any:
    torch.compiler.reset()
    return torch.compile(model, fullgraph=True, backend="aot_eager")


def exported(model: LinformerModel, embeds: torch.Tensor) -> Any:
    length = torch.export.Dim("length", min=3, max=37)
    example = {"inputs_embeds": embeds.detach()[:, :5].clone()}
    return torch.export.export(model, (), example, dynamic_shapes={"inputs_embeds": {1: length}}).module()


@pytest.mark.e2e
@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("projection", "how"),
    [("mean_pool", eager), ("max_pool", eager), ("conv", eager), ("mean_pool", compiled), ("conv", exported)],
)
def test_no_output_of_a_causal_model_depends_on_a_later_token(config, projection, how):
    """Exactly, also with full attention in some layers; and all earlier tokens count."""
    kind = {**fields("causal"), "projection": projection, "attention": ["linformer", "full"]}
    model = randomise(LinformerModel(config(norm_first=projection == "conv", **kind))).eval()
    embeds = torch.randn(2, 31, 33, requires_grad=True)
    run = how(model, embeds)
    out = run(inputs_embeds=embeds).last_hidden_state
    torch.testing.assert_close(out, model(inputs_embeds=embeds).last_hidden_state)
    for position in (0, 6, 7, 19, 30):
        (gradient,) = torch.autograd.grad(out[:, position].cos().sum(), embeds, retain_graph=True)
        assert not gradient[:, position + 1 :].any() and gradient[:, : position + 1].any(dim=-1).all()
        other = torch.cat([embeds[:, : position + 1], torch.randn_like(embeds)[:, position + 1 :]], dim=1)
        again = run(inputs_embeds=other).last_hidden_state
        torch.testing.assert_close(again[:, : position + 1], out[:, : position + 1])


@pytest.mark.e2e
@pytest.mark.unchecked
def test_layers_compile_on_their_own(config):
    """Each as one graph, and once: kernels that the model chose are not those of compiled code."""
    model, ids = randomise(LinformerModel(config(**fields("window_norm_first")))).eval(), tokens(2, 31)
    expected = model(ids).last_hidden_state
    torch.compiler.reset()
    for layer in model.encoder.layers:
        layer.compile(backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(model(ids).last_hidden_state, expected)
    with torch.compiler.set_stance("fail_on_recompile"):
        torch.testing.assert_close(model(ids).last_hidden_state, expected)


def test_types_of_tokens_that_say_nothing_change_nothing(config):
    """As tokenizers of BERT's kind return them for a single text."""
    model, ids = LinformerModel(config()).eval(), tokens(2, 31)
    types = torch.zeros_like(ids)
    assert torch.equal(model(ids, token_type_ids=types).last_hidden_state, model(ids).last_hidden_state)


@pytest.mark.unchecked
@pytest.mark.e2e
def test_compiled_masks_of_floating_point_are_checked_when_they_come(config):
    """An additive mask would be interpreted the wrong way round."""
    model, ids = LinformerModel(config(num_hidden_layers=1)).eval(), tokens(2, 31)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    mask = torch.ones(2, 31)
    mask[0, 20:] = 0
    torch.testing.assert_close(compiled(ids, mask), model(ids, mask.long()))
    with pytest.raises(RuntimeError, match=r"attention_mask: expected .* 1 on real tokens and 0 on padding"):
        compiled(ids, (1 - mask) * -1e4)


def test_own_calls_of_a_forward_pass(config):
    """What decides how to compute is asked once: a small model costs calls, not products."""
    model, ids, package = (
        LinformerForMaskedLM(config(num_hidden_layers=1)).eval(),
        tokens(1, 31),
        Path(lk.__file__).parent,
    )
    called = []

    def record(frame, event, _):
        if event == "call" and Path(frame.f_code.co_filename).is_relative_to(package):
            called.append(frame.f_code.co_filename)

    model(ids)  # what is known of the processor is asked once
    sys.setprofile(record)
    try:
        model(ids)
    finally:
        sys.setprofile(None)
    assert len(called) <= 100 and len(set(called)) <= 11


BOTH = {"output_hidden_states": True, "output_attentions": True}


@pytest.mark.parametrize("kind", ENCODERS)
def test_gradients_are_retained(config, kind):
    """Of all hidden states and weights: those of the same text without padding, and none at padding."""
    model = randomise(LinformerModel(config(**fields(kind)))).double().eval()
    mask = (torch.arange(31) < 19)[None].long()
    ids, real, shown = tokens(1, 31), mask == 1, []
    for given in ((ids[real][None], None), (ids, mask)):
        out = model(*given, **BOTH)
        for tensor in (*out.hidden_states, *out.attentions):
            tensor.retain_grad()
        out.last_hidden_state[:, :19].pow(3).sum().backward()
        assert all(tensor.grad is not None and tensor.grad.any() for tensor in (*out.hidden_states, *out.attentions))
        shown.append([tensor.grad for tensor in out.hidden_states])
    for alone, beside in zip(*shown, strict=True):
        torch.testing.assert_close(beside[real], alone[0])
        assert not beside[~real].any()


@pytest.mark.parametrize("projected_dim", [7, [[7, 3, 5], [2, 7, 3]]])
def test_weights_are_those_before_dropout(config, projected_dim):
    model = LinformerModel(config(projected_dim=projected_dim, attention_probs_dropout_prob=0.5)).train()
    out = model(tokens(2, 31), output_attentions=True)
    for weights in out.attentions:
        weights.retain_grad()
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 31))
    out.last_hidden_state.pow(3).sum().backward()
    # Half of them were dropped, and what was dropped has no gradient.
    assert all(0.3 < (weights.grad[:, 0, :, :2] == 0).float().mean() < 0.7 for weights in out.attentions)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["window_mean_pool", "dynamic", "causal"])
def test_a_trace_passes_its_own_check(config, kind):
    """torch traces with gradients and checks without."""
    model = LinformerModel(config(**fields(kind), num_hidden_layers=1, return_dict=False)).eval()
    torch.jit.trace(model, (tokens(2, 13),))


def test_a_model_whose_layers_were_cut_is_not_saved(config, tmp_path):
    model = LinformerModel(config())
    model.encoder.layers = model.encoder.layers[:1]
    with pytest.raises(InputError, match=r"^model: expected 2 attention layers, as its configuration says, got 1$"):
        model.save_pretrained(tmp_path)
    model.config.num_hidden_layers = 1
    model.save_pretrained(tmp_path)
    assert len(LinformerModel.from_pretrained(tmp_path).encoder.layers) == 1
