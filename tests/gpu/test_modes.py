"""Ways to run a model on an accelerator: compiled, checkpointed, in mixed precision, transformed, captured."""

from __future__ import annotations

import pytest
import torch

from linformer_kit import LinformerForMaskedLM
from tests.gpu.numbers import batch, compare
from tests.gpu.test_numbers import masked_lm, model_of

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
