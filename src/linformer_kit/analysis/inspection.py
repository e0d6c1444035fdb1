"""`linformer inspect`: which slots a model's heads attend to on a text."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor
from transformers import AutoModel

from linformer_cli.errors import InputError
from linformer_cli.outputs import check_new_folder
from linformer_cli.settings import InspectSettings, model_label
from linformer_kit.files.writing import whole_folder, write_whole
from linformer_kit.interop.loading import load_model
from linformer_kit.models.modeling import LinformerModel
from linformer_kit.report.base import code, shortened, table, write_json
from linformer_kit.report.figures import new_figure, save_figure

_PANELS = 4  # layers, and heads, that are plotted by default
_LABELLED_TOKENS = 32  # with more, the axis has no labels
_LONGEST_LABEL = 16  # characters; tokens can be long

Mappings = list[Float[Tensor, "heads seq_len slots"]]  # of each layer; columns: global tokens, slots, neighbours


def main(settings: InspectSettings) -> None:
    """Run the model on a text; write `context_mapping.png`, `inspection.md` and `.json`, and print the numbers.

    Raises:
        InputError: for a model that is not a Linformer or has non-finite values, a text without tokens, layers or heads
            out of range, or an output_dir that is not empty. Nothing is written then.
    """
    folder = check_new_folder("output_dir", settings.output_dir)
    model, tokenizer, *_ = load_model(settings.model, AutoModel, "a Linformer")
    if not isinstance(model, LinformerModel):
        expected = "a Linformer of this package, as `linformer convert` makes without --in_place"
        raise InputError(f"model: expected {expected}, got {settings.model}, a {type(model).__name__}")
    config = model.config
    text = Path(argparse.__file__).read_text(encoding="utf-8") if settings.text is None else settings.text
    ids = tokenizer(text, truncation=True, max_length=config.max_position_embeddings)["input_ids"]
    if not ids or not text.strip():
        raise InputError("text: expected some words, got none")
    described = ("attention", "projection", "sharing", "projected_dim", "global_tokens", "sliding_window")
    results: dict[str, Any] = {
        "command": "inspect",
        "model": model_label(settings.model),
        "text": "the source of Python's argparse" if settings.text is None else "given on the command line",
        "tokens": [tokenizer.decode([token]) for token in ids],
        **{name: getattr(config, name) for name in described},
        "layers": _chosen("layers", settings.layers, config.num_hidden_layers),
        "heads": _chosen("heads", settings.heads, config.num_attention_heads),
    }
    mappings = context_mappings(model, ids)
    results["effective_slots"] = [effective_slots(weights).tolist() for weights in mappings]
    with whole_folder(folder) as part:
        write_json(results, part / "inspection.json")
        write_whole(part / "inspection.md", inspection_markdown(results))
        save_figure(draw_context_mappings(results, mappings), part / "context_mapping.png")
    print(inspection_markdown(results))
    print(f"Saved in {settings.output_dir}")


def _chosen(name: str, chosen: list[int] | None, count: int) -> list[int]:
    """The layers or heads to plot: those chosen, or a few, evenly spaced."""
    if not chosen:
        return sorted({round(index * (count - 1) / (_PANELS - 1)) for index in range(_PANELS)})
    if not all(0 <= index < count for index in chosen):
        raise InputError(f"{name}: expected 0 to {count - 1}, got {', '.join(map(str, chosen))}")
    return chosen


@torch.no_grad()
def context_mappings(model: LinformerModel, ids: list[int]) -> Mappings:
    """P̄ (P with full attention) of each layer for one text; 0 in slots that a head lacks.

    Raises:
        InputError: if it has non-finite values.
    """
    mappings = [weights[0].float() for weights in model(torch.tensor([ids]), output_attentions=True).attentions]
    for layer, weights in enumerate(mappings):
        if not weights.isfinite().all():
            raise InputError(f"model: expected finite numbers, got a NaN or infinity in the attention of layer {layer}")
    return mappings


def effective_slots(mappings: Float[Tensor, "*heads seq_len slots"]) -> Float[Tensor, "*heads"]:
    """Number of slots that a head spreads its attention over: exp of the entropy of P̄'s rows, averaged over the tokens.

    1 if each token attends to a single slot, the number of slots if it attends to all equally. Global tokens and
    neighbours count as slots.
    """
    return torch.special.entr(mappings).sum(dim=-1).mean(dim=-1).exp()


def inspection_markdown(results: dict[str, Any]) -> str:
    """The number of effective slots of each head of each layer, as Markdown."""
    slots = results["effective_slots"]
    rows = [[f"layer {layer}", *(f"{number:,.1f}" for number in heads)] for layer, heads in enumerate(slots)]
    header = ["", *(f"head {head}" for head in range(len(rows[0]) - 1))]
    kind = f"{results['projection']}, sharing {results['sharing']}, k {results['projected_dim']}"
    lines = [
        "# Inspection",
        "",
        f"Model: {code(results['model'])} ({kind if results['attention'] == 'linformer' else 'full attention'}). "
        f"Text: {results['text']}, {len(results['tokens']):,} tokens.",
        "",
        "Effective slots: exp of the entropy of the context mapping's rows, averaged over the tokens. 1: each token "
        "attends to one slot; the number of slots: to all slots equally. Global tokens and neighbours count as slots.",
        "",
        *table(header, rows),
    ]
    return "\n".join(lines) + "\n"


def draw_context_mappings(results: dict[str, Any], mappings: Mappings) -> Figure:
    """Plot the context mappings of the chosen layers (rows) and heads (columns) as images.

    Args:
        results: The content of `inspection.json`.
        mappings: Those of all layers.
    """
    layers, heads, tokens = results["layers"], results["heads"], results["tokens"]
    figure, axes = new_figure(
        (1.2 + 3 * len(heads), 0.8 + 3 * len(layers)), len(layers), len(heads), squeeze=False, sharey=True
    )
    values = np.concatenate([mappings[layer][heads].flatten().numpy() for layer in layers])
    highest = float(np.quantile(values, 0.998)) or 1.0  # 0 if each token attends to one of very many slots
    for row, layer in enumerate(layers):
        for column, head in enumerate(heads):
            axis = axes[row, column]
            image = axis.imshow(mappings[layer][head], aspect="auto", vmin=0, vmax=highest)
            axis.set_title(f"layer {layer}, head {head}", fontsize=10)
            axis.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
    for axis in axes[:, 0]:
        if len(tokens) <= _LABELLED_TOKENS:
            labels = [shortened(repr(token)[1:-1], _LONGEST_LABEL) for token in tokens]
            axis.set_yticks(range(len(tokens)), labels, fontsize=6, parse_math=False)
        axis.set_ylabel("token")
    full = results["attention"] == "full"
    mixed = results["global_tokens"] or results["sliding_window"]
    for axis in axes[-1]:
        axis.set_xlabel("token" if full else "global tokens, slots, neighbours" if mixed else "slot")
    bar = figure.colorbar(image, ax=axes, shrink=min(1.0, 2 / len(layers)), extend="max")
    bar.set_label("attention weight, P" if full else "attention weight, P̄")
    return figure
