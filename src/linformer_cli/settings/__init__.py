"""Typed settings of the commands (names, types, defaults, limits, help texts) and the reader of YAML settings files.

Imports no torch or transformers, so that `linformer --help` starts fast. Fields without a default come from the recipe.
"""

from linformer_cli.settings.commands import (
    AdaptersSettings,
    BenchSettings,
    CachedTextSettings,
    ClassifierSettings,
    ConvertSettings,
    CorpusSettings,
    DistillSettings,
    EmbedSettings,
    EvaluateSettings,
    ExportSettings,
    FillMaskSettings,
    FinetuneSettings,
    InspectSettings,
    LabelledSettings,
    PredictSettings,
    PretrainSettings,
    SpectrumSettings,
    TaskName,
    TrainingSettings,
    check_model_is_kept,
)
from linformer_cli.settings.files import is_local_path, model_label, names_only, read_yaml, without_local_paths
from linformer_cli.settings.model import (
    IGNORED_LABEL,
    Attention,
    BiasOrder,
    LinearInitializer,
    LinearizeSettings,
    ModelSettings,
    Projection,
    ProjectionInitializer,
    ResizeMode,
    Sharing,
    ShorterInput,
    SlotSettings,
)
