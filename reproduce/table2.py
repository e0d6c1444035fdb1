"""Table 2 of the paper: encoders fine-tuned on SST-2, IMDB, QNLI and QQP.

The paper: Linformers of base size are about as accurate as RoBERTa-base, at most a point apart.
Here: are they as accurate as the first model, and more accurate than a logistic regression on the words alone?
Learning rates are tried for all models alike with the first seed; the best is trained with all seeds. Models that have
E and F (or W_P) also try the learning rates of these.

    python -m reproduce.table2 --models transformer linformer --seeds 1 2 3 --learning_rates 3e-4 1e-3

With all texts an encoder of 4 layers, 128 wide, takes minutes for each training on two cores, MiniLM an hour; a GPU is
used if there is one. `--max_train_samples 64 --max_eval_samples 64` shows in minutes what comes out.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pandas
from matplotlib.figure import Figure
from scipy.stats import binomtest

from linformer_cli.errors import DivergedError, InputError
from linformer_cli.settings import FinetuneSettings
from linformer_cli.settings.declare import Amount, Count, ModelName, Positive, Seed, Training, settings
from linformer_kit.data.files import cache_folder
from linformer_kit.data.labelled import Example, LabelledTexts, load_labelled
from linformer_kit.data.read import load_hub
from linformer_kit.files.writing import whole_file
from linformer_kit.inference.baselines import words_alone
from linformer_kit.models.base import projection_parameters
from linformer_kit.report.base import shortened
from linformer_kit.report.figures import new_figure, show_grid
from linformer_kit.training.finetune import finetune, load_encoder
from linformer_kit.training.process import keep_freed_memory
from reproduce.common import Record, Results, ScriptSettings, by_name, markdown, mean_and_deviation, run

TaskName = Literal["sst2", "imdb", "qnli", "qqp"]


class Task(NamedTuple):
    """A task of section 5.2 of the paper, from the hub; the classes of all are 0 and 1."""

    title: str
    data_set: tuple[str, str | None]  # name and configuration
    text_column: str
    text_pair_column: str | None = None
    validation: str = "validation"  # the split with known classes


TASKS: dict[TaskName, Task] = {
    "sst2": Task("SST-2", ("nyu-mll/glue", "sst2"), "sentence"),
    "imdb": Task("IMDB", ("stanfordnlp/imdb", None), "text", validation="test"),
    "qnli": Task("QNLI", ("nyu-mll/glue", "qnli"), "question", "sentence"),
    "qqp": Task("QQP", ("nyu-mll/glue", "qqp"), "question1", "question2"),
}

WORDS = {False: "words alone", True: "words, shared ones marked"}  # logistic regressions
_WORD = re.compile(r"\w+")
_OF_TRAININGS = ("max_train_samples", "max_eval_samples", "num_train_epochs", "per_device_train_batch_size")
LEAST_POINTS = 2.0  # width of a panel of the figure, so that a small difference does not look large

# Table 2 of Wang et al. 2020: accuracy in percent on SST-2, IMDB, QNLI and QQP, by n and model.
PAPER = {
    (512, "RoBERTa-base"): (93.1, 94.1, 90.9, 90.9),
    (512, "Linformer, 128"): (92.4, 94.0, 90.4, 90.2),
    (512, "Linformer, 128, shared kv"): (93.4, 93.4, 90.3, 90.3),
    (512, "Linformer, 128, shared kv, layer"): (93.2, 93.8, 90.1, 90.2),
    (512, "Linformer, 256"): (93.2, 94.0, 90.6, 90.5),
    (512, "Linformer, 256, shared kv"): (93.3, 93.6, 90.6, 90.6),
    (512, "Linformer, 256, shared kv, layer"): (93.1, 94.1, 91.2, 90.8),
    (512, "BERT-base"): (92.7, 93.5, 91.8, 89.6),
    (512, "Distilled BERT"): (91.3, 92.8, 89.2, 88.5),
    (1024, "Linformer, 256"): (93.0, 93.8, 90.4, 90.4),
    (1024, "Linformer, 256, shared kv"): (93.0, 93.6, 90.3, 90.4),
    (1024, "Linformer, 256, shared kv, layer"): (93.2, 94.2, 90.8, 90.5),
}

Rates = tuple[float, float]  # learning rate, and that of E and F as a multiple of it
Chosen = dict[str, dict[str, list[Record]]]  # trainings by model and task


@settings
class Settings(ScriptSettings):
    """Fine-tune encoders on sentences and compare their accuracy."""

    models: Training[list[ModelName]]
    """Folders or hub ids of encoders; all are compared with the first. Their last parts are their names."""
    tasks: Training[list[TaskName]] = dataclasses.field(default_factory=lambda: list(TASKS))
    """Tasks to train on."""
    seeds: Training[list[Seed]] = dataclasses.field(default_factory=lambda: [0])
    """Seeds of each model on each task."""
    learning_rates: Training[list[Positive]] = dataclasses.field(default_factory=lambda: [3e-5, 1e-4])
    """Learning rates to try with the first seed."""
    projection_learning_rate_factors: Training[list[Amount]] = dataclasses.field(default_factory=lambda: [0.1])
    """Learning rates of E and F, or of W_P, as multiples of the learning rate, to try like these, for models that have
    such matrices."""
    tuning_samples: Training[Count | None] = None
    """Number of training texts, and of validation texts, with which rates are compared, for tasks that have more. Fewer
    updates may favour higher rates; default: all."""
    max_train_samples: Training[Count | None] = None
    """Maximum number of training texts; default: all."""
    max_eval_samples: Training[Count | None] = None
    """Maximum number of validation texts; default: all."""
    num_train_epochs: Training[Positive] = 1.0
    """Passes over the training texts."""
    per_device_train_batch_size: Training[Count] = 32
    """Texts in an update."""


def measure(settings: Settings, results: Results) -> None:
    """Add the accuracy of the words alone on each task, and a record for each training."""
    models = by_name(settings.models)
    keep_freed_memory()
    for task in settings.tasks:
        texts = load_labelled(_finetune_settings(settings, settings.models[0], task))
        for shared in (False, True) if TASKS[task].text_pair_column else (False,):
            if results.find(model=WORDS[shared], task=task) is None:
                results.add(model=WORDS[shared], task=task, **accuracy_of_words(texts, shared=shared))
        few = settings.tuning_samples
        tuning = few if few is not None and few < len(texts.train) else None
        for name, model in models.items():
            common = _finetune_settings(settings, model, task)
            encoder = load_encoder(common, texts.labels, seed=0).model
            factors = settings.projection_learning_rate_factors
            factors = factors if projection_parameters(encoder) else factors[:1]
            several = list(itertools.product(settings.learning_rates, factors))
            train = functools.partial(_train, results, {"model": name, "task": task}, common)
            for rates in several if len(several) > 1 else ():
                train(rates, settings.seeds[0], tuning)
            compared = _of(results.content["records"], name, task)
            best = best_rates(compared, settings.seeds[0]) if compared else several[0]
            for seed in settings.seeds:
                train(best, seed)


def _train(
    results: Results, key: Record, common: FinetuneSettings, rates: Rates, seed: int, few: int | None = None
) -> None:
    """Fine-tune with one seed, on at most `few` texts, unless that is done; the accuracy is None if it diverged."""
    rate, factor = rates
    key = key | {"learning_rate": rate, "projection_learning_rate_factor": factor}
    key |= {"seed": seed, "tuning": few is not None}
    if results.find(**key) is not None:
        return
    folder = results.folder / "-".join(map(str, key.values()))
    settings = dataclasses.replace(
        common,
        learning_rate=rate,
        projection_learning_rate_factor=factor,
        seed=seed,
        max_train_samples=few or common.max_train_samples,
        max_eval_samples=min(filter(None, (few, common.max_eval_samples)), default=None),
        output_dir=str(folder),
        resume=True,
    )
    try:
        found = finetune(settings)[0]
    except DivergedError:
        results.add(**key, accuracy=None)
    else:
        results.add(
            **key,
            parameters=found["model"]["parameters"],
            **{side: found["texts"][side] for side in ("train", "validation")},
            **{metric: value for metric, value in found["metrics"].items() if metric != "loss"},
            **{measured: found[measured] for measured in ("updates", "seconds", "right")},
        )
    shutil.rmtree(folder)


def _finetune_settings(settings: Settings, model: str, task: TaskName) -> FinetuneSettings:
    """What all trainings of a model on a task have in common."""
    train, validation = files(task, cache_folder() / "table2" / task)
    return FinetuneSettings(
        model=model,
        train_file=[str(train)],
        validation_file=[str(validation)],
        text_column=TASKS[task].text_column,
        text_pair_column=TASKS[task].text_pair_column,
        **{name: getattr(settings, name) for name in _OF_TRAININGS},
        head_start="random",
        report_to="none",
    )


def files(task: TaskName, folder: Path) -> tuple[Path, Path]:
    """The training and validation texts of a task as JSON Lines in a folder, made from the hub if they are missing."""
    paths = folder / "train.jsonl", folder / "validation.jsonl"
    if not all(path.exists() for path in paths):
        splits = load_hub(*TASKS[task].data_set)
        folder.mkdir(parents=True, exist_ok=True)
        for path, split in zip(paths, ("train", TASKS[task].validation), strict=True):
            with whole_file(path) as staged:
                splits[split].to_json(str(staged))
    return paths


def best_rates(records: list[Record], first: int) -> Rates:
    """The rates with the best accuracy with the first seed, in the comparison on fewer texts if there was one.

    The records are the trainings of one model on one task; one that diverged counts as an accuracy of 0.
    """
    compared = [record for record in records if record["tuning"]] or records
    accuracy = {_rates_of(record): record["accuracy"] or 0.0 for record in compared if record["seed"] == first}
    return max(accuracy, key=lambda rates: accuracy[rates])


def accuracy_of_words(texts: LabelledTexts, *, shared: bool) -> Record:
    """Accuracy of `words_alone` on the validation texts.

    `shared` marks the words that both texts of a pair have: they stand for its second text.

    Returns:
        The numbers of texts and, at the best strength of regularisation on the validation texts, the accuracy.
    """
    train, validation = (
        [_marked(each) if shared else each for each in side] for side in (texts.train, texts.validation)
    )
    found = words_alone(train, validation, texts.labels, texts.columns, validation=validation)
    if found is None:
        raise InputError(f"max_train_samples: expected texts with words in common, got {len(train)} without")
    answers, described = found
    accuracy = float(np.mean(answers == texts.labels.targets(validation, column=texts.columns.label)))
    counts = {"train": described["texts"], "validation": len(validation)}
    return {**counts, "strength": described["strength"], "accuracy": accuracy}


def _marked(example: Example) -> Example:
    """A pair as the words that one of its texts has, and those that both have."""
    one, other = (_WORD.findall(text.lower()) for text in example.texts)
    both = {*one} & {*other}
    alone = " ".join(word for word in (*one, *other) if word not in both)
    return dataclasses.replace(example, text=alone, text_pair=" ".join(sorted(both)))


def table(content: Record) -> str:
    """Accuracy of each model on each task, differences to the first model, rates, and the paper's table."""
    settings, found = content["settings"], chosen(content)
    first = next(iter(found))
    titles: dict[str, str] = {task: each.title for task, each in TASKS.items() if task in found[first]}
    paper = [
        {"n": n, "model": model}
        | {titles[task]: value for task, value in zip(TASKS, row, strict=True) if task in titles}
        for (n, model), row in PAPER.items()
    ]
    rates: list[Record] = [
        {"model": name} | {titles[task]: _shown(_rates_of(each[0])) if each else None for task, each in of.items()}
        for name, of in found.items()
    ]
    parts = [
        "# Table 2: fine-tuned encoders",
        f"Accuracy in percent on the validation texts (IMDB: test texts); epochs: {settings['num_train_epochs']:g}, "
        f"texts in an update: {settings['per_device_train_batch_size']}; mean ± sample standard deviation over seeds, "
        "one seed where there is no ±. Learning rates and checkpoints, and the regularisation of the words' logistic "
        "regression, are chosen on the same texts, so all figures are slightly too high.",
        markdown(pandas.DataFrame([*_accuracies(found, titles), *_of_words(content, titles)])),
    ]
    if differences := _differences(found, titles):
        parts += [
            f"## Differences to {first}",
            "In points, by seeds; then, with the first seed, the validation texts that one of the two alone classifies "
            "right, and the p of McNemar's exact test.",
            markdown(differences),
        ]
    parts += [
        "## Learning rates",
        f"The best for each model, × the multiple for E and F. {_tried(content)}",
        markdown(rates),
        "## The paper",
        "Models of base size, pretrained for 250,000 updates on 3.3 billion words; n and k in tokens.",
        markdown(paper),
    ]
    return "\n\n".join(parts)


def chosen(content: Record) -> Chosen:
    """The trainings of each model, the first one first, on each task at its best rates, in the order of the seeds."""
    settings = content["settings"]
    tasks = [task for task in TASKS if task in settings["tasks"]]
    return {name: {task: _at_best(content, name, task) for task in tasks} for name in by_name(settings["models"])}


def _at_best(content: Record, name: str, task: str) -> list[Record]:
    records, seeds = _of(content["records"], name, task), content["settings"]["seeds"]
    best = best_rates(records, seeds[0]) if records else None
    shown = [record for record in records if not record["tuning"] and _rates_of(record) == best]
    shown = [record for record in shown if record["accuracy"] is not None]
    return sorted(shown, key=lambda record: seeds.index(record["seed"]))


def _of(records: list[Record], name: str, task: str) -> list[Record]:
    """The records of a model on a task."""
    return [record for record in records if (record["model"], record["task"]) == (name, task)]


def _rates_of(record: Record) -> Rates:
    return record["learning_rate"], record["projection_learning_rate_factor"]


def _percent(records: list[Record]) -> list[float]:
    return [100 * record["accuracy"] for record in records]


def _accuracies(found: Chosen, titles: dict[str, str]) -> Iterator[Record]:
    """A row for each model."""
    for name, by_task in found.items():
        values = {titles[task]: _percent(records) for task, records in by_task.items()}
        parameters = [f"{records[0]['parameters']:,}" for records in by_task.values() if records]
        whole = all(values.values())
        yield {
            "model": name,
            "parameters": parameters[0] if parameters else None,
            **{title: mean_and_deviation(of, 2) if of else None for title, of in values.items()},
            "average": f"{statistics.fmean(map(statistics.fmean, values.values())):.2f}" if whole else None,
        }


def _of_words(content: Record, titles: dict[str, str]) -> Iterator[Record]:
    """A row for each logistic regression on the words, and one for each number of texts."""
    records = [record for record in content["records"] if record["model"] in WORDS.values()]
    for words in WORDS.values():
        if of := [record for record in records if record["model"] == words]:
            yield {"model": words} | {titles[record["task"]]: f"{100 * record['accuracy']:.2f}" for record in of}
    for texts, title in (("train", "(training texts)"), ("validation", "(validation texts)")):
        yield {"model": title} | {titles[record["task"]]: f"{record[texts]:,}" for record in records}


def _differences(found: Chosen, titles: dict[str, str]) -> list[Record]:
    """Each model beside the first on each task, by seeds and by texts."""
    first, *others = found
    rows = []
    for name, task in itertools.product(others, titles):
        theirs = {record["seed"]: record for record in found[first][task]}
        pairs = [(ours, theirs[ours["seed"]]) for ours in found[name][task] if ours["seed"] in theirs]
        if pairs:
            points = [100 * (ours["accuracy"] - other["accuracy"]) for ours, other in pairs]
            only_ours, only_theirs, p = mcnemar(*(record["right"] for record in pairs[0]))
            row = {"model": name, "task": titles[task], "difference": mean_and_deviation(points, 2, sign="+")}
            rows.append(
                row | {"only the model": f"{only_ours:,}", f"only {first}": f"{only_theirs:,}", "p": f"{p:.3g}"}
            )
    return rows


def mcnemar(ours: str, theirs: str) -> tuple[int, int, float]:
    """Texts that one of two classifiers alone has right, and the p of McNemar's exact test.

    Of each classifier: a bit for each text, 1 where it is right, as hexadecimal digits.
    """
    right = [np.unpackbits(np.frombuffer(bytes.fromhex(each), np.uint8)).astype(bool) for each in (ours, theirs)]
    only_ours, only_theirs = int((right[0] & ~right[1]).sum()), int((~right[0] & right[1]).sum())
    different = only_ours + only_theirs
    return only_ours, only_theirs, binomtest(only_ours, different).pvalue if different else 1.0


def _tried(content: Record) -> str:
    """The rates that were compared, where on fewer texts, and the trainings that diverged."""
    trained = [record for record in content["records"] if "seed" in record]
    fewer = sorted({TASKS[record["task"]].title for record in trained if record["tuning"]})
    diverged = [
        f"{record['model']} on {TASKS[record['task']].title} at {_shown(_rates_of(record))}, seed {record['seed']}"
        for record in trained
        if record["accuracy"] is None
    ]
    return (
        f"Tried: {', '.join(map(_shown, sorted(set(map(_rates_of, trained)))))}."
        + (f" Compared on fewer texts: {', '.join(fewer)}." if fewer else "")
        + (f" Diverged: {'; '.join(diverged)}." if diverged else "")
    )


def _shown(rates: Rates) -> str:
    return "{:g} × {:g}".format(*rates)


def draw(content: Record) -> Figure | None:
    """A panel for each task, a row for each model: accuracy with each seed; lines for the first model and the words."""
    models = chosen(content)
    labels = [shortened(name, 30) for name in models]
    found = {task: [of[task] for of in models.values()] for task in content["settings"]["tasks"]}
    found = {task: by_model for task, by_model in found.items() if any(by_model)}
    if not found:
        return None
    size = (0.6 + 0.09 * max(map(len, labels)) + 2.4 * len(found), 1.4 + 0.28 * len(labels))
    figure, ((*panels,),) = new_figure(size, 1, len(found), squeeze=False, sharey=True)
    for axes, (task, by_model) in zip(panels, found.items(), strict=True):
        for row, records in enumerate(by_model):
            if values := _percent(records):
                mean = statistics.fmean(values)
                axes.plot(mean, row, "o", color="lightskyblue", label="mean")
                axes.plot(values, [row] * len(values), "|", color="tab:blue", markersize=10, label="each seed")
                if row == 0:
                    axes.axvline(mean, color="tab:gray", linestyle="--", zorder=0, label="mean of the first model")
        for record in _of(content["records"], WORDS[False], task):
            axes.axvline(100 * record["accuracy"], color="tab:orange", zorder=0, label=WORDS[False])
        axes.set_title(TASKS[task].title, fontsize=10)
        axes.set_xlabel("accuracy, %")
        show_grid(axes)
    limits = [axes.get_xlim() for axes in panels]
    width = max(LEAST_POINTS, *(high - low for low, high in limits))
    for axes, (low, high) in zip(panels, limits, strict=True):  # a point is as wide in all panels
        axes.set_xlim((low + high - width) / 2, (low + high + width) / 2)
    panels[0].set_yticks(range(len(labels)), labels, parse_math=False)  # else "$" would start a formula
    panels[0].set_ylim(len(labels) - 0.5, -0.5)  # the first model at the top
    lines = {line.get_label(): line for axes in panels for line in axes.lines}
    figure.legend(list(lines.values()), list(lines), loc="outside lower center", ncols=len(lines), fontsize="small")
    return figure


if __name__ == "__main__":
    run(Settings, measure, table, draw)
