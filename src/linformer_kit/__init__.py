"""Linformer: self-attention with linear complexity (Wang et al. 2020, arXiv 2006.04768).

Importing the package imports neither torch nor transformers: the public names load when first used, and the Auto
classes of transformers learn of Linformer when transformers itself is loaded, before or after.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from linformer_kit._version import __version__
from linformer_kit.errors import InputError
from linformer_kit.interop import registration

if TYPE_CHECKING:
    from linformer_kit.analysis.singular_values import Spectrum, attention_spectrum, choose_projected_dims
    from linformer_kit.interop.checkpoints.encoders import load_bert_checkpoint, load_roberta_checkpoint
    from linformer_kit.interop.checkpoints.fairseq import load_fairseq_checkpoint
    from linformer_kit.linearized.linearize import linearize
    from linformer_kit.models.configuration import LinformerConfig
    from linformer_kit.models.heads import (
        LinformerForMaskedLM,
        LinformerForQuestionAnswering,
        LinformerForSequenceClassification,
        LinformerForTokenClassification,
    )
    from linformer_kit.models.modeling import LinformerModel, LinformerPreTrainedModel
    from linformer_kit.operator.attention import LinformerAttention
    from linformer_kit.operator.projections import (
        ConvProjection,
        DynamicProjection,
        LinearProjection,
        MaxPoolProjection,
        MeanPoolProjection,
        RandomProjection,
    )
    from linformer_kit.parallel.sequence import SequenceParallel


_HOMES = {
    "ConvProjection": "operator.projections",
    "DynamicProjection": "operator.projections",
    "LinearProjection": "operator.projections",
    "LinformerAttention": "operator.attention",
    "LinformerConfig": "models.configuration",
    "LinformerForMaskedLM": "models.heads",
    "LinformerForQuestionAnswering": "models.heads",
    "LinformerForSequenceClassification": "models.heads",
    "LinformerForTokenClassification": "models.heads",
    "LinformerModel": "models.modeling",
    "LinformerPreTrainedModel": "models.modeling",
    "MaxPoolProjection": "operator.projections",
    "MeanPoolProjection": "operator.projections",
    "RandomProjection": "operator.projections",
    "SequenceParallel": "parallel.sequence",
    "Spectrum": "analysis.singular_values",
    "attention_spectrum": "analysis.singular_values",
    "choose_projected_dims": "analysis.singular_values",
    "linearize": "linearized.linearize",
    "load_bert_checkpoint": "interop.checkpoints.encoders",
    "load_fairseq_checkpoint": "interop.checkpoints.fairseq",
    "load_roberta_checkpoint": "interop.checkpoints.encoders",
}

__all__ = ["InputError", "__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


registration.install()
