"""Fine-tune a sentence encoder on labelled long texts, in five ways of reading them; accuracy and seconds.

- truncated (`cut`): the encoder's first tokens (512 for MiniLM).
- pieces: all tokens, in sequences of that length.
- full attention (`stretched`): over all tokens at once, positions repeated.
- linear, linear with adapter: all tokens at once with `linearize`, without and with an adapter.

The classifier is a linear layer on the mean over all tokens, so `pieces` are pooled before the classifier. All weights
are trained, in mixed precision where the device has bfloat16. Each way has its learning rate chosen by accuracy on
validation texts with the first seed; what is shown is accuracy on test texts, at that rate, for all seeds.

    python -m reproduce.finetuning --model sentence-transformers/all-MiniLM-L6-v2 \\
      --adapter all-MiniLM-L6-v2-4096 --data authors films modules

A folder of `data` has train, validation and test, each `.jsonl` or `.jsonl.gz` with `text` and `label`.
Result: benchmarks/finetuning_h100_202611.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import pandas
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from tqdm import tqdm
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerBase, get_linear_schedule_with_warmup

from linformer_cli.errors import InputError
from linformer_cli.settings.declare import Count, Folder, ModelName, Positive, Seed, Training, settings
from linformer_kit.environment import device_of, fast_dtype
from linformer_kit.linearized.linearize import linearize
from linformer_kit.models.base import longest_input, set_positions
from reproduce.common import NAMES, Record, Results, ScriptSettings, markdown, mean_and_deviation, new_panels, run

Way = Literal["cut", "pieces", "stretched", "linear", "linear with adapter"]
WAYS: list[Way] = ["cut", "pieces", "stretched", "linear", "linear with adapter"]
PARTS = ("train", "validation", "test")
POOL = 16  # batches whose texts are sorted by length
WARM_UP = 0.1  # share of the updates


@settings
class Settings(ScriptSettings):
    """Fine-tune on long texts, read in several ways."""

    model: Training[ModelName]  # Folder or hub id of a sentence encoder.
    data: Training[list[Folder]]  # Folders of labelled texts; their last parts are their names.
    # Adapter for linear attention, a name, folder or hub id; default: without this way.
    adapter: Training[Folder | None] = None
    ways: Training[list[Way]] = field(default_factory=lambda: list(WAYS))  # Ways of reading a long text.
    n: Training[Count] = 4096  # Most tokens of a text.
    rates: Training[list[Positive]] = field(default_factory=lambda: [1e-4, 3e-4])  # Learning rates to choose from.
    # Seeds of the classifier's weights and the order of texts.
    seeds: Training[list[Seed]] = field(default_factory=lambda: [0, 1, 2])
    epochs: Training[Count] = 4  # Passes over the training texts.
    batch_size: Training[Count] = 16  # Texts in an update.
    device: Training[str] = "cpu"  # Device: `cpu` or `cuda`.


@dataclass(frozen=True)
class Texts:
    """Tokens, with special ones, and the number of the class of each text."""

    tokens: list[list[int]]
    labels: list[int]


class Classifier(nn.Module):
    """An encoder, and a linear layer on the mean of its last hidden states over the tokens of a text.

    Args:
        encoder: The encoder.
        classes: Number of classes.
        piece: Tokens of a sequence into which texts are divided; None: a text is one sequence.
    """

    def __init__(self, encoder: nn.Module, classes: int, piece: int | None) -> None:
        super().__init__()
        self.encoder, self.piece = encoder, piece
        self.classifier = nn.Linear(encoder.config.hidden_size, classes)  # type: ignore[union-attr, arg-type]

    def forward(self, texts: list[list[int]]) -> Tensor:
        """Logits `[texts, classes]`."""
        device = self.classifier.weight.device
        pieces = [(number, piece) for number, tokens in enumerate(texts) for piece in self._pieces(tokens)]
        ids = nn.utils.rnn.pad_sequence([torch.tensor(piece) for _, piece in pieces], batch_first=True).to(device)
        lengths = torch.tensor([len(piece) for _, piece in pieces], device=device)
        mask = (torch.arange(ids.shape[1], device=device) < lengths[:, None]).long()
        hidden = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        sums = (hidden * mask[..., None]).sum(dim=1, dtype=torch.float32)
        text_of = torch.tensor([number for number, _ in pieces], device=device)
        totals = torch.zeros(len(texts), hidden.shape[-1], device=device).index_add(0, text_of, sums)
        counts = torch.zeros(len(texts), device=device).index_add(0, text_of, lengths.float())
        return self.classifier(totals / counts[:, None])

    def _pieces(self, tokens: list[int]) -> list[list[int]]:
        """Pieces of about equal length, each with the text's first and last token, which are special."""
        if self.piece is None or len(tokens) <= self.piece:
            return [tokens]
        body = np.array(tokens[1:-1])
        parts = np.array_split(body, -(-len(body) // (self.piece - 2)))
        return [[tokens[0], *part.tolist(), tokens[-1]] for part in parts]


def build(settings: Settings, way: Way, classes: int, seed: int, device: torch.device) -> tuple[Classifier, int]:
    """A classifier that reads texts in one way, and the most tokens that it reads."""
    encoder = AutoModel.from_pretrained(settings.model)
    longest, limit = longest_input(encoder) or settings.n, settings.n
    if way == "cut":
        limit = min(limit, longest)
    elif way == "stretched":
        set_positions(encoder, limit, "extend")
    elif way != "pieces":
        encoder = linearize(
            encoder, adapter=settings.adapter if way == "linear with adapter" else None, max_position_embeddings=limit
        )
    torch.manual_seed(seed)
    return Classifier(encoder, classes, longest if way == "pieces" else None).to(device), limit


def read(folder: Path, tokenizer: PreTrainedTokenizerBase, n: int) -> tuple[dict[str, Texts], int]:
    """The parts of a data set, and its number of classes."""
    frames = {}
    for part in PARTS:
        path = next((path for path in (folder / f"{part}.jsonl", folder / f"{part}.jsonl.gz") if path.exists()), None)
        if path is None:
            raise InputError(f"data: expected {folder / part}.jsonl or .jsonl.gz, got neither")
        frames[part] = pandas.read_json(path, lines=True, dtype=False)
    classes = sorted(set(frames["train"]["label"]))
    return {
        part: Texts(
            tokenizer(frame["text"].tolist(), truncation=True, max_length=n, return_attention_mask=False)["input_ids"],
            [classes.index(label) for label in frame["label"]],
        )
        for part, frame in frames.items()
    }, len(classes)


def batches(texts: Texts, size: int, limit: int, generator: np.random.Generator) -> Iterator[tuple[list, list[int]]]:
    """Texts in random order, with others of similar length in a batch, and their classes."""
    order = generator.permutation(len(texts.labels))
    pools = [order[start : start + size * POOL] for start in range(0, len(order), size * POOL)]
    by_length = [sorted(pool, key=lambda row: len(texts.tokens[row])) for pool in pools]
    rows = [pool[start : start + size] for pool in by_length for start in range(0, len(pool), size)]
    for number in generator.permutation(len(rows)):
        yield (
            [texts.tokens[row][: limit - 1] + texts.tokens[row][-1:] for row in rows[number]],
            [texts.labels[row] for row in rows[number]],
        )


def train(settings: Settings, way: Way, data: dict[str, Texts], classes: int, rate: float, seed: int) -> Record:
    """Train one classifier: accuracy on validation and test texts, and seconds of training and of the test."""
    device = device_of(settings.device)
    model, limit = build(settings, way, classes, seed, device)
    generator = np.random.default_rng(seed)
    updates = settings.epochs * -(-len(data["train"].labels) // settings.batch_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    schedule = get_linear_schedule_with_warmup(optimizer, round(WARM_UP * updates), updates)
    mixed = torch.autocast(device.type, torch.bfloat16, enabled=fast_dtype("auto", device) == torch.bfloat16)
    losses = []
    start = time.perf_counter()
    for _ in range(settings.epochs):
        for texts, labels in batches(data["train"], settings.batch_size, limit, generator):
            with mixed:
                logits = model.train()(texts)
            loss = nn.functional.cross_entropy(logits.float(), torch.tensor(labels, device=device))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.detach())
    record = {"updates": len(losses), "loss": torch.stack(losses[-20:]).mean().item()}
    record["train_s"] = time.perf_counter() - start
    for part in PARTS[1:]:
        start, right = time.perf_counter(), 0
        for texts, labels in batches(data[part], settings.batch_size, limit, np.random.default_rng(0)):
            with mixed, torch.inference_mode():
                right += int((model.eval()(texts).argmax(-1) == torch.tensor(labels, device=device)).sum())
        record |= {f"{part}_accuracy": right / len(data[part].labels), f"{part}_s": time.perf_counter() - start}
    return record


def measure(settings: Settings, results: Results) -> None:
    """Add a record for each training."""
    tokenizer = AutoTokenizer.from_pretrained(settings.model)
    for folder in map(Path, settings.data):
        data, classes = read(folder, tokenizer, settings.n)
        described: Record = {"classes": classes, **{part: len(texts.labels) for part, texts in data.items()}}
        described["tokens"] = int(np.median([len(tokens) for tokens in data["train"].tokens]))
        for way in tqdm(settings.ways, desc=folder.name):
            if way == "linear with adapter" and settings.adapter is None:
                continue
            first, *others = settings.seeds
            runs = [(rate, first) for rate in settings.rates] + [(None, seed) for seed in others]
            validated: dict[float, float] = {}
            for rate, seed in runs:
                rate = rate or max(validated, key=lambda rate: validated[rate])
                key = {"data": folder.name, "way": way, "rate": rate, "seed": seed}
                record = results.find(**key)
                if record is None:
                    record = results.add(**key, **described, **train(settings, way, data, classes, rate, seed))
                if seed == first:
                    validated[rate] = record["validation_accuracy"]


def chosen(content: Record) -> pandas.DataFrame:
    """The records at the learning rate that the first seed's validation chose."""
    frame = pandas.DataFrame(content["records"]).replace({"way": NAMES})
    first = frame[frame["seed"] == content["settings"]["seeds"][0]].sort_values("rate")
    best = first.loc[first.groupby(["data", "way"])["validation_accuracy"].idxmax(), ["data", "way", "rate"]]
    return frame.merge(best, on=["data", "way", "rate"])


def table(content: Record) -> str:
    """Accuracy and seconds of each way, a table for each data set."""
    settings, frame = content["settings"], chosen(content)
    parts = [
        f"""# Fine-tuning on long texts

{settings["epochs"]} epochs of batches of {settings["batch_size"]} texts of up to {settings["n"]:,} tokens; mean and
standard deviation of {len(settings["seeds"])} seeds, at the learning rate of {settings["rates"]} that was best on
validation texts. Seconds: of the training, and of the test texts, one process alone on the device."""
    ]
    for data, part in frame.groupby("data", sort=False):
        row = part.iloc[0]
        rows = [
            {
                "way": way,
                "accuracy on test texts, %": mean_and_deviation([100 * x for x in records["test_accuracy"]], 1),
                "learning rate": f"{records['rate'].iloc[0]:g}",
                "training, s": f"{records['train_s'].median():,.1f}",
                "test, s": f"{records['test_s'].median():,.2f}",
            }
            for way, records in part.groupby("way", sort=False)
        ]
        counts = f"{row['train']:,} training, {row['validation']:,} validation and {row['test']:,} test texts"
        described = f"{row['classes']} classes; {counts}; a training text has {row['tokens']:,} tokens (median)."
        parts.append(f"## {data}\n\n{described}\n\n{markdown(pandas.DataFrame(rows))}")
    return "\n\n".join(parts)


def draw(content: Record) -> Figure:
    """Accuracy of each way beside its seconds of training, a panel for each data set; a point for each seed."""
    groups = list(chosen(content).groupby("data", sort=False))
    figure, panels = new_panels(len(groups), (5.0, 3.8))
    for axes, (data, part) in zip(panels, groups, strict=True):
        for way, records in part.groupby("way", sort=False):
            axes.plot(records["train_s"], 100 * records["test_accuracy"], "o", label=way)
        axes.set_title(str(data))
        axes.set_xlabel("training, s")
        axes.set_ylabel("accuracy on test texts, %")
        axes.set_xlim(left=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    return figure


if __name__ == "__main__":
    run(Settings, measure, table, draw)
