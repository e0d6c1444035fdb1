"""Every recipe is complete: it parses, its architecture can be built, and its header has all fields."""

from __future__ import annotations

import dataclasses

import pytest

from linformer_cli.parser import RECIPES, parse
from linformer_kit import LinformerConfig


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_is_complete(name):
    settings = parse(["pretrain", "--recipe", name])[1]
    LinformerConfig(**dataclasses.asdict(settings.model))
    header = RECIPES[name].read_text().split("\nmodel:")[0]
    for word in (name, "Hardware:", "Time", "linformer_kit pretrain" if "paper" in name else "linformer pretrain"):
        assert word in header


@pytest.mark.parametrize(("name", "n", "k"), [("paper-base-512", 512, 128), ("paper-base-1024", 1024, 256)])
def test_the_papers_recipes_are_the_papers(name, n, k):
    settings = parse(["pretrain", "--recipe", name])[1]
    model = settings.model
    assert (model.max_position_embeddings, model.projected_dim, settings.max_steps) == (n, k, 250_000)
    assert (model.num_hidden_layers, model.hidden_size, model.num_attention_heads) == (12, 768, 12)
    sequences = settings.per_device_train_batch_size * settings.gradient_accumulation_steps * 64
    assert sequences == 2048
