"""`linformer spectrum`: Figure 1 of the paper for any encoder, and k for each layer and head by it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from tqdm import tqdm
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerBase, set_seed

from linformer_kit.analysis.choose import choose_projected_dims, kept_energy
from linformer_kit.analysis.spectrum import Spectrum, SpectrumMeter
from linformer_kit.analysis.texts import find_texts, sequence_length, sequences
from linformer_kit.environment import environment
from linformer_kit.errors import InputError
from linformer_kit.loading import best_device, load_model
from linformer_kit.report.spectrum import write_spectrum_report
from linformer_kit.settings import SpectrumSettings
from linformer_kit.training.checkpoint import (
    check_new_folder,
    check_output_dir,
    open_output_dir,
    read_json,
    whole_folder,
    write_whole,
)

RESULTS = "spectrum.json"
_CHOSEN = "projected_dims.yaml"
_DEFAULT_ENERGY = 0.9
_DIGITS = 6
_ARRAYS = ("cumulative", "spread", "error")
_log = logging.getLogger(__name__)


def main(settings: SpectrumSettings) -> None:
    """Measure, write, print."""
    text, folder, interrupted = spectrum(settings)
    print(text)
    print(f"Saved in {folder}")
    if interrupted:
        raise KeyboardInterrupt


def spectrum(settings: SpectrumSettings) -> tuple[str, Path, bool]:
    """Take the spectrum of a model on texts, and write what there is to see.

    `spectrum.json` (all that the pictures are made of), `spectrum.md`, `spectrum.png`, and, with `choose`,
    `projected_dims.yaml`. Ctrl-C ends the measurement; what was measured is written. So it is where an energy turns out
    to be beyond the leading singular values.

    Returns:
        The Markdown text, the folder, and whether there was a Ctrl-C.

    Raises:
        InputError: for settings, texts or a model that do not fit; nothing is written then.
    """
    if settings.output_dir is not None:
        check_new_folder("output_dir", settings.output_dir)
    check_output_dir(settings.output_dir, resume=False, overwrite=False)
    _check(settings)
    path = Path(settings.model)
    if path.suffix == ".json" and path.is_file():
        results, interrupted = read_json(path), False
    else:
        results, interrupted = _measure(settings)
    found = read_spectrum(results, settings.model)
    results["at"] = _at(settings, results["seq_len"], found)
    results.pop("chosen", None)
    failure = None
    if settings.choose:
        try:
            results["chosen"] = _choose(settings, found)
        except InputError as error:
            failure = error
    folder = open_output_dir(settings.output_dir, command="spectrum", overwrite=False)
    with whole_folder(folder) as part:
        text = write_spectrum_report(results, part)
        if "chosen" in results:
            write_whole(part / _CHOSEN, _as_config(results))
    if failure is not None:
        raise failure
    return text, folder, interrupted


def read_spectrum(results: dict[str, Any], name: str = RESULTS) -> Spectrum:
    """The spectrum in the content of a spectrum.json.

    Raises:
        InputError: if it is none.
    """
    try:
        arrays = {array: np.array(results[array], dtype=np.float64) for array in _ARRAYS}
        found = Spectrum(**arrays, samples=int(results["samples"]), tokens=int(results["tokens"]))
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(f"model: expected a spectrum.json as `linformer spectrum` writes it, got {name}") from error
    layers_and_heads = found.cumulative.shape[:2]
    if found.cumulative.ndim != 3 or (found.spread.shape, found.error.shape) != (
        found.cumulative.shape,
        layers_and_heads,
    ):
        raise InputError(f"{name}: expected cumulative and spread of layers, heads and ranks, got other shapes")
    return found


def _check(settings: SpectrumSettings) -> None:
    if settings.energy is not None and settings.budget is not None:
        raise InputError("energy, budget: expected at most one of them, got both")
    for name in ("energy", "budget"):
        value = getattr(settings, name)
        if value is not None and not settings.choose:
            raise InputError(f"{name}: expected --choose with it, got {value} without")
    if settings.energy is not None and not 0 < settings.energy <= 1:
        raise InputError(f"energy: expected more than 0 and at most 1, got {settings.energy}")
    for name in ("at", "leading", "multiple_of"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise InputError(f"{name}: expected 1 or more, got {value}")


def _measure(settings: SpectrumSettings) -> tuple[dict[str, Any], bool]:
    files = find_texts(settings)
    model, tokenizer = _load(settings)
    seq_len = sequence_length(settings, model, tokenizer)
    meter = SpectrumMeter(model, leading=settings.leading)
    started = time.perf_counter()
    interrupted = False
    ids = islice(sequences(files, tokenizer, seq_len=seq_len, packing=settings.packing), settings.samples)
    try:
        for batch in _batches(ids, settings.samples, model.device):
            meter.add(batch)
            if meter.samples == 1:  # what does not fit is found now, and not in the end
                _at(settings, seq_len, meter.result())
                if settings.budget is not None or (settings.choose and settings.leading is None):
                    _choose(settings, meter.result())
    except KeyboardInterrupt:
        if not meter.samples:
            raise
        interrupted = True
    if not meter.samples:
        raise InputError(f"text: expected enough for a sequence of {seq_len} tokens, got less in {files.name}")
    if meter.samples < settings.samples:
        _log.warning("%s of the %s sequences asked for", f"{meter.samples:,}", f"{settings.samples:,}")
    found = meter.result()
    results = {
        "command": "spectrum",
        "environment": environment(best_device()),
        "model": Path(settings.model).name if Path(settings.model).exists() else settings.model,
        "model_type": model.config.model_type,
        "untrained": settings.untrained,
        "text": files.name,
        "seq_len": seq_len,
        "packing": settings.packing,
        "leading": settings.leading,
        "samples": found.samples,
        "tokens": found.tokens,
        "complete": not interrupted,
        "seconds": round(time.perf_counter() - started, 1),
    }
    return results | {name: np.round(getattr(found, name), _DIGITS).tolist() for name in _ARRAYS}, interrupted


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


def _at(settings: SpectrumSettings, seq_len: int, found: Spectrum) -> int:
    rank = found.cumulative.shape[-1]
    if settings.at is None:
        return min(rank, max(1, seq_len // 4))
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
        "aim": settings.choose_for,
        "by": settings.choose_by,
        "multiple_of": settings.multiple_of,
    }
    dims = choose_projected_dims(found, **asked)
    return {
        **asked,
        "projected_dim": dims,
        "kept": round(kept_energy(found, dims), _DIGITS),
    }


def _as_config(results: dict[str, Any]) -> str:
    """The chosen ks as settings of `linformer pretrain`, with the sizes that they are for."""
    dims = results["chosen"]["projected_dim"]
    model = {
        "max_position_embeddings": results["seq_len"],
        "num_hidden_layers": len(dims),
        "num_attention_heads": len(dims[0]),
        "projected_dim": dims,
    }
    return yaml.safe_dump({"model": model}, sort_keys=False, default_flow_style=None)
