"""The table of commands; importing it imports no heavy library."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from linformer_cli import settings as _S

RECIPES = {path.stem: path for path in sorted((Path(__file__).parent / "recipes").glob("*.yaml"))}


class Command(NamedTuple):
    """A subcommand; the docstring of its settings is its line of help."""

    settings: type
    topic: str  # in the list of commands
    module: str  # of `linformer_kit`, whose `main` runs it
    example: str  # of its arguments
    recipe: str = ""  # the default one, if it has recipes

    @property
    def summary(self) -> str:
        """What it does."""
        return str(self.settings.__doc__).rstrip(".")


# In the order of help; commands of one topic follow each other.
_USE, _TRAIN, _CONVERT, _MEASURE = "Use a model", "Train", "Convert", "Measure"
COMMANDS = {
    "predict": Command(_S.PredictSettings, _USE, "inference.predict", "my-classifier new.csv --out answers.jsonl"),
    "evaluate": Command(_S.EvaluateSettings, _USE, "inference.evaluate", "my-classifier more.csv"),
    "embed": Command(_S.EmbedSettings, _USE, "inference.embed", "my-encoder articles.jsonl --out vectors.npy"),
    "fill-mask": Command(
        _S.FillMaskSettings, _USE, "inference.fill_mask", "my-model 'def __init__(<mask>, name):' --top_k 3"
    ),
    "pretrain": Command(
        _S.PretrainSettings,
        _TRAIN,
        "training.pretrain",
        "--train_file notes/ corpus.jsonl --output_dir my-model",
        "tiny",
    ),
    "finetune": Command(_S.FinetuneSettings, _TRAIN, "training.finetune", "my-model --train_file reviews.csv"),
    "distill": Command(
        _S.DistillSettings, _TRAIN, "training.distill", "my-bert --train_file articles/ --output_dir linear-bert"
    ),
    "linearize": Command(
        _S.LinearizeCommandSettings,
        _CONVERT,
        "interop.convert",
        "BAAI/bge-small-en-v1.5 long --max_position_embeddings 4096",
    ),
    "convert": Command(
        _S.ConvertSettings, _CONVERT, "interop.convert", "FacebookAI/roberta-base my-linformer --projected_dim 256"
    ),
    "adapters": Command(_S.AdaptersSettings, _CONVERT, "training.adapter", ""),
    "export": Command(_S.ExportSettings, _CONVERT, "export.folder", "my-classifier served --int8"),
    "spectrum": Command(_S.SpectrumSettings, _MEASURE, "analysis.spectrum", "my-model --energy 0.8"),
    "bench": Command(_S.BenchSettings, _MEASURE, "analysis.bench", "--lengths 512 2048 --device cuda"),
}
