"""Convert a pretrained checkpoint, of another library or with full attention, to a Linformer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from linformer_cli.errors import InputError
from linformer_cli.outputs import check_new_folder
from linformer_cli.settings import ConvertSettings
from linformer_kit.interop.checkpoints.encoders import ENCODER, SLOT_FIELDS, convert_encoder, read_encoder_config
from linformer_kit.interop.checkpoints.fairseq import read_fairseq_checkpoint
from linformer_kit.interop.loading import Loaded, load_model, resize
from linformer_kit.interop.output import describe, is_fairseq, save_folder
from linformer_kit.models.configuration import LinformerConfig

_FIELDS = (*SLOT_FIELDS, "attention")


def main(settings: ConvertSettings) -> None:
    """Convert `model`, save the Linformer and, if there is one, the tokenizer in `out`, and print a summary.

    Raises:
        InputError: for a model that cannot be converted, settings that do not fit it, or an `out` that is not empty.
            Nothing is written then.
    """
    out = check_new_folder("out", settings.out)
    loaded, is_trained = _load(settings)
    new_length = settings.max_position_embeddings is not None
    options: dict[str, Any] = {"embeds": is_trained, "new_length": new_length, "tokenizer": settings.tokenizer}
    save_folder(loaded.model, out, settings.model, **options)
    describe(loaded, "" if is_trained else "continue training")
    print(f"Saved in {settings.out}")


def _load(settings: ConvertSettings) -> tuple[Loaded, bool]:
    """The converted model, and whether all of it is trained: no E and F are new."""
    source, seq_len = settings.model, settings.max_position_embeddings
    config = None if is_fairseq(source) else read_encoder_config(source)
    is_linformer = isinstance(config, LinformerConfig) and config.attention != "full"
    if config is None or (is_linformer and seq_len is not None):
        _check_unset(settings, _FIELDS, "for a model that determines it")
        loaded = (
            read_fairseq_checkpoint(source)
            if config is None
            else load_model(source, None, ENCODER, config=config, to_run=False)
        )
        resize(loaded.model, seq_len, settings.resize_mode)
        return loaded, True
    is_full = settings.attention == "full"
    if is_full:
        _check_unset(settings, SLOT_FIELDS, "with full attention")
    fields = {name: getattr(settings, name) for name in (*_FIELDS, "max_position_embeddings")}
    given = {name: value for name, value in fields.items() if value is not None}
    return convert_encoder(source, config, resize_mode=settings.resize_mode, **given), is_full


def _check_unset(settings: ConvertSettings, names: Sequence[str], why: str) -> None:
    for name in names:
        if (value := getattr(settings, name)) is not None:
            raise InputError(f"{name}: expected none {why}, got {value!r}")
