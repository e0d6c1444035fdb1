"""Far context: distances by hand, losses of whole sequences and pieces of a tiny encoder."""

from __future__ import annotations

import math

import pytest
import torch

from linformer_kit.data.tokenizer import train_tokenizer
from linformer_kit.training.pretrain import pretrain
from reproduce import far_context
from reproduce.learning import pretrain_settings
from reproduce.studies import BASE
from tests.reproduce.started import start

TEXT = "Anna met Bo. anna-maria saw 1867 and naïve _x_ Zoë; "


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([TEXT * 9], vocab_size=277, max_length=64)


def test_distances_are_those_to_the_nearest_occurrence_that_is_not_masked(tokenizer):
    text = TEXT * 3
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    settings = far_context.Settings(models=[], share=0.5, draws=30)
    length = len(ids) - 3
    sequences = list(far_context._sequences(settings, iter([text, "short", ""]), tokenizer, length))
    assert len(sequences) == 30 and all(torch.equal(found, torch.tensor(ids[:length])) for found, _ in sequences)
    read = [tokenizer.decode(token).strip().casefold() for token in ids]
    bo = [place for place in range(length) if read[place : place + 2] == ["b", "o"] or read[place] == "bo"]
    tokens = 2 if read[bo[0]] == "b" else 1
    assert len(bo) == 3
    seen = set()
    for _, distances in sequences:
        masked = {place for place in bo if not distances[place].isnan()}
        shown = [place for place in bo if place not in masked]
        for place in masked:
            expected = min((abs(place - other) for other in shown), default=math.inf)
            assert distances[place : place + tokens].tolist() == [expected] * tokens  # all tokens of a word
            seen.add(expected)
        stops = [place for place, token in enumerate(read[:length]) if token in (".", ";", "_", "-")]
        assert stops and distances[stops].isnan().all()  # no words
    assert seen == {bo[1] - bo[0], bo[2] - bo[0], math.inf}
    masked = torch.stack([~distances.isnan() for _, distances in sequences])
    assert masked.any(0).sum() > 0.8 * length - 20 and not masked.all(0).any()


@pytest.mark.e2e
def test_losses_of_a_tiny_encoder(tmp_path, capsys):
    (tmp_path / "texts").mkdir()
    for number in range(8):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"{number} {TEXT}" * 12)
    small = {"vocab_size": 277, "max_position_embeddings": 64, "projected_dim": 4, "hidden_size": 16}
    small |= {"num_attention_heads": 2, "intermediate_size": 8, "max_steps": 2, "learning_rate": 1e-3, "seed": 3}
    small |= {"train_file": [str(tmp_path / "texts")], "validation_fraction": 0.3}
    folder = tmp_path / "dynamic,_k_4,_0.001,_seed_3"
    pretrain(pretrain_settings(BASE | small | {"output_dir": str(folder), "dtype": "float32"}))
    (whole,) = start(far_context, tmp_path / "whole", "--models", folder, "--piece", 64)["records"]
    assert (whole["model"], whole["n"], whole["seed"]) == ("dynamic, k 4", 64, 3)
    assert whole["whole"] == pytest.approx(whole["pieces"]) and sum(whole["tokens"]) > 100  # one piece: the same
    (found,) = start(far_context, tmp_path / "out", "--models", folder, "--piece", 16, "--draws", 2)["records"]
    assert 0 < abs(sum(found["whole"]) - sum(found["pieces"])) < 0.1 * sum(found["whole"])
    gain = (sum(found["pieces"]) - sum(found["whole"])) / sum(found["tokens"])
    assert f"| dynamic, k 4 | 64 | gain | {gain:.3f} |" in capsys.readouterr().out
    assert (tmp_path / "out" / "far_context.png").exists()


def test_distances_that_a_length_does_not_have_are_gaps():
    """The columns stay in their order, whichever encoder comes first, and its line ends."""
    groups = len(far_context.DISTANCES)
    short, long = [1, 1, 1, 1, 1, 1, 0, 1], [1] * groups
    records = [
        {"model": "a", "n": n, "seed": 0, "tokens": tokens, "whole": [2.0] * groups, "pieces": [3.0] * groups}
        for n, tokens in ((2048, short), (4096, long))
    ]
    content = {"records": records, "settings": {"piece": 512}}
    head = "| model | n |  | all | up to 8 | 32 | 128 | 512 | 1,024 | 2,048 | 4,096 | nowhere else | beyond 512 |"
    assert head in far_context.table(content)
    lines = far_context.draw(content).axes[0].lines
    assert [[math.isnan(gain) for gain in line.get_ydata()].count(True) for line in lines[:2]] == [1, 0]
    assert math.isnan(lines[0].get_ydata()[6])
