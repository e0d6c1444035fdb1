"""Means of pieces, against pooling written by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

from linformer_cli.cli import main
from tests.inference.conftest import TEXTS, described, encoded

PROMPT = "the story:"


def embedded(folder, model, output, *options):
    main(["embed", *map(str, (model, folder / "texts.csv", "--out", output, "--batch_size", 3, *options))])
    return np.load(output)


@pytest.mark.parametrize(
    ("option", "prompt", "include", "width"),
    [(("--pieces",), PROMPT, True, None), (("--pieces",), "", True, 13), ((), "", True, 13)],
)
def test_one_piece_is_the_whole_text(folder, tmp_path, prompt, include, option, width):
    """Normalised, and then cut to the width that the folder names, as sentence-transformers does.

    Without a prompt the tokenizer truncates on the left, which changes nothing: whole texts are read.
    """
    config = {"prompts": {"text": prompt}, "default_prompt_name": "text"} if prompt else {}
    config |= {"truncate_dim": width}
    model = described(folder, tmp_path / "model", [Pooling(33, "mean", include_prompt=include), Normalize()], config)
    if not prompt:
        transformers.AutoTokenizer.from_pretrained(model, truncation_side="left").save_pretrained(model)
    vectors, expected = embedded(folder, model, tmp_path / "vectors.npy", *option), encoded(model, TEXTS)
    short = [number for number, text in enumerate(TEXTS) if len(text) < 50]
    np.testing.assert_allclose(vectors[short], expected[short], rtol=0, atol=1e-6)
    assert vectors.shape[1] == (width or 33) and np.allclose(np.linalg.norm(vectors, axis=1), 1) == (width is None)


def test_the_mean_of_pieces(folder, tmp_path):
    """Each with the prompt; weighted by their tokens."""
    config = {"prompts": {"text": PROMPT}, "default_prompt_name": "text"}
    model = described(folder, tmp_path / "model", [Pooling(33, "mean"), Normalize()], config)
    vectors = embedded(folder, model, tmp_path / "vectors.npy", "--pieces", "--max_length", 17)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    prompt = len(tokenizer(PROMPT, add_special_tokens=False)["input_ids"])
    network, room = transformers.AutoModel.from_pretrained(model).eval(), 15 - prompt
    for text, vector in zip(TEXTS, vectors, strict=False):
        first, *own, last = tokenizer(PROMPT + text, verbose=False)["input_ids"]
        before, own = [first, *own[:prompt]], own[prompt:]
        pieces = [own[start : start + room] for start in range(0, len(own), room)]
        with torch.no_grad():
            hidden = [network(torch.tensor([[*before, *piece, last]]))[0][0].mean(dim=0).numpy() for piece in pieces]
        alone = [each / np.linalg.norm(each) for each in hidden]
        mean = np.average(alone, axis=0, weights=[len(piece) for piece in pieces])
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), rtol=0, atol=2e-6)
    assert len(pieces) > 2
