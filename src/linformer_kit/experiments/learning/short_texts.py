"""Losses on texts much shorter than n, for each way of projecting shorter inputs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast

from linformer_kit.data.documents import read_documents
from linformer_kit.data.files import find_files
from linformer_kit.data.masking import BlockMasker
from linformer_kit.data.tokenizer import start_token_id
from linformer_kit.errors import InputError
from linformer_kit.models.heads import LinformerForMaskedLM
from linformer_kit.operator.projections import SHORTER_INPUTS, Inputs, LinearProjection, SequenceProjection
from linformer_kit.operator.projections.starts import spread_order
from linformer_kit.operator.slots import Slots
from linformer_kit.settings import IGNORED_LABEL
from linformer_kit.training.metrics import mean_token_loss

MASKED_PREFIX = "masked prefix"
_TOKENS = (10, 60)  # the start token included
_TEXTS = 2000
_BATCH = 32
_STARTS_IN_WINDOWS = ("pooling", "pooling_noise", "shifted_pooling")  # row i of E starts as window i


def short_text_losses(
    model: LinformerForMaskedLM,
    tokenizer: PreTrainedTokenizerFast,
    files: list[str],
    *,
    seed: int,
    probability: float,
    bf16: bool,
) -> dict[str, float]:
    """Loss over the masked tokens of the first short texts of some files.

    Args:
        model: The model; modified: its `shorter_input` is `prefix` afterwards.
        tokenizer: The model's tokenizer.
        files: Files with one text per line, or with the column `sentence` in a .tsv.
        seed: Seed of the masks.
        probability: Share of tokens to mask.
        bf16: Whether to use mixed precision.

    Returns:
        The loss with each form of `shorter_input` and, if E started as windows, with a prefix that masks slots whose
        window begins after the end of the text; with full attention one loss, by the name "".

    Raises:
        InputError: if no text has 10 to 60 tokens.
    """
    rows = _rows(files, tokenizer, BlockMasker(tokenizer, seed=seed, probability=probability))
    batches = [_padded(rows[index : index + _BATCH]) for index in range(0, len(rows), _BATCH)]
    return _by_form(model, lambda: mean_token_loss(model, batches, bf16=bf16))


def _by_form(model: LinformerForMaskedLM, measure: Callable[[], float]) -> dict[str, float]:
    projections = [module for module in model.modules() if isinstance(module, SequenceProjection)]
    if not projections:
        return {"": measure()}
    measured = {}
    for form in reversed(SHORTER_INPUTS):  # ends with prefix, which stays
        for projection in projections:
            projection.shorter_input = form
        measured[form] = measure()
    if all(map(_stands_in_windows, projections)):
        hooks = [projection.register_forward_hook(_mask_unreached) for projection in projections]
        measured[MASKED_PREFIX] = measure()
        for hook in hooks:
            hook.remove()
    return {form: measured[form] for form in (*SHORTER_INPUTS, MASKED_PREFIX) if form in measured}


def _stands_in_windows(projection: SequenceProjection) -> bool:
    if not isinstance(projection, LinearProjection) or not projection.uniform:
        return False
    alike = not (projection.by_head and projection.initializer == "shifted_pooling")
    return alike and projection.initializer in _STARTS_IN_WINDOWS


def _mask_unreached(projection: SequenceProjection, arguments: tuple[Inputs, ...], slots: list[Slots]) -> list[Slots]:
    """Mask the slots whose windows, in the initialisation of E, begin after the last token."""
    inputs = arguments[0]
    lengths = torch.tensor([inputs.key.shape[1]]) if inputs.lengths is None else inputs.lengths
    k = projection.projected_dim
    starts = torch.tensor([slot * projection.seq_len // k for slot in spread_order(k)], device=lengths.device)
    return [group._replace(empty=starts[: group.key.shape[2]] >= lengths[:, None]) for group in slots]


def _rows(files: list[str], tokenizer: PreTrainedTokenizerFast, masker: BlockMasker) -> list[dict[str, Tensor]]:
    """The first texts of allowed length, masked; without those in which no token is masked; the shortest first."""
    least, most = _TOKENS
    most = min(most, tokenizer.model_max_length)
    rows: list[dict[str, Tensor]] = []
    for text in read_documents(
        find_files(files, field="sentence_file"), document="line", column="sentence", setting="sentence_file"
    ):
        ids = [start_token_id(tokenizer), *tokenizer(text, add_special_tokens=False)["input_ids"]]
        if least <= len(ids) <= most and len(rows) < _TEXTS:
            rows.append(masker(np.array(ids), epoch=0, index=len(rows)))
    rows = [row for row in rows if (row["labels"] != IGNORED_LABEL).any()]
    if not rows:
        raise InputError(f"sentence_file: expected texts of {least} to {most} tokens, got none")
    return sorted(rows, key=lambda row: len(row["input_ids"]))


def _padded(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    fill = {"input_ids": 0, "labels": IGNORED_LABEL, "attention_mask": 0}
    rows = [{**row, "attention_mask": torch.ones_like(row["input_ids"])} for row in rows]
    return {
        name: pad_sequence([row[name] for row in rows], batch_first=True, padding_value=value)
        for name, value in fill.items()
    }
