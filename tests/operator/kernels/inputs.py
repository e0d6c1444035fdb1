"""Inputs of attention as the models make them."""

from __future__ import annotations

import dataclasses

import torch

from linformer_kit.operator.kernels.processor import Processor


def heads_of(batch, heads, length, head_dim, dtype):
    """As a linear map leaves them: positions before heads in memory."""
    return (
        torch.randn(batch, length, heads * head_dim, dtype=dtype).view(batch, length, heads, head_dim).transpose(1, 2)
    )


def attention_inputs(shape, dtype, masked):
    batch, heads, query_len, keys, head_dim = shape
    sizes = [(query_len, head_dim), (keys, head_dim), (keys, head_dim)]
    tensors = [heads_of(batch, heads, length, width, dtype) for length, width in sizes]
    mask = torch.arange(keys) < torch.randint(1, keys + 1, (batch if masked == "each" else 1, 1))
    return tensors, None if masked == "none" else mask[:, None, None]


def prefer_onednn(monkeypatch, preferred=True):
    """Let float32 products run as on a processor where MKL is slow, or is not."""
    here = dataclasses.replace(Processor.here(), vectors="AVX512", has_mkl=True, is_intel=not preferred)
    monkeypatch.setattr(Processor, "here", staticmethod(lambda: here))
