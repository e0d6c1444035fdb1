"""Fine-tune a sentence encoder on labelled long texts, in several ways of reading them: accuracy, time and memory.

- truncated (`cut`): the encoder's first tokens (512 for MiniLM).
- pieces: all tokens, in pieces of that length, as `linformer finetune --pieces`.
- full attention (`stretched`): over all tokens at once, positions repeated.
- linear, linear with adapter: all tokens at once with `linearize`, without and with an adapter.
- linear with full layers: without an adapter, some layers keep full attention (`--full_layers`).
- words alone: a regression on words, without the encoder, as `linformer finetune` reports it.

The classifier is that of `linformer finetune`: a linear layer on the mean over all tokens, mixed precision where the
device has bfloat16. Learning rates are chosen for each way by accuracy on validation texts, with the first seed.

- frozen: the logistic regression at which training starts, on the encoder as it is.
- accuracy: all weights are trained from that regression on (Kumar et al. 2022), for all seeds; the best epoch by
  validation texts counts.
- cost: time of an update with the batch of median size and of the longest test text, all ways in turn, and the peak
  memory of such an update.

    python -m reproduce.finetuning --model sentence-transformers/all-MiniLM-L6-v2 \\
      --adapter all-MiniLM-L6-v2-4096 --data reviews

A folder of `data` has train, validation and test, each `.jsonl` with `text` and `label`.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import field
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pandas
import torch
from matplotlib.figure import Figure
from tqdm import tqdm
from transformers import AutoModel, AutoTokenizer

from linformer_cli.errors import InputError, check_input
from linformer_cli.settings import ClassifierSettings, FinetuneSettings
from linformer_cli.settings.declare import Count, Folder, ModelName, Positive, Seed, Training, settings
from linformer_kit.analysis.measure import MODES, Mode, in_fresh_process, interleaved, peak_bytes, summary
from linformer_kit.data.inputs import PieceCollator, labelled_inputs
from linformer_kit.data.labelled import Example, load_labelled
from linformer_kit.data.tokenizer import Encoder
from linformer_kit.inference.baselines import words_alone
from linformer_kit.inference.predict import Classifier
from linformer_kit.inference.scores import answers_of
from linformer_kit.linearized.linearize import linearize
from linformer_kit.models.base import longest_input, set_positions
from linformer_kit.report.environment import device_of, fast_dtype
from linformer_kit.report.figures import show_grid
from linformer_kit.training.finetune import Classification, finetune, load_encoder
from linformer_kit.training.task import to_device
from reproduce.common import NAMES, Record, Results, ScriptSettings, markdown, mean_and_deviation, new_panels, run

Way = Literal["cut", "pieces", "stretched", "linear", "linear with adapter", "linear with full layers"]
WAYS: list[Way] = ["cut", "pieces", "stretched", "linear", "linear with adapter", "linear with full layers"]
Task = Literal["frozen", "accuracy", "cost"]
PARTS = ("train", "validation", "test")
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


def build(settings: Settings, way: Way, folder: Path) -> None:
    """Write an encoder that reads texts in one way; all have the same head, on the mean of all tokens."""
    encoder, tokenizer = AutoModel.from_pretrained(settings.model), AutoTokenizer.from_pretrained(settings.model)
    longest = longest_input(encoder) or settings.n
    longer = max(longest, settings.n)
    if way == "linear with adapter":
        encoder = linearize(encoder, adapter=settings.adapter)
    else:
        if way not in ("cut", "pieces"):
            set_positions(encoder, longer, "extend")
        layers = range(encoder.config.num_hidden_layers)
        full = {"linear": [], "linear with full layers": settings.full_layers}.get(way, [*layers])
        encoder = linearize(encoder, layers=[layer for layer in layers if layer not in full])
    encoder.save_pretrained(folder)
    tokenizer.model_max_length = longest_input(encoder) or settings.n
    tokenizer.save_pretrained(folder)


def settings_of(settings: Settings, way: Way, model: Path, data: Path, **more: Any) -> FinetuneSettings:
    """What all trainings of an encoder on a data set have in common."""
    paths = {part: data / f"{part}.jsonl" for part in PARTS}
    for path in paths.values():
        check_input(path.is_file(), "data", str(path), "no such file")
    return FinetuneSettings(
        model=str(model),
        train_file=[str(paths["train"])],
        validation_file=[str(paths["validation"])],
        max_length=min(settings.n, AutoTokenizer.from_pretrained(model).model_max_length),
        pieces=way == "pieces",
        per_device_train_batch_size=settings.batch_size,
        device=settings.device,
        report_to="none",
        **more,
    )


def train(settings: Settings, way: Way, model: Path, data: Path, rate: float, seed: int) -> Record:
    """Fine-tune once, or at a rate of 0 only fit the regression: its accuracy; `right`: 1 for each right test text.

    An interrupted training is resumed in its folder, which is removed at the end.
    """
    length: Record = {"num_train_epochs": float(settings.epochs)} if rate else {"max_steps": 1}
    common = settings_of(settings, way, model, data, learning_rate=rate, seed=seed, **length)
    folder = model.with_name(f"{way}, {data.name}, {rate:g}, seed {seed}")
    results, _ = finetune(dataclasses.replace(common, output_dir=str(folder), resume=folder.exists()))
    classifier = Classifier(
        ClassifierSettings(model=str(folder), device=settings.device, batch_size=settings.batch_size)
    )
    test, labels = test_texts(data, common), classifier.labels
    logits = classifier([(example.text, None) for example in test]).rows
    shutil.rmtree(folder)
    right = (answers_of(logits, multi_label=False) == labels.targets(test, column="label")).astype(int)
    return {
        "updates": results["updates"],
        "validation_accuracy": results["metrics"]["accuracy"],
        "test_accuracy": right.mean(),
        "right": right.tolist(),
    }


def test_texts(data: Path, settings: FinetuneSettings) -> list[Example]:
    """The test texts of a data set."""
    return load_labelled(dataclasses.replace(settings, validation_file=[str(data / "test.jsonl")])).validation


def words(settings: Settings, data: Path) -> Record:
    """As `train` with a rate of 0, of the words alone, without the encoder."""
    common = settings_of(settings, "cut", Path(settings.model), data)
    texts, test = load_labelled(common), test_texts(data, common)
    found = words_alone(texts.train, test, texts.labels, texts.columns, validation=texts.validation)
    if found is None:
        raise InputError(f"data: expected texts with words in common, got {data}")
    answers, described = found
    right = (answers == texts.labels.targets(test, column="label")).astype(int)
    return {**described, "test_accuracy": right.mean(), "right": right.tolist()}


def case(settings: Settings, way: Way, folder: Path, data: Path, mode: Mode) -> Callable[[], object]:
    """A function for forward and backward of the batch of median size (`train`), or for the longest test text."""
    common = settings_of(settings, way, folder, data)
    texts = load_labelled(common)
    model, tokenizer, *_ = load_encoder(common, texts.labels, seed=0)
    encoder = Encoder(tokenizer, tokenizer.model_max_length, pieces=common.pieces)
    examples = texts.train if mode == "train" else test_texts(data, common)
    items = labelled_inputs(examples, texts.labels, texts.columns, encoder, name="training")
    device = device_of(settings.device)
    task = Classification(
        model.to(device).eval(),
        tokenizer,
        train=items,
        validation=items,
        texts_in_update=settings.batch_size,
        windows_in_pass=settings.batch_size,
        collate=PieceCollator(tokenizer) if common.pieces else None,
        metrics=texts.labels.metrics,
    )
    order = task.order(0, settings.batch_size)
    found = [order[start : start + settings.batch_size] for start in range(0, len(order), settings.batch_size)]
    by_size = sorted(found, key=lambda rows: items.lengths[rows].sum())
    rows = by_size[len(by_size) // 2] if mode == "train" else [int(items.lengths.argmax())]
    batch = to_device(dict(task.collate([items[row] for row in rows])), device)
    mixed = torch.autocast(device.type, torch.bfloat16, enabled=fast_dtype("auto", device) == torch.bfloat16)

    def update() -> None:
        with mixed:
            loss = task(batch, task.labels(batch))
        loss.backward()

    def forward() -> None:
        with mixed, torch.inference_mode():
            task.measure(batch)

    if mode == "train":
        update()  # initialises libraries and allocates gradients
    return update if mode == "train" else forward


def peak_of(settings: Settings, way: Way, folder: Path, data: Path) -> int:
    """Peak bytes of an update beyond weights and gradients."""
    return peak_bytes(case(settings, way, folder, data, "train"), device_of(settings.device))


def measure(settings: Settings, results: Results) -> None:
    """Add a record for each training, and for time and memory of each way."""
    ways = [way for way in settings.ways if way != "linear with adapter" or settings.adapter is not None]
    results.save()  # so that an interrupted first training can be resumed
    folder = results.folder.resolve() / "models"
    models = {way: folder / way for way in ways}
    for way, model in models.items():
        build(settings, way, model)
    for data in map(Path, settings.data):
        described = sizes(settings, data)
        for way in tqdm(ways, desc=data.name):
            add_accuracies(settings, results, way, models[way], data, described)
        key = {"data": data.name, "measured": "frozen", "way": "words alone"}
        if {"frozen", "accuracy"} & {*settings.tasks} and results.find(**key) is None:
            results.add(**key, **described, **words(settings, data))
        add_costs(settings, results, models, data)
    shutil.rmtree(folder, ignore_errors=True)


def add_costs(settings: Settings, results: Results, models: dict[Way, Path], data: Path) -> None:
    """Add a record of time and memory of each way, all ways in turn."""
    key = {"measured": "cost", "data": data.name}
    missing = [way for way in models if "cost" in settings.tasks and results.find(**key, way=way) is None]
    timings = {}
    for mode in MODES:
        cases = {way: case(settings, way, models[way], data, mode) for way in missing}
        timings[mode] = interleaved(cases, device=device_of(settings.device), repetitions=2, seconds=60)
    for way in missing:
        cost = {mode: summary(of_mode[way]) for mode, of_mode in timings.items()}
        results.add(**key, way=way, **cost, peak_bytes=in_fresh_process(peak_of, settings, way, models[way], data))


def sizes(settings: Settings, data: Path) -> Record:
    """The number of classes and of texts of each part, and the median tokens that are read of a training text."""
    common = settings_of(settings, "cut", Path(settings.model), data)
    texts, test = load_labelled(common), test_texts(data, common)
    tokenizer = AutoTokenizer.from_pretrained(settings.model)
    tokens = [len(ids) for ids in tokenizer([each.text for each in texts.train], verbose=False)["input_ids"]]
    counts = {"train": len(texts.train), "validation": len(texts.validation), "test": len(test)}
    return {"classes": len(texts.labels.names), **counts, "tokens": int(np.median(np.minimum(tokens, settings.n)))}


def add_accuracies(settings: Settings, results: Results, way: Way, model: Path, data: Path, described: Record) -> None:
    """Add a record of the encoder as it is; one for each learning rate with the first seed; and one for each other seed
    with the best rate.
    """
    key = {"data": data.name, "way": way}
    first, *others = settings.seeds
    if "frozen" in settings.tasks and results.find(measured="frozen", **key) is None:
        results.add(measured="frozen", **key, **described, **train(settings, way, model, data, 0.0, first))
    if "accuracy" not in settings.tasks:
        return
    validated: dict[float, float] = {}
    for rate, seed in [*((rate, first) for rate in settings.rates), *((None, seed) for seed in others)]:
        rate = rate or max(validated, key=lambda rate: validated[rate])
        run: Record = {"measured": "accuracy", **key, "rate": rate, "seed": seed}
        record = results.find(**run)
        if record is None:
            record = results.add(**run, **described, **train(settings, way, model, data, rate, seed))
        if seed == first:
            validated[rate] = record["validation_accuracy"]


class Measured(NamedTuple):
    """What was measured of one way."""

    way: str
    frozen: Record | None
    runs: pandas.DataFrame  # trainings at the rate that the first seed's validation chose
    cost: Record
    training_s: float

    @property
    def has_both(self) -> bool:
        """Whether cost and accuracy are measured."""
        return self.cost is not NOT_MEASURED and (self.frozen is not None or len(self.runs) > 0)


def chosen(content: Record) -> Iterator[tuple[str, Record | None, list[Measured]]]:
    """Each data set, a record that describes it, if it is not of cost alone, and what was measured of each way."""
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
        described = of_data.dropna(subset="classes").iloc[0].to_dict() if "classes" in of_data else None
        yield str(data), described, ways


def table(content: Record) -> str:
    """Accuracy, time and memory of each way, a table for each data set."""
    settings = content["settings"]
    epochs = "an epoch" if settings["epochs"] == 1 else f"{settings['epochs']} epochs"
    seeds, rates = len(settings["seeds"]), [f"{rate:g}" for rate in settings["rates"]]
    runs = "one seed" if seeds == 1 else f"mean and standard deviation of {seeds} seeds, which order the texts"
    rate = (
        f"learning rate {rates[0]}"
        if len(rates) == 1
        else f"the best learning rate of {', '.join(rates)} by validation texts"
    )
    said = {
        "frozen": "Frozen: a logistic regression on the means of the encoder as it is, and the difference from the "
        "first row with its standard error, by text; words alone: a regression on one and two words (TF-IDF).",
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
        parts.append(f"## {data}")
        if row is not None:
            counts = (
                f"{row['train']:,.0f} training, {row['validation']:,.0f} validation and {row['test']:,.0f} test texts"
            )
            tokens = f"a training text has {row['tokens']:,.0f} tokens (median)"
            parts.append(f"{row['classes']:.0f} classes; {counts}; {tokens}.")
        rows = [{"way": NAMES.get(each.way, each.way)} | cells(each, ways[0]) for each in ways]
        frame = pandas.DataFrame(rows).dropna(axis=1, how="all")
        parts.append(markdown(frame))
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
    groups = [(data, [each for each in ways if each.has_both]) for data, _, ways in chosen(content)]
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
        axes.set_ylabel(f"accuracy on test texts, {'trained' if is_trained else 'frozen'}, %")
        axes.set_xlim(left=0)
        show_grid(axes)
        axes.legend(fontsize=8)
    return figure


if __name__ == "__main__":
    run(Settings, measure, table, draw)
