"""The causal language model, which continues texts.

Axes: batch, seq_len (n), embed (hidden_size), vocab.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from linformer_cli.errors import InputError, check_input
from linformer_cli.settings import IGNORED_LABEL
from linformer_kit.models.cache import LinformerCache, check_is_ours
from linformer_kit.models.heads import LinformerLanguageModel, check_labels_of_tokens
from linformer_kit.operator.conditions import check_tensors, described


class LinformerForCausalLM(LinformerLanguageModel, GenerationMixin):
    """Causal language model: predicts each token from those before it. Its configuration has `causal` True.

    Transformers' Trainer does not shift the labels of models that are not its own, so `label_smoothing_factor` must be
    0 there.
    """

    causal = True
    _is_stateful = True  # so that `generate` refuses assistants, which take tokens back

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
        cache = {"past_key_values": past_key_values, "use_cache": use_cache}
        encoded = self.linformer(*inputs, **cache, **outputs, return_dict=True)
        hidden, loss = encoded.last_hidden_state, None
        check_labels_of_tokens(labels, hidden)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(hidden[:, kept])
        if labels is not None:
            loss = self._loss(logits, F.pad(labels[:, 1:], (0, 1), value=IGNORED_LABEL), num_items_in_batch)
        more = {name: value for name, value in encoded.items() if name != "last_hidden_state"}
        return CausalLMOutputWithPast(loss=loss, logits=logits, **more)

    def init_continuous_batching(self, *arguments: Any, **options: Any) -> Any:
        """Refuse `generate_batch`, and `generate` with cache_implementation "paged"."""
        raise InputError(
            "cache_implementation: expected None, as the cache has a constant size, got continuous batching"
        )

    def _validate_generated_length(
        self, generation_config: GenerationConfig, input_ids_length: int, *arguments: Any
    ) -> None:
        """Also count the new tokens: with a cache, `max_length` may be of a text without the tokens before."""
        super()._validate_generated_length(generation_config, input_ids_length, *arguments)
        generation_config.max_new_tokens = generation_config.max_length - input_ids_length

    def _prepare_cache_for_generation(
        self, generation_config: GenerationConfig, model_kwargs: dict[str, Any], *arguments: Any
    ) -> None:
        """Check what `generate` is asked for, before its first step, and give it a cache.

        Raises:
            InputError: for a text that would become longer than n, another kind of cache, and as an assistant.
        """
        kind, mask = generation_config.cache_implementation, model_kwargs["attention_mask"]
        check_input(kind in (None, "dynamic"), "cache_implementation", "None, as the cache has a constant size", kind)
        expected = "a model that can take tokens back"
        check_input(not generation_config.is_assistant, "assistant_model", expected, type(self).__name__)
        columns = generation_config._mask_length if mask is None else mask.shape[1]
        longest, limit = columns + generation_config.max_new_tokens, self.config.max_position_embeddings
        expected = f"at most {limit + 1} tokens with those of the prompt (max_position_embeddings {limit})"
        check_input(longest <= limit + 1, "max_new_tokens, max_length", expected, longest)
        past, uses = model_kwargs.get("past_key_values"), bool(generation_config.use_cache)
        if past is None:
            model_kwargs |= {"past_key_values": LinformerCache(self.config)} if uses else {}
            return
        check_input(uses, "use_cache", "True with past_key_values", generation_config.use_cache)
        check_is_ours(past)
        expected = f"that of all tokens, with the {past.columns} of past_key_values"
        check_input(columns > past.columns, "attention_mask", expected, columns)
