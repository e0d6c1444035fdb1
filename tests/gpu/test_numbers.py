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

from linformer_kit import LinformerAttention, LinformerConfig, LinformerForCausalLM, LinformerForMaskedLM, linearize
from linformer_kit.operator.padding import real_tokens
from linformer_kit.operator.projections import PROJECTIONS
from tests.conftest import CAUSAL, OTHERS, SHARINGS, SHORTER_INPUTS, pairs_of, randomise, shorter_inputs

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
    result = step(model)
    loss, *outputs = result if isinstance(result, tuple) else (result,)
    loss.backward()
    named = {"loss": loss, **{f"output {index}": output for index, output in enumerate(outputs)}}
    named |= {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return {name: tensor.detach().cpu().double() for name, tensor in named.items()}


def compare(
    model: nn.Module,
    step: Callable[[torch.device], Step],
    device: torch.device,
    dtype: torch.dtype,
    changed: Callable[[nn.Module], Any] = lambda model: model,
) -> None:
    """Hold a device against float64, as near as the CPU comes to it in the same format.

    Args:
        model: In float32 on the CPU; its weights are rounded to the format first.
        step: For a device, what is to be run on it.
        device: To compare, with PyTorch's plain attention, which rounds each operation once, and with its own choice.
        dtype: Of the model.
        changed: What is done with the model on the device: compiled, checkpointed.
    """
    model = model.to(dtype)
    cpu = torch.device("cpu")
    exact = measured(copy.deepcopy(model).double(), step(cpu))
    on_cpu = measured(copy.deepcopy(model), step(cpu))
    for fused in (False, True):
        moved = copy.deepcopy(model).to(device)
        run = changed(moved)
        with contextlib.nullcontext() if fused else sdpa_kernel(SDPBackend.MATH):
            on_device = measured(moved, lambda _, run=run: step(device)(run))
        assert exact.keys() == on_cpu.keys() == on_device.keys()
        check(on_device, on_cpu, exact, torch.finfo(dtype).eps, fused=fused)


def check(
    on_device: dict[str, Tensor], on_cpu: dict[str, Tensor], exact: dict[str, Tensor], eps: float, *, fused: bool
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
        error, allowed = (on_device[name] - expected).norm(), (on_cpu[name] - expected).norm()
        assert error <= _FACTOR * max(allowed, eps * size), (name, float(error / size), float(allowed / size))
        assert not of_scores or error < expected.norm() / 2 or expected.norm() < eps * whole, name


DTYPES = [torch.float32, torch.bfloat16]


def model_of(head: type = LinformerForMaskedLM, **fields: object) -> torch.nn.Module:
    return randomise(head(LinformerConfig(**{**SIZES, **fields})), scale=0.2).train()


def masked_lm(device):
    return lambda model: (lambda output: (output.loss, output.logits))(model(**batch(device)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("projection", "sharing", "shorter_input"), pairs_of(PROJECTIONS, SHARINGS, SHORTER_INPUTS))
def test_projections(device, projection, sharing, shorter_input, dtype):
    given = shorter_inputs({"projection": projection, "sharing": sharing}, shorter_input)
    compare(model_of(**given), masked_lm, device, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OTHERS | CAUSAL)
def test_other_models(device, name, dtype):
    head = LinformerForCausalLM if name in CAUSAL else LinformerForMaskedLM
    compare(model_of(head, **(OTHERS | CAUSAL)[name]), masked_lm, device, dtype)


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
                query.to(like), key.to(like), key.to(like), ~real_tokens(lengths, key.shape[1]), need_weights=True
            )
            return output.float().square().mean(), output, weights

        return run

    sizes = (67, 13) if projection else ()
    compare(randomise(LinformerAttention(96, 3, *sizes, projection=projection), 0.2), step, device, dtype)


@pytest.mark.parametrize("fields", [{"global_tokens": 2}, {"projection": "conv"}, {"attention": ["full", "linformer"]}])
def test_generation_in_float64_is_that_without_a_cache(device, fields):
    causal = {"causal": True, "projection": "mean_pool", "sliding_window": 6, "local_convolution": 3, **fields}
    model = randomise(LinformerForCausalLM(LinformerConfig(**SIZES, **causal)), 0.3).double().eval().to(device)
    ids, mask = (batch(device)[name][:2, :31] for name in ("input_ids", "attention_mask"))
    options = {"attention_mask": mask, "max_new_tokens": 30, "num_beams": 2, "eos_token_id": None}
    first, second = (model.generate(ids, use_cache=use_cache, **options) for use_cache in (True, False))
    assert torch.equal(first, second) and first.shape == (2, 61)


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


def compiled(model):
    torch.compiler.reset()  # another kernel of attention needs another graph
    backend = "inductor" if model.device.type != "cpu" else "aot_eager"
    return torch.compile(model, fullgraph=True, backend=backend)


def checkpointed(model):
    model.gradient_checkpointing_enable()
    return model


@pytest.mark.parametrize("changed", [compiled, checkpointed])
@pytest.mark.parametrize(
    "fields",
    [{}, {"projection": "max_pool"}, {"attention": "full", "local_convolution": 3, "norm_first": True}],
    ids=str,
)
def test_compiled_or_checkpointed(device, fields, changed):
    compare(model_of(**fields), masked_lm, device, torch.float32, changed)


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
