"""What Linformers and linearised encoders of transformers have in common: E and F, a longest input, and a card."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init

from linformer_cli.errors import InputError
from linformer_cli.settings import ResizeMode
from linformer_cli.settings.declare import LONGEST
from linformer_kit.files.manifest import read_json
from linformer_kit.operator.conditions import require
from linformer_kit.operator.projections import FullAttention, SequenceProjection
from linformer_kit.operator.projections.sizes import check_resize, each_dim, resize_positions
from linformer_kit.operator.projections.windows import more_windows
from linformer_kit.report.card import write_card

# What PEFT notes as the base of adapters, and says that it cannot load, where no folder has the model.
NOT_SAVED = "a model that was in no folder when it got its adapter (save it, and load it, before)"
_WRAPPED = re.compile(r"\.(base_layer|original_module)(?=\.)")  # PEFT's, in the names of weights


class LinearModel(PreTrainedModel):
    """A model with E and F, which is saved with a README.md and can be made longer."""

    has_positions = True  # whether positions are embedded, which are resized with E and F
    is_of_sentences = False  # whether sentence-transformers loads it, which finds a configuration by an adapter's base
    card_use: str | None = None  # how the README.md says to load it; None: by an Auto class

    def __init__(self, config: Any, *arguments: Any, **named: Any) -> None:
        super().__init__(config, *arguments, **named)
        self.name_or_path: str = config.name_or_path or NOT_SAVED

    @property
    def longest_sequence(self) -> int:
        """n, the longest input in tokens or patches."""
        return self.config.max_position_embeddings

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, SequenceProjection):
            for name, value in module.initial_values().items():
                init.copy_(getattr(module, name), value)  # unless it was loaded
        else:
            super()._init_weights(module)

    def save_pretrained(
        self,
        save_directory: str | os.PathLike[str],
        is_main_process: bool = True,
        state_dict: dict[str, Tensor] | None = None,
        **options: Any,
    ) -> None:
        """As in transformers, with a README.md if the folder has none.

        A model with adapters saves these alone, as in transformers; if it was in no folder before, so that they would
        have no model to be loaded with, its own weights are saved beside them.

        Raises:
            InputError: for a model whose layers were cut or multiplied, which could not be loaded as it is.
        """
        layers, configured = self._layer_counts()
        if layers != configured:
            raise InputError(f"model: expected {configured} attention layers, as its configuration says, got {layers}")
        if is_main_process:
            write_card(self, Path(save_directory), self.longest_sequence, use=self.card_use)
        adapters = getattr(self, "peft_config", {}).values()
        alone = [adapter for adapter in adapters if adapter.base_model_name_or_path in (None, "", NOT_SAVED)]
        if alone and is_main_process:
            self._save_without_adapters(state_dict or self.state_dict(), save_directory)
        for adapter in alone:  # a path would be wrong in a copy of the folder, and transformers reads none
            adapter.base_model_name_or_path = str(Path(save_directory).resolve()) if self.is_of_sentences else NOT_SAVED
        try:
            super().save_pretrained(save_directory, is_main_process, state_dict, **options)
        finally:
            for adapter in alone:
                adapter.base_model_name_or_path = NOT_SAVED

    def load_adapter(self, peft_model_id: str | None = None, *arguments: Any, **options: Any) -> Any:
        """As in transformers, for an adapter that has no other model beside it.

        Raises:
            InputError: if the configuration was read from the place where a copied folder was made.
        """
        path = Path(peft_model_id or "") / "config.json"
        if peft_model_id and path.is_file():
            beside, own = read_json(path).get("linformer"), getattr(self.config, "linformer", None)
            if beside != own:
                raise InputError(f"{path}: expected the configuration of this model, linformer {own}, got {beside}")
        return super().load_adapter(peft_model_id, *arguments, **options)

    def _save_without_adapters(self, state_dict: dict[str, Tensor], folder: str | os.PathLike[str]) -> None:
        """Save the weights that adapters change, under the names that they have without adapters."""
        with torch.device("meta"):
            model: Any = type(self)(self.config)
        weights = {_WRAPPED.sub("", name): tensor for name, tensor in state_dict.items()}
        model.to(self.dtype).save_pretrained(folder, state_dict={name: weights[name] for name in model.state_dict()})

    def projections(self) -> list[SequenceProjection]:
        """E and F of all layers; shared ones once."""
        return [
            module
            for module in self.modules()
            if isinstance(module, SequenceProjection) and not isinstance(module, FullAttention)
        ]

    def projection_matrix_count(self) -> int:
        """Number of n → k matrices: 2·h·L, 2·L, L or 1 by sharing (section 4 of the paper); 0 with full attention."""
        return sum(projection.matrix_count() for projection in self.projections())

    def is_untrained(self) -> bool:
        """Whether learned E and F are as new; those that start at random are not recognised."""
        return any(
            torch.equal(value.to(parameter), parameter)
            for projection in self.projections()
            for name, value in projection.initial_values().items()
            if isinstance(parameter := getattr(projection, name), nn.Parameter)
        )

    @torch.no_grad()
    def resize_sequence_length(self, seq_len: int, *, mode: ResizeMode = "extend") -> None:
        """Change the maximum sequence length in-place, also in the configuration.

        E, F and the positions are replaced by new parameters, so create the optimizer afterwards. `set_projected_dim`
        is reset. Other models with the same configuration object and the tokenizer's `model_max_length` (or
        sentence-transformers' `max_seq_length`) stay as they are.

        Args:
            seq_len: The new n in tokens.
            mode: `extend` repeats the columns of E and F and the positions periodically: outputs of texts up to the old
                length are unchanged, bit for bit. Windows of pooling and convolution keep their size and their number
                grows; a random matrix gets new columns.
                `interpolate` stretches E and F (keeping their row sums), kernels and positions, to any length; outputs
                of texts of the old length change.
                With shorter_input `stretch`, the number of windows stays in either mode, so outputs of pooling are
                unchanged too. For a dynamic projection only positions are resized.

        Raises:
            InputError: for a length below the old one with `extend`, or below the number of slots with `interpolate`;
                if whole windows do not tile it; for a model without positions of tokens. Nothing is changed then.
        """
        check_positions(self, seq_len, mode)
        old, dims, projections = self.longest_sequence, self._slots(), self.projections()
        stretched = any(each.shorter_input == "stretch" for each in projections)
        projection_mode = "interpolate" if stretched else mode
        for projection in projections:
            projection.check_resize(seq_len, projection_mode)
        if projection_mode == "extend" and any(projection.windowed for projection in projections):
            dims = each_dim(dims, lambda k: more_windows(k, old, seq_len))
        self._check_size(seq_len, dims)
        for projection in projections:
            projection.resize(seq_len, projection_mode)
        set_positions(self, seq_len, mode)
        self.name_or_path = NOT_SAVED  # adapters would name the model as it was
        self._record_size(seq_len, dims)

    def _layer_counts(self) -> tuple[int, int]:
        """The number of attention layers of the model, and that of its configuration."""
        raise NotImplementedError

    def _slots(self) -> Any:
        """k in the configuration."""
        return self.config.projected_dim

    def _check_size(self, seq_len: int, projected_dim: Any) -> None:
        """Raise an error for an n and k that do not fit the other fields of the configuration."""

    def _record_size(self, seq_len: int, projected_dim: Any) -> None:
        """Record a new n and k in the configuration."""
        self.config.max_position_embeddings, self.config.projected_dim = seq_len, projected_dim


def reject_packed(position_ids: Any, attention_mask: Any) -> None:
    """Reject rows of several texts, whose positions start again: slots would mix them."""
    if not isinstance(position_ids, Tensor) or position_ids.dim() != 2:
        return
    starts = (position_ids[:, 1:] == position_ids[:, :1]) & (position_ids[:, 1:] < position_ids[:, :-1])
    if isinstance(attention_mask, Tensor) and attention_mask.shape[1:] == position_ids.shape[1:]:
        real = attention_mask != 0
        starts = starts & real[:, 1:] & real[:, :-1]
    expected = "position_ids: expected those of one text in each row, because slots mix all of its tokens"
    require(~starts.any(), f"{expected}, got positions that start again")


class Table(NamedTuple):
    """A table of position embeddings: its owner, the embedding, and the number of unused first rows (as in RoBERTa)."""

    owner: nn.Module
    embedding: nn.Embedding
    unused: int


def position_tables(model: nn.Module) -> list[Table]:
    """All tables of token positions in a model."""
    tables = []
    for owner in model.modules():
        embedding = getattr(owner, "position_embeddings", None)
        if isinstance(embedding, nn.Embedding):
            padding, offset = embedding.padding_idx, getattr(owner, "position_offset", _first(owner, embedding))
            tables.append(Table(owner, embedding, offset if padding is None else padding + 1))
    return tables


def _first(owner: nn.Module, embedding: nn.Embedding) -> int:
    """The first number in `position_ids`, by its length, so that it is known on the meta device too."""
    numbers = getattr(owner, "position_ids", None)
    return 0 if numbers is None else embedding.num_embeddings - numbers.shape[-1]


def last_layer(model: PreTrainedModel) -> str:
    """Name of the linear layer of a model's head that computes its logits; empty without one."""
    base = f"{model.base_model_prefix}."
    layers = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return next((name for name in reversed(layers) if not name.startswith(base)), "")


def longest_input(model: PreTrainedModel) -> int | None:
    """n in tokens: the size of the tables, else the configuration's value; None if there is no limit."""
    positions = [table.embedding.num_embeddings - table.unused for table in position_tables(model)]
    return min(positions, default=getattr(model.config, "max_position_embeddings", None))


def check_positions(model: PreTrainedModel, seq_len: int, mode: str) -> None:
    """Check that `set_positions` can resize a model."""
    now, kind = longest_input(model), type(model).__name__
    if now is None:
        raise InputError(f"seq_len: expected none for {kind}, whose inputs have a fixed size, got {seq_len}")
    check_resize(now, seq_len, mode)
    if seq_len > LONGEST:
        raise InputError(f"seq_len: expected at most {LONGEST:,}, got {seq_len:,}")
    has_table = position_tables(model) or not getattr(model, "has_positions", True)
    if not has_table and not any("Rotary" in type(module).__name__ for module in model.modules()):
        expected = f"none, since {kind} has no plain table of positions (merge adapters first)"
        raise InputError(f"seq_len: expected {expected}, got {seq_len}")


@torch.no_grad()
def set_positions(model: PreTrainedModel, seq_len: int, mode: str) -> None:
    """Resize the tables (`position_embeddings`) and the configuration of a model to seq_len tokens, in-place."""
    more = seq_len - cast(int, longest_input(model))
    for owner, old, unused in position_tables(model):
        for name in ("position_ids", "token_type_ids"):  # buffers of the same length as the table
            if name in owner._buffers:
                buffer = getattr(owner, name)
                numbers = torch.arange(buffer.shape[-1] + more).to(buffer)[None]
                setattr(owner, name, numbers + _first(owner, old) if name == "position_ids" else 0 * numbers)
        positions = resize_positions(old.weight[unused:], seq_len, mode)
        table = torch.cat([old.weight[:unused], positions])
        trains = old.weight.requires_grad
        owner.position_embeddings = nn.Embedding.from_pretrained(table, freeze=not trains, padding_idx=old.padding_idx)
    model.config.max_position_embeddings += more


def projection_parameters(model: nn.Module) -> list[nn.Parameter]:
    """E and F, W_P, and kernels of convolutions: the parameters of all projections."""
    projections = [module for module in model.modules() if isinstance(module, SequenceProjection)]
    return [matrix for module in projections for matrix in module.parameters()]
