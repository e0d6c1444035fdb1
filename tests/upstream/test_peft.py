"""PEFT's own tests (`PeftCommonTester` of its source release), run on our model and on a linearised BERT.

`pytest -m network tests/upstream/test_peft.py`.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from types import ModuleType

import pytest
from transformers import AutoModel, BertConfig, BertModel

from linformer_kit import InputError, LinformerConfig, LinformerModel, linearize
from tests.upstream.release import import_folder, source_release

pytestmark = pytest.mark.network

if "diffusers" not in sys.modules:  # imported for tests of image models, which are not run here
    diffusers = ModuleType("diffusers")
    diffusers.StableDiffusionPipeline = type("StableDiffusionPipeline", (), {})
    sys.modules["diffusers"] = diffusers
import_folder(source_release("peft") / "tests", "peft_tests", {})
upstream = importlib.import_module("peft_tests.test_feature_extraction_models")

SIZES = {
    "vocab_size": 1024,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
TARGETS = {"linformer": ["q_proj", "k_proj", "v_proj"], "linearized": ["query", "key", "value"]}
FEEDFORWARD = {"linformer": "fc2", "linearized": "output.dense"}
# Linear attention rejects the past_key_values that this method gives; our encoder has no such argument.
PREFIX = "PrefixTuningConfig"
RUN_THE_MODEL = ("training", "training_prompt_learning_tasks", "inference_safetensors")
# Those that PEFT runs on encoders.
TESTS = (
    "model_attr",
    "adapter_name",
    "prepare_for_training",
    "save_pretrained",
    "save_pretrained_selected_adapters",
    "from_pretrained_config_construction",
    "merge_layers",
    "training",
    "training_prompt_learning_tasks",
    "training_gradient_checkpointing",
    "inference_safetensors",
    "peft_model_device_map",
    "delete_adapter",
    "delete_inactive_adapter",
    "unload_adapter",
    "weighted_combination_of_adapters",
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The two models, saved."""
    made = {kind: tmp_path_factory.mktemp(kind) for kind in TARGETS}
    LinformerModel(LinformerConfig(projected_dim=5, **SIZES)).save_pretrained(made["linformer"])
    linearize(BertModel(BertConfig(**SIZES)), 5).save_pretrained(made["linearized"])
    return made


class Tester(upstream.PeftCommonTester):
    transformers_class = AutoModel

    def prepare_inputs_for_testing(self):
        return upstream.TestPeftFeatureExtractionModel.prepare_inputs_for_testing(self)


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("name", TESTS)
@pytest.mark.parametrize(
    ("config_class", "options"),
    [pytest.param(*case, id=f"{case[0].__name__}-{number}") for number, case in enumerate(upstream.ALL_CONFIGS)],
)
def test_of_peft(kind, name, config_class, options, folders):
    if (kind, config_class.__name__) == ("linformer", PREFIX):
        pytest.skip("gives past_key_values")
    options = dict(options)
    if not issubclass(config_class, upstream.PromptLearningConfig):
        options["target_modules"] = TARGETS[kind]
        if config_class.__name__ == "IA3Config":
            options = {**options, "target_modules": [*TARGETS[kind], FEEDFORWARD[kind]]}
            options["feedforward_modules"] = [FEEDFORWARD[kind]]
    options = upstream.set_init_weights_false(config_class, options)
    rejected = config_class.__name__ == PREFIX and name in RUN_THE_MODEL
    with pytest.raises(InputError, match=r"^past_key_values: ") if rejected else contextlib.nullcontext():
        getattr(Tester(), f"_test_{name}")(str(folders[kind]), config_class, options)
