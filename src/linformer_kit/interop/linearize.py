"""`linformer linearize`: a pretrained encoder of any type, made linear in place and saved as its own class."""

from __future__ import annotations

from transformers import PreTrainedModel

from linformer_cli.outputs import check_new_folder
from linformer_cli.settings import LinearizeCommandSettings, LinearizeSettings
from linformer_kit.interop.checkpoints.encoders import ENCODER
from linformer_kit.interop.loading import load_model, resize
from linformer_kit.interop.output import describe, save_folder
from linformer_kit.linearized.adapter import adapters_of
from linformer_kit.linearized.classes import LinearizedModel
from linformer_kit.linearized.linearize import linearize_encoder


def main(settings: LinearizeCommandSettings) -> None:
    """Linearise `model`, save it with its tokenizer in `out`, and print a summary.

    An encoder that is linear already gets another maximum length, if that is all that the settings change.

    Raises:
        InputError: for a model that cannot be linearised, settings that do not fit it, or an `out` that is not empty.
            Nothing is written then.
    """
    out = check_new_folder("out", settings.out)
    loaded = load_model(settings.model, None, ENCODER, to_run=False)
    model, training = loaded.model, ""
    is_resized = settings.adapter is None and _changed(settings) == {"max_position_embeddings"}
    if isinstance(model, LinearizedModel) and is_resized:
        resize(model, settings.max_position_embeddings, settings.resize_mode)
    else:
        if settings.adapter is None and settings.layers != []:
            training = _advice(model, settings.max_position_embeddings)
        linearize_encoder(model, settings, settings.adapter)
    new_length = settings.adapter is not None or settings.max_position_embeddings is not None
    save_folder(model, out, settings.model, embeds=True, new_length=new_length)
    describe(loaded, training)
    print(f"Saved in {settings.out}")


def _changed(settings: LinearizeSettings) -> set[str]:
    """Names of the settings of linear attention that have another value than by default."""
    defaults = vars(LinearizeSettings())
    return {name for name, default in defaults.items() if getattr(settings, name) != default} - {"resize_mode"}


def _advice(model: PreTrainedModel, seq_len: int | None) -> str:
    """How to train the slots of an encoder with full attention, before it is linearised."""
    kind = type(model).__name__
    is_distilled = model.main_input_name == "input_ids" and "QuestionAnswering" not in kind
    training = "run `linformer distill`" if is_distilled else "continue training"
    adapters = adapters_of(model, seq_len)
    return f"add `--adapter {adapters[0]}`, which ships for this model, or {training}" if adapters else training
