"""Typed settings of the commands (names, types, defaults, help texts) and the reader of YAML settings files.

Imports no torch or transformers, so that `linformer --help` starts fast. Fields without a default come from the recipe.
"""

from linformer_kit.settings.classification import (
    ClassifierSettings,
    EvaluateSettings,
    FinetuneSettings,
    LabelledSettings,
    PredictSettings,
    TaskName,
)
from linformer_kit.settings.distillation import DistillSettings, LinearizeSettings
from linformer_kit.settings.files import is_local_path, names_only, portable, read_yaml, recorded_name
from linformer_kit.settings.model import (
    IGNORED_LABEL,
    Attention,
    BiasOrder,
    LinearInitializer,
    ModelSettings,
    Projection,
    ProjectionInitializer,
    ResizeMode,
    Sharing,
    ShorterInput,
)
from linformer_kit.settings.pretraining import CorpusSettings, PretrainSettings
from linformer_kit.settings.training import TrainingSettings, check_model_is_kept
from linformer_kit.settings.use import (
    AdaptersSettings,
    BenchSettings,
    ConvertSettings,
    EmbedSettings,
    ExportSettings,
    FillMaskSettings,
    InspectSettings,
    SpectrumSettings,
)

__all__ = [
    "IGNORED_LABEL",
    "AdaptersSettings",
    "Attention",
    "BenchSettings",
    "BiasOrder",
    "ClassifierSettings",
    "ConvertSettings",
    "CorpusSettings",
    "DistillSettings",
    "EmbedSettings",
    "EvaluateSettings",
    "ExportSettings",
    "FillMaskSettings",
    "FinetuneSettings",
    "InspectSettings",
    "LabelledSettings",
    "LinearInitializer",
    "LinearizeSettings",
    "ModelSettings",
    "PredictSettings",
    "PretrainSettings",
    "Projection",
    "ProjectionInitializer",
    "ResizeMode",
    "Sharing",
    "ShorterInput",
    "SpectrumSettings",
    "TaskName",
    "TrainingSettings",
    "check_model_is_kept",
    "is_local_path",
    "names_only",
    "portable",
    "read_yaml",
    "recorded_name",
]
