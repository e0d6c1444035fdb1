"""Sequence parallelism: each process holds a piece of each sequence, and the columns of E and F of its positions.

A slot is a sum over positions, E·X = Σ_r E_r·X_r. Each process computes its part, and one all-reduce of k rows,
independent of n, gives every process all slots. Queries and everything else need only the local tokens.

The pieces are stripes: process r of R has positions r, r + R, r + 2R, …, so that texts of every length are spread
evenly. This is possible because attention over slots does not depend on the order of tokens. `local_convolution` and
`sliding_window` do, so with them the pieces are blocks, and what is at their edges is sent to the neighbours.

Axes: batch, seq_len (n of the whole sequence), piece (positions here), embed.
"""

from __future__ import annotations

import functools
import inspect
import zlib
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from transformers.models.roberta.modeling_roberta import RobertaClassificationHead

from linformer_cli.errors import InputError
from linformer_cli.settings import IGNORED_LABEL
from linformer_kit.models.configuration import LinformerConfig
from linformer_kit.models.encoder import LocalConvolution
from linformer_kit.models.heads import (
    LinformerForMaskedLM,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
)
from linformer_kit.models.modeling import LinformerModel, LinformerPreTrainedModel, check_mask
from linformer_kit.operator.neighbours import Neighbours
from linformer_kit.operator.padding import real_tokens_first, zero_padding
from linformer_kit.operator.projections import Piece, SequenceProjection
from linformer_kit.parallel.collectives import add, exchange, most, of_all

SEQUENCE_DIMENSION = "sequence"

_MODELS = (
    LinformerModel,
    LinformerForMaskedLM,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
)
_FORWARD = tuple(inspect.signature(LinformerModel.forward).parameters)[1:]


class SequenceParallel:
    """Split a model over the processes of a device mesh, in-place; outputs and gradients equal those of one process.

    Every process passes a whole model; the first one's parameters are used. Each process keeps its columns of E and F
    and its rows of the position embeddings; everything else is replicated. A training step is

        piece = parallel.shard(batch)                      # the whole batch in, on every process
        loss = model(**piece, num_items_in_batch=parallel.count_labels(piece["labels"])).loss
        loss.backward()
        parallel.reduce_gradients()

    The losses of the processes add up to the loss of one process. For DistributedDataParallel, add a dimension to the
    mesh and pass its process group to the wrapped model (docs/training.md).

    Args:
        model: A LinformerModel, or one for masked language modelling, sequence or token classification.
        mesh: A mesh of one dimension, or one with a dimension named `sequence`.

    Raises:
        InputError: for a model whose slots are not sums over positions or depend on the length of the text:
            `attention="full"`, projections `max_pool` and `conv`, `shorter_input="stretch"`; for `global_tokens`; for
            question answering, whose loss is over all positions; for too many processes; for a model split already.
    """

    def __init__(self, model: LinformerPreTrainedModel, mesh: DeviceMesh) -> None:
        self.mesh = mesh
        self.group = _sequence_group(mesh)
        self.ranks, self.rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        _check_model(model, self.ranks)
        self.model = model
        config: LinformerConfig = model.config
        self.seq_len: int = config.max_position_embeddings
        self._striped = config.local_convolution == 0 and config.sliding_window == 0
        self.positions = self._positions_of(self.rank)
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor.detach(), group=self.group, group_src=0)
        for tensor, dim, before in self._sliced().values():
            head, columns = _split(tensor.data, dim, before)
            tensor.data = torch.cat([head, columns[:, self.positions]], dim=1).movedim(1, dim).contiguous()
        self._install()

    def shard(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """This process's piece of a batch.

        Real tokens are moved to the front. Integer tensors `[batch, seq_len]`, the mask and inputs_embeds are split,
        labels of whole sequences are not. If there are fewer positions than processes, some get one padded position.

        Args:
            batch: Arguments of the model by name, the same on every process of the group.

        Returns:
            The arguments for this process's model, always with an attention_mask.

        Raises:
            InputError: for position_ids, which follow from the mask, for a sequence that is too long, and if the
                processes have different batches.
        """
        whole = dict(batch)
        tokens = whole.get("input_ids", whole.get("inputs_embeds"))
        if tokens is None:
            raise InputError("batch: expected input_ids or inputs_embeds, got neither")
        _reject_position_ids(whole.get("position_ids"))
        shape = tokens.shape[:2]
        mask = whole.setdefault("attention_mask", tokens.new_ones(shape, dtype=torch.long))
        # Check this first: if only one process raised an error, the others would wait for it.
        _check_same_batch(whole, self.model.device, self.group)
        if shape[1] > self.seq_len:
            raise InputError(f"sequence length: expected at most {self.seq_len}, got {shape[1]}")
        check_mask(mask, shape)
        if mask.is_floating_point():  # a piece of it could be mistaken for a mask that is added to scores
            mask = whole["attention_mask"] = mask != 0
        order = real_tokens_first(mask == 0)
        return {name: self._piece(name, tensor, order) for name, tensor in whole.items()}

    def count_labels(self, labels: Shaped[Tensor, "*shape"]) -> Float[Tensor, ""]:
        """`num_items_in_batch` of one update: the divisor of each process's sum of losses.

        This is the number of labels on all processes of the mesh, divided by the size of its other dimensions, because
        DistributedDataParallel takes a mean there. With gradient accumulation, pass all labels of the update.

        Args:
            labels: Labels of this process's piece; -100 is ignored.
        """
        count = (labels != IGNORED_LABEL).sum().to(self.model.device)
        for dim in range(self.mesh.ndim):
            dist.all_reduce(count, group=self.mesh.get_group(dim))
        return count / (self.mesh.size() // self.ranks)

    def reduce_gradients(self) -> None:
        """Sum the gradients of replicated parameters; call once per update, after the last backward pass."""
        _, replicated = self._gradients()
        for work in [dist.all_reduce(gradient, group=self.group, async_op=True) for gradient in replicated]:
            work.wait()

    def clip_grad_norm_(self, max_norm: float) -> Float[Tensor, ""]:
        """Clip the gradient norm of the whole model to max_norm; call after `reduce_gradients`.

        Returns:
            The norm before clipping, as `torch.nn.utils.clip_grad_norm_`.
        """
        sliced, replicated = map(nn.utils.get_total_norm, self._gradients())
        squares = sliced.square().to(self.model.device)
        dist.all_reduce(squares, group=self.group)
        norm = (squares + replicated.square()).sqrt()
        nn.utils.clip_grads_with_norm_(self.model.parameters(), max_norm, norm)
        return norm

    def _gradients(self) -> tuple[list[Tensor], list[Tensor]]:
        """Gradients of split and of replicated parameters."""
        split = {id(tensor) for tensor, _, _ in self._sliced().values()}
        gradients = [(id(p) in split, p.grad) for p in self.model.parameters() if p.grad is not None]
        return [g for is_split, g in gradients if is_split], [g for is_split, g in gradients if not is_split]

    @torch.no_grad()
    def full_state_dict(self) -> dict[str, Tensor]:
        """Gather the whole model's parameters on the CPU, for `save_pretrained(path, state_dict=…)` of rank 0.

        Returns:
            The state dict of the whole model on the first process of the group; empty on the others.
        """
        sliced, state = self._sliced(), {}
        for name, tensor in self.model.state_dict().items():
            if name in sliced:
                _, dim, before = sliced[name]
                head, columns = _split(tensor, dim, before)
                tensor = torch.cat([head, self.gather(columns, self.seq_len)], dim=1).movedim(1, dim)
            if self.rank == 0:
                state[name] = tensor.cpu().contiguous()
        return state

    @torch.no_grad()
    def gather(
        self, tensor: Shaped[Tensor, "batch piece *rest"], seq_len: int
    ) -> Shaped[Tensor, "batch {seq_len} *rest"]:
        """Gather the pieces of all processes into one sequence, real tokens first, on every process; no gradients.

        Args:
            tensor: An output of this process's model, such as hidden states or logits of tokens.
            seq_len: Sequence length of the batch passed to `shard`.
        """
        counts = [len(range(seq_len)[self._positions_of(rank)]) for rank in range(self.ranks)]
        padded = tensor.new_zeros(tensor.shape[0], max(counts), *tensor.shape[2:])
        padded[:, : counts[self.rank]] = tensor[:, : counts[self.rank]]
        whole = tensor.new_empty(tensor.shape[0], seq_len, *tensor.shape[2:])
        for rank, piece in enumerate(of_all(padded, group=self.group)):
            whole[:, self._positions_of(rank)] = piece[:, : counts[rank]]
        return whole

    def _positions_of(self, rank: int) -> slice:
        if self._striped:
            return slice(rank, self.seq_len, self.ranks)
        return slice(rank * self.seq_len // self.ranks, (rank + 1) * self.seq_len // self.ranks)

    def _sliced(self) -> dict[str, tuple[Tensor, int, int]]:
        """Split tensors by name: the tensor, its position axis, and the number of unused entries at its start."""
        embeddings = self.model.base_model.embeddings
        sliced: dict[str, tuple[Tensor, int, int]] = {}
        for prefix, module in self.model.named_modules():
            if isinstance(module, SequenceProjection):
                sliced |= {f"{prefix}.{name}": (tensor, -1, 0) for name, tensor in module.of_positions().items()}
            if module is embeddings.position_embeddings:
                sliced[f"{prefix}.weight"] = (module.weight, 0, embeddings.position_offset)
        return sliced

    def _install(self) -> None:
        base = self.model.base_model
        base.register_forward_pre_hook(self._check_piece, with_kwargs=True)
        piece = Piece(
            self.positions,
            add=functools.partial(add, group=self.group),
            most=functools.partial(most, group=self.group),
            widen=self._widened,
        )
        for module in self.model.modules():
            if isinstance(module, SequenceProjection):
                module.piece = piece
            if isinstance(module, RobertaClassificationHead):  # over the first token of each sequence
                module.register_forward_pre_hook(lambda _, arguments: self._of_first(arguments[0][:, 0])[:, None])
            if isinstance(module, LocalConvolution) and module.weight.shape[1] > 1:
                module.register_forward_pre_hook(self._with_neighbours)
                module.register_forward_hook(self._without_neighbours)

    def _of_first(self, hidden: Float[Tensor, "batch embed"]) -> Float[Tensor, "batch embed"]:
        """Broadcast the first process's tensor, since it has the first token."""
        # Masked instead of replaced, so that every process takes part in the backward pass.
        elsewhere = torch.tensor(self.rank > 0, device=hidden.device)
        return add([hidden.masked_fill(elsewhere, 0.0)], group=self.group)[0]

    def _widened(self, tokens: Neighbours) -> Neighbours:
        """The tokens of this piece, and those on both sides of it that its first and last queries see."""
        batch, _, length, _ = tokens.key.shape
        is_real = zero_padding(tokens.key.new_ones(batch, length, 1), tokens.lengths)
        reach = tokens.before, tokens.window - tokens.before - 1
        before, after = exchange([tokens.key, tokens.value, is_real], *reach, group=self.group)
        first = min(self.positions.start, tokens.before)  # before the first piece there are no tokens
        key, value = (
            torch.cat([left[:, :, tokens.before - first :], part, right], dim=2)
            for left, part, right in zip(before[:2], (tokens.key, tokens.value), after[:2], strict=True)
        )
        # Before a piece with tokens all are real.
        real = first + (length if tokens.lengths is None else tokens.lengths) + (after[2] != 0).sum((1, 2))
        return Neighbours(key, value, tokens.window, real, first, offset=self.positions.start - first)

    def _with_neighbours(self, module: LocalConvolution, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Arguments of a convolution with the tokens on both sides of the piece."""
        reach, hidden = module.weight.shape[1] // 2, zero_padding(*arguments)
        (before,), (after,) = exchange([hidden], reach, reach, group=self.group)
        return torch.cat([before, hidden, after], dim=1), None

    def _without_neighbours(self, module: LocalConvolution, _: Any, convolved: Tensor) -> Tensor:
        reach = module.weight.shape[1] // 2
        return convolved[:, reach : convolved.shape[1] - reach]

    @torch.no_grad()
    def _check_piece(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise an error for arguments that cannot be a piece from `shard`."""
        arguments = dict(zip(_FORWARD, args, strict=False)) | kwargs
        _reject_position_ids(arguments.get("position_ids"))
        mask, most = arguments.get("attention_mask"), len(range(self.seq_len)[self.positions])
        if mask is None:
            raise InputError("attention_mask: expected the mask of this process's piece, as from `shard`, got None")
        if mask.shape[1] > most:
            raise InputError(f"sequence length: expected at most {most}, as this process has, got {mask.shape[1]}")

    def _piece(self, name: str, tensor: Tensor, order: Int[Tensor, "batch seq_len"]) -> Tensor:
        """This process's positions of a tensor, real tokens first; what has no entry for each token is returned."""
        if tensor.shape[:2] != order.shape or (tensor.is_floating_point() and name != "inputs_embeds"):
            return tensor  # for each sequence or each of its labels
        ordered = tensor.take_along_dim(order.view(*order.shape, *[1] * (tensor.dim() - 2)), dim=1)
        piece = ordered[:, self.positions]
        if piece.shape[1]:
            return piece.contiguous()
        # Every layer needs at least one token; a padded one has no effect.
        fill = {"attention_mask": 0, "labels": IGNORED_LABEL}
        return torch.full_like(ordered[:, :1], fill[name]) if name in fill else ordered[:, :1].contiguous()


def _check_model(model: nn.Module, ranks: int) -> None:
    """Raise an error for a model that cannot be split over this number of processes."""
    if not isinstance(model, _MODELS):
        names = ", ".join(kind.__name__ for kind in _MODELS)
        raise InputError(f"model: expected one of {names}, got {type(model).__name__}")
    table = model.base_model.embeddings.position_embeddings
    if not isinstance(table, nn.Embedding):
        raise InputError(
            f"model: expected a plain table of positions, got {type(table).__name__}; merge adapters first"
        )
    config: LinformerConfig = model.config
    projections = [module for module in model.modules() if isinstance(module, SequenceProjection)]
    if config.global_tokens:
        raise InputError(f"global_tokens: expected 0 in sequence parallel, got {config.global_tokens}")
    if any(projection.piece is not None for projection in projections):
        raise InputError("model: expected a whole one, got one that is split already")
    if config.attention == "full" or not all(projection.supports_sequence_parallel for projection in projections):
        expected = "linear, mean_pool, random or dynamic, whose slots are sums over positions"
        got = config.projection if config.attention == "linformer" else "full attention"
        raise InputError(f"projection: expected {expected}, got {got}")
    if any(projection.stretches and projection.shorter_input == "stretch" for projection in projections):
        raise InputError("shorter_input: expected prefix, where each position has its own column, got stretch")
    # Positions of a piece: convolutions and windows reach one piece further only.
    least = max(1, config.local_convolution // 2, config.sliding_window // 2)
    if config.max_position_embeddings < ranks * least:
        raise InputError(
            f"mesh: expected at most {config.max_position_embeddings // least} processes for a longest sequence of "
            f"{config.max_position_embeddings}, got {ranks}"
        )


def _reject_position_ids(position_ids: Tensor | None) -> None:
    """Raise an error for position_ids: positions follow from the mask, and decide which process has a token."""
    if position_ids is not None:
        raise InputError("position_ids: expected None, because they decide which process has a token, got a tensor")


def _check_same_batch(batch: dict[str, Tensor], device: torch.device, group: dist.ProcessGroup) -> None:
    """Raise an error if processes have different batches; of float tensors other than the mask, only shapes count."""
    check = 0
    for name, tensor in sorted(batch.items()):
        check = zlib.crc32(f"{name} {tuple(tensor.shape)}".encode(), check)
        if name == "attention_mask" or not tensor.is_floating_point():
            content = tensor.double() if tensor.is_floating_point() else tensor  # numpy has no bfloat16
            check = zlib.crc32(content.cpu().numpy().tobytes(), check)
    everywhere = of_all(torch.tensor([check], device=device), group=group)
    if len(set(torch.cat(everywhere).tolist())) > 1:
        raise InputError("batch: expected the same on every process of the group, got different ones")


def _sequence_group(mesh: DeviceMesh) -> dist.ProcessGroup:
    names = mesh.mesh_dim_names or ()
    if mesh.ndim > 1 and SEQUENCE_DIMENSION not in names:
        raise InputError(f"mesh: expected one dimension, or one named {SEQUENCE_DIMENSION}, got {list(names)}")
    return mesh.get_group(SEQUENCE_DIMENSION if mesh.ndim > 1 else 0)


def _split(tensor: Tensor, dim: int, before: int) -> tuple[Tensor, Tensor]:
    """The unused entries at the start and the entries of positions, with positions on axis 1."""
    moved = tensor.movedim(dim, 1)
    return moved[:, :before], moved[:, before:]
