"""Vectors of pieces, against pooling written by hand."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling

from linformer_cli.cli import main
from tests.conftest import fail
from tests.inference.conftest import LONGEST, TEXTS, WORDS, described, encoded

SIZE = 7
PROMPT = "the story:"


def embedded(folder, model, output, *options):
    main(["embed", *map(str, (model, folder / "texts.csv", "--out", output, "--batch_size", 3, *options))])
    return np.load(output)


def pieces_of(output):
    return [json.loads(line) for line in output.with_name(f"{output.name}.pieces.jsonl").read_text().splitlines()]


def states(model, text, prompt):
    """Hidden states of one pass, and the number of its first tokens that are special or of the prompt."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    inputs = tokenizer(prompt + text, truncation=True, max_length=LONGEST, return_tensors="pt")
    with torch.no_grad():
        hidden = transformers.AutoModel.from_pretrained(model).eval()(**inputs).last_hidden_state[0]
    return hidden.numpy(), len(tokenizer(prompt, add_special_tokens=False)["input_ids"]) + 1


@pytest.mark.parametrize(("prompt", "include"), [("", True), (PROMPT, False)])
def test_late_chunking_pools_pieces_of_one_pass(folder, tmp_path, prompt, include):
    config = {"prompts": {"text": PROMPT}, "default_prompt_name": "text"} if prompt else {}
    modules = [Pooling(33, "mean", include_prompt=include), Dense(33, 5), Normalize()]
    torch.manual_seed(0)
    model = described(folder, tmp_path / "model", modules, config)
    vectors = embedded(folder, model, tmp_path / "vectors.npy", "--chunk_tokens", SIZE)
    expected, texts = {}, [*TEXTS, "", "A.b"]
    for row, text in enumerate(texts, start=1):
        hidden, first = states(model, text, prompt)
        if len(hidden) == LONGEST:  # it may be truncated
            continue
        edges = [*range(first, max(first + 1, len(hidden) - 1), SIZE), len(hidden)]
        edges[0] = 0 if include else first
        for start, stop in itertools.pairwise(edges):
            mean = torch.from_numpy(hidden[start:stop].mean(axis=0))
            with torch.no_grad():
                mapped = modules[1]({"sentence_embedding": mean[None].to(modules[1].linear.weight.device)})
            expected.setdefault(row, []).append(
                torch.nn.functional.normalize(mapped["sentence_embedding"].cpu())[0].numpy()
            )
    pieces = pieces_of(tmp_path / "vectors.npy")
    for row, of_text in expected.items():
        own = vectors[[piece["row"] == row for piece in pieces]]
        np.testing.assert_allclose(own, of_text, rtol=0, atol=2e-6)
    assert len(expected) > 15 and len(pieces) == len(vectors) > len(texts)
    shown = [texts[piece["row"] - 1][piece["start"] : piece["end"]] for piece in pieces]
    assert shown[0] == "the" and shown[-2:] == ["", "A.b"] and all(text in TEXTS[1] for text in shown[1:3])


@pytest.mark.parametrize(
    ("option", "prompt", "include", "width"),
    [
        (("--chunk_tokens", 40), f"{PROMPT} ", False, None),
        (("--chunk_tokens", 40), "", True, None),
        (("--pieces",), PROMPT, True, None),
        (("--chunk_tokens", 40), "", True, 13),
        (("--pieces",), "", True, 13),
        ((), "", True, 13),
    ],
)
def test_one_piece_is_the_whole_text(folder, tmp_path, prompt, include, option, width):
    """Normalised, and then cut to the width that the folder names, as sentence-transformers does.

    A prompt's last space becomes a part of the text's first token, which sentence-transformers then does not pool.

    Without a prompt the tokenizer truncates on the left, which changes nothing: whole texts are read.
    """
    config = {"prompts": {"text": prompt}, "default_prompt_name": "text"} if prompt else {}
    config |= {"truncate_dim": width}
    model = described(folder, tmp_path / "model", [Pooling(33, "mean", include_prompt=include), Normalize()], config)
    if not prompt:
        transformers.AutoTokenizer.from_pretrained(model, truncation_side="left").save_pretrained(model)
    vectors, expected = embedded(folder, model, tmp_path / "vectors.npy", *option), encoded(model, TEXTS)
    short = [number for number, text in enumerate(TEXTS) if len(text) < 50]
    if "--chunk_tokens" in option:
        rows = [piece["row"] - 1 for piece in pieces_of(tmp_path / "vectors.npy")]
        vectors = vectors[[rows.index(number) for number in range(len(TEXTS))]]
    np.testing.assert_allclose(vectors[short], expected[short], rtol=0, atol=1e-6)
    assert vectors.shape[1] == (width or 33) and np.allclose(np.linalg.norm(vectors, axis=1), 1) == (width is None)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    ("length", "size", "inputs"),
    [  # first token of each input, and its pieces
        (15, 7, {0: [(0, 7), (7, 14), (14, 15)]}),
        (16, 7, {0: [(0, 7), (7, 14)], 1: [(14, 16)]}),
        (29, 7, {0: [(0, 7), (7, 14)], 14: [(14, 21), (21, 28), (28, 29)]}),
        (32, 7, {0: [(0, 7), (7, 14)], 14: [(14, 21), (21, 28)], 17: [(28, 32)]}),
        (32, 15, {0: [(0, 15)], 15: [(15, 30)], 17: [(30, 32)]}),
    ],
)
def test_a_long_text_is_read_in_several_inputs(folder, tmp_path, side, length, size, inputs):
    """Each has 15 tokens of the text; the last reads back. The tokenizer would truncate on one side."""
    model = described(folder, tmp_path / "model", [Pooling(33, "mean")])
    transformers.AutoTokenizer.from_pretrained(model, truncation_side=side).save_pretrained(model)
    text = " ".join([WORDS[0], *WORDS[1:] * 3][:length])  # a token each
    (tmp_path / "text.jsonl").write_text(json.dumps({"text": text}))
    output = tmp_path / "vectors.npy"
    options = ["--chunk_tokens", size, "--max_length", 17]
    main(["embed", *map(str, (model, tmp_path / "text.jsonl", "--out", output, *options))])
    encoded = transformers.AutoTokenizer.from_pretrained(model)(text, return_offsets_mapping=True, verbose=False)
    first, *own, last = encoded["input_ids"]
    network, expected = transformers.AutoModel.from_pretrained(model).eval(), []
    for begin, pieces in inputs.items():
        with torch.no_grad():
            (hidden,) = network(torch.tensor([[first, *own[begin : begin + 15], last]])).last_hidden_state
        for start, stop in pieces:
            end = len(hidden) if stop == length else stop - begin + 1
            expected.append(hidden[0 if start == 0 else start - begin + 1 : end].mean(dim=0).numpy())
    np.testing.assert_allclose(np.load(output), expected, rtol=0, atol=2e-6)
    offsets = encoded["offset_mapping"][1:-1]
    spans = [(offsets[start][0], offsets[stop - 1][1]) for pieces in inputs.values() for start, stop in pieces]
    assert [(piece["start"], piece["end"]) for piece in pieces_of(output)] == spans


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


def test_rejected(folder, tmp_path, capsys):
    model = described(folder, tmp_path / "model", [Pooling(33, "cls"), Normalize()])
    arguments = ["embed", model, folder / "texts.csv", "--out", tmp_path / "vectors.npy"]
    message = "chunk_tokens: expected a model with mean pooling after its encoder, got ['cls', 'Normalize']"
    assert message in fail(capsys, *arguments, "--chunk_tokens", SIZE)
    model = described(folder, tmp_path / "mean", [Pooling(33, "mean")])
    error = fail(capsys, "embed", model, *arguments[2:], "--chunk_tokens", 16, "--max_length", 17)
    assert "chunk_tokens: expected at most 15, max_length 17 without special tokens and prompt, got 16" in error
    assert not any(tmp_path.glob("vectors*"))
    config = {"prompts": {"text": PROMPT * 9}, "default_prompt_name": "text"}
    model = described(folder, tmp_path / "long", [Pooling(33, "mean")], config)
    arguments[1] = model
    for option in (["--chunk_tokens", SIZE], ["--pieces"]):
        error = fail(capsys, *arguments, *option, "--max_length", 20)
        assert "for prompt and text, got 20" in error
