"""transformers' own tests of models (`ModelTesterMixin` of its source release), run on ours and on linearised BERT.

`pytest -m network tests/upstream` downloads the release of the installed version.
"""

from __future__ import annotations

import importlib
import unittest

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
from linformer_kit.linearized.classes import linear_model_class
from tests.upstream.left_out import LEFT_OUT
from tests.upstream.release import import_folder, source_release

pytestmark = pytest.mark.network

_ABSENT = {"exporters.test_export": "ExportTesterMixin", "generation.test_utils": "GenerationTesterMixin"}
import_folder(source_release("transformers") / "tests", "transformers_tests", _ABSENT)
common = importlib.import_module("transformers_tests.test_modeling_common")


class Tester:
    """Sizes, configuration and inputs, as the mixin asks for them."""

    batch_size, seq_length, vocab_size, slots = 13, 7, 99, 5
    hidden_size, num_hidden_layers, num_attention_heads = 32, 2, 4
    is_training = True
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
            return linearize(BertModel(BertConfig(**self.sizes)), self.slots).config
        return LinformerConfig(projected_dim=self.slots, **self.sizes)

    def prepare_config_and_inputs_for_common(self):
        mask = torch.ones(self.batch_size, self.seq_length, dtype=torch.long)
        mask[0, 3:] = mask[1, :2] = mask[2, 4] = 0
        ids = torch.randint(1, self.vocab_size, mask.shape)
        device = common.torch_device
        return self.get_config(), {"input_ids": ids.to(device), "attention_mask": mask.to(device)}


class _Case(common.ModelTesterMixin):
    linearized = False

    def setUp(self):
        for part, reason in LEFT_OUT.items():
            if self._testMethodName.startswith(part):
                self.skipTest(reason)
        self.model_tester = Tester(self.linearized)

    def _prepare_for_class(self, inputs_dict, model_class, return_labels=False):
        """With labels; the mixin knows them by the names of transformers' own classes."""
        inputs = super()._prepare_for_class(inputs_dict, model_class, return_labels=return_labels)
        if not return_labels:
            return inputs
        one = torch.zeros(self.model_tester.batch_size, dtype=torch.long, device=common.torch_device)
        each = torch.zeros_like(inputs_dict["input_ids"])
        kind = model_class.__name__.rpartition("For")[2]
        labels = {
            "MaskedLM": {"labels": each},
            "TokenClassification": {"labels": each},
            "SequenceClassification": {"labels": one},
            "QuestionAnswering": {"start_positions": one, "end_positions": one},
        }
        return {**inputs, **labels.get(kind, {})}


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
        linear_model_class(kind, type(Tester(linearized=True).get_config()))
        for kind in (BertModel, BertForMaskedLM, BertForSequenceClassification)
    )
