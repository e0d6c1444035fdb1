"""Values are read only where there are some: `torch.func`, traces, fake tensors; and masks of floating point."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
import torch
import transformers
from torch.func import vmap

from linformer_kit import (
    InputError,
    LinformerForQuestionAnswering,
    LinformerForSequenceClassification,
    LinformerModel,
    linearize,
    operator,
)
from tests.conftest import (
    ENCODERS,
    SHORTER_INPUTS,
    SIZES,
    fields,
    randomise,
    shorter_inputs,
    some_padding,
    tokens,
    values_of,
)

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.mark.parametrize(("kind", "shorter_input"), values_of(ENCODERS, SHORTER_INPUTS))
def test_vmap_over_a_model_is_a_batch(config, kind, shorter_input):
    model = randomise(LinformerModel(config(**shorter_inputs(fields(kind), shorter_input)))).eval()
    ids, mask = tokens(3, 31), some_padding(31)
    one_by_one = vmap(lambda row: model(row[None]).last_hidden_state[0])(ids)
    torch.testing.assert_close(one_by_one, model(ids).last_hidden_state, **CLOSE)
    one_by_one = vmap(lambda row, real: model(row[None], real[None]).last_hidden_state[0])(ids, mask)
    expected = model(ids, mask).last_hidden_state
    torch.testing.assert_close(one_by_one[mask == 1], expected[mask == 1], **CLOSE)


@pytest.mark.filterwarnings("ignore")
@torch.no_grad()
def test_traced_from_one_short_text():
    """The traced program must not depend on the number or length of the texts that it was traced with."""
    ids, mask = tokens(3, 31), some_padding(31)
    sizes = {name: SIZES[name] for name in SIZES if name != "projected_dim"}
    bert = transformers.BertModel(transformers.BertConfig(**sizes, return_dict=False), add_pooling_layer=False)
    model = linearize(randomise(bert), SIZES["projected_dim"]).eval()
    traced = torch.jit.trace(model, (ids[:1, :5], mask[:1, :5]), strict=False)
    torch.testing.assert_close(traced(ids, mask)[0][mask == 1], model(ids, mask)[0][mask == 1], **CLOSE)
    with pytest.raises(InputError, match=r"torch\.onnx\.export: expected dynamo=True, or the command `linformer"):
        torch.onnx.export(model, (ids, mask), io.BytesIO(), dynamo=False)


@pytest.mark.parametrize(("kind", "dtype"), [("headwise", torch.float32), ("full", torch.bfloat16)])
def test_a_mask_of_floating_point(config, kind, dtype):
    """As PEFT makes it for prompts: 1 and 0, and the same outputs and gradients as for integers."""
    model = randomise(LinformerForSequenceClassification(config(**fields(kind)))).train()
    ids, mask = tokens(3, 31), some_padding(31)
    results = []
    for given in (mask, mask.to(dtype)):
        output = model(ids, given, labels=torch.tensor([0, 1, 0]), output_hidden_states=True)
        gradients = torch.autograd.grad(output.loss, list(model.parameters()), allow_unused=True)
        results.append((output.logits, *(gradient for gradient in gradients if gradient is not None)))
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("value", [-torch.inf, 0.0])
def test_other_masks_of_floating_point_are_rejected(config, value):
    """In a mask that is added to scores 0 stands for real tokens; without padding it is all zeros."""
    model = LinformerModel(config())
    mask = torch.zeros(3, 31)
    mask[1, 7:] = value
    with pytest.raises(InputError, match=r"attention_mask: expected .* 1 on real .*, got other numbers or only 0"):
        model(tokens(3, 31), mask)


PROMPTS = {"PromptTuningConfig": {}, "PromptEncoderConfig": {"encoder_hidden_size": 13}}
TASKS = {"SEQ_CLS": LinformerForSequenceClassification, "QUESTION_ANS": LinformerForQuestionAnswering}


@pytest.mark.parametrize(("kind", "task"), zip(PROMPTS, TASKS, strict=True))
def test_prompt_tuning_with_peft(config, kind, task):
    """Prompts stand in front of the text, their gradients are those of learned embeddings there; padding stays padding."""
    peft = pytest.importorskip("peft")
    model = TASKS[task](config())
    prompted = peft.get_peft_model(model, getattr(peft, kind)(task_type=task, num_virtual_tokens=5, **PROMPTS[kind]))
    ids, mask = tokens(3, 29), torch.ones(3, 29, dtype=torch.long)
    mask[1, 19:] = 0
    output = prompted.eval()(input_ids=ids, attention_mask=mask)[0]
    words = model.get_input_embeddings()(ids)
    together = torch.cat([prompted.get_prompt(3), words], dim=1)
    real = torch.cat([torch.ones(3, 5, dtype=torch.long), mask], dim=1)
    rows = real == 1 if output.dim() > 1 and output.shape[1] == 34 else slice(None)
    torch.testing.assert_close(output[rows], model(inputs_embeds=together, attention_mask=real)[0][rows])
    prompted.train()(input_ids=ids, attention_mask=mask)[0][rows].square().sum().backward()
    gradients = [p.grad for name, p in prompted.named_parameters() if "prompt_encoder" in name and p.requires_grad]
    assert gradients and any(gradient is not None and gradient.abs().max() > 0 for gradient in gradients)


def test_private_names_of_torch_are_in_two_files():
    """So that a new torch is checked there only."""
    private = re.compile(r"\btorch\._|\bops\.mkldnn|\bforward_ad\._|\._has_any_global_hook|import _")
    paths = Path(operator.__path__[0]).rglob("*.py")
    assert {path.name for path in paths if private.search(path.read_text())} == {"conditions.py", "processor.py"}
