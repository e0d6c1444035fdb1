"""Does an encoder use far context? Masked words in whole sequences, and in pieces of the same sequences.

Held-out documents are cut into sequences of n tokens. Some words (runs of letters and digits) are masked, all tokens of
each: of a name, tokens that stay would give away the others. Losses in the whole sequence and in its pieces of 512
tokens are compared by the distance to the nearest occurrence of the word, in any case, that is not masked.

    python -m reproduce.far_context --models LENGTH/trainings/length-2048/*seed_?

LENGTH is the folder of `python -m reproduce.learning --studies length-2048 --train_file WIKIPEDIA BOOKS`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
from linformer_kit.interop.loading import load_model
from linformer_kit.report.environment import best_device, fast_dtype
from linformer_kit.report.figures import new_figure, show_grid
from reproduce.common import Record, Results, ScriptSettings, markdown, mean_and_deviation, run

DISTANCES = (8, 32, 128, 512, 1024, 2048, 4096, math.inf)  # largest of each group; the last: no other occurrence
NAMES = ("up to 8", "32", "128", "512", "1,024", "2,048", "4,096", "nowhere else")
GROUPS = {"all": slice(8)} | {NAMES[i]: slice(i, i + 1) for i in range(8)} | {"beyond 512": slice(4, 7)}
_WORD = re.compile(r"[^\W_]+")


@settings
class Settings(ScriptSettings):
    """Compare the losses of masked words in whole sequences and in pieces."""

    models: Measurement[list[Folder]]
    """Folders of encoders by `linformer pretrain`; each is tested on the text held out from it."""
    piece: Measurement[Count] = 512
    """Tokens in a piece, with its start token."""
    share: Measurement[Share] = 0.15
    """Share of words to mask."""
    draws: Measurement[Count] = 4
    """Number of masks of each sequence."""


def measure(settings: Settings, results: Results) -> None:
    """Add a record of each encoder: masked tokens by distance, and the sums of their losses."""
    for folder in tqdm(settings.models, desc="encoders"):
        trained = PretrainSettings(**yaml.safe_load((Path(folder) / "settings.yaml").read_text("utf-8")))
        ending = f", {trained.learning_rate:g}, seed {trained.seed}"  # as reproduce.learning names them
        name = Path(folder).name.replace("_", " ").removesuffix(ending)
        key = {"model": name, "n": trained.model.max_position_embeddings, "seed": trained.seed}
        if results.find(**key) is None:
            loaded = load_model(folder, AutoModelForMaskedLM, "a masked language model")
            sums = _losses(settings, trained, loaded.model.to(best_device()).eval(), loaded.tokenizer)
            results.add(**key, **dict(zip(("tokens", "whole", "pieces"), sums.tolist(), strict=True)))


@torch.no_grad()
def _losses(settings: Settings, trained: PretrainSettings, model: Any, tokenizer: PreTrainedTokenizerFast) -> Any:
    """Masked tokens by distance, and the sums of their losses in whole sequences and in pieces, `[3, distances]`."""
    corpus = load_corpus(trained, seed=trained.seed if trained.split_seed is None else trained.split_seed)
    width, device, sums = settings.piece - 1, model.device, np.zeros((3, len(DISTANCES)))
    dtype, mask = fast_dtype(trained.dtype, device), tokenizer.mask_token_id
    length = trained.model.max_position_embeddings // settings.piece * width
    for ids, distances in tqdm(list(_sequences(settings, texts_of(corpus.validation.documents), tokenizer, length))):
        places = (~distances.isnan()).nonzero()[:, 0]
        groups, masked = np.searchsorted(DISTANCES, distances[places]), ids.index_fill(0, places, mask)
        np.add.at(sums[0], groups, 1)
        for row, size in ((1, length), (2, width)):
            inputs = F.pad(masked.view(-1, size), (1, 0), value=start_token_id(tokenizer)).to(device)
            predicted = places + places // size + 1  # after the start token of each row
            with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                logits = model(inputs, predicted_positions=predicted.to(device)).logits
            np.add.at(sums[row], groups, F.cross_entropy(logits.float().cpu(), ids[places], reduction="none").numpy())
    if not sums[0].any():
        raise InputError(f"models: expected held-out documents of {length:,} tokens, got none with a word to mask")
    return sums


def _sequences(
    settings: Settings, texts: Iterator[str], tokenizer: PreTrainedTokenizerFast, length: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Sequences of one document with each mask: ids, and distances of the tokens of masked words, elsewhere NaN."""
    generator = np.random.default_rng(0)
    for text in texts:
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        starts, ends = np.array(encoded["offset_mapping"], dtype=int).reshape(-1, 2).T
        found = [(match[0].casefold(), match.start(), match.end()) for match in _WORD.finditer(text)]
        words = pandas.DataFrame(found, columns=["word", "first", "end"])
        words["first"] = np.searchsorted(ends, words["first"], side="right")  # in tokens
        words["end"] = np.searchsorted(starts, words["end"])  # after its last token
        for begin in range(0, len(starts) - length + 1, length):
            inside = words[(words["first"] >= begin) & (words["end"] <= begin + length)]
            for _ in range(settings.draws):
                hidden = generator.random(len(inside)) < settings.share
                seen = inside[~hidden].groupby("word")["first"].apply(np.array).to_dict()
                distances = torch.full((length,), math.nan)
                for word, first, end in inside[hidden].itertuples(index=False):
                    nearest = np.abs(seen[word] - first).min() if word in seen else math.inf
                    distances[first - begin : end - begin] = float(nearest)
                yield torch.tensor(encoded["input_ids"][begin : begin + length]), distances


def losses(content: Record) -> Iterator[tuple[str, str, pandas.DataFrame]]:
    """Of each model and n: its names, and its losses in pieces, in the whole, and the gain, by group and then seed."""
    for (model, n), of in pandas.DataFrame(content["records"]).groupby(["model", "n"], sort=False):
        tokens, pieces, whole = (np.array(of[name].tolist()) for name in ("tokens", "pieces", "whole"))
        found = pandas.DataFrame(index=["pieces", "whole", "gain"])
        for name, group in GROUPS.items():
            if (count := tokens[:, group].sum(1)).all():
                found[name] = [list(sums[:, group].sum(1) / count) for sums in (pieces, whole, pieces - whole)]
        yield str(model), f"{n:,}", found


def table(content: Record) -> str:
    """Losses and gains by distance, as Markdown."""
    encoders = list(losses(content))
    rows = [
        {"model": model, "n": n, "": way} | {name: mean_and_deviation(of[name], 3) for name in found}
        for model, n, found in encoders
        for way, of in found.iterrows()
    ]
    groups = [name for name in GROUPS if any(name in found for *_, found in encoders)]
    return f"""# Does it use far context?

Nats for a token of a masked word, in pieces of {content["settings"]["piece"]} tokens and in the whole sequence of n, by
the distance to another occurrence of the word; means over seeds with the sample's standard deviation.

{markdown(rows, ["model", "n", "", *groups])}"""


def draw(content: Record) -> Figure:
    """What the whole sequence gains by distance, a line for each model and n; shaded: the range of the seeds."""
    figure, axes = new_figure((7.5, 4.5))
    encoders = list(losses(content))
    names = [name for name in NAMES if any(name in found for *_, found in encoders)]
    for model, n, found in encoders:
        gains = [found[name]["gain"] if name in found else [math.nan] for name in names]  # a line ends at a gap
        axes.plot([*map(np.mean, gains)], "o-", markersize=4, label=f"{model}, n {n}")
        axes.fill_between(range(len(names)), [*map(min, gains)], [*map(max, gains)], alpha=0.15)
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set_xticks(range(len(names)), names)
    axes.set(xlabel="tokens to another occurrence of the word, up to", ylabel="gain by the whole sequence (nats)")
    axes.legend(fontsize=8)
    show_grid(axes)
    return figure


if __name__ == "__main__":
    run(Settings, measure, table, draw)
