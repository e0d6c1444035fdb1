"""Ways to embed a long text, against plain computations."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers

from linformer_kit import linearize
from linformer_kit.errors import InputError
from linformer_kit.experiments.quality.encoders import load_unit_embedder
from linformer_kit.experiments.quality.methods import Pieces, build_methods
from linformer_kit.linearized.positions import set_positions
from linformer_kit.settings.documents import DocumentsSettings
from tests.experiments.quality.long_texts import LONGEST, article, write_bert

LENGTH = 127
TEXTS = ["river", *(article(number, sentences) for number, sentences in enumerate((3, 8, 20)))]
TOLERANCE = {"atol": 1e-6, "rtol": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_bert(tmp_path_factory.mktemp("model"))


def settings_of(folder, **options) -> DocumentsSettings:
    return DocumentsSettings(teacher=str(folder), **{"bf16": "false", "batch_size": 3, **options})


def built(folder, name, models=None, **options):
    settings = settings_of(folder, methods=[] if models else [name], **options)
    return build_methods(settings, models or {}, load_unit_embedder(str(folder), settings), LENGTH)[name]


def ids(folder, text: str) -> list[int]:
    return transformers.AutoTokenizer.from_pretrained(folder)(text, add_special_tokens=False, verbose=False)[
        "input_ids"
    ]


def plain(model, folder, tokens: list[int]) -> np.ndarray:
    """The normalised mean of the hidden states of one input."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    batch = torch.tensor([[tokenizer.bos_token_id, *tokens, tokenizer.eos_token_id]])
    with torch.no_grad():
        mean = model.eval()(input_ids=batch)[0][0].mean(dim=0)
    return (mean / mean.norm()).numpy()


def teacher(folder):
    return transformers.AutoModel.from_pretrained(folder)


def test_cut_reads_the_first_tokens(folder):
    method = built(folder, "cut")
    expected = [plain(teacher(folder), folder, ids(folder, text)[: LONGEST - 2]) for text in TEXTS]
    np.testing.assert_allclose(method(TEXTS, "texts"), expected, **TOLERANCE)
    assert (method.reads(LENGTH), method.reads(17)) == (LONGEST, 17)


@pytest.mark.parametrize(("name", "step"), [("pieces", 59), ("pieces_overlapping", 30)])
def test_pieces_are_averaged_by_their_tokens(folder, name, step):
    method = built(folder, name)
    expected = []
    for text in TEXTS:
        tokens = ids(folder, text)
        ends = [min(start + 59, len(tokens)) for start in range(0, len(tokens), step)]
        pieces = [tokens[start : start + 59] for start in range(0, len(tokens), step)][: ends.index(len(tokens)) + 1]
        total = sum(len(piece) * plain(teacher(folder), folder, piece) for piece in pieces)
        expected.append(total / np.linalg.norm(total))
    assert len(pieces) > 2
    np.testing.assert_allclose(method(TEXTS, "texts"), expected, **TOLERANCE)
    assert method.reads(LENGTH) == LENGTH and isinstance(method, Pieces)


@pytest.mark.parametrize("mode", ["interpolate", "extend"])
def test_stretched_has_resized_positions(folder, mode):
    model = teacher(folder)
    set_positions(model, LENGTH, mode)
    expected = [plain(model, folder, ids(folder, text)[: LENGTH - 2]) for text in TEXTS]
    np.testing.assert_allclose(built(folder, "stretched", resize_mode=mode)(TEXTS, "texts"), expected, **TOLERANCE)


def test_linearised_is_what_linearize_makes(folder):
    model = linearize(teacher(folder), max_position_embeddings=LENGTH)
    expected = [plain(model, folder, ids(folder, text)[: LENGTH - 2]) for text in TEXTS]
    np.testing.assert_allclose(built(folder, "linearised")(TEXTS, "texts"), expected, **TOLERANCE)


def test_no_method_changes_another(folder):
    settings = settings_of(folder)
    embedder = load_unit_embedder(str(folder), settings)
    before = copy.deepcopy(embedder.model.state_dict())
    methods = build_methods(settings, {}, embedder, LENGTH)
    assert list(methods) == settings.methods
    torch.testing.assert_close(methods["cut"].embedder.model.state_dict(), before, rtol=0, atol=0)
    assert methods["stretched"].limit == methods["linearised"].limit == LENGTH


def test_a_model_of_the_user_reads_the_length(folder, tmp_path):
    model = linearize(teacher(folder), 7, max_position_embeddings=LENGTH, sliding_window=5)
    model.save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    method = built(folder, "student", {"student": str(tmp_path)})
    expected = [plain(model, folder, ids(folder, text)[: LENGTH - 2]) for text in TEXTS]
    np.testing.assert_allclose(method(TEXTS, "texts"), expected, **TOLERANCE)


def test_a_model_that_is_too_short_is_an_error(folder):
    with pytest.raises(InputError, match=r"lengths: expected at most 61 \(the limit of short\), got 127"):
        built(folder, "short", {"short": str(folder)})
    with pytest.raises(InputError, match="lengths: "):  # not longer, but of a kind that cannot be
        embedder = load_unit_embedder(str(folder), settings_of(folder))
        settings = SimpleNamespace(
            methods=["stretched"], resize_mode="interpolate", batch_size=1, dtype="auto", bf16="false"
        )
        build_methods(settings, {}, embedder, 2**40)
