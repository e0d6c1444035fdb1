"""Linformer: self-attention with linear complexity (Wang et al. 2020, arXiv 2006.04768).

Importing the package registers its models with the Auto classes of transformers, so that `AutoModel.from_pretrained`
loads them. The command `linformer` starts in the package `linformer_cli`, which imports neither torch nor transformers
before its arguments are parsed.
"""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from linformer_cli._version import __version__
from linformer_cli.errors import InputError
from linformer_kit.analysis.singular_values import Spectrum, attention_spectrum, choose_projected_dims
from linformer_kit.compat import from_linformer
from linformer_kit.interop.fairseq import load_fairseq_checkpoint
from linformer_kit.linearized.classes import LinearizedConfig
from linformer_kit.linearized.linearize import linearize, optimize
from linformer_kit.models.causal import LinformerForCausalLM
from linformer_kit.models.configuration import LinformerConfig
from linformer_kit.models.heads import (
    LinformerForMaskedLM,
    LinformerForQuestionAnswering,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
)
from linformer_kit.models.modeling import LinformerEncoder, LinformerModel, LinformerPreTrainedModel
from linformer_kit.operator.drop_in import LinformerAttention
from linformer_kit.operator.projections import (
    ConvProjection,
    DynamicProjection,
    LinearProjection,
    MatrixProjection,
    MaxPoolProjection,
    MeanPoolProjection,
    RandomProjection,
    WindowProjection,
    register_projection,
)

__all__ = [
    "ConvProjection",
    "DynamicProjection",
    "InputError",
    "LinearProjection",
    "LinformerAttention",
    "LinformerConfig",
    "LinformerEncoder",
    "LinformerForCausalLM",
    "LinformerForMaskedLM",
    "LinformerForQuestionAnswering",
    "LinformerForSequenceClassification",
    "LinformerForTokenClassification",
    "LinformerModel",
    "LinformerPreTrainedModel",
    "MatrixProjection",
    "MaxPoolProjection",
    "MeanPoolProjection",
    "RandomProjection",
    "Spectrum",
    "WindowProjection",
    "__version__",
    "attention_spectrum",
    "choose_projected_dims",
    "from_linformer",
    "linearize",
    "load_fairseq_checkpoint",
    "optimize",
    "register_projection",
]

AutoConfig.register("linformer", LinformerConfig, exist_ok=True)
AutoConfig.register("linearized", LinearizedConfig, exist_ok=True)  # its models register when `linearize` makes them
AutoModel.register(LinformerConfig, LinformerModel, exist_ok=True)
AutoModelForCausalLM.register(LinformerConfig, LinformerForCausalLM, exist_ok=True)
AutoModelForMaskedLM.register(LinformerConfig, LinformerForMaskedLM, exist_ok=True)
AutoModelForQuestionAnswering.register(LinformerConfig, LinformerForQuestionAnswering, exist_ok=True)
AutoModelForSequenceClassification.register(LinformerConfig, LinformerForSequenceClassification, exist_ok=True)
AutoModelForTokenClassification.register(LinformerConfig, LinformerForTokenClassification, exist_ok=True)
