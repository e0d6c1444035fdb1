"""Does an encoder use far context? Masked words in whole sequences, and in pieces of the same sequences.

Held-out documents are cut into sequences of n tokens. Some words are masked, all tokens of each: of a name, tokens that
stay would give away the others. Each encoder predicts them in the whole sequence, and in pieces of 512 tokens, and the
losses are compared by the distance to the nearest other occurrence of the word that is not masked. A word is a run of
letters and digits, in any case. What is beyond 512 tokens can be read in whole sequences only.

    python -m reproduce.learning --studies length-2048 --train_file WIKIPEDIA BOOKS --output_dir runs/length
    python -m reproduce.far_context --models runs/length/trainings/length-2048/*seed_?
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
from linformer_kit.environment import best_device, fast_dtype
from linformer_kit.interop.loading import load_model
from linformer_kit.report.figures import new_figure, show_grid
from reproduce.common import Record, Results, ScriptSettings, markdown, mean_and_deviation, run

DISTANCES = (8, 32, 128, 512, 1024, 2048, 4096, math.inf)  # largest of each group; the last: no other occurrence
GROUPS = {"all": slice(8), "up to 8": slice(1), "32": slice(1, 2), "128": slice(2, 3), "512": slice(3, 4)}
GROUPS |= {"1,024": slice(4, 5), "2,048": slice(5, 6), "4,096": slice(6, 7), "nowhere else": slice(7, 8)}
GROUPS |= {"only beyond 512": slice(4, 7)}
_WORD = re.compile(r"[^\W_]+")


@settings
class Settings(ScriptSettings):
    """Compare the losses of masked words in whole sequences and in pieces."""

    # Folders of encoders by `linformer pretrain`; each is tested on the text held out from it.
    models: Measurement[list[Folder]]
    piece: Measurement[Count] = 512  # Tokens in a piece, with its start token.
    share: Measurement[Share] = 0.15  # Share of words to mask.
    draws: Measurement[Count] = 4  # Number of masks of each sequence.


def measure(settings: Settings, results: Results) -> None:
    """Add a record of each encoder: masked tokens by distance, and the sums of their losses."""
    for folder in tqdm(settings.models, desc="encoders"):
        trained = PretrainSettings(**yaml.safe_load((Path(folder) / "settings.yaml").read_text("utf-8")))
        ending = f", {trained.learning_rate:g}, seed {trained.seed}"  # as reproduce.learning names them
        name, n = Path(folder).name.replace("_", " ").removesuffix(ending), trained.model.max_position_embeddings
        key = {"model": name, "n": n, "seed": trained.seed}
        if results.find(**key) is None:
            loaded = load_model(folder, AutoModelForMaskedLM, "a masked language model")
            sums = _losses(settings, trained, loaded.model.to(best_device()).eval(), loaded.tokenizer)
            results.add(**key, **dict(zip(("tokens", "whole", "pieces"), sums.tolist(), strict=True)))


@torch.no_grad()
def _losses(settings: Settings, trained: PretrainSettings, model: Any, tokenizer: PreTrainedTokenizerFast) -> Any:
    """Masked tokens by distance, and the sums of their losses in whole sequences and in pieces, `[3, distances]`."""
    corpus = load_corpus(trained, seed=trained.seed if trained.split_seed is None else trained.split_seed)
    width, device, sums = settings.piece - 1, model.device, np.zeros((3, len(DISTANCES)))
    dtype = fast_dtype(trained.dtype, device)
    length = trained.model.max_position_embeddings // settings.piece * width
    for ids, distances in tqdm(list(_sequences(settings, texts_of(corpus.validation), tokenizer, length))):
        places = distances.isnan().logical_not().nonzero()[:, 0]
        groups, masked = np.searchsorted(DISTANCES, distances[places]), ids.clone()
        masked[places] = tokenizer.mask_token_id
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
    """Sequences of one document each with each of their masks: ids, and at the tokens of masked words the distance to
    the nearest occurrence that is not masked, elsewhere NaN; `[length]`."""
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
    """Of each model and n: its names, and mean losses in pieces and in the whole and the gain, by group and seed."""
    for (model, n), of in pandas.DataFrame(content["records"]).groupby(["model", "n"], sort=False):
        sums = {name: np.array(of[name].tolist()) for name in ("tokens", "pieces", "whole")}
        sums["gain"] = sums["pieces"] - sums["whole"]
        rows = {
            name: {way: list(sums[way][:, group].sum(1) / tokens) for way in ("pieces", "whole", "gain")}
            for name, group in GROUPS.items()
            if (tokens := sums["tokens"][:, group].sum(1)).all()
        }
        yield str(model), f"{n:,}", pandas.DataFrame(rows)


def table(content: Record) -> str:
    """Losses and gains by distance, as Markdown."""
    piece, rows = content["settings"]["piece"], []
    for model, n, frame in losses(content):
        for way, of in frame.iterrows():
            rows.append({"model": model, "n": n, "": way} | {name: mean_and_deviation(of[name], 3) for name in frame})
    return f"""# Does it use far context?

Loss in nats of masked words of held-out documents, in pieces of {piece} tokens and in whole sequences of n, by the
distance in tokens to another occurrence of the word. Means over seeds with the sample's standard deviation.

{markdown(pandas.DataFrame(rows))}"""


def draw(content: Record) -> Figure:
    """What the whole sequence gains by distance, a line for each model and n; shaded: the range of the seeds."""
    figure, axes = new_figure((7.5, 4.5))
    for model, n, frame in losses(content):
        names = list(frame)[1 : None if "only beyond 512" not in frame else -1]
        gains = [frame[name]["gain"] for name in names]
        axes.plot(names, list(map(np.mean, gains)), "o-", markersize=4, label=f"{model}, n {n}")
        axes.fill_between(names, list(map(min, gains)), list(map(max, gains)), alpha=0.15)
    axes.set(xlabel="tokens to another occurrence of the word, up to", ylabel="gain by the whole sequence (nats)")
    axes.axhline(0, color="gray", linewidth=0.8)
    axes.legend(fontsize=8)
    show_grid(axes)
    return figure


if __name__ == "__main__":
    run(Settings, measure, table, draw)
