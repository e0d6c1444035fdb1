"""Registration with transformers' Auto classes, in this process and in others."""

from __future__ import annotations

import subprocess
import sys

import pytest
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

import linformer_kit
from linformer_kit import LinformerConfig, LinformerForMaskedLM
from linformer_kit.linearized.classes import LinearizedConfig

SMALL = "vocab_size=23, hidden_size=6, num_attention_heads=3, intermediate_size=7, num_hidden_layers=1"


def test_the_tables_of_transformers_have_our_classes():
    assert CONFIG_MAPPING["linformer"] is LinformerConfig
    assert CONFIG_MAPPING["linearized"] is LinearizedConfig
    assert LinformerConfig in MODEL_FOR_MASKED_LM_MAPPING
    assert MODEL_FOR_MASKED_LM_MAPPING[LinformerConfig] is LinformerForMaskedLM
    assert LinformerConfig not in MODEL_FOR_CAUSAL_LM_MAPPING
    assert type(AutoModel.from_config(LinformerConfig(**eval(f"dict({SMALL})")))) is linformer_kit.LinformerModel
    with pytest.raises(ValueError, match=r"Unrecognized configuration class .*LinformerConfig"):
        AutoModelForCausalLM.from_config(LinformerConfig(**eval(f"dict({SMALL})")))
    assert AutoModelForMaskedLM._model_mapping is MODEL_FOR_MASKED_LM_MAPPING


def run(code: str) -> subprocess.CompletedProcess[str]:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result


@pytest.mark.e2e
def test_other_processes():
    """A pickle brings the registration with it."""
    result = run(f"""
import pickle, linformer_kit
from transformers import AutoConfig, AutoModel
config = linformer_kit.linearize(AutoModel.from_config(AutoConfig.for_model("bert", {SMALL})), 5).config
print(pickle.dumps((linformer_kit.LinformerConfig({SMALL}), config)).hex())
""")
    code = f"""
import pickle
import transformers
configs = pickle.loads(bytes.fromhex({result.stdout.strip()!r}))
print([type(transformers.AutoModel.from_config(config)).__name__ for config in configs])
"""
    assert run(code).stdout == "['LinformerModel', 'LinearBertModel']\n"
