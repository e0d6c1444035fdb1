"""Singular values against numpy's and by hand; the spectrum of a model: means and spread over samples, padding."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from linformer_kit import InputError, LinformerModel, attention_spectrum
from linformer_kit.analysis.singular_values import SpectrumMeter, cumulative_curves, singular_values
from tests.analysis.test_capture import encoder
from tests.conftest import randomise, tokens


def mappings(many: int, rows: int, columns: int, scale: float = 2.0) -> torch.Tensor:
    return (scale * torch.randn(many, rows, columns)).softmax(dim=-1)


def by_numpy(matrices: torch.Tensor) -> np.ndarray:
    sums = np.linalg.svd(matrices.double().numpy(), compute_uv=False).cumsum(axis=-1)
    return sums / sums[..., -1:]


def limits(many: int, rank: int) -> torch.Tensor:
    return torch.full((many,), rank)


@pytest.mark.parametrize("shape", [(5, 23, 23), (3, 29, 7), (3, 7, 29)])
def test_they_are_those_of_numpy(shape):
    matrices = mappings(*shape)
    expected = np.linalg.svd(matrices.double().numpy(), compute_uv=False)
    np.testing.assert_allclose(singular_values(matrices).numpy(), expected, atol=1e-7)
    curves = cumulative_curves(matrices, limits(shape[0], min(shape[1:])))
    np.testing.assert_allclose(curves.numpy(), by_numpy(matrices), atol=1e-6)


def test_a_zero_matrix_is_no_division_by_zero():
    assert cumulative_curves(torch.zeros(1, 5, 5), limits(1, 0)).tolist() == [[1.0] * 5]


def curves(model, ids: torch.Tensor) -> np.ndarray:
    """By numpy, of each sequence: `[sequences, layers, heads, rank]`."""
    model.set_attn_implementation("eager") if model.config.model_type != "linformer" else None
    weights = np.stack([each.detach().double().numpy() for each in model(ids, output_attentions=True).attentions], 1)
    sums = np.linalg.svd(weights, compute_uv=False).cumsum(-1)
    return sums / sums[..., -1:]


@pytest.mark.parametrize("kind", ["bert", "ours", "full"])
def test_means_and_spread_are_those_of_numpy(config, kind):
    ours = LinformerModel(config(attention="full" if kind == "full" else "linformer"))
    model = encoder("bert") if kind == "bert" else randomise(ours).eval()
    ids = tokens(5, 23)
    found = attention_spectrum(model, [{"input_ids": ids[:2]}, {"input_ids": ids[2:]}])
    expected = curves(model, ids)
    assert found.cumulative.shape == (2, 3, 7 if kind == "ours" else 23)
    np.testing.assert_allclose(found.cumulative, expected.mean(0), atol=1e-5)
    np.testing.assert_allclose(found.spread, expected.std(0), atol=1e-5)
    assert (found.samples, found.tokens) == (5, 5 * 23)


def test_padding_does_not_count():
    model = encoder("bert")
    ids, mask = tokens(2, 23), torch.ones(2, 23, dtype=torch.long)
    mask[1, 13:] = 0
    padded = attention_spectrum(model, [{"input_ids": ids, "attention_mask": mask}])
    alone = attention_spectrum(model, [{"input_ids": ids[:1]}, {"input_ids": ids[1:, :13]}])
    np.testing.assert_allclose(padded.cumulative, alone.cumulative, atol=1e-5)
    assert padded.tokens == alone.tokens == 36
    shorter = attention_spectrum(model, [{"input_ids": ids[1:], "attention_mask": mask[1:]}])
    assert (shorter.cumulative[..., 12:] == 1).all() and (shorter.cumulative[..., 11] < 1).all()


def test_a_sequence_of_padding_is_none():
    model, ids = encoder("bert"), tokens(2, 11)
    mask = torch.tensor([[1] * 11, [0] * 11])
    found = attention_spectrum(model, [{"input_ids": ids, "attention_mask": mask}])
    assert found.samples == 1
    np.testing.assert_allclose(found.cumulative, curves(model, ids[:1])[0], atol=1e-5)
    with pytest.raises(InputError, match="batches: expected at least one with a real token, got none"):
        attention_spectrum(model, [{"input_ids": ids[1:], "attention_mask": mask[1:]}])


def test_lengths_may_rise_and_fall():
    model, ids = encoder("bert"), tokens(1, 19)
    rising, falling = ([{"input_ids": ids[:, :n]} for n in order] for order in ((7, 19), (19, 7)))
    found, other = attention_spectrum(model, rising), attention_spectrum(model, falling)
    np.testing.assert_allclose(found.cumulative, other.cumulative)
    np.testing.assert_allclose(found.spread, other.spread)
    expected = (
        np.pad(curves(model, ids[:, :7])[0], [(0, 0), (0, 0), (0, 12)], constant_values=1) + curves(model, ids)[0]
    ) / 2
    np.testing.assert_allclose(found.cumulative, expected, atol=1e-5)


def test_a_batch_that_fails_does_not_count():
    model = encoder("bert")
    meter = SpectrumMeter(model)
    meter.add({"input_ids": tokens(1, 7)})
    before = meter.result()
    model.encoder.layer[1].attention.self.query.weight.data[0] = torch.nan
    with pytest.raises(InputError, match="layer 1"):
        meter.add({"input_ids": tokens(1, 7)})
    assert meter.samples == 1
    np.testing.assert_array_equal(meter.result().cumulative, before.cumulative)
