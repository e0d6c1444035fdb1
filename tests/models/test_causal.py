"""Causal language models: loss, what is kept of a text that goes on, and `generate`; float64 where results are equal."""

from __future__ import annotations

import copy
import itertools
import re

import pytest
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    DynamicCache,
    GenerationConfig,
    Trainer,
    TrainingArguments,
    pipeline,
)
from transformers.loss.loss_utils import ForCausalLMLoss

from linformer_kit import (
    InputError,
    LinformerConfig,
    LinformerForCausalLM,
    LinformerForMaskedLM,
    LinformerForSequenceClassification,
)
from linformer_kit.models.cache import CACHE, LinformerCache
from tests.conftest import randomise, slow_but, tokens, values_of, write_model

CAUSAL = {"causal": True, "projection": "mean_pool", "sliding_window": 6}  # 37 tokens in 7 windows of 5 and 6
BY_HEAD = {"projected_dim": [[7, 11, 8], [13, 7, 37]]}
KINDS = {
    "mean": {},
    "one": {"projected_dim": 1, "sliding_window": 41, "global_tokens": 5},
    "wide": {"sliding_window": 50, "bias_order": "after_projection", "norm_first": True},
    "narrow": {"projected_dim": 25, "sliding_window": 2},
    "max": {"projection": "max_pool", "global_tokens": 1, "local_convolution": 5},
    "conv": {"projection": "conv", "global_tokens": 5, "sliding_window": 7},
    "conv_of_heads": {"projection": "conv", "sharing": "none", "norm_first": True},
    "conv_of_layers": {"projection": "conv", "sharing": "layerwise", "local_convolution": 3},
    "by_head": BY_HEAD,
    "max_by_head": {**BY_HEAD, "projection": "max_pool", "global_tokens": 3},
    "full": {"attention": "full", "local_convolution": 3},
    "mixed": {"attention": ["full", "linformer"], "global_tokens": 2, "local_convolution": 3, "norm_first": True},
}
PARTS = ([7, 1, 1, 13, 2, 1, 12], [3, 34], [36, 1], [2, *[1] * 14, 21])  # lengths
GENERATED = ("max", "conv", "max_by_head", "mixed")
HOW = (
    {"do_sample": False},
    {"do_sample": True, "top_k": 20},
    {"num_beams": 3, "num_return_sequences": 2},
    {"num_beams": 3, "do_sample": True},
    {"do_sample": False, "prefill_chunk_size": 4},
)


@pytest.fixture
def model(config):
    """A factory of models in float64."""
    return lambda kind: randomise(LinformerForCausalLM(config(**CAUSAL | KINDS[kind]))).double().eval()


@pytest.fixture
def speaker(model):
    """A factory of models whose texts vary: with random biases of words and of LayerNorm they repeat one word."""

    def make(kind):
        causal = model(kind)
        with torch.no_grad():
            causal.lm_head.decoder.bias.zero_()
            for layer_norm in (module for module in causal.modules() if isinstance(module, nn.LayerNorm)):
                layer_norm.reset_parameters()
        return causal

    return make


def varies(texts: Tensor) -> bool:
    """Whether any text has several words, so that it depends on those before."""
    return max(len({*text}) for text in texts.tolist()) > 3


def left_padded() -> tuple[Tensor, Tensor]:
    """Prompts of 9, 8 and 5 tokens, and their mask."""
    ids, mask = tokens(3, 9), torch.ones(3, 9, dtype=torch.long)
    for text, padding in enumerate((0, 1, 4)):
        ids[text, :padding], mask[text, :padding] = 1, 0
    return ids, mask


def kept(cache: LinformerCache) -> list[Tensor]:
    """All tensors in a cache."""
    found: list[Tensor] = []
    copy.deepcopy(cache)._change(lambda tensor: found.append(tensor) or tensor)
    return found


@torch.no_grad()
@pytest.mark.parametrize("case", slow_but(values_of(KINDS, PARTS), map(list, itertools.product(KINDS, PARTS))))
def test_a_text_in_parts_has_the_logits_of_the_whole(model, case):
    """With padding on the left, anywhere, and on the right, in each part."""
    kind, sizes = case
    causal, ids, mask = model(kind), tokens(3, 37), torch.ones(3, 37, dtype=torch.long)
    mask[0, :5], mask[1] = 0, torch.rand(37) < 0.7
    mask[2, 33:] = 0
    expected, past, parts, end = causal(ids, mask).logits, None, [], 0
    for size in sizes:
        start, end = end, end + size
        out = causal(ids[:, start:end], mask[:, :end], past_key_values=past, use_cache=True)
        past = out.past_key_values
        parts.append(out.logits)
    real = mask.bool()
    torch.testing.assert_close(torch.cat(parts, dim=1)[real], expected[real], rtol=0, atol=1e-10)
    assert past.get_seq_length() == 37 and torch.equal(past.lengths, mask.sum(dim=1))


@torch.no_grad()
@pytest.mark.parametrize("kind", ["max", "by_head", "full"])
def test_what_is_kept_does_not_grow(model, kind):
    """Except in full attention: no tensor is a part of a larger one, such as the keys of a whole prompt."""
    causal, sizes, ids = model(kind), [], tokens(2, 37)
    out = causal(ids[:, :30], use_cache=True)
    for end in range(31, 38):
        tensors = kept(out.past_key_values)
        sizes.append(sum(tensor.numel() for tensor in tensors))
        stored = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
        assert sum(stored.values()) <= sum(tensor.nbytes for tensor in tensors)
        out = causal(ids[:, end - 1 : end], past_key_values=out.past_key_values)
    grown = 2 * 2 * 2 * 33 if kind == "full" else 0  # keys and values of two layers and texts
    assert {after - before for before, after in itertools.pairwise(sizes)} == {grown}


@pytest.mark.e2e
@torch.no_grad()
def test_parts_run_in_blocks_of_tokens_too(model, small_blocks):
    for kind in ("conv", "mixed"):
        causal, ids = model(kind), tokens(3, 37)
        out = causal(ids[:, :20], use_cache=True)
        parts = [out.logits, causal(ids[:, 20:], past_key_values=out.past_key_values).logits]
        torch.testing.assert_close(torch.cat(parts, dim=1), causal(ids).logits, rtol=0, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize(("kind", "new"), [("max", 1), ("by_head", 1), ("full", 1), ("max", 9), ("by_head", 9)])
def test_attention_of_next_tokens_is_the_last_rows_of_that_of_the_text(model, kind, new):
    causal, ids = model(kind), tokens(2, 31)
    past = causal(ids[:, :-new], use_cache=True).past_key_values
    step = causal(ids[:, -new:], past_key_values=past, output_attentions=True, output_hidden_states=True)
    whole = causal(ids, output_attentions=True, output_hidden_states=True)
    torch.testing.assert_close(step.hidden_states, tuple(each[:, -new:] for each in whole.hidden_states))
    for row, rows in zip(step.attentions, whole.attentions, strict=True):
        missing, window = row.shape[-1] - rows.shape[-1], 31 if kind == "full" else 6  # slots of a text of 37 tokens
        parts = rows[:, :, -new:].split([rows.shape[-1] - window, window], dim=-1)
        torch.testing.assert_close(row, torch.cat([F.pad(parts[0], (0, missing)), parts[1]], dim=-1))


@pytest.mark.e2e
@pytest.mark.parametrize("case", slow_but(values_of(GENERATED, HOW), map(list, itertools.product(GENERATED, HOW))))
def test_generation_is_that_without_a_cache(speaker, case):
    kind, how = case
    causal, (ids, mask), found = speaker(kind), left_padded(), []
    for use_cache in (True, False):
        torch.manual_seed(0)
        options = {**how, "prefill_chunk_size": how.get("prefill_chunk_size") if use_cache else None}
        found.append(causal.generate(ids, attention_mask=mask, use_cache=use_cache, max_new_tokens=17, **options))
    assert torch.equal(*found) and varies(found[0][:, 9:])
    if not how.get("do_sample"):  # of each text as of it alone, up to its end
        alone = causal.generate(ids[2:, 4:], max_new_tokens=17, **how)[0]
        assert torch.equal(found[0][len(found[0]) * 2 // 3][4:][: len(alone)], alone)


@pytest.mark.e2e
@pytest.mark.parametrize("kind", GENERATED[1::2])
def test_prompts_may_have_one_token_or_as_many_as_the_longest_text(speaker, kind):
    """The last token of a text has no position: it is never an input."""
    causal, ids = speaker(kind), tokens(1, 37)
    for length in (1, 37):
        found = [
            causal.generate(ids[:, :length], max_new_tokens=38 - length, use_cache=use_cache, eos_token_id=None)
            for use_cache in (True, False)
        ]
        assert torch.equal(*found) and found[0].shape == (1, 38)
        assert length > 1 or varies(found[0])
        embeds = causal.get_input_embeddings()(ids[:, :length]).detach()
        of_embeds = causal.generate(inputs_embeds=embeds, max_new_tokens=38 - length, eos_token_id=None)
        assert torch.equal(of_embeds, found[0][:, length:])


@pytest.mark.e2e
@pytest.mark.parametrize("kind", GENERATED[::2])
def test_a_later_call_goes_on(speaker, kind):
    """With all tokens or the new ones, of which there are several, and an error before it is too long."""
    causal, (ids, mask) = speaker(kind), left_padded()
    how = {"do_sample": False, "eos_token_id": None, "return_dict_in_generate": True}
    first = causal.generate(ids, attention_mask=mask, max_new_tokens=5, **how)
    past, longer = first.past_key_values, torch.cat([first.sequences, tokens(3, 4)], dim=1)
    assert past.get_seq_length() == 13
    mask = torch.cat([mask, mask.new_ones(3, 9)], dim=1)
    expected = causal.generate(longer, attention_mask=mask, max_new_tokens=20, use_cache=False, **how).sequences
    assert varies(expected[:, 18:])
    for start in (0, 13):
        how |= {"attention_mask": mask, "past_key_values": copy.deepcopy(past)}
        for limit in ({"max_new_tokens": 21}, {"max_length": 39 - start}):
            with pytest.raises(InputError, match=r"expected 1 to 20 new tokens after the 18 of the prompt .* got 21$"):
                causal.generate(longer[:, start:], **limit, **how)
        for limit in ({"max_new_tokens": 20}, {"max_length": 38 - start}):
            how["past_key_values"] = copy.deepcopy(past)
            assert torch.equal(causal.generate(longer[:, start:], **limit, **how).sequences, expected[:, start:])


@torch.no_grad()
def test_texts_of_a_cache_are_chosen_and_repeated(model):
    causal, (ids, mask), word = model("mixed"), left_padded(), tokens(6, 1)
    twice, real = (each.repeat_interleave(2, dim=0) for each in (ids, mask))
    expected = causal(torch.cat([twice, word], dim=1), F.pad(real, (0, 1), value=1))
    past = causal(ids, mask, use_cache=True).past_key_values
    past.batch_repeat_interleave(2)
    past.reorder_cache(torch.arange(5, -1, -1))
    past.batch_select_indices(torch.tensor([5, 4, 3, 2, 1, 0]))
    torch.testing.assert_close(causal(word, past_key_values=past).logits, expected.logits[:, -1:])
    past.reset()
    again = causal(ids, mask, past_key_values=past).logits
    assert torch.equal(again[mask > 0], causal(ids, mask).logits[mask > 0])


@torch.no_grad()
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"max_new_tokens": 30}, "max_new_tokens, max_length: expected 1 to 29 new tokens after the 9 of the prompt "),
        ({"max_length": 9}, "max_new_tokens, max_length: expected 1 to 29 new tokens after the 9 of the prompt "),
        ({"attention_mask": torch.ones(3, 38)}, "sequence length: expected at most max_position_embeddings 37, got 38"),
        ({"cache_implementation": "static"}, "cache_implementation: expected None, as the cache has a constant size,"),
        ({"past_key_values": DynamicCache()}, "past_key_values: expected None, or what an earlier call returned, got"),
        ({"past_key_values": "own", "use_cache": False}, "use_cache: expected True with past_key_values, got False"),
        (
            {"past_key_values": "own"},
            "attention_mask: expected that of all tokens, with the 9 of past_key_values, got 9",
        ),
        ({"is_assistant": True}, "assistant_model: expected one that can take tokens back, got"),
        (
            {"prompt_lookup_num_tokens": 3},
            "generate: expected one of greedy_search, sample, beam_search, beam_sample, ",
        ),
        ({"penalty_alpha": 0.6, "top_k": 4}, "generate: expected one of greedy_search, sample, beam_search, "),
    ],
)
def test_what_generate_cannot_do_is_one_line(model, how, message):
    """Also in a generation configuration; but the cache is no part of one."""
    causal, (ids, mask) = model("mean"), left_padded()
    if how.get("past_key_values") == "own":
        how = how | {"past_key_values": causal(ids, mask, use_cache=True)[CACHE]}
    with pytest.raises(InputError, match=f"^{re.escape(message)}[^\n]*$"):
        causal.generate(ids, **{"attention_mask": mask} | how)
    if not how.keys() & {"past_key_values", "attention_mask"}:
        with pytest.raises(InputError, match=f"^{re.escape(message)}[^\n]*$"):
            causal.generate(ids, GenerationConfig(**how), attention_mask=mask)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"labels": [[1] * 9] * 2}, "labels: expected a tensor, got 'list'"),
        ({"labels": torch.ones(9, dtype=torch.long)}, "labels: expected [2, 9], got [9]"),
        ({"labels": torch.ones(2, 9).long(), "logits_to_keep": 3}, "logits_to_keep: expected 0 with labels, got 3"),
        ({"logits_to_keep": -3}, "logits_to_keep: expected a number of columns, or a tensor, got -3"),
        ({"logits_to_keep": True}, "logits_to_keep: expected a number of columns, or a tensor, got True"),
        ({"logits_to_keep": [1, 2]}, "logits_to_keep: expected a number of columns, or a tensor, got [1, 2]"),
    ],
)
def test_calls_rejected(model, arguments, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        model("mean")(tokens(2, 9), **arguments)


def test_a_text_without_a_length_goes_on_to_the_longest(model):
    """Of all tokens, also where those before are in a cache; a resized model has another longest text."""
    causal, ids = model("mean"), tokens(2, 9)
    first = causal.generate(ids, eos_token_id=None, return_dict_in_generate=True, max_new_tokens=3)
    longest = causal.generate(ids, GenerationConfig(eos_token_id=None))
    assert longest.shape == (2, 37) and torch.equal(longest[:, :12], first.sequences)
    mask, past = torch.ones(2, 12), {CACHE: first[CACHE]}
    rest = causal.generate(first.sequences[:, 11:], attention_mask=mask, eos_token_id=None, **past)
    assert torch.equal(rest, longest[:, 11:])
    causal.resize_sequence_length(74)
    assert causal.generate(ids, eos_token_id=None).shape == (2, 74)


@torch.no_grad()
def test_a_cache_has_the_names_of_both_releases_of_transformers(model):
    causal, ids = model("mean"), tokens(2, 9)
    past = causal(ids[:, :5], use_cache=True)[CACHE]
    logits = [causal(ids[:, 5:], **{name: copy.deepcopy(past)}).logits for name in ("cache", "past_key_values")]
    assert torch.equal(*logits)
    for call in (causal, causal.linformer, causal.generate):
        with pytest.raises(InputError, match=r"^past_key_values, cache: expected one of them, got 'both'$"):
            call(ids[:, 5:], cache=past, past_key_values=past)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["mean", "full"])
def test_a_step_that_is_interrupted_changes_nothing(model, kind):
    """The same call later gives the same, though the first layers had run."""
    causal, ids = model(kind), tokens(2, 13)
    past = causal(ids[:, :9], use_cache=True).past_key_values
    before, expected = kept(past), causal(ids[:, 9:], past_key_values=copy.deepcopy(past)).logits
    last = causal.linformer.encoder.layers[-1].fc2
    handle = last.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        causal(ids[:, 9:], past_key_values=past)
    handle.remove()
    assert all(map(torch.equal, kept(past), before)) and past.columns == 9
    assert torch.equal(causal(ids[:, 9:], past_key_values=past).logits, expected)


@torch.no_grad()
def test_a_cache_of_another_model_is_rejected(model, config):
    ids, causal = tokens(2, 9), model("wide")
    past = causal(ids, use_cache=True).past_key_values
    others = {"sliding_window": 7}, {"attention": "full"}, {"num_hidden_layers": 3}, {"local_convolution": 3}
    for changed in others:
        other = LinformerForCausalLM(config(**CAUSAL | changed))
        with pytest.raises(
            InputError, match=r"^past_key_values: expected those of this model, got 'those of another'$"
        ):
            other(ids[:, :1], past_key_values=past)
    with pytest.raises(InputError, match=r"^past_key_values: expected those of torch.float32, got torch.float64$"):
        copy.deepcopy(causal).float()(ids[:, :1], past_key_values=past)
    again = copy.deepcopy(causal)
    step = again(ids[:, :1], past_key_values=copy.deepcopy(past)).logits
    assert torch.equal(step, causal(ids[:, :1], past_key_values=copy.deepcopy(past)).logits)
    again.set_projected_dim(5)
    with pytest.raises(InputError, match=r"^projected_dim: expected as before, to continue texts, got 5$"):
        again(ids[:, :1], past_key_values=past)
    again.set_projected_dim()
    attention = again.linformer.encoder.layers[0].self_attn
    attention.projection = nn.Sequential(attention.projection)
    with pytest.raises(InputError, match=r"^projection: expected no module around it to continue texts \(merge "):
        again(ids[:, :1], past_key_values=past)


@pytest.mark.unchecked
@torch.no_grad()
def test_what_does_not_fit_a_cache_is_rejected_and_changes_nothing(model, config):
    causal, (ids, mask) = model("mixed"), left_padded()
    past = causal(ids, mask, use_cache=True).past_key_values
    calls = {
        "past_key_values: expected those of 2 texts, got 3": (ids[:2, :1], None),
        "attention_mask: expected [3, 10], with past tokens, got [3, 9]": (ids[:, :1], mask),
        "attention_mask: expected that of past_key_values for": (ids[:, :1], torch.ones(3, 10)),
        "sequence length: expected at most max_position_embeddings 37, got 38": (tokens(3, 29), None),
        "input_ids: expected at least one token with use_cache or past_key_values, got 0": (ids[:, :0], mask),
    }
    before = kept(past)
    for message, (new, new_mask) in calls.items():
        with pytest.raises(InputError, match=f"^{re.escape(message)}"):
            causal(new, new_mask, past_key_values=past)
    with pytest.raises(InputError, match=r"^output_attentions: expected False for several tokens after past_key_valu"):
        causal(tokens(3, 4), past_key_values=past, output_attentions=True)
    for method in (lambda: past.crop(3), lambda: past.get_mask_sizes(1, 0), lambda: past.update(ids, ids, 0)):
        with pytest.raises(ValueError, match=r"^[^\n]*$"):  # those that `Cache` has by its layers
            method()
    assert all(map(torch.equal, kept(past), before)) and past.batch_size == 3
    with pytest.raises(InputError, match=r"^use_cache, past_key_values: expected none without causal"):
        LinformerForMaskedLM(config())(ids, use_cache=True)


def test_the_loss_is_that_of_transformers(model):
    causal, ids = model("mean").train(), tokens(3, 31)
    labels = ids.masked_fill(torch.rand(3, 31) < 0.3, -100)
    out = causal(ids, labels=labels)
    torch.testing.assert_close(out.loss, ForCausalLMLoss(out.logits, labels, 101).to(out.loss.dtype))
    count = (labels[:, 1:] != -100).sum()
    torch.testing.assert_close(causal(ids, labels=labels, num_items_in_batch=2 * count).loss, out.loss / 2)
    assert causal(ids, labels=torch.full_like(ids, -100)).loss == 0
    out.loss.backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in causal.parameters())


@pytest.mark.e2e
@pytest.mark.parametrize(("kind", "smoothing"), [("own", 0.2), ("own", 0.0), ("subclass", 0.2), ("adapted", 0.0)])
def test_the_trainer_of_transformers_shifts_labels(model, tmp_path, kind, smoothing):
    """Also where it computes the loss, and counts labels, itself; in training and in evaluation."""
    causal, ids = model("mean").float(), tokens(4, 19)
    if kind == "subclass":
        causal = type("Speaker", (LinformerForCausalLM,), {})(causal.config).eval()
    elif kind == "adapted":
        causal = get_peft_model(causal, LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM")).eval()
    with torch.no_grad():
        logits = causal(ids).logits
    expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), label_smoothing=smoothing).item()
    settings = {"label_smoothing_factor": smoothing, "learning_rate": 0.0, "max_steps": 1, "report_to": "none"}
    arguments = TrainingArguments(str(tmp_path), use_cpu=True, save_strategy="no", **settings)
    texts = [{"input_ids": text, "labels": text} for text in ids]
    trainer = Trainer(causal, arguments, train_dataset=texts, eval_dataset=texts)
    found = trainer.evaluate()["eval_loss"], trainer.train().training_loss
    assert found == pytest.approx((expected, expected), rel=1e-5)


def test_logits_are_of_the_columns_that_are_kept(model):
    causal, ids = model("mean"), tokens(2, 31)
    logits = causal(ids).logits
    torch.testing.assert_close(causal(ids, logits_to_keep=3).logits, logits[:, -3:])
    torch.testing.assert_close(causal(ids, logits_to_keep=torch.tensor([4, 29])).logits, logits[:, [4, 29]])


def test_nothing_can_be_kept_with_activation_checkpointing(model):
    causal, ids = model("mean"), tokens(2, 31)
    past = causal(ids[:, :30], use_cache=True).past_key_values
    causal.train().activation_checkpointing_enable()
    message = r"^use_cache, past_key_values: expected none in training with activation checkpointing, got a cache$"
    for cached in ({"use_cache": True}, {"past_key_values": past}):
        with pytest.raises(InputError, match=message):
            causal(ids[:, 30:], **cached)
    causal(ids)
    causal.eval()(ids[:, 30:], past_key_values=past)


def test_only_causal_layers_predict_next_tokens(config):
    heads = {LinformerForCausalLM: False, LinformerForMaskedLM: True, LinformerForSequenceClassification: True}
    for head, causal in heads.items():
        with pytest.raises(InputError, match=f"^causal: expected {not causal} for {head.__name__}, got {causal}$"):
            head(config(**CAUSAL | {"causal": causal}))


@pytest.mark.e2e
def test_a_saved_model_generates_in_a_pipeline(config, tmp_path):
    """A batch with padding as each text alone."""
    write_model(tmp_path, "number was good bad 0 1 2")
    (tmp_path / "README.md").unlink()
    model = LinformerForCausalLM(LinformerConfig.from_pretrained(tmp_path, **CAUSAL))
    randomise(model).save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert "AutoModelForCausalLM" in card and "A causal language model with linear-time attention" in card
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is LinformerForCausalLM and all(map(torch.equal, loaded.parameters(), model.parameters()))
    (written,) = pipeline("text-generation", str(tmp_path))("number", min_new_tokens=19, return_tensors=True)
    assert len(written["generated_token_ids"]) == model.config.max_position_embeddings == 23
    run = pipeline("text-generation", str(tmp_path), max_new_tokens=7, do_sample=False)
    texts = ["number", "number was good 0 1"]
    assert run(texts, batch_size=2) == [run(text) for text in texts]
    with pytest.raises(InputError, match=r"^causal: expected False for LinformerForMaskedLM, got True$"):
        AutoModelForMaskedLM.from_pretrained(tmp_path)
