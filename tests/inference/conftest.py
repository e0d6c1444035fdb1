"""A linear encoder, texts of many lengths, and what sentence-transformers makes of both."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Transformer

import linformer_kit as lk
from tests.conftest import write_bert

LONGEST = 61
WORDS = ["the", "film", "was", "good", "bad", "fine", "poor", "and", "so", "a", "long", "story"]
TEXTS = [" ".join(WORDS[: 1 + (7 * number) % 12] * (1 + number % 9)) for number in range(23)]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The encoder, and files of texts; the table has two more, one of which is blank."""
    folder = tmp_path_factory.mktemp("embed")
    teacher = write_bert(folder / "teacher", " ".join(WORDS), longest=LONGEST)
    lk.linearize(transformers.AutoModel.from_pretrained(teacher), 7).save_pretrained(folder / "model")
    transformers.AutoTokenizer.from_pretrained(teacher).save_pretrained(folder / "model")
    (folder / "texts.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in TEXTS))
    (folder / "texts.csv").write_text("text\n" + "".join(f'"{text}"\n' for text in [*TEXTS, "", "A.b"]))
    return folder


def encoded(model, texts) -> np.ndarray:
    return SentenceTransformer(str(model), device="cpu", local_files_only=True).encode(texts, batch_size=1)


def described(folder, place, modules, config=None) -> Path:
    """The encoder with files of sentence-transformers."""
    config = dict(config or {})
    encoder = Transformer(str(folder / "model"))
    of_encoder = {name: config.pop(name) for name in ("max_seq_length", "do_lower_case") if name in config}
    SentenceTransformer(modules=[encoder, *modules], device="cpu", **config).save(str(place))
    path = place / "sentence_bert_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | of_encoder))
    return place
