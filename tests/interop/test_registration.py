"""Registration with transformers' Auto classes."""

from __future__ import annotations

import pytest
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

import linformer_kit
from linformer_kit import InputError, LinformerConfig, LinformerForCausalLM, LinformerForMaskedLM
from linformer_kit.linearized.classes import LinearizedConfig

SMALL = {"vocab_size": 23, "hidden_size": 6, "num_attention_heads": 3, "intermediate_size": 7, "num_hidden_layers": 1}


def test_the_tables_of_transformers_have_our_classes():
    assert CONFIG_MAPPING["linformer"] is LinformerConfig
    assert CONFIG_MAPPING["linearized"] is LinearizedConfig
    assert LinformerConfig in MODEL_FOR_MASKED_LM_MAPPING
    assert MODEL_FOR_MASKED_LM_MAPPING[LinformerConfig] is LinformerForMaskedLM
    assert MODEL_FOR_CAUSAL_LM_MAPPING[LinformerConfig] is LinformerForCausalLM
    assert type(AutoModel.from_config(LinformerConfig(**SMALL))) is linformer_kit.LinformerModel
    with pytest.raises(InputError, match=r"^causal: expected True for LinformerForCausalLM, got False$"):
        AutoModelForCausalLM.from_config(LinformerConfig(**SMALL))
    assert AutoModelForMaskedLM._model_mapping is MODEL_FOR_MASKED_LM_MAPPING
