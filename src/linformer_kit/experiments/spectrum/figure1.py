"""`linformer spectrum`: Figure 1 of the paper for any encoder, and the choice of k for each layer and head."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from tqdm import tqdm
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerBase, set_seed

from linformer_kit.environment import FIELDS as ENVIRONMENT
from linformer_kit.environment import best_device
from linformer_kit.errors import InputError
from linformer_kit.experiments.experiment import check_output, header, show, write_at_once
from linformer_kit.experiments.spectrum.choose import choose_projected_dims, kept_energy
from linformer_kit.experiments.spectrum.meter import Spectrum, SpectrumMeter
from linformer_kit.experiments.spectrum.texts import find_texts, sequence_length, sequences
from linformer_kit.files.manifest import read_json
from linformer_kit.files.writing import write_whole
from linformer_kit.interop.loading import load_model
from linformer_kit.report.spectrum import write_spectrum_report
from linformer_kit.settings import LARGEST_SEED, SpectrumSettings, recorded_name

RESULTS = "spectrum.json"
_CHOSEN = "projected_dims.yaml"
_DEFAULT_ENERGY = 0.9
_DIGITS = 6
_ARRAYS = ("cumulative", "spread", "error")
_ROUNDING = 2 * 10**-_DIGITS
# Fields of a spectrum.json that tables and figures need, with their types.
_FIELDS: dict[str, tuple[type, ...]] = {
    "environment": (dict,),
    "model": (str,),
    "model_type": (str,),
    "untrained": (bool,),
    "text": (str,),
    "seq_len": (int,),
    "packing": (bool,),
    "leading": (int, type(None)),
    "samples": (int,),
    "tokens": (int,),
    "complete": (bool,),
    "seconds": (int, float),
    **dict.fromkeys(_ARRAYS, (list,)),
}
_RECORDED = ("samples", "document", "text_column", "seed", "unprojected")
# Settings that apply to an existing spectrum.json.
_OF_DRAWING = ("model", "output_dir", "at", "choose", "energy", "budget", "choose_for", "choose_by", "multiple_of")
_log = logging.getLogger(__name__)


def main(settings: SpectrumSettings) -> None:
    """Measure, write, print."""
    text, folder, interrupted = spectrum(settings)
    show(text, folder, interrupted=interrupted)


def spectrum(settings: SpectrumSettings) -> tuple[str, Path, bool]:
    """Compute the spectrum of a model on texts, and write numbers and figure.

    Files: `spectrum.json` (all data of the figure), `spectrum.md`, `spectrum.png` and, with `choose`,
    `projected_dims.yaml`. Partial results are written also if Ctrl-C or a bad file ends the measurement, or if `at` or
    `energy` proves to be out of range.

    Returns:
        The Markdown text, the folder, and whether the measurement was interrupted by Ctrl-C.

    Raises:
        InputError: for settings, texts or a model that cannot be used; nothing is written before the first sequence.
    """
    check_output(settings.output_dir)
    _check(settings)
    path = Path(settings.model)
    drawn_again = path.suffix == ".json" and path.is_file()
    ended: BaseException | None = None
    if drawn_again:
        _check_only_drawn(settings)
        results = read_json(path)
        results.pop("chosen", None)
    else:
        results, ended = _measure(settings)
    found = read_spectrum(results, settings.model)
    results["at"] = _default_at(results, found)
    try:
        results["at"] = _at(settings, results, found)
        if settings.choose:
            results["chosen"] = _choose(settings, found)
    except InputError as error:
        if drawn_again:  # nothing is lost
            raise
        ended = ended or error
    text, folder = write_at_once(settings.output_dir, "spectrum", partial(_write, results))
    if ended is not None and not isinstance(ended, KeyboardInterrupt):
        raise ended
    return text, folder, ended is not None


def _write(results: dict[str, Any], folder: Path) -> str:
    text = write_spectrum_report(results, folder)
    if "chosen" in results:
        write_whole(folder / _CHOSEN, _as_config(results))
    return text


def read_spectrum(results: dict[str, Any], name: str = RESULTS) -> Spectrum:
    """Read the spectrum from the content of a spectrum.json.

    Raises:
        InputError: if it is not a spectrum.json, or damaged.
    """
    for field, kinds in _FIELDS.items():
        if field not in results or type(results[field]) not in kinds:
            expected = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
            got = type(results[field]).__name__ if field in results else "none"
            raise InputError(f"{name}: expected {expected} as {field}, as `linformer spectrum` writes it, got {got}")
    for field in ("samples", "tokens", "seq_len"):
        if results[field] < 1:
            raise InputError(f"{name}: expected 1 or more as {field}, got {results[field]}")
    if not results["environment"].keys() >= ENVIRONMENT:
        raise InputError(f"{name}: expected {', '.join(sorted(ENVIRONMENT))} in environment, got less")
    try:
        arrays = {array: np.array(results[array], dtype=np.float64) for array in _ARRAYS}
    except (ValueError, TypeError, OverflowError):
        raise InputError(f"{name}: expected numbers of layers, heads and ranks, got other things") from None
    curves, shape = arrays["cumulative"], arrays["cumulative"].shape
    if len(shape) != 3 or not curves.size or (arrays["spread"].shape, arrays["error"].shape) != (shape, shape[:2]):
        raise InputError(f"{name}: expected cumulative and spread of layers, heads and ranks, got other shapes")
    rising = (np.diff(curves, axis=-1) >= -_ROUNDING).all()
    if not (rising and (curves >= 0).all() and (curves <= 1 + _ROUNDING).all()):
        raise InputError(f"{name}: expected cumulative from 0 to 1 and rising, got other numbers")
    if not all((array >= 0).all() and np.isfinite(array).all() for array in (arrays["spread"], arrays["error"])):
        raise InputError(f"{name}: expected spread and error of 0 or more, got other numbers")
    return Spectrum(**arrays, samples=results["samples"], tokens=results["tokens"])


def _check(settings: SpectrumSettings) -> None:
    if settings.energy is not None and settings.budget is not None:
        raise InputError("energy, budget: expected at most one of them, got both")
    for name in ("energy", "budget", "choose_for", "choose_by", "multiple_of"):
        value = getattr(settings, name)
        if value is not None and not settings.choose:
            raise InputError(f"{name}: expected none without --choose, got {value}")
    if settings.choose_for is not None and settings.budget is None:
        raise InputError(f"choose_for: expected none without budget, got {settings.choose_for}")
    if settings.energy is not None and not 0 < settings.energy <= 1:
        raise InputError(f"energy: expected more than 0 and at most 1, got {settings.energy}")
    for name in ("at", "leading", "multiple_of", "budget"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise InputError(f"{name}: expected 1 or more, got {value}")
    if not 0 <= settings.seed <= LARGEST_SEED:
        raise InputError(f"seed: expected 0 to {LARGEST_SEED}, got {settings.seed}")


def _check_only_drawn(settings: SpectrumSettings) -> None:
    """Reject settings of a measurement if an existing spectrum.json is plotted."""
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if field.name not in _OF_DRAWING and value != field.default:
            raise InputError(f"{field.name}: expected none for a spectrum.json, got {value}")


def _measure(settings: SpectrumSettings) -> tuple[dict[str, Any], BaseException | None]:
    """The results, and the exception that ended the measurement early, if any."""
    files = find_texts(settings)
    model, tokenizer = _load(settings)
    seq_len = sequence_length(settings, model, tokenizer)
    meter = SpectrumMeter(model, leading=settings.leading, unprojected=settings.unprojected)
    head = header("spectrum", device=model.device, settings={name: getattr(settings, name) for name in _RECORDED})
    started = time.perf_counter()
    ended: BaseException | None = None
    ids = islice(sequences(files, tokenizer, seq_len=seq_len, packing=settings.packing), settings.samples)
    try:
        for batch in _batches(ids, settings.samples, model.device):
            meter.add(batch)
            if meter.samples == 1 and settings.packing:  # raise errors of these settings now, not at the end
                _at(settings, {"seq_len": seq_len, "leading": settings.leading}, meter.result())
                if settings.budget is not None or (settings.choose and settings.leading is None):
                    _choose(settings, meter.result())
    except (KeyboardInterrupt, InputError, OSError) as error:
        if meter.samples < (1 if isinstance(error, KeyboardInterrupt) else 2):
            raise
        ended = error
    if not meter.samples:
        raise InputError(f"text_file: expected enough for a sequence of {seq_len} tokens, got less in {files.name}")
    if meter.samples < settings.samples and ended is None:
        _log.warning("%s of the %s sequences asked for", f"{meter.samples:,}", f"{settings.samples:,}")
    found = meter.result()
    results = head | {
        "model": recorded_name(settings.model),
        "model_type": model.config.model_type,
        "untrained": settings.untrained,
        "text": files.name,
        "seq_len": seq_len,
        "packing": settings.packing,
        "leading": settings.leading,
        "samples": found.samples,
        "tokens": found.tokens,
        "complete": ended is None,
        "seconds": round(time.perf_counter() - started, 1),
    }
    return results | {name: np.round(getattr(found, name), _DIGITS).tolist() for name in _ARRAYS}, ended


def _batches(ids: Iterator[list[int]], total: int, device: torch.device) -> Iterator[dict[str, torch.Tensor]]:
    with tqdm(total=total, desc="Spectrum", unit=" sequences", dynamic_ncols=True, delay=2) as bar:
        for sequence in ids:
            yield {"input_ids": torch.tensor([sequence], device=device)}
            bar.update()


def _load(settings: SpectrumSettings) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    model, tokenizer = load_model(settings.model, AutoModel, "an encoder")
    if settings.untrained:
        set_seed(settings.seed)
        model = AutoModel.from_config(model.config).eval()
    return model.to(best_device()), tokenizer


def _default_at(results: dict[str, Any], found: Spectrum) -> int:
    """A quarter of the number of all singular values, also if only leading ones were computed."""
    rank = found.cumulative.shape[-1]
    every = rank if results["leading"] is None else int(results["seq_len"])
    return min(rank, max(1, every // 4))


def _at(settings: SpectrumSettings, results: dict[str, Any], found: Spectrum) -> int:
    rank = found.cumulative.shape[-1]
    if settings.at is None:
        return _default_at(results, found)
    if settings.at > rank:
        raise InputError(f"at: expected at most {rank}, the number of singular values, got {settings.at}")
    return settings.at


def _choose(settings: SpectrumSettings, found: Spectrum) -> dict[str, Any]:
    energy = settings.energy
    if energy is None and settings.budget is None:
        energy = _DEFAULT_ENERGY
    asked: dict[str, Any] = {
        "energy": energy,
        "budget": settings.budget,
        "aim": settings.choose_for or "total",
        "by": settings.choose_by or "head",
        "multiple_of": settings.multiple_of or 1,
    }
    dims = choose_projected_dims(found, **asked)
    return {
        **asked,
        "projected_dim": dims,
        "kept": round(kept_energy(found, dims), _DIGITS),
    }


def _as_config(results: dict[str, Any]) -> str:
    """The chosen k as settings of `linformer pretrain`, with the sizes of their model."""
    dims = results["chosen"]["projected_dim"]
    model = {
        "max_position_embeddings": results["seq_len"],
        "num_hidden_layers": len(dims),
        "num_attention_heads": len(dims[0]),
        "projected_dim": dims,
    }
    return yaml.safe_dump({"model": model}, sort_keys=False, default_flow_style=None)
