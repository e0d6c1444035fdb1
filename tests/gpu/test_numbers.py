"""Every projection and sharing on an accelerator: outputs and gradients as near to float64 as the CPU's.

At the end ways to run a model there: compiled, checkpointed, captured.
"""

from __future__ import annotations

import pytest
import torch
import transformers

from linformer_kit import (
    LinformerAttention,
    LinformerConfig,
    LinformerForMaskedLM,
    linearize,
)
from linformer_kit.operator.padding import Padding
from linformer_kit.operator.projections import PROJECTIONS, SHORTER_INPUTS
from tests.conftest import OTHERS, SHARINGS, randomise
from tests.gpu.numbers import SIZES, batch, compare

DTYPES = [torch.float32, torch.bfloat16]


def model_of(head: type = LinformerForMaskedLM, **fields: object) -> torch.nn.Module:
    return randomise(head(LinformerConfig(**{**SIZES, **fields})), scale=0.2).train()


def masked_lm(device):
    return lambda model: (lambda found: (found.loss, found.logits))(model(**batch(device)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shorter_input", SHORTER_INPUTS)
@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("projection", PROJECTIONS)
def test_projections(device, projection, sharing, shorter_input, dtype):
    compare(model_of(projection=projection, sharing=sharing, shorter_input=shorter_input), masked_lm, device, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OTHERS)
def test_other_models(device, name, dtype):
    compare(model_of(**OTHERS[name]), masked_lm, device, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("projection", [*PROJECTIONS, None])
def test_attention(device, projection, dtype):
    """Cross-attention over keys of several lengths, with the context mapping."""
    generator = torch.Generator().manual_seed(5)
    query, key = (torch.randn(3, length, 96, generator=generator).to(dtype) for length in (41, 61))

    def step(where):
        lengths = torch.tensor([61, 17, 1], device=where)

        def run(attention):
            like = next(attention.parameters())
            output, weights = attention(
                query.to(like), key.to(like), key.to(like), Padding.after(lengths, key.shape[1]), need_weights=True
            )
            return output.float().square().mean(), output, weights

        return run

    compare(randomise(LinformerAttention(96, 3, 67, 13, projection=projection), 0.2), step, device, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shorter_input", SHORTER_INPUTS)
def test_a_linearised_model(device, shorter_input, dtype, tmp_path):
    sizes = {name: size for name, size in SIZES.items() if name != "projected_dim"}
    bert = randomise(transformers.BertModel(transformers.BertConfig(**sizes), add_pooling_layer=False), 0.2)
    model = linearize(bert.to(device), 13, shorter_input=shorter_input)
    assert {parameter.device.type for parameter in model.parameters()} == {device.type}
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModel.from_pretrained(tmp_path)

    def step(where):
        given = batch(where)
        del given["labels"]
        real = given["attention_mask"] == 1
        return lambda model: (lambda hidden: (hidden.float().square().mean(), hidden))(model(**given)[0][real])

    compare(loaded.eval(), step, device, dtype)


KINDS = [{}, {"projection": "max_pool"}, {"attention": "full"}]


def loss_of(device):
    return lambda model: model(**batch(device)).loss


@pytest.mark.parametrize("fields", KINDS, ids=str)
def test_compiled(device, fields):
    """One graph, whose training logits are of all tokens."""
    backend = "inductor" if device.type != "cpu" else "aot_eager"

    def compiled(model):
        torch.compiler.reset()  # another kernel of attention needs another graph
        return torch.compile(model, fullgraph=True, backend=backend)

    compare(model_of(**fields), loss_of, device, torch.float32, changed=compiled)


@pytest.mark.parametrize("fields", [*KINDS, {"local_convolution": 3, "norm_first": True}], ids=str)
def test_activation_checkpointing(device, fields):
    def checkpointed(model):
        model.gradient_checkpointing_enable()
        return model

    compare(model_of(**fields), masked_lm, device, torch.float32, changed=checkpointed)


def test_captured_as_a_graph(device):
    """Nothing waits for values while a CUDA graph is captured: labels select no tokens then."""
    if device.type != "cuda":
        pytest.skip("CUDA graphs are of CUDA")
    model = model_of(LinformerForMaskedLM).to(device)
    given = batch(device)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            model(**given).loss.backward()
    torch.cuda.current_stream().wait_stream(stream)
    model.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = model(**given).loss
    graph.replay()
    torch.testing.assert_close(loss, model(**given).loss, rtol=1e-4, atol=1e-5)
