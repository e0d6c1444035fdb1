"""`linformer inspect`: which slots a model's heads attend to on a text, and its projection matrices.

It plots the context mapping P̄ of equation 7 for several heads, and E and F as images.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor
from transformers import AutoModel, PreTrainedTokenizerBase

from linformer_kit.errors import InputError
from linformer_kit.files.folders import check_new_folder
from linformer_kit.files.writing import whole_folder, write_whole
from linformer_kit.interop.loading import load_model
from linformer_kit.models.modeling import LinformerModel
from linformer_kit.operator.projections import ConvProjection, LinearProjection, RandomProjection, SequenceProjection
from linformer_kit.operator.projections.windows import pooling_windows
from linformer_kit.report.base import code, shortened, table, write_json
from linformer_kit.report.figures import new_figure, save_figure
from linformer_kit.report.numbers import listed
from linformer_kit.settings import InspectSettings, recorded_name

_PANELS = 4  # layers, and heads, that are plotted by default
_PARTS = ("global tokens", "slots", "neighbours")  # what the columns of P̄ stand for
_LABELLED_TOKENS = 32  # with more, the axis has no labels
_LONGEST_LABEL = 16  # characters; tokens can be long
_PIXELS = 300  # along the shorter side of a panel


def main(settings: InspectSettings) -> None:
    """Inspect and print."""
    print(inspect(settings))
    print(f"Saved in {settings.output_dir}")


def inspect(settings: InspectSettings) -> str:
    """Run the model on a text, and write figures and numbers into `settings.output_dir`.

    Files: `context_mapping.png`, `projections.png` (if the projection has matrices), `inspection.md`,
    `inspection.json`, and the plotted arrays, slots in the model's own order, in `inspection.npz`.

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
    mappings, effective, parts = context_mappings(model, ids, layers, heads)
    images = projection_images(model, layers, heads)
    arrays: dict[str, Any] = {image.name.replace(" ", "_"): image.matrix for image in images}
    arrays["context_mappings"] = mappings.numpy()
    results: dict[str, Any] = {
        "command": "inspect",
        "model": recorded_name(settings.model),
        "text": described,
        "tokens": [tokenizer.decode([token]) for token in ids[0].tolist()],
        **{name: getattr(model.config, name) for name in ("attention", "projection", "sharing", "projected_dim")},
        "layers": layers,
        "heads": heads,
        "arrays": {name: list(array.shape) for name, array in arrays.items()},
        "effective_slots": effective.tolist(),
        "columns": dict(zip(_PARTS, parts, strict=True)),
    }
    markdown = inspection_markdown(results)
    with whole_folder(folder) as part:
        write_json(results, part / "inspection.json")
        write_whole(part / "inspection.md", markdown)
        np.savez_compressed(part / "inspection.npz", **arrays)
        drawn = in_drawn_order(model, mappings, layers, heads).numpy()
        save_figure(draw_context_mappings(results, drawn), part / "context_mapping.png")
        if images:
            save_figure(draw_projections(images), part / "projections.png")
    return markdown


@torch.no_grad()
def context_mappings(
    model: LinformerModel, input_ids: Int[Tensor, "1 seq_len"], layers: list[int], heads: list[int]
) -> tuple[Float[Tensor, "chosen_layers chosen_heads seq_len slots"], Float[Tensor, "layers heads"], tuple[int, ...]]:
    """P̄ (P with full attention) of some layers and heads for one text, and the effective slots of all.

    The columns are those of global tokens, of slots and of neighbours, of each kind as many as the last result says.
    What a head does not have, as slots beyond its k, is NaN.

    Raises:
        InputError: if the attention has non-finite values.
    """
    attentions = [weights[0].float() for weights in model(input_ids, output_attentions=True).attentions]
    for layer, weights in enumerate(attentions):
        _check_finite(f"the attention of layer {layer}", weights)
    length = input_ids.shape[1]
    columns = {layer: _columns_of(model, layer, length) for layer in layers}
    first, near = (max(getattr(each, part) for each in columns.values()) for part in ("first", "near"))
    most = max(columns[layer].slots[head] for layer in layers for head in heads)
    mappings = torch.full((len(layers), len(heads), length, first + most + near), torch.nan)
    for row, layer in enumerate(layers):
        here = columns[layer]
        for column, head in enumerate(heads):
            weights, k = attentions[layer][head], here.slots[head]
            mappings[row, column, :, first - here.first : first + k] = weights[:, : here.first + k]
            if here.near:
                mappings[row, column, :, first + most :] = weights[:, -near:]
    return mappings, torch.stack([effective_slots(weights) for weights in attentions]), (first, most, near)


def effective_slots(mappings: Float[Tensor, "*heads seq_len slots"]) -> Float[Tensor, "*heads"]:
    """Number of slots that a head spreads its attention over: exp of the entropy of P̄'s rows, averaged over the tokens.

    1 if each token attends to a single slot, the number of slots if it attends to all equally. Global tokens and
    neighbours count as slots.
    """
    return torch.special.entr(mappings).sum(dim=-1).mean(dim=-1).exp()


class Image(NamedTuple):
    """A matrix to plot: its name, its values, the labels of its rows and columns, and the order of the rows."""

    name: str
    matrix: np.ndarray
    rows: str
    columns: str
    order: np.ndarray


def projection_images(model: LinformerModel, layers: list[int], heads: list[int]) -> list[Image]:
    """E and F of some layers as images; empty if a projection has no matrices.

    Rows of E are ordered by their position in the text, like the slots in the plots of P̄; rows of F have the same
    order, so that a slot has the same row in both. With matrices for each head, that of the first of `heads` is shown.

    Raises:
        InputError: for a matrix with non-finite values.
    """
    if model.encoder.projection is not None:
        return _images(model.encoder.projection, "all layers", heads[0])
    modules = model.encoder.projections
    named = [(f"layer {layer}", module) for layer in layers if (module := modules[layer]) is not None]
    return [image for where, module in named for image in _images(module, where, heads[0])]


def slot_order(matrix: Float[Tensor, "projected seq_len"]) -> Int[Tensor, " projected"]:
    """Order of the rows of E by the centre of their squared weights: slots from the start of the text to its end."""
    weights = matrix.double().square()
    centre = (weights * torch.arange(matrix.shape[-1])).sum(dim=-1) / weights.sum(dim=-1).clamp(min=1e-300)
    return centre.argsort(stable=True)


def in_drawn_order(model: LinformerModel, mappings: Tensor, layers: list[int], heads: list[int]) -> Tensor:
    """P̄ in the order of the plot: the slots of each head from the start of the text to its end (linear projections)."""
    drawn = mappings.clone()
    for row, layer in enumerate(layers):
        module = model.encoder.projections[layer]
        columns, first = _columns_of(model, layer, mappings.shape[2]), model.config.global_tokens
        if not isinstance(module, LinearProjection) or columns.first != first:
            continue
        for column, head in enumerate(heads):
            order = slot_order(_of_head(module, module.key_projection.detach(), head)[: columns.slots[head]])
            drawn[row, column, :, first : first + len(order)] = mappings[row, column][:, first + order]
    return drawn


def _images(module: SequenceProjection, where: str, head: int) -> list[Image]:
    if isinstance(module, RandomProjection):
        return [_image(f"{where} R", module.matrix, "slot", "position")]
    if not isinstance(module, (LinearProjection, ConvProjection)):
        return []
    owner = f" head {head}" if module.sharing == "none" else ""
    named = [(f"{where} E{owner}", module.key_projection), (f"{where} F{owner}", module.value_projection)]
    matrices = [(name, _of_head(module, matrix.detach(), head)) for name, matrix in named if matrix is not None]
    if isinstance(module, LinearProjection):
        order = slot_order(matrices[0][1])
        return [_image(name, matrix, "slot, by its place in the text", "position", order) for name, matrix in matrices]
    columns = "tap" if matrices[0][1].dim() == 2 else "input dimension and tap"
    return [_image(name, kernel.flatten(1), "dimension of the head", columns) for name, kernel in matrices]


def _image(name: str, matrix: Tensor, rows: str, columns: str, order: Tensor | None = None) -> Image:
    _check_finite(name, matrix)
    order = torch.arange(len(matrix)) if order is None else order
    return Image(name, matrix.float().numpy(), rows, columns, order.numpy())


def _of_head(module: LinearProjection | ConvProjection, matrix: Tensor, head: int) -> Tensor:
    """The matrix that a head projects with: E or F itself, or its part for the head if each head has its own."""
    if module.sharing != "none":
        return matrix
    return matrix[head] if module.uniform else matrix.split(module.head_dims)[head]


class _Columns(NamedTuple):
    """What the columns of P̄ of a layer stand for, in this order."""

    first: int  # global tokens
    slots: list[int]  # of each head
    near: int  # neighbours


def _columns_of(model: LinformerModel, layer: int, seq_len: int) -> _Columns:
    """The columns of P̄ for a text; with full attention, all are its tokens."""
    module, config = model.encoder.projections[layer], model.config
    first, near = config.global_tokens, config.sliding_window
    rest = seq_len - first
    groups = model.encoder.attentions[layer].groups
    if module is None or ((first or near) and (rest <= 0 or module.keeps_tokens(rest, groups))):
        return _Columns(0, [seq_len] * config.num_attention_heads, 0)
    return _Columns(first, _slots_by_head(model, layer, rest), near)


def _slots_by_head(model: LinformerModel, layer: int, seq_len: int) -> list[int]:
    """Number of slots of each head of a layer for a text."""
    module, heads = model.encoder.projections[layer], model.config.num_attention_heads
    assert module is not None
    dims = module.fewer_slots(model.encoder.attentions[layer].projected_dim, heads)
    if not module.windowed:
        return list(dims)
    stretch = module.shorter_input == "stretch"
    return [pooling_windows(k, module.seq_len, seq_len, stretch=stretch).real.shape[1] for k in dims]


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
        f"`inspection.npz` holds the context mappings of layers {listed(results['layers'])} and heads "
        f"{listed(results['heads'])} as `context_mappings[layer, head, token, slot]`, global tokens before the slots "
        "and neighbours after them, NaN for what a head lacks, and the matrices in `projections.png`, all with slots "
        "in the model's own order.",
    ]
    return "\n".join(lines) + "\n"


def draw_context_mappings(results: dict[str, Any], mappings: np.ndarray) -> Figure:
    """Plot context mappings as images, a row for each layer and a column for each head.

    Args:
        results: The content of `inspection.json`.
        mappings: `[layers, heads, tokens, slots]` to plot; NaN, drawn grey, for slots that a head lacks.
    """
    layers, heads, tokens, _ = mappings.shape
    figure, axes = new_figure((1.2 + 3 * heads, 0.8 + 3 * layers), layers, heads, squeeze=False, sharey=True)
    highest = float(np.nanquantile(mappings, 0.998)) or 1.0  # 0 if each token attends to one of very many slots
    for row, layer in enumerate(results["layers"]):
        for column, head in enumerate(results["heads"]):
            axis = axes[row, column]
            image = _draw_matrix(axis, mappings[row, column], f"layer {layer}, head {head}", "viridis", 0, highest)
    for axis in axes[:, 0]:
        if tokens <= _LABELLED_TOKENS:
            axis.set_yticks(range(tokens), [_label(token) for token in results["tokens"]], fontsize=6, parse_math=False)
        axis.set_ylabel("token")
    full, placed = results["attention"] == "full", results["projection"] not in ("random", "dynamic")
    first, slots, near = results["columns"].values()
    for axis in axes.flat:
        for edge in (first, first + slots):
            if 0 < edge < first + slots + near:
                axis.axvline(edge - 0.5, color="white", linewidth=0.8)
    parts = [f"{count:,} {name}" for name, count in results["columns"].items() if count]
    beside = ", ".join(parts) if len(parts) > 1 else ""
    for axis in axes[-1]:
        axis.set_xlabel("token" if full else beside or ("slot, by its place in the text" if placed else "slot"))
    bar = figure.colorbar(image, ax=axes, shrink=min(1.0, 2 / layers), extend="max")
    bar.set_label("attention weight, P" if full else "attention weight, P̄")
    return figure


def draw_projections(images: Sequence[Image]) -> Figure:
    """Plot matrices of projections as images, E and F side by side, each with its own colour scale."""
    columns = 2 if any(" F" in image.name for image in images) else 1
    rows = -(-len(images) // columns)
    figure, axes = new_figure((5.5 * columns, 2.9 * rows), rows, columns, squeeze=False)
    for axis, image in zip(axes.flat, images, strict=True):
        highest = float(np.abs(image.matrix).max()) or 1.0
        drawn = _draw_matrix(axis, image.matrix[image.order], image.name, "RdBu", -highest, highest)
        axis.set(xlabel=image.columns, ylabel=image.rows)
        figure.colorbar(drawn, ax=axis, label="weight")
    return figure


def _draw_matrix(axis: Axes, matrix: np.ndarray, title: str, colours: str, lowest: float, highest: float) -> Any:
    """Plot a matrix: with sharp cells, or antialiased if it has more entries than pixels; NaN is grey."""
    cmap = colormaps[colours].with_extremes(bad="lightgrey")
    interpolation = "antialiased" if max(matrix.shape) > _PIXELS else "nearest"
    drawn = axis.imshow(matrix, aspect="auto", cmap=cmap, vmin=lowest, vmax=highest, interpolation=interpolation)
    axis.set_title(title, fontsize=10)
    for numbered in (axis.xaxis, axis.yaxis):
        numbered.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
    return drawn


def _label(token: str) -> str:
    """A token as axis label: truncated, with escapes for all but printable Latin characters."""
    escaped = token.replace("\\", "\\\\")
    shown = [
        each if each.isprintable() and each < "\u0250" else each.encode("unicode_escape").decode() for each in escaped
    ]
    return shortened("".join(shown), _LONGEST_LABEL)


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
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: expected UTF-8, got byte 0x{error.object[error.start]:02x} at {error.start}"
        ) from None
    return text, path.name if settings.text_file else "the source of Python's argparse"


def _tokens(
    settings: InspectSettings, text: str, tokenizer: PreTrainedTokenizerBase, model: LinformerModel
) -> Int[Tensor, "1 seq_len"]:
    longest = model.config.max_position_embeddings
    least = tokenizer.num_special_tokens_to_add() + 1
    if settings.max_tokens is not None and not least <= settings.max_tokens <= longest:
        raise InputError(f"max_tokens: expected {least} to {longest} (the longest sequence), got {settings.max_tokens}")
    ids = tokenizer(text, truncation=True, max_length=settings.max_tokens or longest, return_tensors="pt")["input_ids"]
    if ids.shape[1] == 0 or not text.strip():
        raise InputError("text: expected some words, got none")
    return ids


def _load(name: str) -> tuple[LinformerModel, PreTrainedTokenizerBase]:
    model, tokenizer = load_model(name, AutoModel, "a Linformer")
    if not isinstance(model, LinformerModel):
        raise InputError(f"model: expected a Linformer, got {name}, a {model.config.model_type}")
    return model, tokenizer
