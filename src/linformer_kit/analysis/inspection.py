"""Look inside a model: which slots its heads attend to on real text, and what its projections have learned.

`linformer inspect MODEL` draws the context mapping P̄ of equation 7 for several heads, and E and F as images.
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
from linformer_kit.modeling import LinformerModel
from linformer_kit.predict import load_model
from linformer_kit.projection import ConvProjection, LinearProjection, RandomProjection, SequenceProjection
from linformer_kit.report import draw_context_mappings, draw_projections, write_inspection_report
from linformer_kit.settings import InspectSettings

_PANELS = 4  # layers, and heads, that are drawn where nobody chooses


def main(settings: InspectSettings) -> None:
    """Inspect and print."""
    print(inspect(settings))
    print(f"Saved in {settings.output_dir}")


def inspect(settings: InspectSettings) -> str:
    """Run the model on a text, and write what there is to see into `settings.output_dir`.

    `context_mapping.png`, `projections.png` (where the projection has matrices), `inspection.md`, `inspection.json`,
    and all arrays in `inspection.npz`.

    Returns:
        The Markdown text.

    Raises:
        InputError: for a model that is no Linformer, a text without tokens, layers or heads that there are not, or an
            output_dir that holds anything.
    """
    folder = Path(settings.output_dir)
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise InputError(f"output_dir: expected a new or empty folder, got {folder}, which exists")
    text, described = _text(settings)
    model, tokenizer = _load(settings.model)
    layers = _chosen("layers", settings.layers, model.config.num_hidden_layers)
    heads = _chosen("heads", settings.heads, model.config.num_attention_heads)
    ids = _tokens(settings, text, tokenizer, model)
    mappings = context_mappings(model, ids)
    images = projection_images(model, layers, heads)
    results: dict[str, Any] = {
        "command": "inspect",
        "model": settings.model,
        "text": described,
        "tokens": [tokenizer.decode([token]) for token in ids[0].tolist()],
        **{name: getattr(model.config, name) for name in ("attention", "projection", "sharing", "projected_dim")},
        "layers": layers,
        "heads": heads,
        "effective_slots": effective_slots(mappings).tolist(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {image.name.replace(" ", "_"): image.matrix.numpy() for image in images}
    np.savez_compressed(folder / "inspection.npz", context_mappings=mappings.numpy(), **arrays)
    ordered = [mappings[layer].gather(-1, _order_of(model, layer, mappings)) for layer in layers]
    draw_context_mappings(results, torch.stack(ordered)[:, heads].numpy(), folder / "context_mapping.png")
    if images:
        draw_projections([image._replace(matrix=image.matrix.numpy()) for image in images], folder / "projections.png")
    return write_inspection_report(results, folder)


@torch.no_grad()
def context_mappings(
    model: LinformerModel, input_ids: Int[Tensor, "1 seq_len"]
) -> Float[Tensor, "layers heads seq_len slots"]:
    """P̄ (P with full attention) of all layers for one text."""
    attentions = model(input_ids, output_attentions=True).attentions
    most = max(weights.shape[-1] for weights in attentions)
    return torch.cat([torch.nn.functional.pad(weights, (0, most - weights.shape[-1])) for weights in attentions])


def effective_slots(mappings: Float[Tensor, "layers heads seq_len slots"]) -> Float[Tensor, "layers heads"]:
    """How many slots a head spreads its attention over: e to the entropy of P̄'s rows, averaged over the tokens.

    1 where each token attends to a single slot, the number of slots where it attends to all alike.
    """
    return torch.special.entr(mappings).sum(dim=-1).mean(dim=-1).exp()


class Image(NamedTuple):
    """A matrix to draw: what it is, its numbers, and what its rows and columns are."""

    name: str
    matrix: Any
    rows: str
    columns: str


def projection_images(model: LinformerModel, layers: list[int], heads: list[int]) -> list[Image]:
    """E and F of some layers as images; nothing where a projection has no matrices.

    The rows of a matrix are ordered by where in the text they look, as the slots in the pictures of P̄ are. Matrices of
    each head come for the first of `heads` only.
    """
    if model.encoder.projection is not None:
        return _images(model.encoder.projection, "all layers", heads[0])
    modules = model.encoder.projections
    named = [(f"layer {layer}", module) for layer in layers if (module := modules[layer]) is not None]
    return [image for where, module in named for image in _images(module, where, heads[0])]


def slot_order(matrix: Float[Tensor, "projected seq_len"]) -> Int[Tensor, " projected"]:
    """The rows of E by the centre of their squared weights: the slots from the start of the text to its end."""
    weights = matrix.double().square()
    centre = (weights * torch.arange(matrix.shape[-1])).sum(dim=-1) / weights.sum(dim=-1).clamp(min=1e-300)
    return centre.argsort(stable=True)


def _images(module: SequenceProjection, where: str, head: int) -> list[Image]:
    if isinstance(module, RandomProjection):
        return [Image(f"{where} R", module.matrix.detach(), "slot", "position")]
    named = [("E", "key_projection"), ("F", "value_projection")]
    images = []
    for letter, name in named:
        matrix = getattr(module, name, None)
        if matrix is None:
            continue
        matrix, title = matrix.detach(), f"{where} {letter}"
        if module.sharing == "none":
            title += f" head {head}"
            matrix = _of_head(module, matrix, head)
        if isinstance(module, ConvProjection):
            matrix = matrix.flatten(1)
            columns = (
                "tap" if module.key_projection.dim() - (module.sharing == "none") == 2 else "input dimension and tap"
            )
            images.append(Image(title, matrix, "dimension of the head", columns))
        else:
            images.append(Image(title, matrix[slot_order(matrix)], "slot", "position"))
    return images


def _of_head(module: SequenceProjection, matrix: Tensor, head: int) -> Tensor:
    if isinstance(module, LinearProjection) and not module.uniform:
        return matrix.split(module.head_dims)[head]
    return matrix[head]


def _order_of(model: LinformerModel, layer: int, mappings: Tensor) -> Tensor:
    """For P̄ of a layer, `[heads, seq_len, slots]`: the slots of each head from the start of the text to its end."""
    module, attention = model.encoder.projections[layer], model.encoder.attentions[layer]
    _, heads, seq_len, slots = mappings.shape
    order = torch.arange(slots).repeat(heads, 1)
    if isinstance(module, LinearProjection):
        for head, k in enumerate(module.fewer_slots(attention.projected_dim, heads)):
            matrix = module.key_projection.detach()
            matrix = _of_head(module, matrix, head) if module.sharing == "none" else matrix
            order[head, :k] = slot_order(matrix[:k])
    return order[:, None].expand(-1, seq_len, -1)


def _chosen(name: str, chosen: list[int] | None, count: int) -> list[int]:
    """The layers or heads that are drawn: those chosen, or a few, evenly spread."""
    if chosen is None:
        return sorted({round(index * (count - 1) / max(1, _PANELS - 1)) for index in range(_PANELS)})
    for index in chosen:
        if not 0 <= index < count:
            raise InputError(f"{name}: expected 0 to {count - 1}, got {index}")
    return chosen


def _text(settings: InspectSettings) -> tuple[str, str]:
    """The text and what to call it: a real one that is on every machine, where nobody gives another."""
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
    if settings.max_tokens is not None and not 1 <= settings.max_tokens <= longest:
        raise InputError(f"max_tokens: expected 1 to {longest} (the longest sequence), got {settings.max_tokens}")
    ids = tokenizer(text, truncation=True, max_length=settings.max_tokens or longest, return_tensors="pt")["input_ids"]
    if ids.shape[1] == 0 or not text.strip():
        raise InputError("text: expected some words, got none")
    return ids


def _load(name: str) -> tuple[LinformerModel, PreTrainedTokenizerBase]:
    model, tokenizer = load_model(name, AutoModel, "a Linformer")
    if not isinstance(model, LinformerModel):
        raise InputError(f"model: expected a Linformer, got {name}, a {model.config.model_type}")
    return model, tokenizer
