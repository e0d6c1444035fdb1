"""The official Linformer in fairseq, from its description: checkpoints of every kind, and the forward pass over them.

A plain oracle for the converter. It shares no code with the package and works on the checkpoint's own names.
"""

from __future__ import annotations

import argparse
import math

import torch
import torch.nn.functional as F
from torch import Tensor

SHARINGS = ("headwise", "key_value", "layerwise", "roberta")
LAYERS, HEADS, WIDTH, FFN, VOCAB, N, K = 3, 2, 14, 23, 53, 31, 7
PREFIX = "encoder.sentence_encoder."


def checkpoint(sharing: str, *, classification_head: str | None = None) -> dict[str, object]:
    """A checkpoint as `torch.save` gets it: `args` and `model`, with random weights."""
    weights: dict[str, Tensor] = {}

    def linear(name: str, outputs: int, inputs: int) -> None:
        weights[f"{name}.weight"] = torch.randn(outputs, inputs) * 0.3
        weights[f"{name}.bias"] = torch.randn(outputs) * 0.3

    def layer_norm(name: str) -> None:
        weights[f"{name}.weight"] = 1 + torch.randn(WIDTH) * 0.3
        weights[f"{name}.bias"] = torch.randn(WIDTH) * 0.3

    weights[f"{PREFIX}embed_tokens.weight"] = torch.randn(VOCAB, WIDTH)
    weights[f"{PREFIX}embed_positions.weight"] = torch.randn(N + 2, WIDTH)
    layer_norm(f"{PREFIX}layernorm_embedding")
    if sharing == "layerwise":
        linear(f"{PREFIX}compress_layer", K, N)
    for index in range(LAYERS):
        layer = f"{PREFIX}layers.{index}."
        for part in "qkv":
            linear(f"{layer}self_attn.{part}_proj", WIDTH, WIDTH)
        linear(f"{layer}self_attn.out_proj", WIDTH, WIDTH)
        if sharing == "layerwise":  # the shared module once more in each layer
            for part in "kv":
                for what in ("weight", "bias"):
                    weights[f"{layer}self_attn.compress_{part}.{what}"] = weights[f"{PREFIX}compress_layer.{what}"]
        elif sharing != "roberta":
            for part in "k" if sharing == "key_value" else "kv":
                weights[f"{layer}self_attn.compress_{part}.weight"] = torch.randn(K, N) * 0.3
        layer_norm(f"{layer}self_attn_layer_norm")
        linear(f"{layer}fc1", FFN, WIDTH)
        linear(f"{layer}fc2", WIDTH, FFN)
        layer_norm(f"{layer}final_layer_norm")
    linear("encoder.lm_head.dense", WIDTH, WIDTH)
    layer_norm("encoder.lm_head.layer_norm")
    weights["encoder.lm_head.weight"] = weights[f"{PREFIX}embed_tokens.weight"]
    weights["encoder.lm_head.bias"] = torch.randn(VOCAB)
    if classification_head:
        linear(f"classification_heads.{classification_head}.dense", WIDTH, WIDTH)
        linear(f"classification_heads.{classification_head}.out_proj", 3, WIDTH)
    arguments = argparse.Namespace(
        encoder_attention_heads=HEADS, activation_fn="gelu", dropout=0.2, attention_dropout=0.1, pooler_dropout=0.3
    )
    return {"args": arguments, "model": weights}


def old_layout(current: dict[str, object]) -> dict[str, object]:
    """The same weights under the names of older files."""
    weights: dict[str, Tensor] = {"decoder.version": torch.tensor([1.0])}
    for name, tensor in current["model"].items():
        if "_proj." in name and "self_attn.out_proj" not in name and "self_attn" in name:
            continue
        if "compress_layer" in name:
            for index in range(LAYERS):
                what = name.rpartition(".")[2]
                weights[f"decoder.sentence_encoder.layers.{index}.shared_compress_layer.{what}"] = tensor
            continue
        name = name.replace("encoder.sentence_encoder", "decoder.sentence_encoder").replace("encoder.lm", "decoder.lm")
        weights[name.replace("layernorm_embedding", "emb_layer_norm")] = tensor
    for index in range(LAYERS):
        layer = f"layers.{index}.self_attn."
        for what in ("weight", "bias"):
            thirds = [current["model"][f"{PREFIX}{layer}{part}_proj.{what}"] for part in "qkv"]
            weights[f"decoder.sentence_encoder.{layer}in_proj_{what}"] = torch.cat(thirds)
    return {"args": current["args"], "model": weights}


def gelu_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = {"gelu": F.gelu, "relu": F.relu, "gelu_accurate": gelu_tanh, "gelu_fast": gelu_tanh}


def features(weights: dict[str, Tensor], tokens: Tensor, activation: str = "gelu") -> Tensor:
    """Hidden states of tokens without padding, `[batch, seq_len, embed]`."""
    length = tokens.shape[1]
    x = weights[f"{PREFIX}embed_tokens.weight"][tokens]
    x = x + weights[f"{PREFIX}embed_positions.weight"][2 : length + 2]
    x = _norm(weights, f"{PREFIX}layernorm_embedding", x)
    for index in range(LAYERS):
        layer = f"{PREFIX}layers.{index}."
        x = _norm(weights, f"{layer}self_attn_layer_norm", x + _attention(weights, f"{layer}self_attn.", x))
        inner = ACTIVATIONS[activation](_linear(weights, f"{layer}fc1", x))
        x = _norm(weights, f"{layer}final_layer_norm", x + _linear(weights, f"{layer}fc2", inner))
    return x


def masked_lm_logits(weights: dict[str, Tensor], tokens: Tensor, activation: str = "gelu") -> Tensor:
    x = ACTIVATIONS[activation](_linear(weights, "encoder.lm_head.dense", features(weights, tokens, activation)))
    x = _norm(weights, "encoder.lm_head.layer_norm", x)
    return x @ weights["encoder.lm_head.weight"].T + weights["encoder.lm_head.bias"]


def _attention(weights: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    """Compress first, then W_K and W_V with their biases: the order of the official code."""
    batch, length, _ = x.shape
    compress_key = weights.get(f"{name}compress_k.weight")
    compress_value = weights.get(f"{name}compress_v.weight", compress_key)
    q = _linear(weights, f"{name}q_proj", x) * (WIDTH // HEADS) ** -0.5
    heads = []
    for head in range(HEADS):
        part = slice(head * (WIDTH // HEADS), (head + 1) * (WIDTH // HEADS))
        key = value = x
        if compress_key is not None:
            key, value = compress_key[:, :length] @ x, compress_value[:, :length] @ x
        k = _linear(weights, f"{name}k_proj", key)[..., part]
        v = _linear(weights, f"{name}v_proj", value)[..., part]
        heads.append(torch.softmax(q[..., part] @ k.transpose(1, 2), dim=-1) @ v)
    assert math.prod(heads[0].shape) == batch * length * (WIDTH // HEADS)
    return _linear(weights, f"{name}out_proj", torch.cat(heads, dim=-1))


def _linear(weights: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])


def _norm(weights: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], eps=1e-5)
