"""Typed settings of the commands (names, types, defaults, limits, help texts), and what results record of them.

Imports no torch or transformers, so that `linformer --help` starts fast. Fields without a default come from the recipe.
"""

from linformer_cli.settings.commands import (
    AdaptersSettings,
    BenchSettings,
    CachedTextSettings,
    ClassifierSettings,
    ConvertSettings,
    CorpusSettings,
    CostSettings,
    DistillSettings,
    EmbedSettings,
    EvaluateSettings,
    ExportSettings,
    FillMaskSettings,
    FinetuneSettings,
    LabelledSettings,
    LinearizeCommandSettings,
    PredictSettings,
    PretrainSettings,
    SpectrumSettings,
    TrainingSettings,
    check_model_is_kept,
)
from linformer_cli.settings.declare import changed
from linformer_cli.settings.files import is_local_path, model_label, names_only, without_local_paths
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
