"""Fast products: outputs and gradients of torch's own, and modules that others change as they change any `nn.Linear`."""

from __future__ import annotations

import copy
import dataclasses
import gc
import pickle
import weakref
from unittest import mock

import pytest
import torch
from accelerate import cpu_offload
from peft import LoraConfig, get_peft_model
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.func import functional_call, vmap
from transformers import AutoModel

import linformer_kit as lk
from linformer_kit.interop.loading import load_model
from linformer_kit.linearized import products
from linformer_kit.operator import kernels
from linformer_kit.operator.kernels import fast
from tests.conftest import save_tokenizer, slow_but
from tests.families import FAMILIES, build, example
from tests.linearized.test_windows import modernbert
from tests.operator.kernels.inputs import prefer_onednn
from tests.operator.test_called import pruned, replaced

OPTIMIZED = {
    "stock": lambda model: lk.optimize(model),
    "linear": lambda model: lk.linearize(model, 7),
    "exact": lambda model: lk.linearize(model, layers=[]),
}


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    """Products go to oneDNN, small ones too; the list of them."""
    prefer_onednn(monkeypatch)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(fast, "_ONEDNN_LEAST", 0)
    real, seen = fast.onednn_linear, []
    monkeypatch.setattr(fast, "onednn_linear", lambda *given, **gelu: seen.append(1) or real(*given, **gelu))
    return seen


def linears(model):
    return [module for module in model.modules() if type(module) is nn.Linear]


def plain(model):
    """A copy whose linear maps run as torch's own."""
    model = copy.deepcopy(model)
    for module in model.modules():
        vars(module).pop("forward", None)
    return model


def pair(name="bert", kind="stock"):
    """A model with torch's products, and the same with fast ones."""
    torch.manual_seed(0)
    ours = OPTIMIZED[kind](build(FAMILIES[name]))
    assert linears(ours) and all("forward" in vars(module) for module in linears(ours))
    return plain(ours), ours


def outputs(model, inputs):
    return model(**inputs)[0]


@pytest.mark.parametrize("name", ["bert", "distilbert", "modernbert", "vit"])
@pytest.mark.parametrize("kind", OPTIMIZED)
def test_outputs_and_gradients_are_those_of_torch(name, kind, calls):
    theirs, ours = pair(name, kind)
    inputs, results = example(theirs, 31, padded=True), []
    for model in (theirs, ours):
        calls.clear()
        output = outputs(model, inputs)
        used = {name: each for name, each in model.named_parameters() if "pooler" not in name and "mask" not in name}
        direction = torch.cos(torch.arange(output.numel())).view_as(
            output
        )  # the mean of squares has no gradient after LayerNorm
        gradients = torch.autograd.grad((output * direction).sum(), list(used.values()), allow_unused=True)
        results.append([output, *gradients])
    assert len(calls) >= 3 * len(linears(ours)) - 6  # forward and both gradients; a pooler has none
    for expected, got in zip(*results, strict=True):
        if expected is not None:
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4 * max(1, expected.abs().max().item()))


def lora(model):
    return get_peft_model(model, LoraConfig(target_modules=["query", "dense"], init_lora_weights=False)).eval()


def each(change):
    def attach(model):
        for name, module in list(model.named_modules()):
            if type(module) is nn.Linear and (changed := change(module)) is not None:
                model.set_submodule(name, changed)
        return model

    return attach


def hooked(linear):
    linear.register_forward_pre_hook(lambda _, given: (given[0] + 1,))
    linear.register_forward_hook(lambda _, given, output: output.tanh())


def with_other_weights(linear):
    linear.weight = nn.Parameter(linear.weight.detach() * 1.5)


class Doubled(torch.Tensor):
    """Weights with operations of their own, as quantised ones have."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        result = super().__torch_function__(function, types, args, kwargs or {})
        return result.as_subclass(torch.Tensor) * 2 if function is torch.nn.functional.linear else result


def of_a_subclass(linear):
    linear.weight = nn.Parameter(linear.weight.detach().as_subclass(Doubled), requires_grad=False)


def by_torchao(model):
    quantization = pytest.importorskip("torchao.quantization")
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    return model


CHANGES = {
    "lora": lora,
    "merged lora": lambda model: lora(model).merge_and_unload(),
    "pruned": each(pruned),
    "hooked": each(hooked),
    "replaced": each(replaced),
    "other weights": each(with_other_weights),
    "weights of a subclass": each(of_a_subclass),
    "torchao": by_torchao,
    "quantize_dynamic": lambda model: torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("change", CHANGES)
def test_what_others_change_afterwards_is_obeyed(change):
    theirs, ours = pair()
    inputs, results = example(theirs, 31), []
    for model in (theirs, ours):
        before = outputs(model, inputs)
        torch.manual_seed(1)
        results.append(outputs(CHANGES[change](model), inputs))
        assert not torch.allclose(results[-1], before, rtol=1e-4, atol=1e-4)
    # Rounding to int8 enlarges differences.
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-4 if change != "quantize_dynamic" else 0.1)


def test_offloaded_weights_are_obeyed():
    theirs, ours = pair()
    inputs = example(theirs, 31)
    with torch.no_grad():
        ours = cpu_offload(ours, execution_device="cpu")
        assert all(parameter.is_meta for parameter in ours.parameters())
        torch.testing.assert_close(outputs(ours, inputs), outputs(theirs, inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_runs_with_its_own_weights(copied, calls):
    theirs, ours = pair()
    inputs = example(theirs, 31)
    other = copied(ours)
    with torch.no_grad():
        for model in (other, theirs):
            for number, module in enumerate(linears(model)):
                module.weight.mul_(1 + number % 3)
        calls.clear()
        torch.testing.assert_close(outputs(other, inputs), outputs(theirs, inputs), rtol=1e-4, atol=1e-4)
        assert len(calls) == len(linears(other))


def test_a_model_is_freed_with_its_last_reference():
    _, model = pair()
    freed = [weakref.ref(module) for module in linears(model)]
    gc.disable()
    try:
        del model
        assert all(module() is None for module in freed)
    finally:
        gc.enable()


@pytest.mark.e2e
@pytest.mark.unchecked
@pytest.mark.parametrize("kind", slow_but(["stock"], OPTIMIZED))
def test_compiled_without_breaks_exported_and_traced(kind):
    theirs, ours = pair("bert", kind)
    inputs = example(theirs, 31)
    expected = outputs(theirs, inputs)
    torch.compiler.reset()
    compiled = torch.compile(ours, fullgraph=True, backend="eager")
    torch.testing.assert_close(outputs(compiled, inputs), expected, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        program = torch.export.export(ours, (), inputs).module()
        torch.testing.assert_close(outputs(program, inputs), expected, rtol=1e-4, atol=1e-4)
        if kind == "stock":
            traced = torch.jit.trace(ours, tuple(inputs.values()), strict=False)
            torch.testing.assert_close(traced(*inputs.values())["last_hidden_state"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.e2e
@pytest.mark.unchecked
def test_layers_that_are_compiled_alone_are_compiled_once():
    counts = []
    for model in pair():
        torch.compiler.reset()
        counter = CompileCounter()
        for layer in model.encoder.layer:
            layer.compile(backend=counter, fullgraph=True)
        model(**example(model, 31))
        counts.append(counter.frame_count)
    assert counts == [1, 1]


def test_weights_of_a_functional_call_are_obeyed():
    """Also many of them at once."""
    _, model = pair()
    module = linears(model)[0]
    inputs, weights = torch.randn(2, 31, 48), torch.randn(3, 48, 48)
    got = vmap(lambda weight: functional_call(module, {"weight": weight}, inputs))(weights)
    torch.testing.assert_close(got, inputs @ weights[:, None].mT + module.bias, rtol=1e-4, atol=1e-5)


def test_mixed_precision_takes_the_products_of_torch(calls):
    theirs, ours = pair()
    inputs = example(theirs, 31)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(outputs(ours, inputs), outputs(theirs, inputs))
    assert not calls


def test_saved_files_say_nothing_of_it(tmp_path, calls):
    theirs, ours = pair()
    ours.save_pretrained(tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "theirs")
    files = [{each.name: each.read_bytes() for each in (tmp_path / who).iterdir()} for who in ("ours", "theirs")]
    assert files[0] == files[1]
    assert not any("forward" in vars(module) for module in AutoModel.from_pretrained(tmp_path / "ours").modules())


@pytest.mark.parametrize("kind", OPTIMIZED)
def test_models_that_commands_load_and_saved_linear_ones_have_it(kind, tmp_path, calls):
    theirs, ours = pair(kind=kind)
    ours.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    inputs = example(theirs, 31)
    loaded = [load_model(str(tmp_path), AutoModel, "an encoder").model]
    if kind != "stock":
        loaded.append(AutoModel.from_pretrained(tmp_path).eval())
    for model in loaded:
        calls.clear()
        torch.testing.assert_close(outputs(model, inputs), outputs(theirs, inputs), rtol=1e-4, atol=1e-4)
        assert len(calls) == len(linears(model))


def test_windows_and_products_of_a_stock_encoder():
    model = lk.optimize(modernbert().float())
    assert model.config._attn_implementation == "exact_windows"
    assert all("forward" in vars(module) for module in linears(model))
    with pytest.raises(
        lk.InputError, match=r"^model: expected one of transformers, or a SentenceTransformer, got Line"
    ):
        lk.optimize(nn.Linear(3, 5))


def test_models_of_this_package_keep_their_own_way(config):
    """There a `forward` of a map's own means that somebody replaced it."""
    model = lk.optimize(lk.LinformerForMaskedLM(config(sliding_window=3)))
    assert model.config._attn_implementation != "exact_windows"
    whole = nn.ModuleList([nn.Linear(3, 5), lk.LinformerAttention(33, 3, 31, 7), model])
    products.use_fast_products(whole)
    assert [name for name, module in whole.named_modules() if "forward" in vars(module)] == ["0"]


@pytest.mark.parametrize(
    ("dtype", "changes", "has_accelerator", "expected"),
    [
        (torch.float32, {}, False, True),
        (torch.float32, {}, True, False),
        (torch.float32, {"is_intel": True}, False, False),
        (torch.float64, {}, False, False),
        (torch.float16, {"is_intel": True, "capabilities": {"avx2": True}}, False, True),
        (torch.bfloat16, {"capabilities": {"avx512_bf16": True, "amx_bf16": True}}, False, False),
    ],
)
def test_only_where_the_processor_gains(monkeypatch, dtype, changes, has_accelerator, expected):
    here = dataclasses.replace(kernels.Processor.here(), onednn=frozenset({torch.float32, torch.bfloat16}), **changes)
    monkeypatch.setattr(kernels.Processor, "here", staticmethod(lambda: here))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: has_accelerator)
    module = linears(lk.optimize(build(FAMILIES["bert"])).to(dtype))[0]  # also if the format changes afterwards
    with mock.patch.object(products, "choose", side_effect=products.choose) as chosen:
        module(torch.ones(5, module.in_features, dtype=dtype))
    assert chosen.called == expected
