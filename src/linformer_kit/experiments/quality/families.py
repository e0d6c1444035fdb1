"""Check that encoder families of transformers can be linearised: k = n must leave the outputs unchanged.

The models are small and their weights random: the check is that attention is replaced at the right place, which does
not depend on sizes.
"""

from __future__ import annotations

import copy
import tempfile
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor
from tqdm import tqdm
from transformers import AutoModel, PreTrainedModel

from linformer_kit.experiments.experiment import Experiment, check_output, require
from linformer_kit.linearized.layers import attention_layers
from linformer_kit.linearized.linearize import linearize
from linformer_kit.linearized.positions import longest_input
from linformer_kit.report.families import write_families_report
from linformer_kit.settings import LARGEST_SEED, portable
from linformer_kit.settings.bench import FamiliesSettings

_TEXT = {
    "vocab_size": 211,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 53,
    "max_position_embeddings": 61,
    "pad_token_id": 0,
    "initializer_range": 0.2,  # so that attention is not uniform
}
_OFFSET = _TEXT | {"max_position_embeddings": 63, "pad_token_id": 1}  # RoBERTa's positions begin after it
_IMAGES = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 53,
    "image_size": 42,
    "patch_size": 6,
    "initializer_range": 0.2,
}


class Family(NamedTuple):
    """One kind of encoder: its configuration and bare model in transformers, and sizes of a small one."""

    config: str
    model: str
    sizes: dict[str, Any]


FAMILIES = {
    "albert": Family("AlbertConfig", "AlbertModel", _TEXT | {"embedding_size": 29}),
    "bert": Family("BertConfig", "BertModel", _TEXT),
    "camembert": Family("CamembertConfig", "CamembertModel", _OFFSET),
    "clip_vision_model": Family("CLIPVisionConfig", "CLIPVisionModel", _IMAGES),
    "data2vec-text": Family("Data2VecTextConfig", "Data2VecTextModel", _OFFSET),
    "deit": Family("DeiTConfig", "DeiTModel", _IMAGES),
    "dinov2": Family("Dinov2Config", "Dinov2Model", _IMAGES),
    "distilbert": Family("DistilBertConfig", "DistilBertModel", _TEXT | {"hidden_dim": 53}),
    "electra": Family("ElectraConfig", "ElectraModel", _TEXT | {"embedding_size": 29}),
    "ernie": Family("ErnieConfig", "ErnieModel", _TEXT),
    "eurobert": Family(
        "EuroBertConfig", "EuroBertModel", _TEXT | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12}
    ),
    "layoutlm": Family("LayoutLMConfig", "LayoutLMModel", _TEXT),
    "mobilebert": Family(
        "MobileBertConfig", "MobileBertModel", _TEXT | {"embedding_size": 29, "intra_bottleneck_size": 24}
    ),
    "modernbert": Family(
        "ModernBertConfig",
        "ModernBertModel",
        _TEXT | {"local_attention": 8, "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "roberta": Family("RobertaConfig", "RobertaModel", _OFFSET),
    "siglip_vision_model": Family("SiglipVisionConfig", "SiglipVisionModel", _IMAGES),
    "vit": Family("ViTConfig", "ViTModel", _IMAGES),
    "xlm-roberta": Family("XLMRobertaConfig", "XLMRobertaModel", _OFFSET),
}


def build(family: Family) -> PreTrainedModel:
    """A small model of a family, in evaluation mode."""
    return getattr(transformers, family.model)(getattr(transformers, family.config)(**family.sizes)).eval()


def example(model: PreTrainedModel, length: int, *, padded: bool = False) -> dict[str, Tensor]:
    """Two inputs of a model: images, or texts of `length` tokens; with `padded`, the second has a third of padding."""
    if model.main_input_name == "pixel_values":
        size = model.config.image_size
        return {"pixel_values": torch.randn(2, 3, size, size).to(model.dtype)}
    ids = torch.randint(3, model.config.vocab_size, (2, length))
    mask = torch.ones_like(ids)
    if padded:
        mask[1, -(length // 3) :] = 0
        ids[1, -(length // 3) :] = model.config.pad_token_id
    return {"input_ids": ids, "attention_mask": mask}


@torch.no_grad()
def difference(model: PreTrainedModel, linear: PreTrainedModel, inputs: dict[str, Tensor]) -> tuple[float, float]:
    """Largest errors of a model and of its linearised copy at real tokens, both from the model in float64."""
    wide = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in inputs.items()}
    exact = copy.deepcopy(model).double()(**wide)[0]
    real = inputs.get("attention_mask", torch.ones(exact.shape[:2])).bool()
    own, theirs = ((made(**inputs)[0] - exact)[real].abs().max().item() for made in (model, linear))
    return own, theirs


def measure_family(family: Family, seed: int, *, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Measure one family: its errors at k = n, and whether outputs stay equal after saving and loading."""
    torch.manual_seed(seed)
    model = build(family).to(dtype)
    layers = attention_layers(model)
    length = longest_input(model) or layers[0].keys
    slots_alone: dict[str, Any] = {"sliding_window": 0, "global_tokens": 0}
    linear = linearize(copy.deepcopy(model), length, projection="linear", **slots_alone)
    whole = example(model, length)
    whole.pop("attention_mask", None)
    with torch.no_grad():
        for projection in linear.projections():
            for matrix in projection.parameters():
                matrix.copy_(torch.eye(length))
    pooled = linearize(copy.deepcopy(model), length, projection="mean_pool", **slots_alone)
    part = example(model, 2 * length // 3, padded=True)
    own, identity = difference(model, linear, whole)
    own_padded, mean_pool = difference(model, pooled, part)
    with tempfile.TemporaryDirectory() as folder:
        linear.save_pretrained(folder)
        loaded = AutoModel.from_pretrained(folder, dtype=dtype, trust_remote_code=False, use_safetensors=True).eval()
        with torch.no_grad():
            same = torch.equal(loaded(**whole)[0], linear(**whole)[0])
    return {
        "model": family.model,
        "length": length,
        "linear_layers": sum(not layer.local for layer in layers),
        "local_layers": sum(layer.local for layer in layers),
        "own_error": own,
        "identity_error": identity,
        "own_padded_error": own_padded if "attention_mask" in part else None,
        "mean_pool_error": mean_pool,
        "same_once_loaded": same,
    }


def main(settings: FamiliesSettings) -> None:
    """Measure all families, write and print."""
    require(0 <= settings.seed <= LARGEST_SEED, "seed", f"0 to {LARGEST_SEED}", settings.seed)
    check_output(settings.output_dir)
    with Experiment(
        "bench families",
        settings.output_dir,
        device=torch.device("cpu"),
        settings=portable(settings),
        write=write_families_report,
    ) as experiment:
        experiment.results["families"] = {
            name: measure_family(family, settings.seed)
            for name, family in tqdm(FAMILIES.items(), unit="family", dynamic_ncols=True)
        }
        experiment.save()
    experiment.show()
