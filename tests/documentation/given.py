"""Files that the pages assume: texts, tables, and encoders under their names on the hub, all tiny."""

from __future__ import annotations

import json
import random
import shutil
import sysconfig
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pyarrow
import pyarrow.parquet
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer

from linformer_kit import LinformerConfig, LinformerForMaskedLM
from linformer_kit.data.tokenizer import train_tokenizer
from tests.documentation.pages import ROOT
from tests.reference import fairseq_linformer

# As of the encoders that they stand for: the pages' numbers of slots and lengths fit them.
LENGTH = 512
_SIZES = {"hidden_size": 24, "num_attention_heads": 12, "num_hidden_layers": 2, "intermediate_size": 29}
_SENTENCE = "the film was good bad fine poor and so a long story of two men who met in an old town by the sea"
_WORDS = _SENTENCE.split()
# Modules of Python that stand for its whole library.
_MODULES = "argparse ast bisect calendar colorsys copy csv dis enum fnmatch glob heapq".split()  # noqa: SIM905


def texts(count: int, words: int, seed: int = 0) -> list[str]:
    """Documents of sentences, no two alike."""
    draw = random.Random(seed)
    sentences = [" ".join(draw.choices(_WORDS, k=11)).capitalize() + "." for _ in range(count * words // 11 + 1)]
    each = len(sentences) // count
    return [" ".join(sentences[number * each : (number + 1) * each]) for number in range(count)]


def write_library(folder: Path) -> Path:
    """A few modules of Python's own library."""
    folder.mkdir()
    for name in _MODULES:
        shutil.copy(Path(sysconfig.get_path("stdlib")) / f"{name}.py", folder)
    return folder


def _text_files(folder: Path) -> None:
    folder.mkdir(parents=True)
    for number, text in enumerate(texts(31, 701, seed=len(folder.name))):
        (folder / f"{number}.txt").write_text(text)


def _articles(folder: Path) -> None:
    _text_files(folder / "A")
    _articles_in_lines(folder / "A" / "more.jsonl")


def _articles_in_lines(path: Path) -> None:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts(31, 331, seed=1)))


def _book(path: Path) -> None:
    path.write_text("\n".join(texts(31, 701)))


def _parquet(path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"body": texts(31, 331)}), path)


def _reviews(path: Path) -> None:
    rows = (f"{text},{('bad', 'good')[number % 2]}" for number, text in enumerate(texts(41, 23, seed=len(path.name))))
    path.write_text("text,label\n" + "".join(f"{row}\n" for row in rows))


def _tokenizer() -> transformers.PreTrainedTokenizerFast:
    return train_tokenizer([*texts(5, 331), *_WORDS] * 3, vocab_size=331, max_length=LENGTH)


def _encoder(class_name: str, **fields: object) -> Callable[[Path], None]:
    """A function that writes an untrained encoder of a class of transformers, with a tokenizer."""

    def write(folder: Path) -> None:
        tokenizer = _tokenizer()
        bert = class_name.startswith("Bert")
        if bert:
            tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
        tokens = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos")}
        positions = LENGTH if bert else LENGTH + tokenizer.pad_token_id + 1
        model_class = getattr(transformers, class_name)
        sizes = {**_SIZES, "vocab_size": len(tokenizer), "max_position_embeddings": positions, **tokens, **fields}
        torch.manual_seed(0)
        model_class(model_class.config_class(**sizes)).save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    return write


def _minilm(folder: Path) -> None:
    _encoder("BertModel")(folder)
    SentenceTransformer(modules=[Transformer(str(folder)), Pooling(_SIZES["hidden_size"])]).save(str(folder))


def _fairseq(path: Path) -> None:
    with mock.patch.object(fairseq_linformer, "VOCAB", len(_tokenizer())):
        torch.save(fairseq_linformer.checkpoint("headwise"), path)


def _linformer(folder: Path, **fields: object) -> None:
    """The model that an earlier page pretrains."""
    tokenizer = _tokenizer()
    sizes = {**_SIZES, "vocab_size": len(tokenizer), "max_position_embeddings": LENGTH, "projected_dim": LENGTH // 4}
    torch.manual_seed(0)
    LinformerForMaskedLM(LinformerConfig(**sizes, **fields)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _classifier(folder: Path) -> None:
    """The model that an earlier page fine-tunes."""
    _encoder("RobertaForSequenceClassification", id2label={0: "bad", 1: "good"}, label2id={"bad": 0, "good": 1})(folder)


def _images(path: Path) -> None:
    script = (ROOT / "examples" / path.name).read_text(encoding="utf-8")
    for long, short in (("EPOCHS = (0, 1, 2), 60", "EPOCHS = (0,), 1"), ("(224, 512)", "(144,)")):
        assert long in script
        script = script.replace(long, short)
    path.write_text(script, encoding="utf-8")


_WRITERS: dict[str, Callable[[Path], None]] = {
    "FacebookAI/roberta-base": _encoder("RobertaForMaskedLM", type_vocab_size=1),
    "answerdotai/ModernBERT-base": _encoder(
        "ModernBertForMaskedLM", cls_token_id=0, sep_token_id=2, local_attention=8, layer_types=None
    ),
    "distilbert/distilroberta-base": _encoder("RobertaForMaskedLM", type_vocab_size=1),
    "sentence-transformers/all-MiniLM-L6-v2": _minilm,
    "linformer_roberta_base.pt": _fairseq,
    "my-model": _linformer,
    "my-classifier": _classifier,
    "articles": _articles,
    "articles.jsonl": _articles_in_lines,
    "books": _text_files,
    "notes": _text_files,
    "book.txt": _book,
    "corpus.parquet": _parquet,
    "docstrings.csv": _reviews,
    "reviews.csv": _reviews,
    "more-reviews.csv": _reviews,
    "new-reviews.csv": _reviews,
    "examples/images.py": _images,
}


def write(names: tuple[str, ...], folder: Path) -> None:
    """Write the named files into a folder, in order."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        _WRITERS[name](folder / name)
