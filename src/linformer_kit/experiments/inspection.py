"""Inspect a model: which slots its heads attend to on real text, and its projection matrices.

`linformer inspect MODEL` plots the context mapping P̄ of equation 7 for several heads, and E and F as images.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import AutoModel, PreTrainedTokenizerBase

from linformer_kit.errors import InputError
from linformer_kit.experiments.experiment import show
from linformer_kit.files.folders import check_new_folder
from linformer_kit.files.writing import whole_folder
from linformer_kit.interop.loading import load_model
from linformer_kit.models.modeling import LinformerModel
from linformer_kit.operator.projections import ConvProjection, LinearProjection, RandomProjection, SequenceProjection
from linformer_kit.operator.projections.windows import pooling_windows
from linformer_kit.report.inspection import draw_context_mappings, draw_projections, write_inspection_report
from linformer_kit.settings import InspectSettings, recorded_name

_PANELS = 4  # layers, and heads, that are plotted by default
_PARTS = ("global tokens", "slots", "neighbours")  # what the columns of P̄ stand for


def main(settings: InspectSettings) -> None:
    """Inspect and print."""
    show(inspect(settings), settings.output_dir)


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
    with whole_folder(folder) as part:
        np.savez_compressed(part / "inspection.npz", **arrays)
        draw_context_mappings(
            results, in_drawn_order(model, mappings, layers, heads).numpy(), part / "context_mapping.png"
        )
        if images:
            draw_projections(images, part / "projections.png")
        return write_inspection_report(results, part)


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
