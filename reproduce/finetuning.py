"""Fine-tune a sentence encoder on labelled long texts, in several ways of reading them: accuracy, time and memory.

- truncated (`cut`): the encoder's first tokens (512 for MiniLM).
- pieces: all tokens, in sequences of that length.
- full attention (`stretched`): over all tokens at once, positions repeated.
- linear, linear with adapter: all tokens at once with `linearize`, without and with an adapter.
- linear with full layers: without an adapter, some layers keep full attention (`--full_layers`).

The classifier is a linear layer on the mean over all tokens, so `pieces` are pooled before the classifier. Mixed
precision where the device has bfloat16. What is chosen for each way, is chosen by accuracy on validation texts, with
the first seed. Runs of some ways and tasks can be put together.

- frozen: a logistic regression on the means of the encoder as it is; its strength of regularisation is chosen.
- accuracy: all weights are trained without dropout, from that regression on (Kumar et al. 2022), for all seeds; the
  learning rate is chosen.
- cost: time of an update with the batch of median size and of the longest test text, all ways in turn, and the peak
  memory of such an update.

    python -m reproduce.finetuning --model sentence-transformers/all-MiniLM-L6-v2 \\
      --adapter all-MiniLM-L6-v2-4096 --data reviews

A folder of `data` has train, validation and test, each `.jsonl` with `text` and `label`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import pandas
import torch
from matplotlib.figure import Figure
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from tqdm import tqdm
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerBase, get_linear_schedule_with_warmup

from linformer_cli.errors import input_errors
from linformer_cli.settings.declare import Count, Folder, ModelName, Positive, Seed, Training, settings
from linformer_kit.analysis.measure import MODES, Mode, in_fresh_process, interleaved, peak_bytes, summary
from linformer_kit.environment import device_of, fast_dtype
from linformer_kit.linearized.linearize import linearize
from linformer_kit.models.base import longest_input, set_positions
from linformer_kit.report.figures import show_grid
from reproduce.common import NAMES, Record, Results, ScriptSettings, markdown, mean_and_deviation, new_panels, run

Way = Literal["cut", "pieces", "stretched", "linear", "linear with adapter", "linear with full layers"]
WAYS: list[Way] = ["cut", "pieces", "stretched", "linear", "linear with adapter", "linear with full layers"]
Task = Literal["frozen", "accuracy", "cost"]
PARTS = ("train", "validation", "test")
POOL = 16  # batches whose texts are sorted by length
WARM_UP = 0.1  # share of the updates
SMALL = 1e-6  # standard deviation of a mean that means nothing
STRENGTHS = (1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0)  # C of the logistic regression, on means of unit variance
NOT_MEASURED: Record = {**{mode: {"median_s": math.nan} for mode in MODES}, "peak_bytes": math.nan}


@settings
class Settings(ScriptSettings):
    """Fine-tune on long texts, read in several ways."""

    model: Training[ModelName]
    """Folder or hub id of a sentence encoder."""
    data: Training[list[Folder]]
    """Folders of labelled texts; their last parts are their names."""
    adapter: Training[Folder | None] = None
    """Adapter for linear attention, a name, folder or hub id; default: without this way."""
    ways: Training[list[Way]] = field(default_factory=lambda: list(WAYS))
    """Ways of reading a long text."""
    full_layers: Training[list[Seed]] = field(default_factory=lambda: [1, 2, 5])
    """Layers that keep full attention in `linear with full layers`, from 0."""
    tasks: Training[list[Task]] = field(default_factory=lambda: list(get_args(Task)))
    """What is measured."""
    n: Training[Count] = 2048
    """Most tokens of a text."""
    rates: Training[list[Positive]] = field(default_factory=lambda: [1e-4, 3e-4])
    """Learning rates to choose from."""
    seeds: Training[list[Seed]] = field(default_factory=lambda: [0, 1, 2])
    """Seeds of the order of texts."""
    epochs: Training[Count] = 4
    """Passes over the training texts."""
    batch_size: Training[Count] = 16
    """Texts in an update."""
    device: Training[str] = "cpu"
    """Device: `cpu` or `cuda`."""


@dataclass(frozen=True)
class Texts:
    """Tokens, with special ones, and the number of the class of each text."""

    tokens: list[list[int]]
    labels: list[int]


Data = dict[str, Texts]  # by part


class Classifier(nn.Module):
    """An encoder, and a linear layer on the mean of its last hidden states over the tokens of a text.

    A text has at most `limit` tokens, with its last one, which is special. It is one sequence, or if `piece` is given,
    divided into sequences of at most so many tokens.
    """

    def __init__(self, encoder: nn.Module, classes: int, limit: int, piece: int | None = None) -> None:
        super().__init__()
        self.encoder, self.limit, self.piece = encoder, limit, piece
        self.classifier = nn.Linear(encoder.config.hidden_size, classes)  # type: ignore[union-attr, arg-type]

    def forward(self, texts: list[list[int]]) -> Tensor:
        """Logits `[texts, classes]`."""
        return self.classifier(self.means(texts))

    def means(self, texts: list[list[int]]) -> Tensor:
        """Means of the last hidden states over the tokens of each text, `[texts, hidden_size]`."""
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
        return totals / counts[:, None]

    def _pieces(self, tokens: list[int]) -> list[list[int]]:
        """Pieces of about equal length, each with the text's first and last token, which are special."""
        if len(tokens) > self.limit:
            tokens = tokens[: self.limit - 1] + tokens[-1:]
        if self.piece is None or len(tokens) <= self.piece:
            return [tokens]
        body = np.array(tokens[1:-1])
        parts = np.array_split(body, -(-len(body) // (self.piece - 2)))
        return [[tokens[0], *part.tolist(), tokens[-1]] for part in parts]


def build(settings: Settings, way: Way, classes: int) -> Classifier:
    """A classifier that reads texts in one way, without dropout."""
    encoder = AutoModel.from_pretrained(settings.model)
    longest = longest_input(encoder) or settings.n
    longer = max(longest, settings.n)
    if way == "stretched":
        set_positions(encoder, longer, "extend")
    elif way == "linear with adapter":
        encoder = linearize(encoder, adapter=settings.adapter)
    elif way.startswith("linear"):
        full = settings.full_layers if way == "linear with full layers" else []
        layers = [layer for layer in range(encoder.config.num_hidden_layers) if layer not in full]
        encoder = linearize(encoder, layers=layers, max_position_embeddings=longer)
    limit = settings.n if way == "pieces" else min(settings.n, longest_input(encoder) or settings.n)
    classifier = Classifier(encoder, classes, limit, longest if way == "pieces" else None)
    return classifier.to(device_of(settings.device)).eval()


def read(folder: Path, tokenizer: PreTrainedTokenizerBase, n: int) -> tuple[Data, int]:
    """The parts of a data set, and its number of classes."""
    frames = {}
    for part in PARTS:
        with input_errors(f"data: expected {folder / part}.jsonl"):
            frames[part] = pandas.read_json(folder / f"{part}.jsonl", lines=True, dtype=False)
    classes = sorted(set(frames["train"]["label"]))
    return {
        part: Texts(
            tokenizer(frame["text"].tolist(), truncation=True, max_length=n, return_attention_mask=False)["input_ids"],
            [classes.index(label) for label in frame["label"]],
        )
        for part, frame in frames.items()
    }, len(classes)


def batches(texts: Texts, size: int, generator: np.random.Generator) -> Iterator[tuple[list, list[int]]]:
    """Texts in random order, with others of similar length in a batch, and their classes."""
    order = generator.permutation(len(texts.labels))
    pools = [order[start : start + size * POOL] for start in range(0, len(order), size * POOL)]
    by_length = [sorted(pool, key=lambda row: len(texts.tokens[row])) for pool in pools]
    rows = [pool[start : start + size] for pool in by_length for start in range(0, len(pool), size)]
    for number in generator.permutation(len(rows)):
        yield [texts.tokens[row] for row in rows[number]], [texts.labels[row] for row in rows[number]]


def mixed_precision(model: Classifier) -> torch.autocast:
    """bfloat16 where the device has it."""
    device = model.classifier.weight.device
    return torch.autocast(device.type, torch.bfloat16, enabled=fast_dtype("auto", device) == torch.bfloat16)


def gradients(model: Classifier, texts: list[list[int]], labels: list[int]) -> Tensor:
    """Add the gradients of a batch, and return its loss."""
    with mixed_precision(model):
        logits = model(texts)
    loss = nn.functional.cross_entropy(logits.float(), torch.tensor(labels, device=logits.device))
    loss.backward()
    return loss.detach()


def predicted(model: Classifier, texts: list[list[int]]) -> list[int]:
    """The classes of texts."""
    with mixed_precision(model), torch.inference_mode():
        return model(texts).argmax(-1).tolist()


def start_at(model: Classifier, start: Pipeline) -> None:
    """Set the linear layer to a regression on the scaled means, without those that are next to zero in all texts.

    MiniLM has three, by weights of its last LayerNorm that would have infinite gradients.
    """
    scaler, regression = start[0], start[-1]
    weight = np.where(scaler.scale_ > SMALL, regression.coef_ / scaler.scale_, 0.0)
    bias = regression.intercept_ - weight @ scaler.mean_
    if len(weight) == 1:  # of the second class
        weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    with torch.no_grad():
        model.classifier.weight.copy_(torch.from_numpy(weight))
        model.classifier.bias.copy_(torch.from_numpy(bias))


def train(settings: Settings, way: Way, data: Data, start: Pipeline, rate: float, seed: int) -> Record:
    """Train one classifier, which starts as a regression on the means: its accuracy on validation and test texts."""
    model = build(settings, way, len(start.classes_))
    start_at(model, start)
    generator = np.random.default_rng(seed)
    updates = settings.epochs * -(-len(data["train"].labels) // settings.batch_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    schedule = get_linear_schedule_with_warmup(optimizer, round(WARM_UP * updates), updates)
    losses = []
    for _ in range(settings.epochs):
        for texts, labels in batches(data["train"], settings.batch_size, generator):
            losses.append(gradients(model, texts, labels))
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
    record = {"updates": len(losses), "loss": torch.stack(losses[-20:]).mean().item()}
    for part in PARTS[1:]:
        pairs = batches(data[part], settings.batch_size, np.random.default_rng(0))
        right = [np.equal(predicted(model, texts), labels).sum() for texts, labels in pairs]
        record[f"{part}_accuracy"] = float(sum(right)) / len(data[part].labels)
    return record


def frozen(settings: Settings, way: Way, data: Data) -> tuple[Pipeline, Record]:
    """A logistic regression on the means of the encoder as it is, and its accuracy; `right`: 1 for each right text."""
    model = build(settings, way, classes=1)
    means, labels = {}, {}
    for part, texts in data.items():
        pairs = [*batches(texts, settings.batch_size, np.random.default_rng(0))]
        with mixed_precision(model), torch.inference_mode():
            of_batches = [model.means(tokens).float().cpu() for tokens, _ in tqdm(pairs, desc=f"{way}, {part}")]
        means[part] = torch.cat(of_batches).numpy()
        labels[part] = np.concatenate([of_batch for _, of_batch in pairs])
    fitted = [make_pipeline(StandardScaler(), LogisticRegression(C=c, max_iter=1000)) for c in STRENGTHS]
    fitted = [each.fit(means["train"], labels["train"]) for each in fitted]
    accuracies = [each.score(means["validation"], labels["validation"]) for each in fitted]
    best = int(np.argmax(accuracies))
    right = (fitted[best].predict(means["test"]) == labels["test"]).astype(int)
    found = {"validation_accuracy": accuracies[best], "test_accuracy": right.mean(), "right": right.tolist()}
    return fitted[best], {"strength": STRENGTHS[best], **found}


def case(settings: Settings, way: Way, data: Data, mode: Mode) -> Callable[[], object]:
    """A function for forward and backward of the batch of median size (`train`), or for the longest test text."""
    model = build(settings, way, max(data["train"].labels) + 1)
    if mode == "forward":
        return functools.partial(predicted, model, [max(data["test"].tokens, key=len)])
    found = list(batches(data["train"], settings.batch_size, np.random.default_rng(0)))
    texts, labels = sorted(found, key=lambda batch: sum(map(len, batch[0])))[len(found) // 2]
    gradients(model, [texts[0][:64]], labels[:1])  # initialises libraries and allocates gradients
    return functools.partial(gradients, model, texts, labels)


def peak_of(settings: Settings, way: Way, data: Data) -> int:
    """Peak bytes of an update beyond weights and gradients."""
    return peak_bytes(case(settings, way, data, "train"), device_of(settings.device))


def measure(settings: Settings, results: Results) -> None:
    """Add a record for each training, and for time and memory of each way."""
    tokenizer = AutoTokenizer.from_pretrained(settings.model)
    ways = [way for way in settings.ways if way != "linear with adapter" or settings.adapter is not None]
    for folder in map(Path, settings.data):
        data, classes = read(folder, tokenizer, settings.n)
        for way in tqdm(ways, desc=folder.name):
            add_accuracies(settings, results, folder.name, way, data, classes)
        key = {"measured": "cost", "data": folder.name}
        missing = [way for way in ways if "cost" in settings.tasks and results.find(**key, way=way) is None]
        timings = {}
        for mode in MODES:
            cases = {way: case(settings, way, data, mode) for way in missing}
            timings[mode] = interleaved(cases, device=device_of(settings.device), repetitions=2, seconds=60)
        for way in missing:
            cost = {mode: summary(of_mode[way]) for mode, of_mode in timings.items()}
            results.add(**key, way=way, **cost, peak_bytes=in_fresh_process(peak_of, settings, way, data))


def sizes(data: Data, classes: int) -> Record:
    """The number of classes and of texts of each part, and the median tokens of a training text."""
    texts = {part: len(of_part.labels) for part, of_part in data.items()}
    return {"classes": classes, **texts, "tokens": int(np.median([len(tokens) for tokens in data["train"].tokens]))}


def add_accuracies(settings: Settings, results: Results, name: str, way: Way, data: Data, classes: int) -> None:
    """Add a record of the encoder as it is; one for each learning rate with the first seed; and one for each other seed
    with the best rate.
    """
    key, described = {"data": name, "way": way}, sizes(data, classes)
    regression = functools.cache(functools.partial(frozen, settings, way, data))
    if "frozen" in settings.tasks and results.find(measured="frozen", **key) is None:
        results.add(measured="frozen", **key, **described, **regression()[1])
    if "accuracy" not in settings.tasks:
        return
    first, *others = settings.seeds
    validated: dict[float, float] = {}
    for rate, seed in [*((rate, first) for rate in settings.rates), *((None, seed) for seed in others)]:
        rate = rate or max(validated, key=lambda rate: validated[rate])
        run: Record = {"measured": "accuracy", **key, "rate": rate, "seed": seed}
        record = results.find(**run)
        if record is None:
            trained = train(settings, way, data, regression()[0], rate, seed)
            record = results.add(**run, **described, **trained)
        if seed == first:
            validated[rate] = record["validation_accuracy"]


class Measured(NamedTuple):
    """What was measured of one way."""

    way: str
    frozen: Record | None
    runs: pandas.DataFrame  # trainings at the rate that the first seed's validation chose
    cost: Record
    training_s: float


def chosen(content: Record) -> Iterator[tuple[str, Record, list[Measured]]]:
    """Each data set, a record that describes it, and what was measured of each way."""
    seed, records = content["settings"]["seeds"][0], pandas.DataFrame(content["records"])
    for data, of_data in records.groupby("data", sort=False):
        ways = []
        for way, of_way in of_data.groupby("way", sort=False):
            found = {kind: of.dropna(axis=1) for kind, of in of_way.groupby("measured")}
            runs = found.get("accuracy", pandas.DataFrame({"test_accuracy": [], "rate": []}))
            if len(runs):
                first = runs[runs["seed"] == seed].sort_values("rate")
                runs = runs[runs["rate"] == first.loc[first["validation_accuracy"].idxmax(), "rate"]]
            cost, frozen = (found[kind].iloc[0].to_dict() if kind in found else None for kind in ("cost", "frozen"))
            cost = cost or NOT_MEASURED
            training = runs["updates"].iloc[0] * cost["train"]["median_s"] if len(runs) else math.nan
            ways.append(Measured(str(way), frozen, runs, cost, training))
        yield str(data), of_data.dropna(subset="classes").iloc[0].to_dict(), ways


def table(content: Record) -> str:
    """Accuracy, time and memory of each way, a table for each data set."""
    settings = content["settings"]
    epochs = "an epoch" if settings["epochs"] == 1 else f"{settings['epochs']} epochs"
    seeds, rates = len(settings["seeds"]), [f"{rate:g}" for rate in settings["rates"]]
    runs = "one seed" if seeds == 1 else f"mean and standard deviation of {seeds} seeds, which order the texts"
    rate = f"learning rate {rates[0]}" if len(rates) == 1 else f"the learning rate of {rates} by validation texts"
    said = {
        "frozen": "Frozen: a logistic regression on the means of the encoder as it is, and the difference from the "
        "first row with its standard error, by text.",
        "accuracy": f"Trained from there on: {epochs} of batches of {settings['batch_size']} texts; {runs}; {rate}.",
        "cost": "Training: the median time of an update with the batch of median size, times the updates. One text: "
        "the longest test text. Memory: peak of an update beyond weights and gradients.",
    }
    kinds = {record["measured"] for record in content["records"]}
    full = ", ".join(map(str, settings["full_layers"]))
    parts = [
        "# Classes of long texts",
        f"Accuracy on test texts, of which up to {settings['n']:,} tokens are read; full layers: {full}, from 0.",
        *(text for kind, text in said.items() if kind in kinds),
    ]
    for data, row, ways in chosen(content):
        counts = f"{row['train']:,.0f} training, {row['validation']:,.0f} validation and {row['test']:,.0f} test texts"
        of = f"{row['classes']:.0f} classes; {counts}; a training text has {row['tokens']:,.0f} tokens (median)."
        rows = [{"way": NAMES.get(each.way, each.way)} | cells(each, ways[0]) for each in ways]
        frame = pandas.DataFrame(rows).dropna(axis=1, how="all")
        parts.append(f"## {data}\n\n{of}\n\n{markdown(frame)}")
    return "\n\n".join(parts)


def cells(measured: Measured, first: Measured) -> Record:
    """A row of the table; None for what is not measured."""
    row: Record = {}
    if measured.frozen is not None and first.frozen is not None:
        row["frozen, %"] = f"{100 * measured.frozen['test_accuracy']:.1f}"
        more = 100 * np.subtract(measured.frozen["right"], first.frozen["right"])
        error = more.std() / math.sqrt(len(more))
        row["more, %"] = "" if measured is first else f"{more.mean():+.1f} ± {error:.1f}"
    if len(measured.runs):
        row["trained, %"] = mean_and_deviation([100 * x for x in measured.runs["test_accuracy"]], 1)
        row["learning rate"] = f"{measured.runs['rate'].iloc[0]:g}"
        row["training, s"] = f"{measured.training_s:,.0f}"
    if measured.cost is not NOT_MEASURED:
        row["one text, ms"] = f"{1e3 * measured.cost['forward']['median_s']:,.0f}"
        row["memory, MiB"] = f"{measured.cost['peak_bytes'] / 2**20:,.0f}"
    return row


def draw(content: Record) -> Figure | None:
    """Accuracy of each way beside its time, a panel for each data set: trained, if it was, else frozen."""
    groups = [(data, [each for each in ways if each.cost is not NOT_MEASURED]) for data, _, ways in chosen(content)]
    groups = [(data, ways) for data, ways in groups if ways]
    if not groups:
        return None
    figure, panels = new_panels(len(groups), (5.0, 3.8))
    for axes, (data, ways) in zip(panels, groups, strict=True):
        is_trained = all(len(each.runs) for each in ways)
        for marker, each in zip("osD^vP", ways, strict=False):
            of_frozen = pandas.Series([] if each.frozen is None else each.frozen["right"])
            accuracies = each.runs["test_accuracy"] if is_trained else of_frozen
            deviation = accuracies.std() / (1 if is_trained else math.sqrt(len(accuracies)))
            seconds = each.training_s if is_trained else each.cost["forward"]["median_s"]
            label = NAMES.get(each.way, each.way)
            axes.errorbar(seconds, 100 * accuracies.mean(), 100 * deviation, fmt=marker, capsize=3, label=label)
        axes.set(title=data, xlabel="training (s)" if is_trained else "one text of n tokens (s)")
        axes.set_ylabel("accuracy on test texts, %")
        axes.set_xlim(left=0)
        show_grid(axes)
        axes.legend(fontsize=8)
    return figure


if __name__ == "__main__":
    run(Settings, measure, table, draw)
