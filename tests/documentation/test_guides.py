"""Run all commands and code blocks of the README and of each guide, in order."""

from __future__ import annotations

import pytest
from transformers import AutoModel, AutoTokenizer

from tests.conftest import slow_but
from tests.documentation.pages import PAGES, steps

QUICK = ("convert.md", "how-it-works.md", "operator.md", "python.md", "training.md")
GUIDES = [page for page in PAGES if page != "README.md" and steps(page)]

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore:flex_attention called without")]


def test_readme(read):
    read("README.md")
    model, tokenizer = AutoModel.from_pretrained("long-minilm"), AutoTokenizer.from_pretrained("long-minilm")
    assert model.config.model_type == "linearized" and tokenizer.model_max_length == 4096
    assert model(**tokenizer("a " * 1009, return_tensors="pt")).last_hidden_state.isfinite().all()


@pytest.mark.parametrize("page", slow_but(QUICK, GUIDES))
def test_guide(page, read):
    read(page)
