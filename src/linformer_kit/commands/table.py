"""The table of commands; importing it imports no heavy library."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from linformer_kit.settings import (
    AdaptersSettings,
    ConvertSettings,
    DistillSettings,
    EvaluateSettings,
    ExportSettings,
    FillMaskSettings,
    FinetuneSettings,
    InspectSettings,
    PredictSettings,
    PretrainSettings,
    ReportSettings,
    SpectrumSettings,
    TheoremsSettings,
)
from linformer_kit.settings.bench import (
    CeilingSettings,
    EfficiencySettings,
    EmbeddingsSettings,
    FamiliesSettings,
    LongSettings,
    SystemsSettings,
    Table2Settings,
)
from linformer_kit.settings.documents import DocumentsSettings
from linformer_kit.settings.study import LearningSettings

RECIPES = Path(__file__).parent.parent / "recipes"
_BATCHES = ("per_device_train_batch_size", "per_device_eval_batch_size")


class Command(NamedTuple):
    """A subcommand: one line of help, its settings dataclass, `module:function`, default recipe, positionals, the
    folder of its recipes below `RECIPES`, and the settings (dotted names) to lower when memory runs out."""

    summary: str
    settings: type
    function: str
    recipe: str | None = None
    positionals: tuple[str, ...] = ()
    recipes: str = ""
    memory: tuple[str, ...] = ()


COMMANDS = {
    "pretrain": Command(
        "Pretrain a masked language model on text",
        PretrainSettings,
        "linformer_kit.commands.pretrain:main",
        "tiny",
        memory=(*_BATCHES, "model.max_position_embeddings"),
    ),
    "finetune": Command(
        "Fine-tune an encoder to classify texts (Table 2)",
        FinetuneSettings,
        "linformer_kit.commands.finetune:main",
        memory=(*_BATCHES, "max_length"),
    ),
    "evaluate": Command(
        "Measure a classifier on labelled texts",
        EvaluateSettings,
        "linformer_kit.commands.evaluate:main",
        positionals=("model",),
        memory=("batch_size", "max_length"),
    ),
    "predict": Command(
        "Classify the texts of a file",
        PredictSettings,
        "linformer_kit.commands.predict:main",
        positionals=("model", "file"),
        memory=("batch_size", "max_length"),
    ),
    "fill-mask": Command(
        "Predict the <mask> tokens of a text",
        FillMaskSettings,
        "linformer_kit.commands.fill_mask:main",
        positionals=("model", "text"),
    ),
    "convert": Command(
        "Convert a RoBERTa, BERT or fairseq checkpoint to a Linformer, or linearise an encoder in place",
        ConvertSettings,
        "linformer_kit.commands.convert:main",
        positionals=("source", "out"),
    ),
    "distill": Command(
        "Linearise an encoder and distil the original into it",
        DistillSettings,
        "linformer_kit.commands.distill:main",
        positionals=("teacher", "output_dir"),
        memory=(*_BATCHES, "max_position_embeddings"),
    ),
    "adapters": Command(
        "List the adapters that ship with the package, for `linearize` and `convert`",
        AdaptersSettings,
        "linformer_kit.commands.adapters:main",
    ),
    "export": Command(
        "Export a model to ONNX or int8 weights, and check the result against PyTorch",
        ExportSettings,
        "linformer_kit.commands.export:main",
        positionals=("model", "out"),
    ),
    "inspect": Command(
        "Plot which slots the heads of a model attend to, and its E and F",
        InspectSettings,
        "linformer_kit.experiments.inspection:main",
        positionals=("model", "output_dir"),
        memory=("max_tokens",),
    ),
    "spectrum": Command(
        "Measure how fast the singular values of a model's attention decay (Fig 1), and choose k by them",
        SpectrumSettings,
        "linformer_kit.experiments.spectrum.figure1:main",
        positionals=("model",),
        memory=("seq_len", "samples"),
    ),
    "report": Command(
        "Put the results of many runs into one HTML page",
        ReportSettings,
        "linformer_kit.commands.report:main",
        positionals=("folder",),
    ),
    "theorems": Command(
        "Test Theorems 1 and 2 on random attention and on a model's attention",
        TheoremsSettings,
        "linformer_kit.experiments.theorems.trials:main",
        memory=("lengths", "samples"),
    ),
    "bench efficiency": Command(
        "Measure the time and memory that Linformers save over Transformers of equal size (Table 3, Fig 2)",
        EfficiencySettings,
        "linformer_kit.experiments.cost.efficiency:main",
        memory=("tokens", "lengths"),
    ),
    "bench ceiling": Command(
        "Measure the machine's limits on the speed of these encoders",
        CeilingSettings,
        "linformer_kit.experiments.cost.ceiling:main",
        memory=("tokens", "square", "copy_mib"),
    ),
    "bench systems": Command(
        "Time one layer of each kind of encoder at several sequence lengths (Table 1)",
        SystemsSettings,
        "linformer_kit.experiments.cost.systems:main",
        memory=("tokens", "lengths"),
    ),
    "bench learning": Command(
        "Compare how well several encoders learn: many small trainings from one recipe",
        LearningSettings,
        "linformer_kit.experiments.learning.learn:main",
        "start",
        recipes="learning",
        memory=("processes", "base.per_device_train_batch_size"),
    ),
    "bench table2": Command(
        "Measure accuracy and cost of several encoders on the paper's four tasks (Table 2)",
        Table2Settings,
        "linformer_kit.experiments.quality.table2:main",
        memory=(*_BATCHES, "max_length"),
    ),
    "bench embeddings": Command(
        "Compare linearised sentence embedders with their teacher: cosine, tasks, time and memory",
        EmbeddingsSettings,
        "linformer_kit.experiments.quality.embeddings:main",
        memory=("batch_size", "tokens", "lengths"),
    ),
    "bench documents": Command(
        "Compare ways to embed long texts: search, hidden facts, classification, time and memory",
        DocumentsSettings,
        "linformer_kit.experiments.quality.documents:main",
        positionals=("teacher",),
        memory=("batch_size", "lengths", "fact_lengths"),
    ),
    "bench families": Command(
        "Linearise encoders of each family, and check that k = n leaves their outputs unchanged",
        FamiliesSettings,
        "linformer_kit.experiments.quality.families:main",
    ),
    "bench long": Command(
        "Encode a million tokens in one pass", LongSettings, "linformer_kit.experiments.cost.long:main", memory=("n",)
    ),
}
# The first words of commands of two words.
GROUPS = {"bench": "Measure speed, memory and quality on this machine"}
