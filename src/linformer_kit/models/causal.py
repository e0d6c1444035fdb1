"""The causal language model, which continues texts.

Axes: batch, seq_len (n), embed (hidden_size), vocab.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from linformer_cli.errors import InputError, check_input
from linformer_cli.settings import IGNORED_LABEL, ResizeMode
from linformer_kit.internals import shift_labels_of
from linformer_kit.models.cache import CACHE, LinformerCache, check_is_ours, given_cache
from linformer_kit.models.configuration import LinformerConfig
from linformer_kit.models.heads import LinformerLanguageModel, check_labels_of_tokens
from linformer_kit.operator.conditions import check_tensors, described

_MODES = ("greedy_search", "sample", "beam_search", "beam_sample")


class LinformerForCausalLM(LinformerLanguageModel, GenerationMixin):
    """Causal language model: predicts each token from those before it. Its configuration has `causal` True."""

    causal = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        shift_labels_of(cls)

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        self.loss_type = "ForCausalLM"  # of subclasses too, so that the Trainer counts shifted labels
        self.generation_config.max_length = config.max_position_embeddings  # of pipelines too; theirs is 256 more

    @can_return_tuple
    def forward(  # type: ignore[override]  # no `predicted_positions`: almost all tokens have labels
        self,
        input_ids: Int[Tensor, "batch seq_len"] | None = None,
        attention_mask: Shaped[Tensor, "batch past_and_seq_len"] | None = None,
        token_type_ids: Int[Tensor, "batch seq_len"] | None = None,
        position_ids: Int[Tensor, "batch_or_1 seq_len"] | None = None,
        inputs_embeds: Float[Tensor, "batch seq_len embed"] | None = None,
        labels: Int[Tensor, "batch seq_len"] | None = None,
        num_items_in_batch: Tensor | int | None = None,
        past_key_values: LinformerCache | None = None,
        use_cache: bool | None = None,
        cache: LinformerCache | None = None,
        logits_to_keep: int | Int[Tensor, " kept"] = 0,
        **outputs: bool | None,
    ) -> CausalLMOutputWithPast:
        """Predict the next token of each. Takes the arguments of `LinformerModel.forward`, and:

        Args:
            labels: The tokens themselves, which are shifted here: logits of a token are compared with the label of the
                next; -100 is ignored.
            num_items_in_batch: Number of labels in all forward passes of one update.
            logits_to_keep: Compute logits of this number of last columns only, or of columns by index; 0: of all.
        """
        check_tensors(labels=labels)
        are_columns = isinstance(logits_to_keep, Tensor)
        is_count = type(logits_to_keep) is int and logits_to_keep >= 0
        check_input(are_columns or is_count, "logits_to_keep", "a number of columns, or a tensor", logits_to_keep)
        if labels is not None and (are_columns or logits_to_keep):
            given = described(logits_to_keep) if are_columns else logits_to_keep
            raise InputError(f"logits_to_keep: expected 0 with labels, got {given}")
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        cached = {"past_key_values": past_key_values, "cache": cache, "use_cache": use_cache}
        encoded = self.linformer(*inputs, **cached, **outputs, return_dict=True)
        hidden, loss = encoded.last_hidden_state, None
        check_labels_of_tokens(labels, hidden)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(hidden[:, kept])
        if labels is not None:
            loss = self._loss(logits, F.pad(labels[:, 1:], (0, 1), value=IGNORED_LABEL), num_items_in_batch)
        more = {name: value for name, value in encoded.items() if name != "last_hidden_state"}
        return CausalLMOutputWithPast(loss=loss, logits=logits, **more)

    def generate(
        self, inputs: Tensor | None = None, generation_config: GenerationConfig | None = None, **options: Any
    ) -> Any:
        """As in transformers: greedy search, sampling or beams, with a cache of constant size.

        Without a length, texts go on up to `max_position_embeddings` tokens, with those of the prompt.

        Raises:
            InputError: for texts that would be longer than the model can read, other kinds of caches, and other ways to
                generate, which take tokens back.
        """
        settings = GenerationConfig() if generation_config is None else copy.deepcopy(generation_config)
        max_length = options.get("max_length") or settings.max_length
        settings.update(**self.generation_config.to_dict(), defaults_only=True)
        settings.update(**options)
        _check_generation(settings, options.get("assistant_model"))
        tokens: Any = options.get("inputs_embeds")
        mask = options.get("attention_mask")
        for ids in (inputs, options.get("input_ids"), torch.zeros(1, 1)):  # of none transformers makes a first token
            tokens = ids if tokens is None else tokens
        is_batch = isinstance(tokens, Tensor) and tokens.dim() > 1
        check_input(is_batch, "inputs", "a tensor, [batch, sequence]", described(tokens))

        given = tokens.shape[1]
        prompt = mask.shape[-1] if isinstance(mask, Tensor) else given
        past = given_cache(options.pop("past_key_values", None), options.pop("cache", None))
        use_cache = settings.use_cache is not False
        if past is not None:
            check_input(use_cache, "use_cache", "True with past_key_values", settings.use_cache)
            check_is_ours(past)
            expected = f"that of all tokens, with the {past.columns} of past_key_values"
            check_input(prompt > past.columns, "attention_mask", expected, prompt)
        elif use_cache or options.get("inputs_embeds") is not None:  # transformers turns it on for these
            past = LinformerCache(self.config)

        new, n = settings.max_new_tokens, self.config.max_position_embeddings
        if new is None:  # transformers counts what is given, which may be without the tokens before
            new = (self.generation_config.max_length or n) - prompt if max_length is None else max_length - given
        check_input(prompt <= n, "sequence length", f"at most max_position_embeddings {n}", prompt)
        expected = f"1 to {n + 1 - prompt} new tokens after the {prompt} of the prompt (max_position_embeddings {n})"
        check_input(0 < new <= n + 1 - prompt, "max_new_tokens, max_length", expected, new)
        # One length: transformers warns of two, and the model has one of its own.
        changed = {"max_length": given + new, "max_new_tokens": None, "cache_implementation": None}
        if generation_config is None:
            options |= changed
        else:
            generation_config = copy.deepcopy(generation_config)
            generation_config.update(**changed)
            options = {name: value for name, value in options.items() if name not in changed}
        return super().generate(inputs, generation_config, **options, **({} if past is None else {CACHE: past}))

    def init_continuous_batching(self, *arguments: Any, **options: Any) -> Any:
        """Refuse `generate_batch`, which has a cache of its own."""
        expected = "None, as the cache has a constant size"
        raise InputError(f"cache_implementation: expected {expected}, got continuous batching")

    def resize_sequence_length(self, seq_len: int, *, mode: ResizeMode = "extend") -> None:
        """As of other models; the longest text to generate changes too, unless it was set."""
        is_own = self.generation_config.max_length == self.longest_sequence
        super().resize_sequence_length(seq_len, mode=mode)
        if is_own:
            self.generation_config.max_length = seq_len


def _check_generation(settings: GenerationConfig, assistant: Any) -> None:
    """Raise an error for ways to generate that this cache does not allow."""
    mode = settings.get_generation_mode(assistant).value
    check_input(mode in _MODES, "generate", f"one of {', '.join(_MODES)}, which take no tokens back", mode)
    expected = "one that can take tokens back"
    check_input(not settings.is_assistant, "assistant_model", expected, LinformerForCausalLM.__name__)
    kind, expected = settings.cache_implementation, "None, as the cache has a constant size"
    check_input(kind in (None, "dynamic"), "cache_implementation", expected, kind)


shift_labels_of(LinformerForCausalLM)
