"""Forward and backward on the meta device, which rejects tensors of other devices as an accelerator does.

Left out is what reads values, of which there are none: the selection of labelled tokens (of validation losses, answers
of hidden words in `output_loss`), spectra and other analyses, checks of ids, and `linearize` itself, which runs a model.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from linformer_kit import (
    LinformerAttention,
    LinformerForMaskedLM,
    LinformerForQuestionAnswering,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
    LinformerModel,
    linearize,
)
from linformer_kit.operator.projections import PROJECTIONS
from tests.conftest import fields, some_padding, tokens
from tests.families import FAMILIES, build, example

META = torch.device("meta")
# These bring numbers from one device to another because they were asked to.
_TRANSFERS = (torch.ops.aten.copy_, torch.ops.aten._to_copy, torch.ops.aten.set_)


class OneDevice(TorchDispatchMode):
    """Rejects operations on tensors of several devices, except scalars, in forward and backward passes.

    The meta device alone accepts some (an index on the CPU, in `gather`) that CUDA rejects, or for which it
    synchronises.
    """

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = pytree.tree_leaves((args, kwargs or {}))
        devices = {tensor.device for tensor in given if isinstance(tensor, torch.Tensor) and tensor.dim()}
        if len(devices) > 1 and function.overloadpacket not in _TRANSFERS:
            raise AssertionError(f"{function}: expected tensors on one device, got {sorted(map(str, devices))}")
        return function(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def _one_device():
    with OneDevice():
        yield


def ids_and_mask(device: torch.device = META) -> tuple[torch.Tensor, torch.Tensor]:
    """Padding on the right, on the left and between; on the meta device a mask is one of all of them."""
    return tokens(3, 31).to(device), some_padding(31).to(device)


def on_meta(kind: type, config: object) -> torch.nn.Module:
    with META:
        return kind(config)


def backward(loss: torch.Tensor, module: torch.nn.Module) -> None:
    """Every gradient is where its parameter is."""
    assert loss.device == META
    module.zero_grad()
    loss.backward()
    assert any(parameter.grad is not None for parameter in module.parameters())
    assert all(parameter.grad is None or parameter.grad.device == META for parameter in module.parameters())


@pytest.mark.parametrize("kind", ["none", "conv", "random", "dynamic", "full", "window_norm_first", "window_mean_pool"])
def test_models_that_return_all_and_change_their_length(config, kind):
    """Token types, positions and embeddings that are given; slots and lengths that are changed."""
    model = on_meta(LinformerModel, config(**fields(kind), type_vocab_size=3, num_hidden_layers=1))
    ids, mask = ids_and_mask()
    both = {"output_hidden_states": True, "output_attentions": True}
    output = model(ids, mask, token_type_ids=ids % 3, position_ids=ids[:1] % 37, **both)
    assert {tensor.device for tensor in (*output.hidden_states, *output.attentions)} == {META}
    words = torch.empty(3, 31, 33, device=META)
    backward(model(inputs_embeds=words, attention_mask=mask).last_hidden_state.sum(), model)
    if model.config.attention == "linformer" and "conv" not in model.config.projection:
        model.set_projected_dim(3)
        assert model(ids, mask).last_hidden_state.device == META
    for mode, length in (("extend", 74), ("interpolate", 41)):
        model.resize_sequence_length(length, mode=mode)
        assert all(tensor.device == META for tensor in (*model.parameters(), *model.buffers()))
    longer = torch.empty(2, 41, dtype=torch.long, device=META)
    backward(model(longer, longer).last_hidden_state.sum(), model)


@pytest.mark.e2e
def test_heads_with_labels(config):
    """While training, the masked language model selects no tokens here: which they are is not known."""
    ids, mask = ids_and_mask()
    whole = torch.empty(3, dtype=torch.long, device=META)
    several = {"problem_type": "multi_label_classification"}
    for head, labels, settings in (
        (LinformerForMaskedLM, {"labels": ids}, {}),
        (LinformerForMaskedLM, {"labels": ids, "num_items_in_batch": torch.tensor(7)}, {}),
        (LinformerForSequenceClassification, {"labels": whole}, {}),
        (LinformerForSequenceClassification, {"labels": whole.float()}, {"num_labels": 1}),
        (LinformerForSequenceClassification, {"labels": torch.empty(3, 2, device=META)}, several),
        (LinformerForTokenClassification, {"labels": ids, "num_items_in_batch": 7}, {}),
        (LinformerForQuestionAnswering, {"start_positions": whole, "end_positions": whole}, {}),
    ):
        model = on_meta(head, config(**settings, num_hidden_layers=1)).train()
        backward(model(ids, mask, **labels).loss, model)


@pytest.mark.parametrize("projection", [*PROJECTIONS, None])
def test_attention(projection):
    """Cross-attention, lengths, both kinds of masks, weights, both orders of the bias."""
    with META:
        sizes = (37, 7) if projection else ()
        attention = LinformerAttention(33, 3, *sizes, projection=projection, dropout=0.1)
        query, key, value = torch.empty(2, 5, 33), torch.empty(2, 31, 33), torch.empty(2, 31, 33)
        mask = torch.empty(2, 31, dtype=torch.bool)
    for arguments in (
        {},
        {"key_padding_mask": mask.float()},
        {"key_padding_mask": mask, "need_weights": True},
    ):
        output, weights = attention(query, key, value, **arguments)
        assert weights is None or weights.device == META
        backward(output.sum(), attention)
    backward(attention(key, key, key, mask)[0].sum(), attention)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("bert", {"projection": "linear", "sharing": "layerwise"}),
        ("roberta", {}),
        ("vit", {"projection": "random"}),
    ],
)
def test_linearised_models(name, settings):
    """ModernBERT is not among them: transformers reads values of the masks of its local layers."""
    model = build(FAMILIES[name])
    inputs = {key: tensor.to(META) for key, tensor in example(model, 31, padded=name != "vit").items()}
    linear = linearize(model, 7, **settings).to(META)
    backward(linear(**inputs)[0].sum(), linear)
    if name == "roberta":
        linear.resize_sequence_length(122)
        assert {tensor.device for tensor in (*linear.parameters(), *linear.buffers())} == {META}
        assert linear(**inputs, output_attentions=True).attentions[0].device == META
