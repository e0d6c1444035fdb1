"""Adapters of PEFT on our models: effect, training, merging, saving and loading, as on encoders of transformers."""

from __future__ import annotations

import copy
import json
import re
import shutil
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForSequenceClassification, IA3Config, LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import AutoModelForSequenceClassification, BertForSequenceClassification, Trainer, TrainingArguments

import linformer_kit as lk
from linformer_kit import InputError
from linformer_kit.models.base import NOT_SAVED
from tests.conftest import KINDS, fields, randomise, skip_if_peft_is_too_old, some_padding, tokens, values_of
from tests.families import FAMILIES, build

ATTENTION = ["q_proj", "k_proj", "v_proj"]
ADAPTERS = {
    "lora": LoraConfig(r=5, target_modules=ATTENTION),
    "dora": LoraConfig(r=5, target_modules=ATTENTION, use_dora=True),
    "ia3": IA3Config(target_modules=ATTENTION, feedforward_modules=[]),
}


def adapted(model: nn.Module, adapter: str) -> PeftModel:
    """The model with adapters that do something: LoRA's start at zero."""
    peft_model = get_peft_model(model, copy.deepcopy(ADAPTERS[adapter]))
    with torch.no_grad():
        for name, parameter in peft_model.named_parameters():
            if parameter.requires_grad and "magnitude" not in name:
                parameter.normal_(std=0.3)
    return peft_model.double().eval()


@pytest.mark.parametrize(("kind", "adapter"), values_of(KINDS, ADAPTERS))
def test_adapters_act_learn_and_merge(config, small_blocks, tmp_path, kind, adapter):
    model = randomise(lk.LinformerForSequenceClassification(config(**fields(kind)))).double().eval()
    ids, mask = tokens(3, 31), some_padding(31)
    plain = model(ids, mask).logits.detach()
    peft_model = adapted(copy.deepcopy(model), adapter)
    logits = peft_model(input_ids=ids, attention_mask=mask).logits
    assert not torch.allclose(logits, plain, rtol=1e-2)

    learns = {name: parameter for name, parameter in peft_model.named_parameters() if parameter.requires_grad}
    assert {wanted for wanted in ATTENTION if any(wanted in name for name in learns)} == set(ATTENTION)
    gradients = torch.autograd.grad(logits.square().sum(), list(learns.values()))
    for (name, parameter), gradient in zip(learns.items(), gradients, strict=True):
        assert gradient.shape == parameter.shape and gradient.abs().max() > 0, name

    with torch.no_grad():  # no blocks of tokens: an adapter may look at all of them
        torch.testing.assert_close(peft_model(input_ids=ids, attention_mask=mask).logits, logits)
    peft_model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(copy.deepcopy(model), tmp_path).double().eval()
    torch.testing.assert_close(loaded(input_ids=ids, attention_mask=mask).logits, logits, rtol=1e-5, atol=1e-5)
    with peft_model.disable_adapter():
        torch.testing.assert_close(peft_model(input_ids=ids, attention_mask=mask).logits, plain)
    merged = peft_model.merge_and_unload()
    assert all(type(merged.get_submodule(name)) is nn.Linear for name, _ in merged.named_modules() if "_proj" in name)
    with torch.no_grad():  # in blocks again
        torch.testing.assert_close(merged(ids, mask).logits, logits)


def test_slots_can_be_fewer_where_adapters_keep_copies_of_modules(config):
    """PEFT's wrappers of whole modules and of parameters, and compiled layers."""
    ids = tokens(2, 31)
    for wanted in ({"modules_to_save": ["self_attn"]}, {"target_parameters": ["projection.key_projection"]}):
        model = randomise(lk.LinformerModel(config())).eval()
        expected = copy.deepcopy(model)
        expected.set_projected_dim(3)
        wrapped = get_peft_model(model, LoraConfig(r=5, **{"target_modules": ["fc1"], **wanted})).eval()
        wrapped.get_base_model().set_projected_dim(3)
        torch.testing.assert_close(wrapped(ids).last_hidden_state, expected(ids).last_hidden_state)
    for place, layer in enumerate(expected.encoder.layers):
        expected.encoder.layers[place] = torch.compile(layer, backend="eager")
    expected.set_projected_dim(5)
    assert {layer.self_attn.projected_dim for layer in expected.encoder.layers} == {5}


def test_adapters_of_positions_are_merged_before_the_table_changes(config):
    model = lk.LinformerModel(config())
    peft_model = get_peft_model(model, LoraConfig(r=5, target_modules=["position_embeddings"]))
    with pytest.raises(InputError, match=r"no plain table of positions \(merge adapters"):
        model.resize_sequence_length(41)
    assert model.config.max_position_embeddings == 37
    merged = peft_model.merge_and_unload()
    merged.resize_sequence_length(41)
    assert merged.embeddings.position_embeddings.num_embeddings == 41 + merged.embeddings.position_offset


def linearised(folder) -> Any:
    """A classifier of transformers in a folder, loaded and made linear, with E and F that are not those of a start."""
    torch.manual_seed(0)
    model = lk.linearize(AutoModelForSequenceClassification.from_pretrained(folder), 7, projection="linear")
    for projection in model.projections():
        nn.init.normal_(projection.key_projection)
    return model.eval()


@pytest.fixture
def original(tmp_path):
    """The folder of a classifier with full attention."""
    model = build(FAMILIES["bert"])
    BertForSequenceClassification(model.config).save_pretrained(tmp_path / "original")
    return tmp_path / "original"


CASES = {
    "lora": LoraConfig(target_modules=["query"], task_type="SEQ_CLS", init_lora_weights=False),
    "saved": LoraConfig(target_modules=["query"], modules_to_save=["classifier"], init_lora_weights=False),
    "words": LoraConfig(target_modules=["query", "word_embeddings"], init_lora_weights=False),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.e2e
@torch.no_grad()
def test_an_adapter_of_a_linearised_model_never_comes_back_with_full_attention(original, tmp_path, case, added):
    """PEFT and transformers load the base model that the adapter names: a saved linear one, none, or the one beside."""
    ids, config = torch.randint(5, 101, (2, 31)), copy.deepcopy(CASES[case])
    linearised(original).save_pretrained(tmp_path / "linear")
    for model, name in (
        (linearised(original), NOT_SAVED),
        (AutoModelForSequenceClassification.from_pretrained(tmp_path / "linear").eval(), str(tmp_path / "linear")),
    ):
        if added:
            skip_if_peft_is_too_old()
            model.add_adapter(copy.deepcopy(config))
        else:
            model = get_peft_model(model, copy.deepcopy(config)).eval()
        model.save_pretrained(tmp_path / "alone")
        expected = model(ids).logits
        assert json.loads((tmp_path / "alone" / "adapter_config.json").read_text())["base_model_name_or_path"] == name
        if name == NOT_SAVED and not added:
            theirs = [AutoPeftModelForSequenceClassification] if config.task_type else []
            for auto_class in (AutoModelForSequenceClassification, *theirs):
                with pytest.raises(OSError, match=re.escape(NOT_SAVED)):
                    auto_class.from_pretrained(tmp_path / "alone")
            again: Any = PeftModel.from_pretrained(linearised(original), tmp_path / "alone")
        else:
            again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "alone")
        assert type(getattr(again, "base_model", again)).__name__ in ("LoraModel", "LinearBertModel")
        torch.testing.assert_close(again.eval()(ids).logits, expected)
        shutil.rmtree(tmp_path / "alone")


@torch.no_grad()
def test_a_folder_that_was_copied_loads_its_own_base(original, tmp_path):
    """And not what another model wrote to the old place since then."""
    skip_if_peft_is_too_old()
    ids, outputs = torch.randint(5, 101, (2, 31)), []
    for number in range(2):
        model = linearised(original)
        model.classifier.weight.add_(number)
        model.add_adapter(copy.deepcopy(CASES["lora"]))
        outputs.append(model(ids).logits)
        shutil.rmtree(tmp_path / "alone", ignore_errors=True)
        model.save_pretrained(tmp_path / "alone")
        shutil.copytree(tmp_path / "alone", tmp_path / f"copy-{number}")
    assert str(tmp_path) not in (tmp_path / "copy-0" / "adapter_config.json").read_text()
    for number, expected in enumerate(outputs):
        again = AutoModelForSequenceClassification.from_pretrained(tmp_path / f"copy-{number}").eval()
        torch.testing.assert_close(again(ids).logits, expected)
        again.save_pretrained(tmp_path / f"again-{number}")
        again = AutoModelForSequenceClassification.from_pretrained(tmp_path / f"again-{number}").eval()
        torch.testing.assert_close(again(ids).logits, expected)


@pytest.mark.e2e
def test_a_training_saves_its_adapter_and_resumes(original, tmp_path):
    rows = [{"input_ids": torch.randint(5, 101, (7,)), "labels": number % 2} for number in range(8)]
    options = {"save_steps": 1, "report_to": [], "disable_tqdm": True, "use_cpu": True, "learning_rate": 0.1}
    config = LoraConfig(target_modules=["query"], task_type="SEQ_CLS")
    states = []
    for resume in (False, True):
        model = get_peft_model(linearised(original), copy.deepcopy(config))
        arguments = TrainingArguments(str(tmp_path / "run"), max_steps=2, **options)
        Trainer(model, arguments, train_dataset=rows).train(str(tmp_path / "run" / "checkpoint-1") if resume else None)
        states.append({name: value.clone() for name, value in model.state_dict().items()})
    torch.testing.assert_close(states[1], states[0])


def test_a_model_that_was_made_longer_is_no_longer_the_one_in_its_folder(original, tmp_path):
    linearised(original).save_pretrained(tmp_path / "linear")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "linear")
    model.resize_sequence_length(122)
    skip_if_peft_is_too_old()
    model.add_adapter(copy.deepcopy(CASES["lora"]))
    model.save_pretrained(tmp_path / "alone")
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "alone")
    assert again.longest_sequence == 122
