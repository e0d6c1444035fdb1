"""`linformer inspect`: which slots a model's heads attend to on a text, and its matrices E and F."""

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
from transformers import AutoModel, PreTrainedTokenizerBase

from linformer_kit.data.read import open_text
from linformer_kit.errors import InputError
from linformer_kit.files.folders import check_new_folder
from linformer_kit.files.writing import whole_folder, write_whole
from linformer_kit.interop.loading import load_model
from linformer_kit.models.modeling import LinformerModel
from linformer_kit.operator.projections import LinearProjection
from linformer_kit.report.base import code, shortened, table, write_json
from linformer_kit.report.figures import new_figure, save_figure
from linformer_kit.settings import InspectSettings, recorded_name

_PANELS = 4  # layers, and heads, that are plotted by default
_LABELLED_TOKENS = 32  # with more, the axis has no labels
_LONGEST_LABEL = 16  # characters; tokens can be long


def main(settings: InspectSettings) -> None:
    """Inspect and print."""
    print(inspect(settings))
    print(f"Saved in {settings.output_dir}")


def inspect(settings: InspectSettings) -> str:
    """Run the model on a text, and write figures and numbers into `settings.output_dir`.

    Files: `context_mapping.png`, `projections.png` (of linear projections), `inspection.md`, `inspection.json`, and the
    plotted arrays in `inspection.npz`.

    Returns:
        The Markdown text.

    Raises:
        InputError: for a model that is not a Linformer or has non-finite values, a text without tokens, layers or heads
            out of range, or an output_dir that is not empty. Nothing is written then.
    """
    folder = check_new_folder("output_dir", settings.output_dir)
    text, described = _text(settings)
    model, tokenizer = _load(settings.model)
    layers = _chosen("layers", settings.layers, model.config.num_hidden_layers)
    heads = _chosen("heads", settings.heads, model.config.num_attention_heads)
    ids = _tokens(settings, text, tokenizer, model)
    attentions = context_mappings(model, ids)
    matrices = projection_matrices(model, layers, heads[0])
    mappings = _of_chosen(attentions, layers, heads)
    results: dict[str, Any] = {
        "command": "inspect",
        "model": recorded_name(settings.model),
        "text": described,
        "tokens": [tokenizer.decode([token]) for token in ids],
        **{name: getattr(model.config, name) for name in ("attention", "projection", "sharing", "projected_dim")},
        **{name: getattr(model.config, name) for name in ("global_tokens", "sliding_window")},
        "layers": layers,
        "heads": heads,
        "effective_slots": [effective_slots(weights).tolist() for weights in attentions],
    }
    markdown = inspection_markdown(results)
    with whole_folder(folder) as part:
        write_json(results, part / "inspection.json")
        write_whole(part / "inspection.md", markdown)
        arrays: dict[str, Any] = {name.replace(" ", "_"): matrix for name, matrix in matrices.items()}
        np.savez_compressed(part / "inspection.npz", context_mappings=mappings, **arrays)
        save_figure(draw_context_mappings(results, mappings), part / "context_mapping.png")
        if matrices:
            save_figure(draw_projections(matrices), part / "projections.png")
    return markdown


@torch.no_grad()
def context_mappings(model: LinformerModel, ids: list[int]) -> list[Float[Tensor, "heads seq_len slots"]]:
    """P̄ (P with full attention) of each layer for one text; 0 in slots that a head lacks.

    The columns are those of global tokens, of slots and of neighbours.

    Raises:
        InputError: if it has non-finite values.
    """
    attentions = [weights[0].float() for weights in model(torch.tensor([ids]), output_attentions=True).attentions]
    for layer, weights in enumerate(attentions):
        _check_finite(f"the attention of layer {layer}", weights)
    return attentions


def effective_slots(mappings: Float[Tensor, "*heads seq_len slots"]) -> Float[Tensor, "*heads"]:
    """Number of slots that a head spreads its attention over: exp of the entropy of P̄'s rows, averaged over the tokens.

    1 if each token attends to a single slot, the number of slots if it attends to all equally. Global tokens and
    neighbours count as slots.
    """
    return torch.special.entr(mappings).sum(dim=-1).mean(dim=-1).exp()


def projection_matrices(model: LinformerModel, layers: list[int], head: int) -> dict[str, np.ndarray]:
    """E and F of some layers, `[projected_dim, seq_len]`, by name; none unless projections are linear.

    With matrices for each head, that of `head`.

    Raises:
        InputError: for a matrix with non-finite values.
    """
    shared = model.encoder.projection
    modules = {f"layer {layer}": model.encoder.projections[layer] for layer in layers} if shared is None else None
    matrices = {}
    for where, module in (modules or {"all layers": shared}).items():
        if not isinstance(module, LinearProjection):
            continue
        for letter, parameter in (("E", module.key_projection), ("F", module.value_projection)):
            if parameter is None:  # E = F
                continue
            name, matrix = f"{where} {letter}", parameter.detach()
            if module.sharing == "none":
                name = f"{name} head {head}"
                matrix = matrix[head] if module.uniform else matrix.split(module.head_dims)[head]
            _check_finite(name, matrix)
            matrices[name] = matrix.float().numpy()
    return matrices


def _of_chosen(attentions: list[Tensor], layers: list[int], heads: list[int]) -> np.ndarray:
    """P̄ of some layers and heads, `[layers, heads, tokens, slots]`; NaN in slots that a layer lacks."""
    most = max(attentions[layer].shape[-1] for layer in layers)
    mappings = np.full((len(layers), len(heads), attentions[0].shape[1], most), np.nan, dtype=np.float32)
    for place, layer in enumerate(layers):
        weights = attentions[layer][heads].numpy()
        mappings[place, ..., : weights.shape[-1]] = weights
    return mappings


def _check_finite(where: str, numbers: Tensor) -> None:
    if not numbers.isfinite().all():
        raise InputError(f"model: expected finite numbers, got a NaN or infinity in {where}")


def inspection_markdown(results: dict[str, Any]) -> str:
    """The number of effective slots of each head of each layer, as Markdown."""
    rows = [
        [f"layer {layer}", *(f"{slots:,.1f}" for slots in heads)]
        for layer, heads in enumerate(results["effective_slots"])
    ]
    header = ["", *(f"head {head}" for head in range(len(results["effective_slots"][0])))]
    kind = f"{results['projection']}, sharing {results['sharing']}, k {results['projected_dim']}"
    layers, heads = (", ".join(map(str, results[name])) for name in ("layers", "heads"))
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
        "",
        f"`inspection.npz` holds the context mappings of layers {layers} and heads {heads} as "
        "`context_mappings[layer, head, token, slot]`, global tokens before the slots and neighbours after them, and "
        "the matrices in `projections.png`.",
    ]
    return "\n".join(lines) + "\n"


def draw_context_mappings(results: dict[str, Any], mappings: Float[np.ndarray, "layers heads tokens slots"]) -> Figure:
    """Plot context mappings as images, a row for each layer and a column for each head; NaN is left out.

    Args:
        results: The content of `inspection.json`.
        mappings: The array in `inspection.npz`.
    """
    layers, heads, tokens, _ = mappings.shape
    figure, axes = new_figure((1.2 + 3 * heads, 0.8 + 3 * layers), layers, heads, squeeze=False, sharey=True)
    highest = float(np.nanquantile(mappings, 0.998)) or 1.0  # 0 if each token attends to one of very many slots
    for row, layer in enumerate(results["layers"]):
        for column, head in enumerate(results["heads"]):
            axis = axes[row, column]
            image = axis.imshow(mappings[row, column], aspect="auto", vmin=0, vmax=highest)
            axis.set_title(f"layer {layer}, head {head}", fontsize=10)
            axis.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
    for axis in axes[:, 0]:
        if tokens <= _LABELLED_TOKENS:
            labels = [shortened(repr(token)[1:-1], _LONGEST_LABEL) for token in results["tokens"]]
            axis.set_yticks(range(tokens), labels, fontsize=6, parse_math=False)
        axis.set_ylabel("token")
    full = results["attention"] == "full"
    mixed = results["global_tokens"] or results["sliding_window"]
    for axis in axes[-1]:
        axis.set_xlabel("token" if full else "global tokens, slots, neighbours" if mixed else "slot")
    bar = figure.colorbar(image, ax=axes, shrink=min(1.0, 2 / layers), extend="max")
    bar.set_label("attention weight, P" if full else "attention weight, P̄")
    return figure


def draw_projections(matrices: dict[str, np.ndarray]) -> Figure:
    """Plot E and F as images, side by side, each with its own colour scale."""
    columns = 2 if any(" F" in name for name in matrices) else 1
    rows = -(-len(matrices) // columns)
    figure, axes = new_figure((5.5 * columns, 2.9 * rows), rows, columns, squeeze=False)
    for axis, (name, matrix) in zip(axes.flat, matrices.items(), strict=True):
        highest = float(np.abs(matrix).max()) or 1.0
        image = axis.imshow(matrix, aspect="auto", cmap="RdBu", vmin=-highest, vmax=highest)
        axis.set_title(name, fontsize=10)
        axis.set(xlabel="position", ylabel="slot")
        figure.colorbar(image, ax=axis, label="weight")
    return figure


def _chosen(name: str, chosen: list[int] | None, count: int) -> list[int]:
    """The layers or heads to plot: those chosen, without duplicates, or a few, evenly spaced."""
    if chosen is None:
        return sorted({round(index * (count - 1) / max(1, _PANELS - 1)) for index in range(_PANELS)})
    if not chosen:
        raise InputError(f"{name}: expected at least one, got none")
    for index in chosen:
        if not 0 <= index < count:
            raise InputError(f"{name}: expected 0 to {count - 1}, got {index}")
    return list(dict.fromkeys(chosen))


def _text(settings: InspectSettings) -> tuple[str, str]:
    """The text and its name in the report; default: the source of argparse, which is on every machine."""
    if settings.text is not None and settings.text_file is not None:
        raise InputError("text, text_file: expected at most one of them, got both")
    if settings.text is not None:
        return settings.text, "given on the command line"
    path = Path(settings.text_file or argparse.__file__)
    with open_text(path) as file:
        return file.read(), path.name if settings.text_file else "the source of Python's argparse"


def _tokens(
    settings: InspectSettings, text: str, tokenizer: PreTrainedTokenizerBase, model: LinformerModel
) -> list[int]:
    longest = model.config.max_position_embeddings
    least = tokenizer.num_special_tokens_to_add() + 1
    if settings.max_tokens is not None and not least <= settings.max_tokens <= longest:
        raise InputError(f"max_tokens: expected {least} to {longest} (the longest sequence), got {settings.max_tokens}")
    ids = tokenizer(text, truncation=True, max_length=settings.max_tokens or longest)["input_ids"]
    if not ids or not text.strip():
        raise InputError("text: expected some words, got none")
    return ids


def _load(name: str) -> tuple[LinformerModel, PreTrainedTokenizerBase]:
    model, tokenizer = load_model(name, AutoModel, "a Linformer")
    if not isinstance(model, LinformerModel):
        raise InputError(f"model: expected a Linformer, got {name}, a {model.config.model_type}")
    return model, tokenizer
