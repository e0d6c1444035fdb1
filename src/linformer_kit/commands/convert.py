"""`linformer convert`."""

from transformers import PreTrainedModel

from linformer_cli.settings import ConvertSettings
from linformer_kit.interop.convert import convert
from linformer_kit.interop.loading import loaded
from linformer_kit.linearized.classes import LinearizedModel
from linformer_kit.linearized.fields import EXACT
from linformer_kit.models.base import longest_input


def main(settings: ConvertSettings) -> None:
    """Convert and print a summary of the result."""
    (model, learned, adapters), tokenizer = convert(settings)
    shape, projection = _described(model)
    print(f"{type(model).__name__}, {model.num_parameters():,} parameters, {shape}")
    if projection is not None and not learned:
        matrices = model.projection_matrix_count()
        new = f"{matrices} matrices E and F ({projection}). They are untrained" if matrices else f"slots ({projection})"
        training = "run `linformer distill`" if settings.in_place else "continue training"
        if adapters:
            training = f"convert with `--adapter {adapters[0]}`, which ships for this model, or {training}"
        purpose = "before use" if matrices else "to bring the outputs closer to those of the source"
        print(f"New: {new}: {training} {purpose}.")
    if left_out := loaded(model).left_out:
        names = sorted({name.rpartition(".")[0] for name in left_out})
        print(f"Weights of the source that are not in the result: {', '.join(names)}")
    if tokenizer is None and longest_input(model) is not None:
        print("No tokenizer: the source has none; give one with --tokenizer.")
    print(f"Saved in {settings.out}")


def _described(model: PreTrainedModel) -> tuple[str, str | None]:
    """Sizes as text, and the projection if there is one."""
    config = model.config.to_dict()
    if isinstance(model, LinearizedModel):
        slots = config["linformer"]
    elif config["attention"] == "full":
        return f"n {config['max_position_embeddings']:,}, full attention", None
    else:
        slots = config | {"seq_len": config["max_position_embeddings"], "full_layers": []}
    more = {name: slots[name] for name in EXACT} | {"full_layers": len(slots["full_layers"])}
    beside = "".join(f", {name} {value}" for name, value in more.items() if value)
    shape = f"n {slots['seq_len']:,}, k {slots['projected_dim']}, sharing {slots['sharing']}{beside}"
    return shape, slots["projection"]
