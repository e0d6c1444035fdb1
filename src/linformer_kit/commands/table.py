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
_BATCHES = ("per_device_train_batch_size", "per_device_eval_batch_size")


class Command(NamedTuple):
    """A subcommand: one line of help, its settings dataclass, `module:function`, its topic in the list of commands,
    examples of its arguments, default recipe, positionals, and the settings (dotted names) to lower when memory runs
    out."""

    summary: str
    settings: type
    function: str
    topic: str
    examples: tuple[str, ...]
    recipe: str | None = None
    positionals: tuple[str, ...] = ()
    memory: tuple[str, ...] = ()


# In the order of help; commands of one topic follow each other.
COMMANDS = {
    "predict": Command(
        "Classify the texts of a file",
        PredictSettings,
        "linformer_kit.commands.predict:main",
        "Use a model",
        (
            "my-classifier new-reviews.csv --output answers.jsonl",
            "my-classifier books.jsonl --output answers.jsonl --resume",
        ),
        positionals=("model", "file"),
        memory=("batch_size", "max_length"),
    ),
    "evaluate": Command(
        "Measure a classifier on labelled texts",
        EvaluateSettings,
        "linformer_kit.commands.evaluate:main",
        "Use a model",
        ("my-classifier --validation_file more-reviews.csv", "my-classifier --task sst2"),
        positionals=("model",),
        memory=("batch_size", "max_length"),
    ),
    "embed": Command(
        "Embed the texts of a file",
        EmbedSettings,
        "linformer_kit.commands.embed:main",
        "Use a model",
        (
            "my-encoder articles.jsonl --output vectors.npy",
            "my-encoder articles/ --output vectors.npy --pieces",
        ),
        positionals=("model", "file"),
        memory=("batch_size", "max_length"),
    ),
    "fill-mask": Command(
        "Predict the <mask> tokens of a text",
        FillMaskSettings,
        "linformer_kit.commands.fill_mask:main",
        "Use a model",
        ("my-model 'import <mask>' --top_k 3",),
        positionals=("model", "text"),
    ),
    "pretrain": Command(
        "Pretrain a masked language model on text",
        PretrainSettings,
        "linformer_kit.commands.pretrain:main",
        "Train",
        (
            "--train_file notes/ corpus.jsonl --output_dir my-model",
            "--recipe small --model.projected_dim 64 --max_steps 5000",
        ),
        "tiny",
        memory=(*_BATCHES, "model.max_position_embeddings"),
    ),
    "finetune": Command(
        "Fine-tune an encoder to classify texts (Table 2)",
        FinetuneSettings,
        "linformer_kit.commands.finetune:main",
        "Train",
        (
            "--model my-model --train_file reviews.csv",
            "--model my-model --task sst2 --seeds 1 2 3",
        ),
        memory=(*_BATCHES, "max_length"),
    ),
    "distill": Command(
        "Linearise an encoder and distil the original into it",
        DistillSettings,
        "linformer_kit.commands.distill:main",
        "Train",
        (
            "my-bert linear-bert --train_file articles/ books/",
            "my-bert long-bert --max_position_embeddings 4096",
        ),
        positionals=("teacher", "output_dir"),
        memory=(*_BATCHES, "max_position_embeddings"),
    ),
    "convert": Command(
        "Convert a checkpoint to a Linformer, or linearise it in place",
        ConvertSettings,
        "linformer_kit.commands.convert:main",
        "Convert",
        ("FacebookAI/roberta-base my-linformer --projected_dim 256", "my-encoder linear-encoder --in_place"),
        positionals=("source", "out"),
    ),
    "adapters": Command(
        "List the adapters that ship with the package",
        AdaptersSettings,
        "linformer_kit.commands.adapters:main",
        "Convert",
        ("",),
    ),
    "export": Command(
        "Export a model to ONNX, and check it against PyTorch",
        ExportSettings,
        "linformer_kit.commands.export:main",
        "Convert",
        ("my-classifier served", "my-classifier served --int8 --validation_file a.csv"),
        positionals=("model", "out"),
    ),
    "inspect": Command(
        "Plot which slots a model's heads attend to, and its E and F",
        InspectSettings,
        "linformer_kit.analysis.inspection:main",
        "Measure",
        ("my-linformer pictures --text 'a short text' --layers 0 11",),
        positionals=("model", "output_dir"),
    ),
    "spectrum": Command(
        "Measure the singular values of attention (Fig 1); choose k",
        SpectrumSettings,
        "linformer_kit.analysis.spectrum:main",
        "Measure",
        ("FacebookAI/roberta-base --text_file articles/", "my-model --budget 128"),
        positionals=("model",),
        memory=("seq_len", "samples"),
    ),
    "bench": Command(
        "Compare time and memory with a Transformer on this machine",
        BenchSettings,
        "linformer_kit.analysis.bench:main",
        "Measure",
        ("--lengths 512 2048 --projected_dims 128 256", "--device cuda --num_hidden_layers 12"),
        memory=("tokens", "lengths"),
    ),
}
