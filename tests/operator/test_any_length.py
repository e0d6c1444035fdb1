"""Other numbers of slots and other longest lengths than a model was made with."""

from __future__ import annotations

import re

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from linformer_kit import InputError, LinformerForMaskedLM, LinformerModel
from linformer_kit.operator.projections import PROJECTIONS
from tests.conftest import CAUSAL, SHARINGS, randomise, tokens, values_of

NESTED = [name for name in PROJECTIONS if name != "conv"]  # heads may differ in k


def flops(model: LinformerModel, ids: torch.Tensor) -> int:
    # The kernels that the counter knows; it counts nothing for the fused one of a processor.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        model(ids)
    return counter.get_total_flops()


@pytest.mark.parametrize(("projection", "sharing"), values_of(NESTED, SHARINGS))
def test_fewer_slots_cost_less_and_back_again_is_exact(config, projection, sharing, tmp_path):
    model = randomise(LinformerModel(config(projection=projection, sharing=sharing))).eval()
    ids = tokens(2, 37)
    before, whole = model(ids).last_hidden_state, flops(model, ids)
    costs = []
    for slots in (5, 3, [4, 2], [[1, 1, 2], [2, 2, 1]]):
        model.set_projected_dim(slots)
        assert not torch.equal(model(ids).last_hidden_state, before)
        costs.append(flops(model, ids))
    assert whole > costs[0] > costs[1] and costs[0] > costs[2] > costs[3]
    model.set_projected_dim()
    assert torch.equal(model(ids).last_hidden_state, before)
    model.set_projected_dim(3)
    model.save_pretrained(tmp_path)  # with all slots
    assert torch.equal(LinformerModel.from_pretrained(tmp_path)(ids).last_hidden_state, before)
    model.set_projected_dim(7)
    assert torch.equal(model(ids).last_hidden_state, before)
    assert model.config.projected_dim == 7


def test_hooks_that_copy_inputs_do_not_double_the_work(config):
    """Keys and values of a layer are one tensor, compressed once, also where a hook copies it or casts it."""
    model, ids = LinformerModel(config(sharing="key_value")).eval(), tokens(2, 37)
    before = flops(model, ids)

    def copied(_, inputs):
        return tuple(each.clone() if isinstance(each, torch.Tensor) else each for each in inputs)

    for layer in model.encoder.layers:
        layer.self_attn.register_forward_pre_hook(copied)
        layer.self_attn.projection.register_forward_pre_hook(copied)
    assert flops(model, ids) == before


LENGTHS = {"max_position_embeddings": 36, "projected_dim": 6, "position_offset": 2}


def resizable(config, projection: str, **fields: object) -> LinformerForMaskedLM:
    """36 positions in 6 windows, so that windows tile other lengths too."""
    kind = {"attention": "full"} if projection == "full" else {"projection": projection}
    return randomise(LinformerForMaskedLM(config(**{**LENGTHS, **kind, **fields}))).eval()


@pytest.mark.parametrize(
    ("projection", "sharing", "seq_len"), values_of([*PROJECTIONS, "full"], SHARINGS, [36, 42, 72, 108])
)
def test_extended_models_give_the_same_for_texts_of_the_old_length(config, projection, sharing, seq_len, tmp_path):
    model = resizable(config, projection, sharing=sharing)
    ids, mask = tokens(3, 36), torch.ones(3, 36, dtype=torch.long)
    mask[0, 23:] = mask[1, :7] = 0
    before = model(ids, attention_mask=mask).logits[mask == 1]
    model.resize_sequence_length(seq_len)
    assert torch.equal(model(ids, attention_mask=mask).logits[mask == 1], before)
    longer = tokens(2, seq_len)
    out = model(longer).logits
    model.save_pretrained(tmp_path)
    loaded = LinformerForMaskedLM.from_pretrained(tmp_path).eval()
    assert loaded.config.max_position_embeddings == seq_len
    assert torch.equal(loaded(longer).logits, out)


def test_extended_matrices_and_positions_repeat(config):
    model = resizable(config, "linear")
    old = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.resize_sequence_length(90, mode="extend")
    for name, tensor in model.state_dict().items():
        if "_projection" in name:
            assert torch.equal(tensor, torch.cat([old[name], old[name], old[name][:, :18]], dim=1))
        elif "position_embeddings" in name:
            assert torch.equal(tensor, torch.cat([old[name], old[name][2:], old[name][2:20]]))
        else:
            assert torch.equal(tensor, old[name])


@pytest.mark.parametrize(("sharing", "seq_len"), values_of(SHARINGS, [36, 55, 72, 29]))
def test_interpolated_matrices_keep_their_row_sums(config, sharing, seq_len):
    model = resizable(config, "linear", sharing=sharing)
    old = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.resize_sequence_length(seq_len, mode="interpolate")
    for name, tensor in model.state_dict().items():
        if "_projection" in name:
            assert tensor.shape[-1] == seq_len and tensor.is_contiguous()  # as once it is loaded again
            torch.testing.assert_close(tensor.sum(dim=-1), old[name].sum(dim=-1))
    assert model(tokens(2, seq_len)).logits.shape == (2, seq_len, 101)


@pytest.mark.parametrize(
    ("fields", "change", "message"),
    [
        (
            {},
            lambda model: model.set_projected_dim(8),
            "projected_dim: expected 1 to 6 (those of the projection), got 8",
        ),
        (
            {"projection": "conv"},
            lambda model: model.set_projected_dim(5),
            "the kernel of a convolution depends on it, got [5, 6]",
        ),
        (
            {"attention": "full"},
            lambda model: model.set_projected_dim(5),
            "set_projected_dim: expected a model with attention linformer, got full",
        ),
        ({}, lambda model: model.resize_sequence_length(35), "seq_len: expected at least 36 for mode extend, got 35"),
        (
            {},
            lambda model: model.resize_sequence_length(40, mode="crop"),
            "mode: expected one of extend, interpolate, got 'crop'",
        ),
        (
            {"projection": "mean_pool", "projected_dim": [6, 9], "sharing": "layerwise"},
            lambda model: model.resize_sequence_length(40),
            "seq_len: expected whole windows of 36/6 positions for mode extend, got 40",
        ),
    ],
)
def test_changes_rejected_and_nothing_changed(config, fields, change, message):
    model = LinformerForMaskedLM(config(**LENGTHS | fields))
    before = model.config.to_dict(), {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(InputError, match=re.escape(message)):
        change(model)
    assert model.config.to_dict() == before[0]
    assert all(torch.equal(tensor, before[1][name]) for name, tensor in model.state_dict().items())


def test_windows_of_a_causal_model_become_more_and_no_wider(config):
    model, ids = randomise(LinformerModel(config(**LENGTHS | CAUSAL["causal"]))).eval(), tokens(2, 36)
    before = model(ids).last_hidden_state
    for change in (lambda: model.set_projected_dim(3), lambda: model.resize_sequence_length(55, mode="interpolate")):
        with pytest.raises(InputError, match=r"^sliding_window: expected at least \d+ with causal, .*, got 9$"):
            change()
        assert torch.equal(model(ids).last_hidden_state, before)
    model.resize_sequence_length(72)
    assert model.config.projected_dim == 12 and torch.equal(model(ids).last_hidden_state, before)
