"""The table of commands; importing it imports no heavy library."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from linformer_cli import settings

RECIPES = {path.stem: path for path in sorted((Path(__file__).parent / "recipes").glob("*.yaml"))}


class Command(NamedTuple):
    """A subcommand; the docstring of its settings is its line of help."""

    settings: type
    topic: str  # in the list of commands
    example: str  # of its arguments
    module: str = ""  # whose `main` runs it; default: the one of its name in `commands`
    recipe: str = ""  # the default one, if it has recipes

    @property
    def summary(self) -> str:
        """What it does."""
        return str(self.settings.__doc__).rstrip(".")


# In the order of help; commands of one topic follow each other.
_USE, _TRAIN, _CONVERT, _MEASURE = "Use a model", "Train", "Convert", "Measure"
COMMANDS = {
    "predict": Command(settings.PredictSettings, _USE, "my-classifier new-reviews.csv --output answers.jsonl"),
    "evaluate": Command(settings.EvaluateSettings, _USE, "my-classifier --validation_file more-reviews.csv"),
    "embed": Command(settings.EmbedSettings, _USE, "my-encoder articles.jsonl --output vectors.npy"),
    "fill-mask": Command(settings.FillMaskSettings, _USE, "my-model 'import <mask>' --top_k 3"),
    "pretrain": Command(
        settings.PretrainSettings, _TRAIN, "--train_file notes/ corpus.jsonl --output_dir my-model", recipe="tiny"
    ),
    "finetune": Command(settings.FinetuneSettings, _TRAIN, "--model my-model --train_file reviews.csv"),
    "distill": Command(settings.DistillSettings, _TRAIN, "my-bert linear-bert --train_file articles/ books/"),
    "convert": Command(settings.ConvertSettings, _CONVERT, "FacebookAI/roberta-base my-linformer --projected_dim 256"),
    "adapters": Command(settings.AdaptersSettings, _CONVERT, ""),
    "export": Command(settings.ExportSettings, _CONVERT, "my-classifier served --int8"),
    "inspect": Command(
        settings.InspectSettings, _MEASURE, "my-linformer pictures --layers 0 11", "linformer_kit.analysis.inspection"
    ),
    "spectrum": Command(
        settings.SpectrumSettings, _MEASURE, "my-model --budget 128", "linformer_kit.analysis.spectrum"
    ),
    "bench": Command(
        settings.BenchSettings, _MEASURE, "--lengths 512 2048 --device cuda", "linformer_kit.analysis.bench"
    ),
}
