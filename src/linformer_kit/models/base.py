"""What Linformers and linearised encoders of transformers have in common: E and F, a longest input, and a card."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init

from linformer_cli.errors import InputError
from linformer_cli.settings import ResizeMode
from linformer_kit.models.card import write_card
from linformer_kit.models.positions import check_positions, set_positions
from linformer_kit.operator.projections import FullAttention, SequenceProjection, each_dim, more_windows


class LinearModel(PreTrainedModel):
    """A model with E and F, which is saved with a README.md and can be made longer."""

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

        Raises:
            InputError: for a model split by `SequenceParallel`, without the `state_dict` of the whole model.
        """
        if state_dict is None and any(projection.piece is not None for projection in self.projections()):
            expected = "SequenceParallel.full_state_dict(), because each process has a piece of the model"
            raise InputError(f"state_dict: expected {expected}, got None")
        if is_main_process:
            write_card(self, Path(save_directory), self.longest_sequence)
        super().save_pretrained(save_directory, is_main_process, state_dict, **options)

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
                With shorter_input `stretch`, E and F are stretched in either mode; for a multiple of n, this changes
                texts of up to n by rounding only. For a dynamic projection only positions are resized.

        Raises:
            InputError: for a length below the old one with `extend`, or below the number of slots with `interpolate`;
                if whole windows do not tile it; for a model without positions of tokens. Nothing is changed then.
        """
        check_positions(self, seq_len, mode)
        old, dims, projections = self.longest_sequence, self._slots(), self.projections()
        stretched = any(each.stretches and each.shorter_input == "stretch" for each in projections)
        of_projections = "interpolate" if stretched else mode
        for projection in projections:
            projection.check_resize(seq_len, of_projections)
        if of_projections == "extend" and any(projection.windowed for projection in projections):
            dims = each_dim(dims, lambda k: more_windows(k, old, seq_len))
        for projection in projections:
            projection.resize(seq_len, of_projections)
        set_positions(self, seq_len, mode)
        self._record_size(seq_len, dims)

    def _slots(self) -> Any:
        """k in the configuration."""
        return self.config.projected_dim

    def _record_size(self, seq_len: int, projected_dim: Any) -> None:
        """Record a new n and k in the configuration."""
        self.config.max_position_embeddings, self.config.projected_dim = seq_len, projected_dim
