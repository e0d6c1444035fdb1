"""Vectors of pieces, against pooling written by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

import linformer_kit as lk
from linformer_kit.commands.cli import main
from tests.conftest import fail, write_bert
from tests.inference.test_embed import LONGEST, TEXTS, WORDS, described, encoded

PROMPT = "the story:"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A linear encoder, and a table of texts, one of which is blank."""
    folder = tmp_path_factory.mktemp("chunks")
    teacher = write_bert(folder / "teacher", " ".join(WORDS), longest=LONGEST)
    lk.linearize(transformers.AutoModel.from_pretrained(teacher), 7).save_pretrained(folder / "model")
    transformers.AutoTokenizer.from_pretrained(teacher).save_pretrained(folder / "model")
    (folder / "texts.csv").write_text("text\n" + "".join(f'"{text}"\n' for text in [*TEXTS, "", "A.b"]))
    return folder


def embedded(folder, model, output, *options):
    main(["embed", *map(str, (model, folder / "texts.csv", "--output", output, "--batch_size", 3, *options))])
    return np.load(output)


@pytest.mark.parametrize(("prompt", "include"), [(PROMPT, True), (f"{PROMPT} ", False)])
def test_one_piece_is_the_whole_text(folder, tmp_path, prompt, include):
    """A prompt's last space becomes a part of the text's first token, which sentence-transformers then does not pool."""
    config = {"prompts": {"text": prompt}, "default_prompt_name": "text"} if prompt else {}
    model = described(folder, tmp_path / "model", [Pooling(33, "mean", include_prompt=include), Normalize()], config)
    vectors, expected = embedded(folder, model, tmp_path / "vectors.npy", "--pieces"), encoded(model, TEXTS)
    short = [number for number, text in enumerate(TEXTS) if len(text) < 50]
    np.testing.assert_allclose(vectors[short], expected[short], rtol=0, atol=1e-6)


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


def test_refused(folder, tmp_path, capsys):
    config = {"prompts": {"text": PROMPT * 9}, "default_prompt_name": "text"}
    model = described(folder, tmp_path / "long", [Pooling(33, "mean")], config)
    arguments = ["embed", model, folder / "texts.csv", "--output", tmp_path / "vectors.npy"]
    assert "for prompt and text, got 20" in fail(capsys, *arguments, "--pieces", "--max_length", 20)
    assert not any(tmp_path.glob("vectors*"))
