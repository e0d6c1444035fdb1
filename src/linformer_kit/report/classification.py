"""Reports of fine-tuning and of evaluation: metrics, curves, confusion matrix and the worst mistakes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from linformer_kit.files.writing import write_whole
from linformer_kit.report.base import code, shortened, table, write_report
from linformer_kit.report.figures import draw_curves, new_figure, save_figure, show_grid

_MISTAKES = "mistakes.jsonl"
_SHOWN_MISTAKES = 5
_SHOWN_CHARACTERS = 160
_LABEL_CHARACTERS = 30
_FEW_TEXTS = 10  # of a class in training; with fewer it is marked
_NAMED_CLASSES = 30  # with more, the figure has no labels and the table is limited to the most frequent


def write_finetune_report(results: dict[str, Any], mistakes: Sequence[dict[str, Any]], folder: Path) -> None:
    """Write metrics, curves, classes and all mistakes into a folder."""
    losses = {name: points for name, points in results["curve"].items() if name.endswith(" loss")}
    scores = {name: points for name, points in results["curve"].items() if name not in losses}
    draw_curves({"loss (nats)": losses, f"validation {', '.join(sorted(scores))}": scores}, folder / "curve.png")
    model, texts, metrics = results["model"], results["texts"], results["metrics"]
    row = [
        *(f"{value:.3f}" for value in metrics.values()),
        f"{results['best_updates']:,} of {results['updates']:,}",
        f"{results['seconds']:,.0f}",
    ]
    truncated = [
        f"{lost['texts']:,} {side} texts lost {lost['tokens'] / lost['of_tokens']:.1%} of all tokens"
        for side, lost in (("training", texts["cut"]["train"]), ("validation", texts["cut"]["validation"]))
        if lost["texts"]
    ]
    lines = [
        "# Fine-tuning",
        "",
        f"{model['name']} ({model['type']}, {model['parameters']:,} parameters) on {texts['description']}.",
        "",
        f"Truncated: {'; '.join(truncated)}." if truncated else "No text was truncated.",
        *mistake_table(mistakes),
        "",
        *class_table(results, texts["labels"]),
        "",
        *free_lines(results),
        "",
        *table([*metrics, "best after updates", "training, s"], [row]),
    ]
    _write(results, mistakes, folder, lines)


def write_evaluation_report(results: dict[str, Any], folder: Path) -> None:
    """Write metrics, classes and all mistakes into a folder."""
    _write(results, results["mistakes"], folder, evaluation_lines(results))


def _write(results: dict[str, Any], mistakes: Sequence[dict[str, Any]], folder: Path, lines: list[str]) -> None:
    text = "".join(json.dumps(mistake, ensure_ascii=False) + "\n" for mistake in mistakes)
    write_whole(folder / _MISTAKES, text)
    if results["confusion"] is not None:  # as for multi-label texts
        draw_confusion(results["confusion"], results["texts"]["labels"], folder / "confusion.png")
    draw_calibration(results["calibration"]["bins"], folder / "calibration.png")
    write_report(results, folder, lines)


def evaluation_lines(results: dict[str, Any]) -> list[str]:
    """The results of evaluation as lines of Markdown, the metrics last: they stay in sight on a terminal."""
    texts = results["texts"]
    lines = ["# Evaluation", "", f"{results['model']} on {texts['count']:,} texts."]
    if texts["cut"]:
        lines += ["", f"{texts['cut']:,} texts were truncated; they lost {texts['lost_tokens']:,} tokens."]
    lines += [*mistake_table(results["mistakes"]), "", *class_table(results, texts["labels"]), ""]
    lines += [*free_lines(results), ""]
    return lines + table(list(results["metrics"]), [[f"{value:.3f}" for value in results["metrics"].values()]])


def class_table(results: dict[str, Any], labels: Sequence[str]) -> list[str]:
    """Precision, recall and F1 of each class, or of the most frequent classes, as lines of a Markdown table."""
    classes = list(zip(labels, results["by_class"], strict=True))
    if many := len(classes) > _NAMED_CLASSES:
        classes = sorted(classes, key=lambda each: -each[1]["texts"])[:_NAMED_CLASSES]
    rows = [
        [code(label), *(f"{each[name]:.3f}" for name in ("precision", "recall", "f1")), f"{each['texts']:,.0f}"]
        for label, each in classes
    ]
    more = ["", f"The {_NAMED_CLASSES} most frequent of {len(labels)} classes; metrics.json has all."] if many else []
    return table(["class", "precision", "recall", "F1", "texts"], rows) + more


def texts_table(
    labels: Sequence[str], train: Sequence[int], validation: Sequence[int], remarks: Mapping[str, str]
) -> list[str]:
    """The numbers of texts of each class, or of the rarest classes, with remarks, as lines of a Markdown table."""
    order = sorted(range(len(labels)), key=lambda number: train[number])[:_NAMED_CLASSES]
    rows = []
    for number in sorted(order):
        few = "no text to learn from" if not train[number] else "few" if train[number] < _FEW_TEXTS else ""
        said = ", ".join(filter(None, (few, remarks.get(labels[number], ""))))
        rows.append([code(labels[number]), f"{train[number]:,}", f"{validation[number]:,}", said])
    more = ["", f"The {_NAMED_CLASSES} rarest of {len(labels)} classes."] if len(labels) > _NAMED_CLASSES else []
    return table(["class", "training texts", "validation texts", ""], rows) + more


def draw_confusion(matrix: list[list[int]], labels: Sequence[str], path: Path) -> None:
    """Plot texts of each class (rows) by predicted class (columns); colours are shares of the row.

    Classes that no text has and no answer names are left out, and counted below the picture.
    """
    every = np.array(matrix)
    shown = np.flatnonzero(every.sum(axis=0) + every.sum(axis=1))
    counts, labels, left_out = (
        every[np.ix_(shown, shown)],
        [labels[number] for number in shown.tolist()],
        len(labels) - len(shown),
    )
    shares = counts / counts.sum(axis=1, keepdims=True).clip(min=1)
    named = len(labels) <= _NAMED_CLASSES
    size = min(12.0, 3.2 + 0.45 * len(labels)) if named else 8.0
    figure, axes = new_figure((size + 1, size))
    image = axes.imshow(shares, vmin=0, vmax=1, cmap="Blues")
    if named:
        names = [shortened(label, _LABEL_CHARACTERS) for label in labels]
        plain = {"parse_math": False}  # else "$" would start a formula
        axes.set_xticks(range(len(labels)), names, rotation=45, ha="right", rotation_mode="anchor", **plain)
        axes.set_yticks(range(len(labels)), names, **plain)
        for row, column in np.ndindex(counts.shape):
            if counts[row, column]:
                color = "white" if shares[row, column] > 0.6 else "black"
                axes.text(column, row, f"{counts[row, column]:,}", ha="center", va="center", color=color, size="small")
    axes.set_xlabel("predicted class" + (f"\nclasses without texts, not shown: {left_out}" if left_out else ""))
    axes.set_ylabel("class")
    figure.colorbar(image, label="share of the texts of the class", shrink=0.8)
    save_figure(figure, path)


def free_lines(results: dict[str, Any]) -> list[str]:
    """What costs nothing beside the classifier, and how sure its figures are, as lines of Markdown."""
    metrics, free = results["metrics"], results["free"]
    names = [name for name in metrics if name != "loss"]
    words = f"words alone, of {free['words']['texts']:,} texts" if free["words"] else ""
    rows = {"this classifier": metrics, words: free["words"], "the most frequent class": free["most_frequent"]}
    lines = table(
        ["", *names], [[name, *(f"{each[metric]:.3f}" for metric in names)] for name, each in rows.items() if each]
    )
    if more := free["more_than_words"]:
        difference, error = more["accuracy"], more["standard_error"]
        said = f"{difference:+.3f} ± {error:.3f} (standard error)"
        better = "more accurate than" if difference > 2 * error else "**not** clearly more accurate than"
        lines += ["", f"The classifier is {better} words alone (TF-IDF, logistic regression): {said}."]
    low, high = results["accuracy_interval"]
    error = results["calibration"]["expected_error"]
    return [*lines, "", f"Accuracy: {low:.3f} to {high:.3f} (95 %). Expected calibration error: {error:.3f}."]


def draw_calibration(bins: Sequence[Sequence[float]], path: Path) -> None:
    """Plot the share of right answers by the probability of an answer; on the diagonal, probabilities are right."""
    figure, axes = new_figure((5.0, 4.5))
    axes.plot([0, 1], [0, 1], color="grey", linewidth=1, linestyle="--")
    axes.plot([chance for chance, _, _ in bins], [share for _, share, _ in bins], marker="o")
    axes.set(xlabel="probability of the answer", ylabel="share of right answers", xlim=(0, 1), ylim=(0, 1))
    show_grid(axes)
    save_figure(figure, path)


def mistake_table(worst: Sequence[dict[str, Any]]) -> list[str]:
    """The first mistakes, which are the worst, as lines of a Markdown table; nothing without mistakes."""
    if not worst:
        return []
    rows = [
        [
            code(shortened(" / ".join(filter(None, (mistake["text"], mistake.get("text_pair")))), _SHOWN_CHARACTERS)),
            code(str(mistake["label"])),
            code(str(mistake["predicted"])),
            f"{mistake['loss']:.2f}",
        ]
        for mistake in worst[:_SHOWN_MISTAKES]
    ]
    return ["", "The worst mistakes:", "", *table(["text", "class", "predicted", "loss (nats)"], rows)]
