"""Every projection and sharing on an accelerator: outputs and gradients as near to float64 as the CPU's.

At the end ways to run a model there: compiled, checkpointed, captured.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from linformer_kit import LinformerAttention, LinformerConfig, LinformerForMaskedLM, linearize
from linformer_kit.operator.padding import padding_after
from linformer_kit.operator.projections import PROJECTIONS, SHORTER_INPUTS
from tests.conftest import OTHERS, SHARINGS, randomise

# Distinct sizes, but heads of a width that fused attention kernels take.
SIZES = {
    "vocab_size": 101,
    "max_position_embeddings": 67,
    "projected_dim": 13,
    "hidden_size": 96,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "intermediate_size": 53,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
_FACTOR = 4  # errors of two kernels that sum in different orders
_OF_SCORES = ("q_proj.", "k_proj.", "query.", "key.", "key_projection.")
_NOTHING = 1e-9  # share of all gradients that in exact numbers would be zero, as that of the keys' bias

Step = Callable[[nn.Module], Tensor | tuple[Tensor, Tensor]]  # a loss, or a loss and an output to compare as well


def batch(device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Tokens with padding on the right, on the left, and between, and labels."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(5, 101, (5, 61), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, 47:] = mask[1, :13] = mask[2, 5::3] = mask[3, 1:] = 0
    labels = ids.masked_fill((torch.rand(ids.shape, generator=generator) < 0.5) | (mask == 0), -100)
    named = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    return {name: tensor.to(device) for name, tensor in named.items()}


def measured(model: nn.Module, step: Step) -> dict[str, Tensor]:
    """Loss, output and every gradient, in float64 on the CPU."""
    model.zero_grad()
    found = step(model)
    loss, *outputs = found if isinstance(found, tuple) else (found,)
    loss.backward()
    named = {"loss": loss, **{f"output {index}": output for index, output in enumerate(outputs)}}
    named |= {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return {name: tensor.detach().cpu().double() for name, tensor in named.items()}


def compare(
    model: nn.Module,
    step: Callable[[torch.device], Step],
    device: torch.device,
    dtype: torch.dtype,
    *,
    changed: Callable[[nn.Module], Any] = lambda model: model,
    kernels: tuple[bool, ...] = (False, True),
) -> None:
    """Hold a device against float64, as near as the CPU comes to it in the same format.

    Args:
        model: In float32 on the CPU; its weights are rounded to the format first.
        step: For a device, what is to be run there.
        device: To compare.
        dtype: Of the model.
        changed: What is done with the model on the device: compiled, checkpointed.
        kernels: With which of `attention_kernels`.
    """
    model = model.to(dtype)
    cpu = torch.device("cpu")
    exact = measured(copy.deepcopy(model).double(), step(cpu))
    own = measured(copy.deepcopy(model), step(cpu))
    for fused in kernels:
        there = copy.deepcopy(model).to(device)
        run = changed(there)
        with attention_kernels(fused):
            found = measured(there, lambda _, run=run: step(device)(run))
        assert exact.keys() == own.keys() == found.keys()
        check(found, own, exact, torch.finfo(dtype).eps, fused=fused)


def attention_kernels(fused: bool) -> contextlib.AbstractContextManager[None]:
    """PyTorch's choice of kernels for attention, or its plain one, which rounds each operation once."""
    return contextlib.nullcontext() if fused else sdpa_kernel(SDPBackend.MATH)


def check(
    found: dict[str, Tensor], own: dict[str, Tensor], exact: dict[str, Tensor], eps: float, *, fused: bool
) -> None:
    """Errors of at most a few times those of the CPU, or of rounding once.

    Fused kernels of attention subtract products of rounded outputs. Where slots are nearly equal, little is left of the
    gradients of the scores, so those of queries, keys and exponents may be 1e-3 to 1e-9 of the whole gradient; their
    errors are small beside it alone. Those that rounding the whole gradient would not hide must still be half right.
    """
    gradients = [tensor for name, tensor in exact.items() if not name.startswith(("loss", "output"))]
    whole = torch.stack([gradient.norm() for gradient in gradients]).norm()
    for name, expected in exact.items():
        of_scores = fused and any(part in name for part in _OF_SCORES)
        size = whole if of_scores or expected.norm() < _NOTHING * whole else expected.norm()
        error, allowed = (found[name] - expected).norm(), (own[name] - expected).norm()
        assert error <= _FACTOR * max(allowed, eps * size), (name, float(error / size), float(allowed / size))
        assert not of_scores or error < expected.norm() / 2 or expected.norm() < eps * whole, name


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
                query.to(like), key.to(like), key.to(like), padding_after(lengths, key.shape[1]), need_weights=True
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
