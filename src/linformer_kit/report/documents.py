"""Tables of methods to embed long texts: quality by task, length and position, time and memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from linformer_kit.report.base import environment_line, number_format, table, write_report
from linformer_kit.report.documents_figures import draw_documents, drawn_methods
from linformer_kit.report.documents_names import METHODS, method_label, position_labels
from linformer_kit.report.numbers import ABSENT, mebibytes, milliseconds

_TITLES = {
    "agreement": "Agreement with pieces",
    "late_sentence": "Late sentence",
    "passkey": "Passkey",
    "needle": "Needle",
    "same_document": "Same document",
    "classification": "Classification",
}


def write_documents_report(results: dict[str, Any], folder: Path) -> str:
    """Write `documents.json`, `documents.md` and the figures of what was measured.

    Args:
        results: Results of `quality.documents.measure_documents` so far.
        folder: Output folder.

    Returns:
        The Markdown text.
    """
    return write_report(results, folder, "documents", documents_markdown, draw_documents)


def documents_markdown(results: dict[str, Any]) -> str:
    """A description and a table for each task, then time and memory."""
    settings = results["settings"]
    lines = ["# Embeddings of long texts", "", environment_line(results["environment"]), ""]
    if not results["complete"]:
        lines += ["Not complete: interrupted or still running.", ""]
    lines += [
        f"Teacher: {settings['teacher']}, longest input {results['teacher_length']:,} tokens. Embeddings are means of "
        "hidden states, compared by cosine. n is the number of tokens that a method may read of a text, special tokens "
        f"included; all methods get the same text. {number_format(settings)}",
        "",
        *(f"- {method_label(name)}: {_method(name, results)}" for name in results["methods"]),
        "",
    ]
    for task, scores in results["scores"].items():
        if scores:
            lines += [f"## {_TITLES[task]}", "", _description(task, results), "", *_tables(task, results), ""]
    if results["cost"]:
        lines += ["## Cost", "", _COST.format(**settings), "", *_costs(results), ""]
    shown = drawn_methods(results)
    if len(shown) < len(results["methods"]):
        lines += [f"The figures show {', '.join(map(method_label, shown))}.", ""]
    return "\n".join(lines).rstrip("\n") + "\n"


_COST = (
    "One document of n tokens at a time, tokenisation included: milliseconds, median of up to {repetitions} "
    "interleaved runs, and peak memory in MiB in addition to the model's own."
)


def _method(name: str, results: dict[str, Any]) -> str:
    method, mode = results["methods"][name], results["settings"]["resize_mode"]
    about = METHODS[name][1].format(mode=mode, limit=results["teacher_length"]) if name in METHODS else "a named model"
    return f"{about}; {method['parameters'] / 1e6:,.1f} million parameters."


def _description(task: str, results: dict[str, Any]) -> str:
    settings = results["settings"]
    longest = max(settings["lengths"])
    if task == "late_sentence":
        return (
            f"Each query is a sentence of one of {settings['articles']:,} texts, which stays in the text; the text is "
            f"to be found among all. {settings['queries']:,} texts of at least {longest:,} tokens give a sentence at "
            f"each position. The first position is a control: {results['teacher_length']:,} tokens are the teacher's "
            "longest input. Recall at 1 (at 10)."
        )
    if task == "agreement":
        return (
            f"Cosine of the embeddings of {settings['queries']:,} texts of at least {longest:,} tokens to those of "
            f"{method_label('pieces')}, which a student is taught for such texts: mean (lowest)."
        )
    if task == "same_document":
        return (
            f"The first halves of {settings['queries']:,} texts each have to find their second halves among all second "
            "halves. The halves are disjoint; each is truncated to n tokens. Recall at 1 (at 10), mean reciprocal rank."
        )
    if task == "classification":
        train, validation = results["labelled"]
        least = settings["min_tokens"]
        only = "" if least is None else f" of more than {least:,} tokens"
        return (
            f"Accuracy of a logistic regression on the embeddings of labelled texts{only}: {train:,} for training, "
            f"{validation:,} for validation."
        )
    hidden = "a number in a repeated text" if task == "passkey" else "a made-up fact in a text of the user"
    return (
        f"Each of {settings['candidates']:,} documents of n tokens has a sentence about another person: {hidden}, at a "
        f"random depth. The {'passkey' if task == 'passkey' else 'fact'} of each person is asked for once; accuracy "
        "at 1 among all documents of this length (LongEmbed, Zhu et al. 2024, arXiv 2404.12096, with other sentences)."
    )


def _tables(task: str, results: dict[str, Any]) -> list[str]:
    scores, settings = results["scores"][task], results["settings"]
    lengths = sorted(settings["fact_lengths" if task in ("passkey", "needle") else "lengths"])
    if task != "late_sentence":
        cell = {"agreement": _cosines, "same_document": _halves, "classification": _accuracy}.get(task, _recall_at_1)
        return _by_length(scores, lengths, cell)
    longest = str(max(lengths))
    positions = position_labels(results)
    rows = [
        [method_label(name), *map(_recalls, found[longest]["positions"])]
        for name, found in scores.items()
        if longest in found
    ]
    lines = [f"By position of the sentence in tokens, at n {int(longest):,}:", ""]
    lines += table(["method", *positions], rows)
    if len(positions) > 1:
        lines += ["", "All sentences but those of the first position, by n:", ""]
        lines += _by_length(scores, lengths, _recalls)
    return lines


def _by_length(scores: dict[str, Any], lengths: list[int], cell: Any) -> list[str]:
    rows = [
        [method_label(name), *(cell(found[str(n)]) if str(n) in found else ABSENT for n in lengths)]
        for name, found in scores.items()
    ]
    return table(["method", *(f"n {n:,}" for n in lengths)], rows)


def _recalls(found: dict[str, Any]) -> str:
    return f"{found['recall@1']:.1%} ({found['recall@10']:.1%})"


def _recall_at_1(found: dict[str, Any]) -> str:
    return f"{found['recall@1']:.1%}"


def _halves(found: dict[str, Any]) -> str:
    return f"{_recalls(found)}, {found['mrr']:.3f}"


def _cosines(found: dict[str, Any]) -> str:
    return f"{found['cosine']:.4f} ({found['lowest']:.4f})"


def _accuracy(found: dict[str, Any]) -> str:
    return f"{found['accuracy']:.1%}"


def _costs(results: dict[str, Any]) -> list[str]:
    return _by_length(results["cost"], sorted(results["settings"]["lengths"]), _cost)


def _cost(found: dict[str, Any]) -> str:
    peak = "" if found["peak_bytes"] is None else f", {mebibytes(found['peak_bytes'])} MiB"
    return f"{milliseconds(found['median_s'])} ms{peak}"
