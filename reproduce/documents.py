"""Ways to embed a text that is longer than its encoder's longest input.

The encoder on its first tokens (truncated), the mean over pieces of it, with full attention and repeated positions, by
`linearize` without training (linear), and linear models, such as one with an adapter. All get the same first n tokens
of a text. What is measured (`--tasks`):

- agreement: cosine to the embeddings of `pieces`, which the adapters are taught.
- late_sentence: the text of a sentence is searched, by the position of the sentence; within the encoder's longest
  input it is a control.
- passkey: a number in a repeated text is searched, one document for each of several persons (LongEmbed, Zhu et al.
  2024, arXiv 2404.12096, with sentences of our own).
- cost: time for one text, tokenisation included, and memory.
- passages: passages are searched among those of all texts, embedded separately, and with the text's title in front; a
  query is the title and some words of a passage. (Late chunking, which published results have beside them, found fewer.
  Its code is in the commit that they name.)

    linformer linearize sentence-transformers/all-MiniLM-L6-v2 student --adapter all-MiniLM-L6-v2-4096
    python -m reproduce.documents --teacher sentence-transformers/all-MiniLM-L6-v2 --models student --text_file TEXTS

All of it takes some hours on two cores for MiniLM and 2,000 articles, `--tasks cost` minutes.
"""

from __future__ import annotations

import copy
import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Literal, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from transformers import PreTrainedTokenizerBase

from linformer_cli.cli import set_up_logging
from linformer_cli.errors import InputError, renamed
from linformer_cli.settings.declare import Count, Counts, File, Measurement, ModelName, settings
from linformer_kit.analysis.measure import in_fresh_process, interleaved, peak_bytes, summary
from linformer_kit.data.files import find_files
from linformer_kit.data.read import TextColumns, read_documents, read_inputs
from linformer_kit.inference.embed import Embedder
from linformer_kit.linearized.linearize import linearize
from linformer_kit.models.base import check_positions, longest_input, set_positions
from linformer_kit.report.environment import best_device
from linformer_kit.report.figures import log_ticks, number_ticks, show_grid
from reproduce.common import NAMES, Record, Results, ScriptSettings, by_name, new_panels, run
from reproduce.embeddings import Method, Precision, add_cosines, forward, groups, load, pivot, shown_cosine
from reproduce.long_texts import (
    MOST_PASSKEYS,
    NOISE,
    SEED,
    LongText,
    draw_passkeys,
    draw_sentences,
    draw_texts,
    hide,
    with_tokens,
)

Task = Literal["agreement", "late_sentence", "passkey", "cost", "passages"]
TASKS: dict[Task, str] = {
    "agreement": "Cosine to the embeddings of `pieces`, mean (lowest)",
    "late_sentence": "Late sentence: recall at 1 (at 10) among all texts, by the position of the sentence in tokens",
    "passkey": "Passkey: accuracy at 1",
    "cost": "Milliseconds for one text, median of interleaved runs, and peak memory in MiB beside the model's own",
    "passages": "Passages: recall at 1 (at 10) of queries with the title of the text and words of the passage",
}
BUILT = ("cut", "pieces", "stretched", "linearised")  # methods of the teacher
LINES = 6  # in a panel of the figure
SECONDS = 60.0  # for all timed runs of one method at one length
WORD, WORDS = re.compile(r"[^\W\d_]{5,}"), 5  # of a passage that are in a query, and their number


@settings
class Settings(ScriptSettings):
    """Compare ways to embed long texts."""

    teacher: Measurement[ModelName]
    """Folder or hub id of a sentence embedder; its tokenizer measures lengths."""
    models: Measurement[list[ModelName]] = field(default_factory=list)
    """Folders or hub ids of long encoders to compare with it. Their last parts are their names."""
    text_file: Measurement[list[File] | None] = None
    """Files, folders or globs of texts, for all tasks but passkey and cost."""
    tasks: Measurement[list[Task]] = field(default_factory=lambda: list(TASKS)[:-1])
    """What is measured; passages need tables with a column `title`."""
    lengths: Measurement[Counts] = field(default_factory=lambda: [512, 1024, 2048, 4096])
    """Values of n in tokens, special ones included; passkeys also at half of the least."""
    articles: Measurement[int] = 2000
    """Number of texts that are searched, each longer than the teacher's longest input."""
    queries: Measurement[int] = 200
    """Number of texts of at least the largest n from which queries are drawn, or the most passages."""
    passage: Measurement[Count] = 128
    """Tokens of a passage."""
    candidates: Measurement[int] = 50
    """Number of documents with a passkey, at each n."""
    precision: Measurement[Precision] = "mixed"
    """All in float32 or bfloat16, or mixed: weights in float32, bfloat16 where the processor has it."""
    batch_size: Measurement[Count] = 8
    """Texts or pieces in a forward pass."""


def build_method(name: str, settings: Settings) -> Method:
    """A method of the teacher, or a model.

    Raises:
        InputError: for a teacher that cannot be made longer or linear, and a model that does not take the lengths.
    """
    longest = max(settings.lengths)
    models = by_name(settings.models) if settings.models else {}
    if name in models:
        embedder = load(models[name], settings.precision, settings.batch_size)
        limit = longest_input(embedder.model) or longest
        if limit < longest:
            raise InputError(f"lengths: expected at most {limit:,} (the limit of {name}), got {longest:,}")
        return Method(embedder, limit, settings.precision)
    teacher = load(settings.teacher, settings.precision, settings.batch_size, field="teacher")
    if name in ("cut", "pieces"):
        return Method(teacher, teacher.longest, settings.precision, pieces=name == "pieces")
    length, sentences = max(longest, teacher.longest), copy.deepcopy(teacher.sentences)
    if name == "stretched" and length > teacher.longest:
        with renamed("seq_len", "lengths"):
            check_positions(teacher.model, length, "extend")
        set_positions(sentences[0].model, length, "extend")
    elif name == "linearised":
        with renamed("model", "teacher"):
            sentences = linearize(sentences, max_position_embeddings=length)
    embedder = Embedder(sentences, **forward(settings.precision, settings.batch_size))
    return Method(embedder, length, settings.precision)


class Search(NamedTuple):
    """Queries, documents, and for each query the index of the document to find and where in it the query is from."""

    queries: list[str]
    documents: list[str]
    targets: list[int]
    positions: list[str | None]


class Inputs:
    """All texts of a measurement; the teacher's tokenizer measures lengths.

    Attributes:
        lengths: Values of n by task.
        articles: All texts, for passages each with its title in the first line.
        long: Texts of at least the largest n.
        noise: The text around the passkeys, and of the measurement of time.

    Raises:
        InputError: for texts that cannot be used, and too few long ones.
    """

    def __init__(self, settings: Settings, teacher: Embedder) -> None:
        self._settings, self._tokenizer = settings, teacher.tokenizer
        self._special = teacher.tokenizer.num_special_tokens_to_add(pair=False)
        lengths = sorted(settings.lengths)
        if not lengths or lengths[0] // 2 <= self._special:
            raise InputError(f"lengths: expected one or more above {2 * self._special + 1}, got {settings.lengths}")
        self._longest = lengths[-1]
        self.lengths = dict.fromkeys(TASKS, lengths)
        self.lengths |= dict.fromkeys(("late_sentence", "passages"), lengths[-1:])
        self.lengths["passkey"] = [lengths[0] // 2, *lengths]
        within = min(teacher.longest, self._longest)
        self.articles = self._read(within) if set(settings.tasks) - {"passkey", "cost"} else []
        self.long = [text for text in self.articles if text.tokens >= self._longest - self._special]
        if "agreement" in settings.tasks and not 1 <= settings.queries <= len(self.long):
            enough = f"1 to {len(self.long)} (the searched texts of at least {self._longest:,} tokens)"
            raise InputError(f"queries: expected {enough}, got {settings.queries}")
        if not 1 <= settings.candidates <= MOST_PASSKEYS:
            raise InputError(f"candidates: expected 1 to {MOST_PASSKEYS}, got {settings.candidates}")
        self._edges = [0, within, *(n for n in lengths if n > teacher.longest)]
        repeated = NOISE * (1 + self._longest // len(NOISE.split()))
        self.noise = next(with_tokens([repeated], self._tokenizer, keep=self._longest))

    def _read(self, within: int) -> list[LongText]:
        """Texts of more tokens than the teacher reads."""
        settings, least = self._settings, within - self._special + 1
        files = find_files(settings.text_file or [], field="text_file")
        texts = read_documents(files, document="file", column="text")
        if "passages" in settings.tasks:
            rows = read_inputs(files, TextColumns("text", "title"), document="file")
            texts = (f"{(title or '').strip()}\n{text}" for text, title in rows)
        options = {"least": least, "keep": self._longest, "count": settings.articles}
        return draw_texts(texts, self._tokenizer, **options, field="articles")

    def prefixes(self, texts: Sequence[LongText], n: int) -> list[str]:
        """The first tokens of texts; with special tokens they have n or less."""
        return [text.prefix(n - self._special) for text in texts]

    def search(self, task: str, n: int) -> Search:
        """Queries and documents of a task at a length."""
        if task == "late_sentence":
            return self._late_sentences(n)
        keys = draw_passkeys(self._settings.candidates)
        documents = [hide(key, self.noise, tokens=n - self._special, count=self._count) for key in keys]
        return Search([key.question for key in keys], documents, list(range(len(keys))), [None] * len(keys))

    def _late_sentences(self, n: int) -> Search:
        ranges = list(itertools.pairwise(self._edges))
        within = [(max(0, low - self._special), high - self._special) for low, high in ranges]
        least = self._longest - self._special
        drawn = draw_sentences(self.articles, within, least=least, count=self._settings.queries)
        labels = [f"{low:,}–{high:,}" for low, high in ranges]
        sentences, articles, positions = map(list, zip(*drawn, strict=True))
        return Search(sentences, self.prefixes(self.articles, n), articles, [labels[place] for place in positions])

    def _count(self, sentence: str) -> int:
        """Tokens of a sentence within a text."""
        return len(self._tokenizer(f" {sentence}", add_special_tokens=False, verbose=False)["input_ids"])


def measure(settings: Settings, results: Results) -> None:
    """Add the scores of each method on each task at each length, and its cost; errors come before any measurement."""
    if settings.text_file is None and (needed := set(settings.tasks) - {"passkey", "cost"}):
        raise InputError(f"text_file: expected texts for {', '.join(sorted(needed))}, got none")
    models = by_name(settings.models) if settings.models else {}
    if set(models) & set(BUILT):
        raise InputError(f"models: expected other names than {', '.join(BUILT)}, got {', '.join(models)}")
    teacher = load(settings.teacher, settings.precision, settings.batch_size, field="teacher")
    if not teacher.tokenizer.is_fast:
        raise InputError("teacher: expected a fast tokenizer (tokenizer.json), got a slow one")
    inputs = Inputs(settings, teacher)
    for task in settings.tasks:
        if task in ("late_sentence", "passkey"):
            inputs.search(task, inputs.lengths[task][0])  # raises an error now if sentences are missing or do not fit
    methods = {name: build_method(name, settings) for name in (*BUILT, *models)}
    for task in settings.tasks:
        for n in inputs.lengths[task]:
            if task == "cost":
                (text,) = inputs.prefixes([inputs.noise], n)
                cases = {name: functools.partial(method, [text]) for name, method in methods.items()}
                missing = [name for name in cases if results.find(measured="cost", name=name, n=n) is None]
                timings = interleaved(cases, device=best_device(), seconds=SECONDS) if missing else {}
                torch.cuda.empty_cache()  # the processes that measure memory share the device
                for name in missing:
                    key = {"measured": "cost", "name": name, "n": n, "precision": settings.precision}
                    peak = in_fresh_process(_peak, name, settings, text)
                    results.add(**key, **summary(timings[name]), peak_bytes=peak)
            elif task == "passages":
                _add_passages(settings, results, inputs, methods["cut"], n)
            elif task == "agreement":
                texts = inputs.prefixes(inputs.long[: settings.queries], n)
                add_cosines(results, "agreement", n, texts, methods, reference="pieces")
            else:
                _add_search(results, inputs.search(task, n), methods, task, n)


def _add_search(results: Results, search: Search, methods: dict[str, Method], task: str, n: int) -> None:
    """Add a record for each method, or for each method and position."""
    positions = np.array(search.positions, dtype=object)
    for name, method in methods.items():
        keys = [{"measured": task, "name": name, "n": n, "position": each} for each in dict.fromkeys(positions)]
        if any(results.find(**key) is None for key in keys):
            found = ranks(method(search.queries), method(search.documents), search.targets)
            for key in keys:
                if results.find(**key) is None:
                    results.add(**key, **search_scores(found[positions == key["position"]]))


def _add_passages(settings: Settings, results: Results, inputs: Inputs, method: Method, n: int) -> None:
    texts = inputs.prefixes(inputs.articles, n)
    passages = list(divided(method.embedder.tokenizer, texts, settings.passage))
    targets, queries = queried(passages, settings.queries)
    cases = {
        "separate": [text for _, text in passages],
        "separate, with title": [f"{title}\n{text}" for title, text in passages],
    }
    for name, documents in cases.items():
        key = {"measured": "passages", "name": name, "n": n, "texts": len(texts), "passages": len(passages)}
        if results.find(**key) is None:
            results.add(**key, **search_scores(ranks(method(queries), method(documents), targets)))


def divided(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], size: int) -> Iterator[tuple[str, str]]:
    """Titles, which are the first lines of texts, and texts of all passages of so many tokens."""
    options = {"add_special_tokens": False, "return_offsets_mapping": True, "verbose": False}
    for text in texts:
        offsets = tokenizer(text, **options)["offset_mapping"]
        for start in range(0, len(offsets), size):
            passage = offsets[start : start + size]
            yield text.partition("\n")[0], text[passage[0][0] : passage[-1][1]]


def queried(passages: Sequence[tuple[str, str]], count: int) -> tuple[list[int], list[str]]:
    """Passages at random, at most this number, and for each a query: the title and longer words, in their order."""
    random = np.random.default_rng(SEED)
    targets: list[int] = []
    queries: list[str] = []
    for number in map(int, random.permutation(len(passages))):
        title, text = passages[number]
        words = list(dict.fromkeys(WORD.findall(text)))
        if len(words) >= WORDS and len(targets) < count:
            places = sorted(random.choice(len(words), WORDS, replace=False))
            targets.append(number)
            queries.append(f"{title}: {' '.join(words[place] for place in places)}")
    return targets, queries


def ranks(queries: np.ndarray, documents: np.ndarray, targets: Sequence[int]) -> np.ndarray:
    """Rank of the document to find among all documents by the cosine of embeddings, int `[queries]`; 1: the nearest.

    Other documents with the same cosine count as nearer, so a method that makes documents equal finds none of them.
    `queries` and `documents` are `[·, embed]`, of length 1; `targets` has the index of the document for each query.
    """
    cosine = queries @ documents.T
    own = cosine[np.arange(len(targets)), targets]
    return (cosine >= own[:, None]).sum(axis=1)


def search_scores(found: np.ndarray) -> Record:
    """Recall at 1 and 10 of ranks, int `[queries]`."""
    return {"recall@1": float((found <= 1).mean()), "recall@10": float((found <= 10).mean()), "queries": len(found)}


def _peak(name: str, settings: Settings, text: str) -> int:
    """Peak memory of one method for a text, in addition to the model's own."""
    set_up_logging()
    method = build_method(name, settings)
    method([text])
    return peak_bytes(lambda: method([text]), best_device())


def table(content: Record) -> str:
    """A table for each task."""
    settings = content["settings"]
    parts = [
        "# Embeddings of long texts",
        f"Teacher: {settings['teacher']}; full attention has repeated positions. n is the number of tokens that a "
        "method may read of a text, special tokens included; embeddings are compared by cosine.",
    ]
    for task, title in TASKS.items():
        key = {"agreement": "texts", "cost": "precision"}.get(task, "queries")
        for value, chosen in groups(shown(content), task, key):
            of = f"precision: {value}" if task == "cost" else f"{value} {key}"
            parts += [f"{title} ({of}):", pivot(chosen, "method", _column, CELLS[task])]
            late = [record for record in chosen if record.get("position") and not record["position"].startswith("0–")]
            if late:
                parts += ["All positions but the first together:", pivot(_means(late), "method", _column, _recalls)]
    return "\n\n".join(parts)


def shown(content: Record) -> list[Record]:
    """The records, with the names that readers see."""
    return [
        record | {"name": ", ".join(NAMES.get(part, part) for part in record["name"].split(", "))}
        for record in content["records"]
    ]


def _column(record: Record) -> str:
    return record.get("position") or f"n {record['n']:,}"


def _recalls(record: Record) -> str:
    return f"{record['recall@1']:.1%} ({record['recall@10']:.1%})"


CELLS = {
    "agreement": shown_cosine,
    "late_sentence": _recalls,
    "passkey": lambda record: f"{record['recall@1']:.1%}",
    "passages": _recalls,
    "cost": lambda record: f"{1e3 * record['median_s']:,.0f} ms, {record['peak_bytes'] / 2**20:,.0f} MiB",
}


def _means(records: list[Record]) -> list[Record]:
    """The mean recalls of each method over positions with equally many queries."""
    return [
        {"name": name, "position": "recall at 1 (at 10)"}
        | {recall: float(np.mean([each[recall] for each in records if each["name"] == name])) for recall in RECALLS}
        for name in dict.fromkeys(record["name"] for record in records)
    ]


RECALLS = ("recall@1", "recall@10")
PANELS = {
    "agreement": ("cosine", "cosine to pieces"),
    "late_sentence": ("recall@1", "late sentence: recall at 1"),
    "passkey": ("recall@1", "passkey: accuracy at 1"),
    "cost": ("median_s", "seconds for one text"),
}


def draw(content: Record) -> Figure | None:
    """Quality by n, or by the position of the sentence, and time by n; a line for each method, six at most."""
    found = {task: [record for record in shown(content) if record["measured"] == task] for task in PANELS}
    found = {task: records for task, records in found.items() if records}
    names = list(dict.fromkeys(record["name"] for records in found.values() for record in records))
    if not found:
        return None
    figure, panels = new_panels(len(found), (4.6, 3.4))
    for axes, (task, records) in zip(panels, found.items(), strict=True):
        first = records[0].get("precision")  # one line for each method
        _draw_panel(axes, task, [record for record in records if record.get("precision") == first], names[:LINES])
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize="small")
    return figure


def _draw_panel(axes: Axes, task: str, records: list[Record], names: list[str]) -> None:
    measure, title = PANELS[task]
    columns = list(dict.fromkeys(map(_column, records)))
    for number, name in enumerate(names):
        own = [record for record in records if record["name"] == name]
        points = [(columns.index(_column(record)), record[measure]) for record in own]
        axes.plot(*zip(*sorted(points), strict=True), marker="osD^vP"[number], label=name)
    axes.set_xticks(range(len(columns)), columns, fontsize=8)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("position of the sentence, tokens" if task == "late_sentence" else "tokens read")
    if task == "cost":
        axes.set_yscale("log")
        log_ticks(axes.yaxis)
        number_ticks(axes.yaxis, "g")
    show_grid(axes)


if __name__ == "__main__":
    run(Settings, measure, table, draw)
