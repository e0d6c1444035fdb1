"""The groups in which `--help` shows settings, and the order of both."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, get_type_hints

# Groups in the order of help; the names of their settings, those needed first at the start. A name counts for all
# commands; CLASS.NAME takes the setting of one class, and of those that inherit it, out of the group of its name.
GROUPS = {
    "Model": """
        model models names methods from_model tokenizer in_place student classification_head
        ConvertSettings.num_attention_heads resize_to resize_mode""",
    "Linear attention": """
        projected_dim max_position_embeddings LinearizeSettings.resize_mode ConvertSettings.resize_mode projection
        sharing sliding_window global_tokens shorter_input projection_initializer layers attention
        local_convolution bias_order elastic_projected_dims""",
    "Adapter": "adapter adapter_rank base_model_name card",
    "Texts": """
        task tasks labelled_task train_file validation_file text text_file data_dir
        dataset_name dataset_config_name split document text_column text_pair_column labelled_text_column label_column
        label_separator packing max_length pieces min_tokens stride seq_len max_tokens samples articles
        queries candidates fit_samples cosine_lengths max_train_samples max_eval_samples
        validation_fraction split_seed streaming cache_dir""",
    "Prediction": "top_k threshold",
    "Export": "int8",
    "Measurement": """
        mode n lengths fact_lengths projected_dims systems baselines reference_length tokens
        InspectSettings.layers heads at repetitions seconds max_seconds memory budget_gib busy_cores
        square copy_mib benchmark seed""",
    "Choice of k": "choose energy budget",
    "Encoder": """
        vocab_size num_hidden_layers hidden_size num_attention_heads
        intermediate_size norm_first hidden_act hidden_dropout_prob attention_probs_dropout_prob classifier_dropout
        linear_initializer initializer_range layer_norm_eps tie_word_embeddings type_vocab_size position_offset
        pad_token_id bos_token_id eos_token_id""",
    "Distillation": """
        layerwise_steps joint_learning_rate_factor temperature""",
    "Training": """
        max_steps num_train_epochs learning_rate learning_rates per_device_train_batch_size gradient_accumulation_steps
        warmup_steps lr_scheduler_type projection_learning_rate_factor
        projection_learning_rate_factors tuning_samples mlm_probability class_weight
        label_smoothing_factor PretrainSettings.seed DistillSettings.seed seeds one_seed weight_decay
        adam_beta1 adam_beta2 adam_epsilon max_grad_norm max_skipped_updates""",
    "Evaluation and checkpoints": """
        eval_steps save_steps per_device_eval_batch_size save_total_limit load_best_model_at_end metric_for_best_model
        early_stopping_patience logging_steps report_to""",
    "Machine and precision": """
        device dtype batch_size processes bf16 fp16 use_cpu torch_compile activation_checkpointing
        fully_shard dataloader_num_workers ddp_timeout full_determinism""",
    "Output": "output_dir out output json resume overwrite",
}
_PLACES = {
    name: (place, group)
    for place, (group, name) in enumerate((group, name) for group, names in GROUPS.items() for name in names.split())
}


class Setting(NamedTuple):
    """A setting of a command: its name, with dots if nested, and the class and field that define it."""

    name: str
    owner: type
    field: dataclasses.Field[Any]
    kind: Any

    @property
    def is_nested(self) -> bool:
        """Whether it holds settings itself."""
        return dataclasses.is_dataclass(self.kind)

    @property
    def place(self) -> tuple[int, str]:
        """Its place among all settings, and its group.

        Raises:
            KeyError: if no group has it.
        """
        for kind in self.owner.__mro__:
            if f"{kind.__name__}.{self.field.name}" in _PLACES:
                return _PLACES[f"{kind.__name__}.{self.field.name}"]
        return _PLACES[self.field.name]


def settings_of(owner: type, prefix: str = "") -> list[Setting]:
    """All settings of a dataclass; nested ones follow the one that they are in."""
    hints = get_type_hints(owner)
    found = []
    for field in dataclasses.fields(owner):
        found.append(Setting(prefix + field.name, owner, field, hints[field.name]))
        if found[-1].is_nested:
            found += settings_of(hints[field.name], f"{prefix}{field.name}.")
    return found
