"""`linformer distill`, end to end on a few texts, as a user calls it."""

from __future__ import annotations

import csv
import errno
import json
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer, pipeline

from linformer_kit.commands.cli import main
from linformer_kit.files.manifest import write_manifest
from linformer_kit.training import distill as distillation
from tests.conftest import PRETRAIN_SIZES, fail, fail_last_line, write_model, write_teacher

pytestmark = pytest.mark.e2e

WORDS = "number was good bad fine poor 0 1 2 3 4 5 6 7 8 9 ."
LENGTH = PRETRAIN_SIZES["max_position_embeddings"]
OPTIONS = {
    "projected_dim": 5,
    "max_steps": 6,
    "eval_steps": 3,
    "save_steps": 3,
    "warmup_steps": 0,
    "logging_steps": 1,
    "per_device_train_batch_size": 2,
    "max_eval_samples": 5,
    "report_to": "none",
    "bf16": "false",
    "validation_fraction": 0.3,
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("pairs") / "pairs.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("text", "other"))
        rows.writerows((f"number {number} was good", f"number {number + 1} was fine") for number in range(23))
    return path


@pytest.fixture(scope="module")
def teacher(tmp_path_factory) -> Path:
    return write_teacher(tmp_path_factory.mktemp("teacher") / "words", WORDS)


@pytest.fixture(scope="module")
def run(teacher, texts, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "student"
    distill(teacher, folder, train_file=texts)
    return folder


def distill(teacher: Path, folder: Path, **options: object) -> None:
    main(command(teacher, folder, **options))


def command(teacher: Path, folder: Path, **options: object) -> list[str]:
    named = OPTIONS | {"cache_dir": folder.parent / "cache"} | options
    flags = [f"--{name}={value}" for name, value in named.items() if name not in ("train_file", "validation_file")]
    files = [
        word for name in ("train_file", "validation_file") if name in named for word in (f"--{name}", str(named[name]))
    ]
    return ["distill", str(teacher), str(folder), *flags, *files]


def test_what_it_leaves(run):
    results = json.loads((run / "metrics.json").read_text())
    assert [update for update, _ in results["curve"]["error"]] == [0, 3, 6]
    assert results["layerwise_steps"] == 1 and results["updates"] == 6
    assert {"loss", "error", "cosine", "agreement"} == results["curve"].keys()
    assert results["student"]["projected_dim"] == 5 and results["teacher"]["layers"] == 3
    assert results["student"]["exact"] == {"sliding_window": 128, "global_tokens": 1}
    assert "projection mean_pool, sliding_window 128, global_tokens 1, " in (run / "metrics.md").read_text()
    assert "| cosine of mean embeddings |" in (run / "metrics.md").read_text()
    assert (run / "curve.png").read_bytes().startswith(b"\x89PNG")
    model = AutoModelForMaskedLM.from_pretrained(run)
    assert type(model).__name__ == "LinearRobertaForMaskedLM"
    tokenizer = AutoTokenizer.from_pretrained(run)
    assert tokenizer.model_max_length == LENGTH
    assert len(pipeline("fill-mask", model=model, tokenizer=tokenizer)("number <mask>")) == 5


def test_results_that_cannot_be_written_are_named(teacher, texts, tmp_path, monkeypatch, capsys):
    """By `Run.write`, as models and checkpoints are, so that every process hears of it."""
    monkeypatch.setattr(distillation, "write_distill_report", Mock(side_effect=OSError(errno.ENOSPC, "disk full")))
    error = fail_last_line(capsys, *command(teacher, tmp_path / "out", train_file=texts, max_steps=1), code=1)
    assert f"{tmp_path / 'out'}: the results could not be written: disk full; the checkpoints" in error


def test_the_student_comes_nearer(teacher, texts, tmp_path):
    distill(
        teacher,
        tmp_path / "student",
        train_file=texts,
        max_steps=50,
        eval_steps=50,
        learning_rate=1e-3,
        projected_dim=2,
        sliding_window=3,
    )
    curve = json.loads((tmp_path / "student" / "metrics.json").read_text())["curve"]
    assert curve["error"][-1][1] < 0.75 * curve["error"][0][1]
    assert curve["cosine"][-1][1] > curve["cosine"][0][1]


def test_going_on_with_a_student(run, teacher, texts, tmp_path):
    student = {name: value for name, value in OPTIONS.items() if name != "projected_dim"}
    flags = [f"--{name}={value}" for name, value in student.items()]
    main(["distill", str(teacher), str(tmp_path / "more"), *flags, "--student", str(run), "--train_file", str(texts)])
    before, after = (
        json.loads((folder / "metrics.json").read_text())["curve"]["error"] for folder in (run, tmp_path / "more")
    )
    assert after[0][1] == pytest.approx(before[-1][1], rel=1e-3)  # in other batches


def test_a_classifier_learns_from_its_own_pairs(pairs, tmp_path):
    teacher = write_teacher(tmp_path / "teacher", WORDS, "RobertaForSequenceClassification", num_labels=3)
    distill(teacher, tmp_path / "student", train_file=pairs, text_pair_column="other")
    results = json.loads((tmp_path / "student" / "metrics.json").read_text())
    assert "16 texts to learn from, 7 for validation" in results["text"]["description"]
    assert 0 <= results["curve"]["agreement"][-1][1] <= 1
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "student")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "student")
    assert pipeline("text-classification", model=model, tokenizer=tokenizer)("number 7")[0]["label"].startswith("LABEL")


@pytest.mark.parametrize("kind", ["RobertaModel", "RobertaForTokenClassification", "RobertaForQuestionAnswering"])
def test_other_kinds(kind, texts, tmp_path):
    teacher = write_teacher(tmp_path / "teacher", WORDS, kind)
    options = {"document": "line"} if kind == "RobertaForQuestionAnswering" else {}
    distill(teacher, tmp_path / "student", train_file=texts, max_steps=2, eval_steps=2, **options)
    curve = json.loads((tmp_path / "student" / "metrics.json").read_text())["curve"]
    assert ("agreement" in curve and bool(curve["agreement"])) == (kind != "RobertaModel")
    assert type(AutoModel.from_pretrained(tmp_path / "student")).__name__ == "LinearRobertaModel"


def test_pieces_are_no_longer_than_the_tokenizer_allows(texts, tmp_path):
    teacher = write_teacher(tmp_path / "teacher", WORDS, "RobertaModel")
    tokenizer = AutoTokenizer.from_pretrained(teacher, model_max_length=LENGTH - 7)
    tokenizer.save_pretrained(teacher)
    for longer, expected in (({}, None), ({"max_position_embeddings": 2 * LENGTH}, LENGTH - 7)):
        distill(teacher, tmp_path / f"student-{expected}", train_file=texts, max_steps=2, **longer)
        found = json.loads((tmp_path / f"student-{expected}" / "metrics.json").read_text())["text"]
        assert found["piece_length"] == expected


def test_a_classifier_reads_long_texts_whole(texts, tmp_path):
    teacher = write_teacher(tmp_path / "teacher", WORDS, "RobertaForSequenceClassification", num_labels=3)
    longer = {"train_file": texts, "max_position_embeddings": 4 * LENGTH}
    distill(teacher, tmp_path / "student", **longer, max_steps=2)
    assert json.loads((tmp_path / "student" / "metrics.json").read_text())["text"]["piece_length"] is None


def test_longer_than_its_teacher(teacher, texts, tmp_path):
    distill(teacher, tmp_path / "student", train_file=texts, max_position_embeddings=4 * LENGTH)
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "student")
    assert model(torch.full((1, 4 * LENGTH), 7)).logits.isfinite().all()
    found = json.loads((tmp_path / "student" / "metrics.json").read_text())["text"]
    assert found["longest"] == 4 * LENGTH and found["piece_length"] == LENGTH


def test_what_sentence_transformers_needs_goes_along(texts, tmp_path):
    teacher = write_teacher(tmp_path / "teacher", WORDS, "RobertaModel")
    modules = [{"path": "", "type": "Transformer"}, {"path": "1_Pooling", "type": "Pooling"}]
    (teacher / "modules.json").write_text(json.dumps(modules))
    (teacher / "1_Pooling").mkdir()
    (teacher / "1_Pooling" / "config.json").write_text("{}")
    (teacher / "sentence_bert_config.json").write_text('{"max_seq_length": 17, "do_lower_case": false}')
    distill(teacher, tmp_path / "student", train_file=texts, max_steps=2, max_position_embeddings=2 * LENGTH)
    assert json.loads((tmp_path / "student" / "modules.json").read_text()) == modules
    assert (tmp_path / "student" / "1_Pooling" / "config.json").read_text() == "{}"
    settings = json.loads((tmp_path / "student" / "sentence_bert_config.json").read_text())
    assert settings == {"max_seq_length": 2 * LENGTH, "do_lower_case": False}
    student = AutoModel.from_pretrained(tmp_path / "student")
    student.resize_sequence_length(4 * LENGTH)
    student.save_pretrained(tmp_path / "student")
    (tmp_path / "student" / "manifest.json").unlink()  # whose hashes are of the shorter one
    flags = [f"--{name}={value}" for name, value in {**OPTIONS, "max_steps": 2}.items() if name != "projected_dim"]
    more = ["--student", str(tmp_path / "student"), "--train_file", str(texts)]
    main(["distill", str(teacher), str(tmp_path / "more"), *flags, *more])
    settings = json.loads((tmp_path / "more" / "sentence_bert_config.json").read_text())
    assert settings["max_seq_length"] == 4 * LENGTH
    write_manifest(tmp_path / "student")
    plain = write_teacher(tmp_path / "plain", WORDS, "RobertaModel")
    distill(plain, tmp_path / "student", overwrite=True, train_file=texts, max_steps=2)
    assert (tmp_path / "student" / "config.json").exists()
    assert not {path.name for path in (tmp_path / "student").iterdir()} & {
        "modules.json",
        "1_Pooling",
        "sentence_bert_config.json",
    }


@pytest.mark.parametrize(
    "content", ["{", "3", "null", '{"a": 1}', '[{"path": 3}]', '[{"path": ".."}]', '[{"path": "a/b"}]']
)
def test_broken_modules_are_found_at_once(content, texts, tmp_path, capsys):
    teacher = write_teacher(tmp_path / "teacher", WORDS, "RobertaModel")
    (teacher / "modules.json").write_text(content)
    error = fail(capsys, *command(teacher, tmp_path / "student", train_file=texts))
    assert f"{teacher / 'modules.json'}: expected" in error
    assert not (tmp_path / "student").exists()


def test_a_module_whose_folder_is_gone(texts, tmp_path, capsys):
    """One of `Normalize` has an empty folder, which repositories do not keep."""
    teacher = write_teacher(tmp_path / "teacher", WORDS, "RobertaModel")
    modules = [{"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]
    (teacher / "modules.json").write_text(json.dumps(modules))
    distill(teacher, tmp_path / "student", train_file=texts, max_steps=2)
    modules.append({"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"})
    (teacher / "modules.json").write_text(json.dumps(modules))
    error = fail(capsys, *command(teacher, tmp_path / "other", train_file=texts))
    assert "modules.json: expected a folder 1_Pooling beside it, got none" in error


@pytest.mark.parametrize("other", ["vocab_size", "tokenizer"])
def test_a_student_of_another_vocabulary_is_refused(other, run, teacher, texts, tmp_path, capsys):
    """Its tokens would mean something else."""
    if other == "vocab_size":
        message = "student: expected vocab_size "
        write_teacher(tmp_path / "teacher", "it")
    else:
        message = f"student: expected the tokenizer of the teacher, got another one in {run}"
        path = shutil.copytree(teacher, tmp_path / "teacher") / "tokenizer.json"
        rules = json.loads(path.read_text())
        first, second, *_ = sorted(rules["model"]["vocab"], key=rules["model"]["vocab"].get)[-2:]
        ids = rules["model"]["vocab"]
        ids[first], ids[second] = ids[second], ids[first]
        path.write_text(json.dumps(rules))
    options = {name: value for name, value in OPTIONS.items() if name != "projected_dim"}
    flags = [f"--{name}={value}" for name, value in options.items()]
    where = ["--student", str(run), "--train_file", str(texts)]
    error = fail_last_line(capsys, "distill", str(tmp_path / "teacher"), str(tmp_path / "more"), *flags, *where)
    assert message in error.splitlines()[-1]
    assert not (tmp_path / "more").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"projected_dim": 99}, f"projected_dim: expected 1 to {LENGTH} (the longest sequence), got 99"),
        ({"temperature": 0}, "temperature: expected more than 0, got 0.0"),
        ({"mlm_probability": 1}, "mlm_probability: expected more than 0 and less than 1, got 1.0"),
        ({"layerwise_steps": 7}, "layerwise_steps: expected 0 to 6, got 7"),
        ({"max_eval_samples": 0}, "max_eval_samples: expected 1 or more, got 0"),
        ({"train_file": "nowhere"}, "train_file: no such file or folder: nowhere"),
        ({"student": "nowhere/at/all"}, "student: expected a folder, got nowhere/at/all, which does not exist"),
        ({"per_device_train_batch_size": 1000}, "per_device_train_batch_size: expected at most the"),
        ({"trainer.adam_beta2": 0.9}, "unrecognized arguments: --trainer.adam_beta2"),
        ({"adam_epsilon": 0}, "adam_epsilon: expected more than 0, got 0.0"),
        ({"max_position_embeddings": 99_999_999_999}, "max_position_embeddings: expected at most 16,777,216, got 99,"),
        ({"joint_learning_rate_factor": 0}, "joint_learning_rate_factor: expected more than 0, got 0.0"),
        ({"max_steps": -1}, "max_steps: expected 1 or more, got -1"),
        ({"max_position_embeddings": 9}, f"max_position_embeddings: expected at least {LENGTH} for mode extend, got 9"),
    ],
    ids=str,
)
def test_bad_input_is_one_line_and_leaves_nothing(options, message, teacher, texts, tmp_path, capsys):
    error = fail_last_line(capsys, *command(teacher, tmp_path / "student", **{"train_file": texts, **options}))
    assert message in error.splitlines()[-1]
    assert not (tmp_path / "student").exists()


@pytest.mark.parametrize(
    "name", ["resize_to", "activation_checkpointing", "label_smoothing_factor", "lr_scheduler_type"]
)
def test_settings_that_no_distillation_can_have_are_not_offered(name, capsys):
    with pytest.raises(SystemExit):
        main(["distill", "--help"])
    offered = capsys.readouterr().out
    assert f"--{name}" not in offered and "--resize_mode" in offered
    assert f"unrecognized arguments: --{name}" in fail(capsys, "distill", "teacher", "student", f"--{name}=1")


def test_resuming_with_another_way_to_lengthen_is_refused(run, teacher, texts, tmp_path, capsys):
    folder = shutil.copytree(run, tmp_path / "student")
    again = command(teacher, folder, train_file=texts, resume="true", resize_mode="interpolate")
    assert "resume: expected resize_mode as in" in fail_last_line(capsys, *again)


def test_teachers_refused(texts, tmp_path, capsys):
    ours = write_model(tmp_path / "ours", WORDS)
    error = fail(capsys, *command(ours, tmp_path / "student", train_file=texts))
    assert "teacher: expected one with full attention, got LinformerForMaskedLM, which is a Linformer" in error
    error = fail(capsys, *command(tmp_path / "nowhere", tmp_path / "student", train_file=texts))
    assert "teacher: expected a folder, got" in error and "which does not exist" in error


def test_students_refused(run, teacher, texts, tmp_path, capsys):
    other = write_teacher(tmp_path / "other", WORDS, "RobertaModel")
    options = ["--train_file", str(texts), "--max_steps", "6"]
    error = fail(capsys, "distill", teacher, tmp_path / "student", "--student", other, *options)
    assert (
        "student: expected a RobertaForMaskedLM made linear (`linformer convert --in_place`), got RobertaModel" in error
    )
    error = fail(capsys, *command(teacher, tmp_path / "student", train_file=texts), "--student", run)
    assert "projected_dim: expected none with student, which has its own, got 5" in error


def test_another_teacher_is_no_resumption(run, texts, tmp_path, capsys):
    shutil.copytree(run, tmp_path / "student")
    other = write_teacher(tmp_path / "other", WORDS, initializer_range=0.1)
    arguments = command(other, tmp_path / "student", train_file=texts, cache_dir=run.parent / "cache")
    error = fail_last_line(capsys, *arguments, "--resume")
    assert "resume: expected teacher as in" in error


@pytest.mark.parametrize("setting", ["teacher", "student"])
def test_a_model_is_not_written_over(teacher, texts, tmp_path, capsys, setting):
    folder = shutil.copytree(teacher, tmp_path / "model")
    start, more = (folder, {}) if setting == "teacher" else (teacher, {"student": folder})
    for output in (folder, tmp_path):
        error = fail(capsys, *command(start, output, train_file=texts, overwrite=True, **more))
        assert "output_dir: expected another folder than that of the model" in error
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in teacher.iterdir())
