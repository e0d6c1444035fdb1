"""Registration with transformers' Auto classes: by name, without imports, and without breaking transformers."""

from __future__ import annotations

import importlib.util
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


def run(code: str) -> subprocess.CompletedProcess[str]:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result


def test_the_tables_of_transformers_have_our_classes():
    assert CONFIG_MAPPING["linformer"] is LinformerConfig
    assert CONFIG_MAPPING["linearized"] is LinearizedConfig
    assert importlib.util.find_spec("transformers.models.linformer") is not None
    assert LinformerConfig in MODEL_FOR_MASKED_LM_MAPPING
    assert MODEL_FOR_MASKED_LM_MAPPING[LinformerConfig] is LinformerForMaskedLM
    assert LinformerConfig not in MODEL_FOR_CAUSAL_LM_MAPPING
    assert type(AutoModel.from_config(LinformerConfig(**eval(f"dict({SMALL})")))) is linformer_kit.LinformerModel
    with pytest.raises(ValueError, match=r"Unrecognized configuration class .*LinformerConfig"):
        AutoModelForCausalLM.from_config(LinformerConfig(**eval(f"dict({SMALL})")))
    assert AutoModelForMaskedLM._model_mapping is MODEL_FOR_MASKED_LM_MAPPING


@pytest.mark.e2e
def test_transformers_loads_nothing_of_ours_before_it_is_asked_for():
    """The import of transformers loads what it loads without us, and its tables load no class."""
    code = """
import sys
import {first}transformers
print(sorted(name for name in sys.modules if not name.startswith("linformer_kit")))
from transformers import AutoConfig, AutoTokenizer, AutoModelForMaskedLM
assert {{name for name in sys.modules if name.startswith("linformer_kit.")}} <= {{
    "linformer_kit.interop", "linformer_kit.interop.registration", "linformer_kit._version", "linformer_kit.errors"}}
"""
    alone, after_us = (run(code.format(first=first)).stdout for first in ("", "linformer_kit, "))
    ours = set(eval(after_us)) - set(eval(alone))
    assert "transformers" in eval(alone)
    assert "torch" not in eval(after_us)
    assert not {name for name in ours if name.split(".")[0] not in sys.stdlib_module_names}


@pytest.mark.e2e
def test_a_registration_that_fails_says_so_and_transformers_loads():
    """As where a later transformers has another class of this model type."""
    result = run(f"""
import transformers.models.auto.configuration_auto as tables
tables.CONFIG_MAPPING_NAMES["linformer"] = "OtherConfig"
import linformer_kit
from transformers import AutoConfig, BertConfig
assert type(AutoConfig.for_model("bert")) is BertConfig
assert linformer_kit.LinformerForMaskedLM(linformer_kit.LinformerConfig({SMALL}))
""")
    expected = "model_type linformer: expected an unused name, got that of transformers' OtherConfig"
    assert result.stderr.count("Linformer could not be registered with transformers") == 1
    assert expected in result.stderr


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
