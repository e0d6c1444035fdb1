"""A small masked language model of transformers, linear."""

from __future__ import annotations

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

from tests.conftest import as_in_the_paper
from tests.families import FAMILIES


@pytest.fixture
def model():
    torch.manual_seed(0)
    return as_in_the_paper(BertForMaskedLM(BertConfig(**FAMILIES["bert"].sizes)).eval(), 7)
