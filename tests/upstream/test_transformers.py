"""transformers' own tests of models (`ModelTesterMixin` of its source release), run on ours and on linearised BERT.

`pytest -m network tests/upstream` downloads the release of the installed version.
"""

from __future__ import annotations

import importlib
import unittest
from unittest import mock

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, BertModel

from linformer_kit import (
    LinformerConfig,
    LinformerForMaskedLM,
    LinformerForQuestionAnswering,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
    LinformerModel,
    linearize,
)
from linformer_kit.linearized import classes
from tests.upstream.release import import_folder, source_release

pytestmark = pytest.mark.network

# What is not run on linearised models, by the beginning of its name, and why.
_ONE_ATTENTION = "asks for eager and for sdpa attention; a linearised model has its own and rejects others by name"

LEFT_OUT = {
    "test_can_set_attention_dynamically": _ONE_ATTENTION,
    "test_eager_matches_sdpa_inference": _ONE_ATTENTION,
    "test_sdpa_can_dispatch_non_composite_models": _ONE_ATTENTION,
}

# These ask for eager attention because sdpa has no weights; ours has, so they are run with it.
EAGER_FOR_WEIGHTS = ("test_attention_outputs", "test_retain_grad_hidden_states_attentions")

_ABSENT = {"exporters.test_export": "ExportTesterMixin", "generation.test_utils": "GenerationTesterMixin"}
import_folder(source_release("transformers") / "tests", "transformers_tests", _ABSENT)
common = importlib.import_module("transformers_tests.test_modeling_common")


class Tester:
    """Sizes, configuration and inputs, as the mixin asks for them."""

    batch_size, seq_length, vocab_size, slots = 13, 7, 99, 5
    hidden_size, num_hidden_layers, num_attention_heads = 32, 2, 4
    is_training = True
    right_padded = False  # gradients of returned states and weights are retained only then
    encoder_seq_length, key_length = seq_length, slots
    sizes = {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "num_hidden_layers": num_hidden_layers,
        "num_attention_heads": num_attention_heads,
        "intermediate_size": 37,
        "max_position_embeddings": 11,
        "pad_token_id": 0,
    }

    def __init__(self, linearized: bool) -> None:
        self.linearized = linearized

    def get_config(self):
        if self.linearized:
            return linearize(BertModel(BertConfig(**self.sizes)), self.slots, sliding_window=0, global_tokens=0).config
        return LinformerConfig(projected_dim=self.slots, **self.sizes)

    def prepare_config_and_inputs_for_common(self):
        mask = torch.ones(self.batch_size, self.seq_length, dtype=torch.long)
        mask[0, 3:] = 0
        if not self.right_padded:
            mask[1, :2] = mask[2, 4] = 0
        ids = torch.randint(1, self.vocab_size, mask.shape)
        device = common.torch_device
        return self.get_config(), {"input_ids": ids.to(device), "attention_mask": mask.to(device)}


# The mixin knows by transformers' own names of classes which labels a model takes, and which take none.
_NAMES = {
    "Model": common.MODEL_MAPPING_NAMES,
    "ForMaskedLM": common.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "ForSequenceClassification": common.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    "ForTokenClassification": common.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    "ForQuestionAnswering": common.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
}


class _Case(common.ModelTesterMixin):
    linearized = False

    def setUp(self):
        self.model_tester = Tester(self.linearized)
        self.model_tester.right_padded = "retain_grad" in self._testMethodName
        for model_class in self.all_model_classes:
            name = model_class.__name__
            (names,) = (names for ending, names in _NAMES.items() if name.endswith(ending))
            patched = mock.patch.dict(names, {name: name})
            patched.start()
            self.addCleanup(patched.stop)


class LinformerTest(_Case, unittest.TestCase):
    all_model_classes = (
        LinformerModel,
        LinformerForMaskedLM,
        LinformerForSequenceClassification,
        LinformerForTokenClassification,
        LinformerForQuestionAnswering,
    )


class LinearizedBertTest(_Case, unittest.TestCase):
    linearized = True
    all_model_classes = tuple(
        classes.linear_model_class(kind, type(Tester(linearized=True).get_config()))
        for kind in (BertModel, BertForMaskedLM, BertForSequenceClassification)
    )

    def setUp(self):
        for beginning, reason in LEFT_OUT.items():
            if self._testMethodName.startswith(beginning):
                self.skipTest(reason)
        super().setUp()
        if self._testMethodName in EAGER_FOR_WEIGHTS:
            patched = mock.patch.object(classes, "_check_implementation")
            patched.start()
            self.addCleanup(patched.stop)


def test_what_is_left_out_exists():
    names = unittest.TestLoader().getTestCaseNames(LinearizedBertTest)
    for beginning in (*LEFT_OUT, *EAGER_FOR_WEIGHTS):
        assert any(name.startswith(beginning) for name in names), beginning
