"""The texts of `linformer bench documents`: what each task searches or classifies at each length."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from linformer_kit.data.documents import read_documents
from linformer_kit.data.examples import Columns, Example
from linformer_kit.data.files import find_files
from linformer_kit.data.labelled import LabelledTexts, load_labelled, sample
from linformer_kit.experiments.experiment import require
from linformer_kit.experiments.quality.document_tasks import (
    NOISE,
    Fact,
    Search,
    Sentence,
    draw_facts,
    draw_sentences,
    hide,
    split_in_halves,
)
from linformer_kit.experiments.quality.long_texts import LongText, draw_texts, with_tokens
from linformer_kit.settings import FinetuneSettings
from linformer_kit.settings.documents import DocumentsSettings

Labelled = tuple[list[LongText], list[Any]]  # texts and the class of each

FACT_TASKS = ("passkey", "needle")


@dataclass(frozen=True)
class Inputs:
    """All texts of a measurement.

    Attributes:
        tokenizer: The tokenizer that measures lengths.
        ranges: First token of each position of late_sentence and the token after its last, special ones included.
        noise: Text around the passkeys, and of the measurement of time.
        articles: Texts that are searched.
        sentences: Queries of late_sentence.
        halves: Halves of texts for same_document.
        long: Texts for agreement.
        haystacks: Texts around the needles.
        facts: Hidden facts by task.
        train: Labelled training texts.
        validation: Labelled validation texts.
    """

    tokenizer: PreTrainedTokenizerBase
    ranges: list[tuple[int, int]]
    noise: LongText
    articles: list[LongText]
    sentences: list[Sentence]
    halves: list[tuple[LongText, LongText]]
    long: list[LongText]
    haystacks: list[LongText]
    facts: dict[str, list[Fact]]
    train: Labelled
    validation: Labelled

    @property
    def special(self) -> int:
        """Special tokens in each input, which lengths include."""
        return self.tokenizer.num_special_tokens_to_add(pair=False)

    def prefixes(self, texts: Sequence[LongText], length: int) -> list[str]:
        """The first tokens of texts; with special tokens they have this length or less."""
        return [text.prefix(length - self.special) for text in texts]

    def search(self, task: str, length: int) -> Search:
        """Queries and documents of a task at a length."""
        if task == "late_sentence":
            targets = [sentence.document for sentence in self.sentences]
            return Search([sentence.text for sentence in self.sentences], self.prefixes(self.articles, length), targets)
        if task == "same_document":
            first, second = (self.prefixes(side, length) for side in zip(*self.halves, strict=True))
            return Search(first, second, list(range(len(first))))
        facts = self.facts[task]
        around = [self.noise] if task == "passkey" else self.haystacks
        documents = [
            hide(fact, around[index % len(around)], tokens=length - self.special, count=self._count)
            for index, fact in enumerate(facts)
        ]
        return Search([fact.question for fact in facts], documents, list(range(len(facts))))

    def _count(self, sentence: str) -> int:
        """Tokens of a sentence within a text."""
        return len(self.tokenizer(f" {sentence}", add_special_tokens=False, verbose=False)["input_ids"])

    def fingerprint(self) -> str:
        """Hexadecimal hash of all texts, queries and classes."""
        content = hashlib.sha256(repr((self.ranges, self.sentences, self.facts)).encode())
        labelled = [text for side in (self.train, self.validation) for text in side[0]]
        halves = [half for halves in self.halves for half in halves]
        for text in (*self.articles, *halves, *self.long, *self.haystacks, *labelled):
            content.update(text.text.encode())
        content.update(repr((self.train[1], self.validation[1])).encode())
        return content.hexdigest()


def read_inputs(settings: DocumentsSettings, tasks: Sequence[str], tokenizer: Any, cut: int) -> Inputs:
    """Read all texts and draw all queries.

    Args:
        settings: Sources of texts, numbers and seed.
        tasks: Tasks to prepare.
        tokenizer: A fast tokenizer, which measures lengths.
        cut: Longest input of the teacher in tokens.

    Raises:
        InputError: for texts that cannot be used, and too few long ones.
    """
    longest = longest_length(settings, tasks)
    special = tokenizer.num_special_tokens_to_add(pair=False)
    ranges = token_ranges(cut, settings.lengths)
    articles: list[LongText] = []
    if {"agreement", "late_sentence", "needle", "same_document"} & set(tasks):
        articles = _articles(settings, tokenizer, least=min(cut, longest) - special + 1, keep=2 * longest)
    least = longest - special
    sentences: list[Sentence] = []
    if "late_sentence" in tasks:
        within = [(max(0, low - special), high - special) for low, high in ranges]
        sentences = draw_sentences(articles, within, least=least, count=settings.queries, seed=settings.seed)
    long = [text for text in articles if text.tokens >= least]
    enough = f"at most {len(long)} (the searched texts of at least {least:,} tokens)"
    if {"agreement", "same_document"} & set(tasks):
        require(len(long) >= settings.queries, "queries", enough, settings.queries)
    if "needle" in tasks:
        require(len(long) >= settings.candidates, "candidates", enough, settings.candidates)
    facts = {task: draw_facts(task, settings.candidates, seed=settings.seed) for task in FACT_TASKS if task in tasks}
    train, validation = _labelled(settings, tokenizer) if "classification" in tasks else (([], []), ([], []))
    return Inputs(
        tokenizer=tokenizer,
        ranges=ranges,
        noise=_noise(tokenizer, longest),
        articles=articles if "late_sentence" in tasks else [],
        sentences=sentences,
        halves=[split_in_halves(text) for text in long[: settings.queries]] if "same_document" in tasks else [],
        long=long[: settings.queries] if "agreement" in tasks else [],
        haystacks=long[: settings.candidates] if "needle" in tasks else [],
        facts=facts,
        train=train,
        validation=validation,
    )


def longest_length(settings: DocumentsSettings, tasks: Sequence[str]) -> int:
    """The largest length in tokens of all tasks."""
    return max([*settings.lengths, *(settings.fact_lengths if set(tasks) & set(FACT_TASKS) else [])])


def token_ranges(cut: int, lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Positions of late_sentence: the teacher's longest input, then the ranges between the lengths above it."""
    longest = max(lengths)
    edges = [0, min(cut, longest), *sorted({length for length in lengths if length > cut})]
    return list(itertools.pairwise(edges))


def _noise(tokenizer: PreTrainedTokenizerBase, tokens: int) -> LongText:
    repeated = NOISE * (1 + tokens // len(NOISE.split()))
    return with_tokens([repeated], tokenizer, keep=tokens)[0]


def _articles(settings: DocumentsSettings, tokenizer: Any, *, least: int, keep: int) -> list[LongText]:
    """Texts that are searched."""
    paths = find_files(settings.text_file or [], field="text_file")
    texts = read_documents(paths, document="auto", column=settings.text_column)
    drawn = draw_texts(texts, tokenizer, least=least, keep=keep, count=settings.articles, seed=settings.seed)
    enough = f"at most {len(drawn)} (the different texts of at least {least:,} tokens)"
    require(len(drawn) >= settings.articles, "articles", enough, settings.articles)
    return drawn


def _labelled(settings: DocumentsSettings, tokenizer: Any) -> tuple[Labelled, Labelled]:
    """Training and validation texts of classification."""
    found = load_labelled(
        FinetuneSettings(
            model="",
            task=settings.labelled_task,
            data_dir=settings.data_dir,
            train_file=settings.train_file,
            validation_file=settings.validation_file,
            text_column=settings.labelled_text_column,
            label_column=settings.label_column,
        )
    )
    pairs = found.columns.text_pair is not None
    require(not pairs, "labelled_task", "a task with single texts", settings.labelled_task or "pairs")
    require(not found.labels.multi_label, "label_column", "one class for each text", "lists of classes")
    train = _long_examples(settings, tokenizer, found.train, "max_train_samples", found)
    validation = _long_examples(settings, tokenizer, found.validation, "max_eval_samples", found)
    require(
        len(set(train[1])) > 1,
        "min_tokens, max_train_samples",
        "training texts of two or more classes",
        f"{len(train[0])} texts",
    )
    return train, validation


def _long_examples(
    settings: DocumentsSettings, tokenizer: Any, examples: list[Example], limit: str, found: LabelledTexts
) -> Labelled:
    """A random sample of the texts of more than `min_tokens` tokens, and their classes."""
    keep = max([*settings.lengths, settings.min_tokens or 0]) + 1
    if settings.min_tokens is not None:
        texts = with_tokens([example.text for example in examples], tokenizer, keep=keep)
        long = [text.tokens > settings.min_tokens for text in texts]
        examples = [example for example, is_long in zip(examples, long, strict=True) if is_long]
    require(bool(examples), "min_tokens", "texts of more tokens", f"none of more than {settings.min_tokens}")
    examples = sample(examples, getattr(settings, limit), name=limit, seed=settings.seed)
    columns: Columns = found.columns
    texts = with_tokens([example.text for example in examples], tokenizer, keep=keep)
    return texts, [found.labels.target(example, column=columns.label) for example in examples]
