"""The spectrum of a model: means and spread over samples, padding, batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from linformer_kit import InputError, LinformerModel, attention_spectrum
from linformer_kit.experiments.spectrum import meter
from linformer_kit.experiments.spectrum.capture import LayerAttention
from linformer_kit.experiments.spectrum.meter import SpectrumMeter
from tests.conftest import randomise, tokens
from tests.experiments.spectrum.test_capture import encoder


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
    assert (found.samples, found.tokens) == (5, 5 * 23) and not found.error.any()


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


def test_matrices_come_in_pieces(monkeypatch):
    model, ids = encoder("bert"), tokens(3, 11)
    whole = attention_spectrum(model, [{"input_ids": ids}])
    monkeypatch.setattr(meter, "_TOGETHER", 2 * 11 * 11)
    np.testing.assert_allclose(attention_spectrum(model, [{"input_ids": ids}]).cumulative, whole.cumulative)


def test_leading_values_have_an_error(config):
    model = randomise(LinformerModel(config(attention="full")), 0.6).eval()
    ids = tokens(2, 37)
    whole = attention_spectrum(model, [{"input_ids": ids}])
    some = attention_spectrum(model, [{"input_ids": ids}], leading=5)
    assert some.cumulative.shape == (2, 3, 5) and some.error.any()
    assert (np.abs(some.cumulative - whole.cumulative[..., :5]) <= some.error[..., None] + 1e-3).all()
    with pytest.raises(InputError, match="leading: expected 1 or more, got 0"):
        attention_spectrum(model, [], leading=0)


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


def test_without_batches_there_is_none():
    with pytest.raises(InputError, match="batches: expected at least one with a real token, got none"):
        attention_spectrum(encoder("bert"), [])


def test_the_largest_error_of_all_batches_counts(config):
    model = randomise(LinformerModel(config(attention="full")), 0.6).eval()
    batches = [{"input_ids": tokens(1, 37)} for _ in range(3)]
    errors = [attention_spectrum(model, [batch], leading=5).error for batch in batches]
    np.testing.assert_array_equal(attention_spectrum(model, batches, leading=5).error, np.max(errors, axis=0))


def test_layers_that_differ_in_their_heads_are_refused(monkeypatch):
    def visit_both(model, inputs, visit, **options):
        for layer, heads in enumerate((3, 2)):
            visit(layer, LayerAttention(torch.eye(5).expand(1, heads, 5, 5), torch.ones(1, 5, dtype=torch.bool)))

    monkeypatch.setattr(meter, "visit_attention", visit_both)
    with pytest.raises(InputError, match=r"model: expected one number of heads, got \[2, 3\]"):
        attention_spectrum(encoder("bert"), [{"input_ids": tokens(1, 5)}])


def test_batches_of_another_model_are_refused():
    meter = SpectrumMeter(encoder("bert"))
    meter.add({"input_ids": tokens(1, 5)})
    meter._totals = meter._totals._replace(error=np.zeros((5, 3)))
    with pytest.raises(InputError, match=r"batches: expected .* layers and heads"):
        meter.add({"input_ids": tokens(1, 5)})
