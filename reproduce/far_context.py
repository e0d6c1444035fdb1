"""Does an encoder use far context? Masked words in whole sequences, and in pieces of the same sequences.

Held-out documents are cut into sequences of n tokens. Some words are masked, all tokens of each: of a name, tokens that
stay would give away the others. Each encoder predicts them in the whole sequence, and in pieces of 512 tokens, and the
losses are compared by the distance to the nearest other occurrence of the word that is not masked. A word is a run of
letters and digits, in any case. What is beyond 512 tokens can be read in whole sequences only.

    python -m reproduce.learning --studies length-2048 --train_file WIKIPEDIA BOOKS --output_dir runs/length
    python -m reproduce.far_context --models runs/length/trainings/length-2048/*seed_?

An encoder takes 2 minutes on 2 cores.
"""

from __future__ import annotations

import itertools
import math
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas
import torch
import torch.nn.functional as F
import yaml
from matplotlib.figure import Figure
from torch import Tensor
from tqdm import tqdm
from transformers import AutoModelForMaskedLM, PreTrainedTokenizerFast

from linformer_cli.errors import InputError
from linformer_cli.settings import PretrainSettings
from linformer_cli.settings.declare import Count, Folder, Measurement, Share, settings
from linformer_kit.data.corpus import load_corpus, texts_of
from linformer_kit.data.tokenizer import start_token_id
from linformer_kit.environment import best_device, fast_dtype
from linformer_kit.interop.loading import load_model
from linformer_kit.report.figures import new_figure, show_grid
from reproduce.common import Record, Results, ScriptSettings, markdown, mean_and_deviation, run

DISTANCES = (8, 32, 128, 512, 1024, 2048, 4096, math.inf)  # largest of each group; the last: no other occurrence
_WORD = re.compile(r"[^\W_]+")


@settings
class Settings(ScriptSettings):
    """Compare the losses of masked words in whole sequences and in pieces."""

    # Folders of encoders by `linformer pretrain` or reproduce.learning; each is tested on the text held out from it.
    models: Measurement[list[Folder]]
    piece: Measurement[Count] = 512  # Tokens in a piece, with its start token.
    share: Measurement[Share] = 0.15  # Share of words to mask.
    draws: Measurement[Count] = 4  # Number of masks of each sequence.


class Masked(NamedTuple):
    """A sequence without start token, with masked words."""

    ids: Tensor  # [tokens], before masking
    inputs: Tensor  # [tokens], after it
    places: Tensor  # [masked], where they differ
    distances: list[float]  # of each place: tokens to the nearest occurrence of its word that is not masked


def measure(settings: Settings, results: Results) -> None:
    """Add the losses of each encoder."""
    for folder in tqdm(settings.models, desc="encoders"):
        with open(Path(folder) / "settings.yaml", encoding="utf-8") as file:
            trained = PretrainSettings(**yaml.safe_load(file))
        name, ending = Path(folder).name.replace("_", " "), f", {trained.learning_rate:g}, seed {trained.seed}"
        n = trained.model.max_position_embeddings
        kind = "code" if trained.train_file is None else "text"
        key = {"model": name.removesuffix(ending), "seed": trained.seed, "n": n, "kind": kind}
        if results.find(**key) is None:
            loaded = load_model(folder, AutoModelForMaskedLM, "a masked language model")
            split_seed = trained.seed if trained.split_seed is None else trained.split_seed
            corpus = load_corpus(trained, seed=split_seed)
            sequences = list(_sequences(settings, list(texts_of(corpus.validation)), loaded.tokenizer, n))
            if not sequences:
                raise InputError(f"models: expected held-out documents of {n:,} tokens for {folder}, got shorter ones")
            results.add(**key, sequences=len(sequences), **_losses(settings, loaded.model, loaded.tokenizer, sequences))


def _sequences(
    settings: Settings, texts: list[str], tokenizer: PreTrainedTokenizerFast, n: int
) -> Iterator[Masked]:
    """All sequences of as many whole pieces as n tokens have, each of one document, with all their masks."""
    length, numbers = n // settings.piece * (settings.piece - 1), itertools.count()
    for text in texts:
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        ids, starts = encoded["input_ids"], [start for start, _ in encoded["offset_mapping"]]
        ends = [end for _, end in encoded["offset_mapping"]]
        words = [
            (match[0].casefold(), bisect_left(ends, match.start() + 1), bisect_left(starts, match.end()))
            for match in _WORD.finditer(text)
        ]  # each with its tokens, from and to
        for begin in range(0, len(ids) - length + 1, length):
            inside = [
                (word, first - begin, last - begin)
                for word, first, last in words
                if begin <= first < last <= begin + length
            ]
            for draw in range(settings.draws):
                generator = np.random.default_rng([next(numbers), draw])
                hidden = generator.random(len(inside)) < settings.share
                yield _masked(torch.tensor(ids[begin : begin + length]), inside, hidden, tokenizer.mask_token_id)


def _masked(ids: Tensor, words: list[tuple[str, int, int]], hidden: np.ndarray, mask_id: int) -> Masked:
    """The sequence with the hidden words masked."""
    seen = defaultdict(list)
    for (word, first, _), is_hidden in zip(words, hidden, strict=True):
        if not is_hidden:
            seen[word].append(first)
    distances: dict[int, float] = {}
    for (word, first, last), is_hidden in zip(words, hidden, strict=True):
        if is_hidden:
            nearest = min((abs(first - other) for other in seen[word]), default=math.inf)
            distances |= dict.fromkeys(range(first, last), nearest)
    places = torch.tensor(sorted(distances), dtype=torch.long)
    return Masked(ids, ids.index_fill(0, places, mask_id), places, [distances[place] for place in places.tolist()])


@torch.no_grad()
def _losses(
    settings: Settings, model: Any, tokenizer: PreTrainedTokenizerFast, sequences: list[Masked]
) -> dict[str, list[float]]:
    """Number of masked tokens by distance, and the sums of their losses in whole sequences and in pieces."""
    device, width = best_device(), settings.piece - 1
    dtype, sums = fast_dtype("auto", device), np.zeros((3, len(DISTANCES)))
    model.to(device).eval()
    for sequence in tqdm(sequences, desc="sequences", leave=False):
        groups, places = np.searchsorted(DISTANCES, sequence.distances), sequence.places
        np.add.at(sums[0], groups, 1)
        for row, rows in ((1, sequence.inputs[None]), (2, sequence.inputs.view(-1, width))):
            inputs = F.pad(rows, (1, 0), value=start_token_id(tokenizer)).to(device)
            positions = places // rows.shape[1] * inputs.shape[1] + places % rows.shape[1] + 1
            with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                logits = model(inputs, predicted_positions=positions.to(device)).logits
            losses = F.cross_entropy(logits.float().cpu(), sequence.ids[places], reduction="none")
            np.add.at(sums[row], groups, losses.double().numpy())
    return dict(zip(("tokens", "whole", "pieces"), sums.tolist(), strict=True))
