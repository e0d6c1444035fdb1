"""`linformer finetune` and `evaluate`, end to end on a few texts, as a user calls them."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoModelForSequenceClassification, AutoTokenizer, RobertaConfig, RobertaModel

from linformer_cli.cli import main
from linformer_kit.data.tokenizer import Encoder
from linformer_kit.inference.predict import read_classifier
from linformer_kit.training.finetune import _warn_of_padding
from tests.conftest import PRETRAIN_SIZES, fail, write_model, write_teacher

pytestmark = pytest.mark.e2e

WORDS = {"happy": ["good", "fine", "great"], "unhappy": ["bad", "poor", "weak"]}
LENGTH = PRETRAIN_SIZES["max_position_embeddings"]


def write_texts(path: Path, count: int, *, first: int = 0, columns: tuple[str, str] = ("text", "label")) -> Path:
    """Texts whose class one word decides."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(columns)
        for number in range(first, first + count):
            label = list(WORDS)[number % 2]
            rows.writerow([f"number {number} was {WORDS[label][number % 3]}", label])
    return path


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Path:
    """An untrained encoder, and its tokenizer."""
    words = " ".join(word for words in WORDS.values() for word in words)
    folder = tmp_path_factory.mktemp("encoder") / "model"
    return write_model(folder, f"number was {words} 0 1 2 3 4 5 6 7 8 9", norm_first=True)


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    return write_texts(tmp_path_factory.mktemp("texts") / "texts.csv", 60)


def finetune(encoder: Path, folder: Path, *more: object) -> None:
    options = ["--report_to=none", "--learning_rate=1e-2", "--num_train_epochs=2", "--logging_steps=1"]
    main(["finetune", str(encoder), "--output_dir", str(folder), *options, *map(str, more)])


@pytest.fixture(scope="module")
def held_out(tmp_path_factory) -> Path:
    return write_texts(tmp_path_factory.mktemp("held_out") / "texts.csv", 24, first=60)


@pytest.fixture(scope="module")
def run(encoder, texts, held_out, tmp_path_factory) -> Path:
    """One run, shared by all tests that do not change it."""
    folder = tmp_path_factory.mktemp("run") / "out"
    files = ["--train_file", texts, "--validation_file", held_out]
    finetune(encoder, folder, *files, "--seed=1", "--num_train_epochs=8")
    return folder


def test_it_learns_and_the_best_checkpoint_is_kept(run):
    results = json.loads((run / "metrics.json").read_text())
    assert results["metrics"]["accuracy"] > 0.9
    files = {"settings.yaml", "run.json", "curve.png", "confusion.png", "calibration.png", "mistakes.jsonl"}
    assert files <= {path.name for path in run.iterdir()}
    assert sum(map(sum, results["confusion"])) == results["texts"]["validation"]
    assert "`unhappy`" in (run / "metrics.md").read_text()
    best, kept = (
        AutoModelForSequenceClassification.from_pretrained(folder)
        for folder in (run / f"checkpoint-{results['best_updates']}", run)
    )
    assert all(map(torch.equal, kept.parameters(), best.parameters()))


def test_evaluate_gives_what_training_measured(run, held_out, tmp_path, capsys):
    main(["evaluate", str(run), "--validation_file", str(held_out), "--output_dir", str(tmp_path / "out")])
    assert "| accuracy | macro_f1 | loss |" in capsys.readouterr().out
    results = json.loads((tmp_path / "out" / "metrics.json").read_text())
    trained = json.loads((run / "metrics.json").read_text())
    assert results["confusion"] == trained["confusion"] and results["by_class"] == trained["by_class"]
    assert results["metrics"] == pytest.approx(trained["metrics"], rel=1e-2)
    assert (tmp_path / "out" / "mistakes.jsonl").read_text() == (run / "mistakes.jsonl").read_text()


def test_a_classifier_goes_on_from_its_head_and_is_measured_by_names(run, held_out, tmp_path, capsys):
    """Also where its classes are in another order, and the file writes them in capitals."""
    model = AutoModelForSequenceClassification.from_pretrained(run)
    for parameter in model.classifier.out_proj.parameters():
        parameter.data = parameter.data.flip(0)
    model.config.id2label = {0: "unhappy", 1: "happy"}
    model.save_pretrained(tmp_path / "other")
    AutoTokenizer.from_pretrained(run).save_pretrained(tmp_path / "other")
    path = tmp_path / "texts.csv"
    path.write_text(held_out.read_text().replace("unhappy", "UNHAPPY"))
    files = ["--train_file", path, "--validation_file", path]
    finetune(tmp_path / "other", tmp_path / "out", *files, "--max_steps=1", "--learning_rate=1e-8")
    before, after = (json.loads((each / "metrics.json").read_text()) for each in (run, tmp_path / "out"))
    assert after["metrics"] == pytest.approx(before["metrics"], rel=1e-2)
    assert after["texts"]["labels"] == ["unhappy", "happy"]
    main(["evaluate", str(run), "--validation_file", str(path)])
    assert f"| {before['metrics']['accuracy']:.3f} |" in capsys.readouterr().out
    path.write_text(path.read_text().replace("number 61 was", "number 62 was"))
    with pytest.raises(SystemExit):
        finetune(tmp_path / "other", tmp_path / "out", *files, "--max_steps=1", "--learning_rate=1e-8", "--resume")
    assert "began with, got other texts" in capsys.readouterr().err


def test_unbalanced_classes(encoder, tmp_path, capsys):
    """Macro F1 selects the best checkpoint, and the first loss is that of the weights, of about 1 for each class."""
    rows = [f"number {n} was {'weak,rare' if n % 6 == 0 else 'good,frequent'}" for n in range(48)]
    (tmp_path / "t.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    losses = []
    for name, more in {"plain": [], "balanced": ["--class_weights=balanced"]}.items():
        files = ["--train_file", tmp_path / "t.csv", "--validation_file", tmp_path / "t.csv"]
        finetune(encoder, out := tmp_path / name, *files, "--max_steps=1", *more, "--per_device_train_batch_size=48")
        results = json.loads((out / "metrics.json").read_text())
        assert results["metric_for_best_model"] == "macro_f1"
        losses.append(results["curve"]["training loss"][0][1])
    assert losses[0] != losses[1]
    assert "| words alone, of 48 texts | 1.000 |" in (out / "metrics.md").read_text()
    not_better = "The classifier is **not** clearly more accurate than words alone"
    assert not_better in (out / "metrics.md").read_text()
    capsys.readouterr()
    main(["evaluate", str(out), "--train_file", str(tmp_path / "t.csv"), "--validation_file", str(tmp_path / "t.csv")])
    assert not_better in capsys.readouterr().out


def test_several_classes_of_a_text(encoder, tmp_path, capsys):
    path = tmp_path / "t.jsonl"
    rows = [
        {"text": f"good bad {n}", "label": ["a", "b"]} if n % 2 else {"text": f"weak {n}", "label": []}
        for n in range(40)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    finetune(encoder, tmp_path / "out", "--train_file", path, "--num_train_epochs=3")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["problem_type"] == "multi_label_classification" and config["id2label"] == {"0": "a", "1": "b"}
    results = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert results["metric_for_best_model"] == "micro_f1" and results["confusion"] is None
    capsys.readouterr()
    main(["predict", str(tmp_path / "out"), str(path), "--threshold", "0"])
    assert all(json.loads(line)["label"] == ["a", "b"] for line in capsys.readouterr().out.splitlines())
    main(["evaluate", str(tmp_path / "out"), "--validation_file", str(path), "--threshold", "0"])
    assert "| `a` | 0.500 | 1.000 |" in capsys.readouterr().out
    assert "threshold: expected less than or equal to 1, got 2" in fail(
        capsys, "evaluate", tmp_path / "out", "--validation_file", path, "--threshold", 2
    )


def test_columns_stay_with_a_classifier_that_is_linearised_or_distilled(encoder, tmp_path, capsys):
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 13}
    config = RobertaConfig(vocab_size=len(tokenizer), max_position_embeddings=LENGTH + 2, pad_token_id=1, **sizes)
    RobertaModel(config).save_pretrained(tmp_path / "roberta")
    tokenizer.save_pretrained(tmp_path / "roberta")
    path = tmp_path / "t.csv"
    path.write_text("text,second,same\n" + "".join(f"good {n},bad {n},{n % 2}\n" for n in range(30)))
    pairs = ["--train_file", path, "--text_pair_column", "second"]
    recorded = ["--label_column=same", f"--max_length={LENGTH - 3}"]
    finetune(tmp_path / "roberta", tmp_path / "out", *pairs, *recorded, "--max_steps=2")
    assert (
        "```python\nfrom transformers import AutoModelForSequenceClassification\n"
        in (tmp_path / "out" / "README.md").read_text()
    )
    made = {name: str(tmp_path / name) for name in ("place", "student")}
    main(["linearize", str(tmp_path / "out"), made["place"], "--projected_dim=4"])
    steps = ["--max_steps=2", "--eval_steps=2", "--save_steps=2", "--warmup_steps=1", "--report_to=none"]
    steps += ["--projected_dim=4", "--per_device_train_batch_size=2"]
    main(["distill", str(tmp_path / "out"), "--output_dir", made["student"], *map(str, pairs), *steps])
    checkpoint = next((tmp_path / "out").glob("checkpoint-*"))
    (tmp_path / "one.csv").write_text("text\ngood\n")
    for model in (checkpoint, *made.values()):
        assert "no column 'second' (text_pair_column)" in fail(capsys, "predict", model, tmp_path / "one.csv")
        assert read_classifier(str(model))[1].label == "same"
        assert AutoTokenizer.from_pretrained(model).model_max_length == LENGTH - 3


def test_a_model_that_reads_padding_is_named(encoder, texts, tmp_path, caplog):
    fields = {"hidden_size": 24, "embedding_size": 24, "num_attention_heads": 2, "conv_kernel_size": 3}
    write_teacher(tmp_path / "reads", texts.read_text(), "ConvBertForSequenceClassification", **fields)
    for model, expected in ((tmp_path / "reads", True), (encoder, False)):
        finetune(model, tmp_path / f"out-{expected}", "--train_file", texts, "--max_steps=1")
        assert ("ConvBertForSequenceClassification reads the padding of shorter texts" in caplog.text) == expected
        caplog.clear()


def test_what_looks_for_padding_leaves_the_model_as_it_is(encoder):
    """BigBird has full attention for good after a short text, which Funnel cannot read."""
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    sizes = {"vocab_size": len(tokenizer), "num_attention_heads": 2, "pad_token_id": tokenizer.pad_token_id}
    bert = {"hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 9, "block_size": 4, "num_random_blocks": 1}
    big_bird = transformers.BigBirdForSequenceClassification(transformers.BigBirdConfig(**sizes, **bert))
    funnel = {"block_sizes": [1, 1, 1], "d_model": 8, "n_head": 2, "d_head": 4, "d_inner": 9}
    for model in (big_bird, transformers.FunnelForSequenceClassification(transformers.FunnelConfig(**sizes, **funnel))):
        _warn_of_padding(model.eval(), tokenizer)
    assert big_bird.bert.attention_type == "block_sparse"


def test_an_interrupted_run_goes_on_within_a_pass(encoder, texts, tmp_path, capsys):
    # 54 texts are 14 updates a pass; as if it had been interrupted in the second one.
    options = ["--train_file", texts, "--save_total_limit=9"]
    options += ["--per_device_train_batch_size=4", "--eval_steps=9", "--max_steps=27"]
    finetune(encoder, tmp_path / "whole", *options)
    shutil.copytree(tmp_path / "whole", cut := tmp_path / "cut")
    shutil.rmtree(cut / "checkpoint-27")
    finetune(encoder, cut, *options, "--resume")
    whole, resumed = (json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("whole", "cut"))
    assert (whole["metrics"], whole["curve"]) == (resumed["metrics"], resumed["curve"])
    assert resumed["seconds"] > whole["seconds"] / 27 * 18, "with the updates of the process that was interrupted"
    with pytest.raises(SystemExit):
        finetune(encoder, cut, *options, "--resume", "--learning_rate=1e-3")
    (cut / "confusion.png").unlink()
    finetune(encoder, cut, *options, "--resume")
    assert (cut / "confusion.png").exists(), "although no update was left"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--metric_for_best_model=f2"], "metric_for_best_model: expected one of accuracy, macro_f1, loss, got 'f2'"),
        (["--max_length", "24"], f"max_length: expected at most {LENGTH} (the model's limit), got 24"),
        (["--label_column", "class"], "no column 'class' (label_column); it has 'text', 'label'"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_nothing_is_left(encoder, texts, tmp_path, arguments, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        finetune(encoder, tmp_path / "out", "--train_file", texts, *arguments)
    shown = capsys.readouterr().err.strip().splitlines()
    assert exit_.value.code == 2 and re.search(re.escape(message), shown[-1])
    assert not (tmp_path / "out").exists()


def test_long_texts_are_read_as_pieces_by_training_evaluation_and_prediction(encoder, tmp_path, capsys):
    """Words that decide the class are behind the first piece, so that a truncated text says nothing."""
    path, filler = tmp_path / "t.csv", "number was 1 2 3 4 5 6 7 8 9 " * 2
    path.write_text("text,label\n" + "".join(f"{filler}{'good' if n % 2 else 'bad'},{n % 2}\n" for n in range(12)))
    files = [
        "--train_file",
        path,
        "--validation_file",
        path,
        "--max_length=13",
        "--max_steps=2",
        "--learning_rate=1e-4",
    ]
    finetune(encoder, tmp_path / "cut", *files)
    finetune(encoder, out := tmp_path / "out", *files, "--pieces", "--per_device_train_batch_size=3")
    cut, pieces = (json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("cut", "out"))
    assert cut["metrics"]["accuracy"] == 0.5 and pieces["metrics"]["accuracy"] == 1.0
    assert cut["texts"]["cut"]["train"]["texts"] == 12 and pieces["texts"]["cut"]["train"]["texts"] == 0
    main(["evaluate", str(out), "--validation_file", str(path), "--output_dir", str(tmp_path / "evaluated")])
    evaluated = json.loads((tmp_path / "evaluated" / "metrics.json").read_text())
    assert evaluated["metrics"] == pytest.approx(pieces["metrics"], rel=1e-2, abs=1e-3)
    capsys.readouterr()
    main(["predict", str(out), str(path)])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["label"] for line in lines] == [str(n % 2) for n in range(12)]
    assert not any("lost_tokens" in line for line in lines)
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    (text,) = Encoder(tokenizer, 13, pieces=True)([(f"{filler}bad", None)])
    with torch.no_grad():
        logits = torch.cat([model(torch.tensor([window["input_ids"]])).logits for window in text.windows])
    shares = torch.tensor(text.weights)[:, None] / sum(text.weights)
    expected = (logits * shares).sum(dim=0).softmax(-1).tolist()
    assert list(lines[0]["probabilities"].values()) == pytest.approx(expected, abs=1e-4)
    finetune(out, tmp_path / "again", *files)
    assert read_classifier(str(out)).pieces and not read_classifier(str(tmp_path / "again")).pieces
    (tmp_path / "pairs.csv").write_text("text,other,label\n" + "a,b,x\na,c,y\n" * 9)
    pairs = ["--train_file", tmp_path / "pairs.csv", "--text_pair_column=other", "--pieces"]
    assert "pieces: expected single texts, got pairs" in fail(capsys, "finetune", encoder, *pairs)
    error = fail(capsys, "finetune", encoder, "--train_file", tmp_path / "pairs.csv", "--pieces", "--fully_shard")
    assert "pieces: expected a model that is whole in each process, got fully_shard" in error
