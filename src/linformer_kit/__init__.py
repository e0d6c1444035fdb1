"""Linformer: self-attention with linear complexity (Wang et al. 2020, arXiv 2006.04768).

Importing the package imports neither torch nor transformers: the public names load when first used, and the Auto
classes of transformers learn of Linformer when transformers itself is loaded, before or after.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from linformer_kit import _auto
from linformer_kit._version import __version__
from linformer_kit.errors import InputError

if TYPE_CHECKING:
    from linformer_kit.analysis.choose import choose_projected_dims
    from linformer_kit.analysis.spectrum import Spectrum, attention_spectrum
    from linformer_kit.analysis.theorems import theorem1_dim, theorem2_dim
    from linformer_kit.attention import LinformerAttention
    from linformer_kit.checkpoints.bert import load_bert_checkpoint
    from linformer_kit.checkpoints.fairseq import load_fairseq_checkpoint
    from linformer_kit.checkpoints.roberta import load_roberta_checkpoint
    from linformer_kit.configuration import LinformerConfig
    from linformer_kit.heads import (
        LinformerForMaskedLM,
        LinformerForQuestionAnswering,
        LinformerForSequenceClassification,
        LinformerForTokenClassification,
    )
    from linformer_kit.linearized.linearize import linearize
    from linformer_kit.modeling import LinformerModel, LinformerPreTrainedModel
    from linformer_kit.parallel import SequenceParallel
    from linformer_kit.projection import (
        ConvProjection,
        DenseConvProjection,
        LinearProjection,
        MaxPoolProjection,
        MeanPoolProjection,
        RandomProjection,
    )


_HOMES = {
    "ConvProjection": "projection",
    "DenseConvProjection": "projection",
    "LinearProjection": "projection",
    "LinformerAttention": "attention",
    "LinformerConfig": "configuration",
    "LinformerForMaskedLM": "heads",
    "LinformerForQuestionAnswering": "heads",
    "LinformerForSequenceClassification": "heads",
    "LinformerForTokenClassification": "heads",
    "LinformerModel": "modeling",
    "LinformerPreTrainedModel": "modeling",
    "MaxPoolProjection": "projection",
    "MeanPoolProjection": "projection",
    "RandomProjection": "projection",
    "SequenceParallel": "parallel",
    "Spectrum": "analysis.spectrum",
    "attention_spectrum": "analysis.spectrum",
    "choose_projected_dims": "analysis.choose",
    "linearize": "linearized.linearize",
    "load_bert_checkpoint": "checkpoints.bert",
    "load_fairseq_checkpoint": "checkpoints.fairseq",
    "load_roberta_checkpoint": "checkpoints.roberta",
    "theorem1_dim": "analysis.theorems",
    "theorem2_dim": "analysis.theorems",
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


_auto.install()
