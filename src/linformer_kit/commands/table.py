"""The table of commands; importing it imports no heavy library."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from linformer_kit.settings import (
    AdaptersSettings,
    BenchSettings,
    ConvertSettings,
    DistillSettings,
    EmbedSettings,
    EvaluateSettings,
    ExportSettings,
    FillMaskSettings,
    FinetuneSettings,
    InspectSettings,
    PredictSettings,
    PretrainSettings,
    SpectrumSettings,
)

RECIPES = Path(__file__).parent.parent / "recipes"


class Command(NamedTuple):
    """A subcommand: its settings, whose docstring is its line of help, and the module whose `main` runs it."""

    settings: type
    module: str
    topic: str  # in the list of commands
    examples: tuple[str, ...]  # of its arguments
    recipe: str | None = None  # the default one, if it has recipes

    @property
    def summary(self) -> str:
        """What it does."""
        return str(self.settings.__doc__).rstrip(".")


# In the order of help; commands of one topic follow each other.
COMMANDS = {
    "predict": Command(
        PredictSettings,
        "commands.predict",
        "Use a model",
        ("my-classifier new-reviews.csv --output answers.jsonl", "my-classifier books.jsonl --stride 64 --resume"),
    ),
    "evaluate": Command(
        EvaluateSettings,
        "commands.evaluate",
        "Use a model",
        ("my-classifier --validation_file more-reviews.csv", "my-classifier --task sst2"),
    ),
    "embed": Command(
        EmbedSettings,
        "commands.embed",
        "Use a model",
        ("my-encoder articles.jsonl --output vectors.npy", "my-encoder articles/ --output vectors.npy --pieces"),
    ),
    "fill-mask": Command(
        FillMaskSettings, "commands.fill_mask", "Use a model", ("my-model 'import <mask>' --top_k 3",)
    ),
    "pretrain": Command(
        PretrainSettings,
        "commands.pretrain",
        "Train",
        (
            "--train_file notes/ corpus.jsonl --output_dir my-model",
            "--recipe small --model.projected_dim 64 --max_steps 5000",
        ),
        recipe="tiny",
    ),
    "finetune": Command(
        FinetuneSettings,
        "commands.finetune",
        "Train",
        ("--model my-model --train_file reviews.csv", "--model my-model --task sst2 --seeds 1 2 3"),
    ),
    "distill": Command(
        DistillSettings,
        "commands.distill",
        "Train",
        ("my-bert linear-bert --train_file articles/ books/", "my-bert long-bert --max_position_embeddings 4096"),
    ),
    "convert": Command(
        ConvertSettings,
        "commands.convert",
        "Convert",
        ("FacebookAI/roberta-base my-linformer --projected_dim 256", "my-encoder linear-encoder --in_place"),
    ),
    "adapters": Command(AdaptersSettings, "commands.adapters", "Convert", ("",)),
    "export": Command(
        ExportSettings,
        "commands.export",
        "Convert",
        ("my-classifier served", "my-classifier served --int8 --validation_file a.csv"),
    ),
    "inspect": Command(
        InspectSettings, "analysis.inspection", "Measure", ("my-linformer pictures --text_file a.txt --layers 0 11",)
    ),
    "spectrum": Command(
        SpectrumSettings,
        "analysis.spectrum",
        "Measure",
        ("FacebookAI/roberta-base --text_file articles/", "my-model --choose --budget 128"),
    ),
    "bench": Command(
        BenchSettings,
        "analysis.bench",
        "Measure",
        ("--lengths 512 2048 --projected_dims 128 256", "--device cuda --num_hidden_layers 12"),
    ),
}
