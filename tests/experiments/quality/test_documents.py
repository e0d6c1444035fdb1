"""The command that compares ways to embed long texts, resumed runs, and rejected settings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from linformer_kit import linearize
from linformer_kit.commands.cli import main
from linformer_kit.errors import OutOfMemoryError
from linformer_kit.experiments.quality import documents
from linformer_kit.experiments.quality.document_inputs import read_inputs, token_ranges
from linformer_kit.settings.documents import DocumentsSettings
from tests.conftest import fail, write_tasks
from tests.experiments.quality.long_texts import LONGEST, write_articles, write_bert, write_labelled

TASKS = ("agreement", "late_sentence", "passkey", "needle", "same_document", "classification")
METHODS = ("cut", "pieces", "pieces_overlapping", "stretched", "linearised")
LENGTHS = ("61", "127", "251")
SMALL = [
    "--articles",
    "11",
    "--queries",
    "5",
    "--candidates",
    "7",
    "--lengths",
    *LENGTHS,
    "--fact_lengths",
    "61",
    "127",
]
SMALL += ["--repetitions", "1", "--memory", "false", "--bf16", "false", "--batch_size", "3"]


@pytest.fixture(scope="module")
def given(tmp_path_factory) -> dict[str, Path]:
    """A teacher, a linear model for 251 tokens, articles and labelled texts."""
    folder = tmp_path_factory.mktemp("given")
    teacher = write_bert(folder / "teacher")
    student = folder / "student"
    linear = linearize(transformers.AutoModel.from_pretrained(teacher), 7, max_position_embeddings=251)
    linear.save_pretrained(student)
    transformers.AutoTokenizer.from_pretrained(teacher).save_pretrained(student)
    return {
        "teacher": teacher,
        "student": student,
        "articles": write_articles(folder / "articles.jsonl"),
        "labelled": write_labelled(folder / "labelled.jsonl"),
    }


def command(given: dict[str, Path], out: Path, *options: object) -> list[str]:
    return ["bench", "documents", str(given["teacher"]), *SMALL, "--output_dir", str(out), *map(str, options)]


def results_of(out: Path) -> dict:
    return json.loads((out / "documents.json").read_text())


@pytest.fixture(scope="module")
def finished(given, tmp_path_factory) -> Path:
    """The folder of a complete measurement of everything."""
    out = tmp_path_factory.mktemp("out") / "documents"
    labelled = ["--train_file", given["labelled"], "--labelled_text_column", "body", "--label_column", "kind"]
    options = ["--models", given["student"], "--text_file", given["articles"], *labelled, "--min_tokens", "61"]
    main(command(given, out, *options))
    return out


@pytest.mark.e2e
def test_everything_is_measured(finished):
    results = results_of(finished)
    assert results["complete"] and tuple(results["scores"]) == TASKS
    assert list(results["methods"]) == [*METHODS, "student"]
    assert results["positions"] == [[0, 61], [61, 127], [127, 251]] and results["teacher_length"] == LONGEST
    for task, by_method in results["scores"].items():
        lengths = LENGTHS[:2] if task in ("passkey", "needle") else LENGTHS
        for scores in by_method.values():
            assert tuple(scores) == lengths
            for found in scores.values():
                shares = [
                    found[name] for name in ("recall@1", "recall@10", "mrr", "accuracy", "cosine") if name in found
                ]
                assert shares and all(0 <= share <= 1 for share in shares)
        assert list(by_method) == [*METHODS, "student"]
    (queries,) = {found["queries"] for found in results["scores"]["late_sentence"]["cut"].values()}
    assert queries == 10
    assert all(
        cost["runs"] >= 1 and cost["peak_bytes"] is None
        for costs in results["cost"].values()
        for cost in costs.values()
    )
    assert results["methods"]["cut"]["reads"] == 61 and results["methods"]["stretched"]["reads"] == 251
    assert "/" not in results["settings"]["teacher"] + "".join(results["settings"]["models"])


@pytest.mark.e2e
def test_agreement_with_pieces(given, finished):
    """By hand: the cosine of the mean hidden state to that of all pieces, weighted by their tokens."""
    agreement = results_of(finished)["scores"]["agreement"]
    for n in LENGTHS:
        assert agreement["pieces"][n] == pytest.approx({"cosine": 1.0, "lowest": 1.0}, abs=1e-6)
        assert all(scores[n]["lowest"] <= scores[n]["cosine"] for scores in agreement.values())
    assert (
        agreement["cut"]["61"]["cosine"] == pytest.approx(1.0, abs=1e-6) and agreement["cut"]["251"]["cosine"] < 0.999
    )
    model = transformers.AutoModel.from_pretrained(given["teacher"]).eval().requires_grad_(False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(given["teacher"])
    settings = DocumentsSettings(
        teacher="",
        articles=11,
        queries=5,
        lengths=[61, 127, 251],
        fact_lengths=[61],
        text_file=[str(given["articles"])],
    )
    texts = read_inputs(settings, ["agreement"], tokenizer, LONGEST).long
    cosines = []
    for text in texts:
        ids = tokenizer(text.prefix(125), add_special_tokens=False)["input_ids"]
        vectors = []
        for start in range(0, len(ids), 59):
            piece = torch.tensor([[tokenizer.cls_token_id, *ids[start : start + 59], tokenizer.sep_token_id]])
            mean = torch.nn.functional.normalize(model(input_ids=piece)[0].mean(1), dim=-1)
            vectors.append(mean[0] * (piece.shape[1] - 2))
        cosines.append(float(torch.nn.functional.cosine_similarity(sum(vectors), vectors[0], dim=0)))
    assert agreement["cut"]["127"]["cosine"] == pytest.approx(np.mean(cosines), abs=1e-5)
    assert agreement["cut"]["127"]["lowest"] == pytest.approx(min(cosines), abs=1e-5)


@pytest.mark.e2e
def test_cut_is_the_same_at_all_lengths(finished):
    scores = results_of(finished)["scores"]
    for task in ("late_sentence", "same_document", "classification"):
        cut, pieces = ([scores[task][name][n] for n in LENGTHS] for name in ("cut", "pieces"))
        assert cut[0] == cut[1] == cut[2] and pieces[0] == cut[0]
    assert scores["late_sentence"]["pieces"]["61"] != scores["late_sentence"]["pieces"]["251"]


@pytest.mark.e2e
def test_a_complete_run_measures_nothing_again(given, finished, monkeypatch):
    def measured(*_, **__):
        raise AssertionError("measured again")

    before = results_of(finished)
    for name in ("_scores", "interleaved"):
        monkeypatch.setattr(documents, name, measured)
    labelled = ["--train_file", given["labelled"], "--labelled_text_column", "body", "--label_column", "kind"]
    options = ["--models", given["student"], "--text_file", given["articles"], *labelled, "--min_tokens", "61"]
    main(command(given, finished, *options, "--resume", "true"))
    after = results_of(finished)
    assert after["scores"] == before["scores"] and after["cost"] == before["cost"]


@pytest.mark.e2e
def test_methods_can_be_added(given, tmp_path, capsys):
    options = ["--tasks", "passkey", "--methods"]
    main(command(given, tmp_path / "out", *options, "cut"))
    before = results_of(tmp_path / "out")
    before["cost"]["cut"]["61"]["peak_bytes"] = 17
    (tmp_path / "out" / "documents.json").write_text(json.dumps(before))
    main(command(given, tmp_path / "out", *options, "cut", "stretched", "--resume", "true"))
    after = results_of(tmp_path / "out")
    assert list(after["methods"]) == list(after["cost"]) == ["cut", "stretched"]
    assert after["scores"]["passkey"]["cut"] == before["scores"]["passkey"]["cut"]
    assert after["cost"]["cut"]["61"]["peak_bytes"] == 17
    assert all(tuple(costs) == LENGTHS for costs in after["cost"].values())
    main(command(given, tmp_path / "out", *options, "pieces", "--resume", "true"))
    assert list(results_of(tmp_path / "out")["methods"]) == ["cut", "stretched", "pieces"]
    error = fail(capsys, *command(given, tmp_path / "out", *options, "cut", "--resume", "true", "--seed", "1"))
    assert "resume: expected seed as in " in error and "0, got 1" in error
    student = ["--models", given["student"], "--names", "one", "--resume", "true"]
    main(command(given, tmp_path / "out", *options, "cut", *student))
    student[1] = shutil.copytree(given["student"], tmp_path / "student")
    weights = load_file(student[1] / "model.safetensors")
    save_file(
        {name: 2 * weight for name, weight in weights.items()}, student[1] / "model.safetensors", {"format": "pt"}
    )
    error = fail(capsys, *command(given, tmp_path / "out", *options, "cut", *student))
    assert "resume: expected the model one of " in error
    other = {**given, "teacher": write_bert(tmp_path / "teacher", hidden_size=39)}
    error = fail(capsys, *command(other, tmp_path / "out", *options, "cut", "--resume", "true"))
    assert "resume: expected the teacher of " in error


@pytest.mark.slow
def test_memory_is_measured_in_processes_of_their_own(given, tmp_path):
    options = ["--tasks", "passkey", "--methods", "pieces", "--models", given["student"], "--memory", "true"]
    main(command(given, tmp_path / "out", *options))
    costs = results_of(tmp_path / "out")["cost"]
    assert all(cost["peak_bytes"] >= 0 for name in ("pieces", "student") for cost in costs[name].values())


def test_times_are_kept_where_memory_runs_out(given, tmp_path, monkeypatch, capsys):
    def killed(*_):
        raise OutOfMemoryError("a process was killed")

    monkeypatch.setattr(documents, "in_fresh_process", killed)
    with pytest.raises(SystemExit) as exit_:
        main(command(given, tmp_path / "out", "--tasks", "passkey", "--methods", "cut", "--memory", "true"))
    assert exit_.value.code == 1
    assert "a process was killed; lower batch_size (3) or lengths" in capsys.readouterr().err
    assert results_of(tmp_path / "out")["cost"]["cut"]["61"]["median_s"] > 0


def test_inputs_have_at_most_the_length(given):
    settings = DocumentsSettings(
        teacher="", text_file=[str(given["articles"])], articles=11, queries=5, candidates=7, lengths=[61, 251]
    )
    settings.fact_lengths = [61, 127]
    tokenizer = transformers.AutoTokenizer.from_pretrained(given["teacher"])
    inputs, again = (read_inputs(settings, TASKS[:5], tokenizer, LONGEST) for _ in range(2))
    settings.seed = 1
    other = read_inputs(settings, TASKS[:5], tokenizer, LONGEST)
    assert inputs.fingerprint() == again.fingerprint() != other.fingerprint()
    for task, length, number in (
        ("late_sentence", 61, 11),
        ("needle", 61, 7),
        ("passkey", 127, 7),
        ("same_document", 61, 5),
    ):
        search = inputs.search(task, length)
        lengths = [len(ids) for ids in tokenizer(search.documents, verbose=False)["input_ids"]]
        assert len(search.documents) == number and length - 3 <= min(lengths) and max(lengths) <= length
    assert len(set(inputs.search("needle", 127).documents)) == 7
    late = inputs.search("late_sentence", 251)
    assert all(query in late.documents[target] for query, target in zip(late.queries, late.targets, strict=True))
    for fact, document in zip(inputs.facts["passkey"], inputs.search("passkey", 61).documents, strict=True):
        assert fact.sentence in document


def test_time_is_of_a_document_of_the_length(given, monkeypatch):
    tokenizer = transformers.AutoTokenizer.from_pretrained(given["teacher"])
    settings = DocumentsSettings(teacher="", lengths=[61, 251], fact_lengths=[61], candidates=7)
    inputs = read_inputs(settings, ["passkey"], tokenizer, LONGEST)
    for length in (61, 251):
        (document,) = inputs.prefixes([inputs.noise], length)
        assert len(tokenizer(document, verbose=False)["input_ids"]) == length


@pytest.mark.parametrize(
    ("cut", "lengths", "expected"),
    [
        (512, [512, 1024, 4096], [(0, 512), (512, 1024), (1024, 4096)]),
        (512, [2048, 256], [(0, 512), (512, 2048)]),
        (512, [256], [(0, 256)]),
    ],
)
def test_ranges(cut, lengths, expected):
    assert token_ranges(cut, lengths) == expected


def test_only_late_sentences_are_averaged(monkeypatch):
    """The first position is a control."""

    class Texts:
        sentences = [type("Sentence", (), {"position": position}) for position in (0, 1, 2, 0, 1, 2)]
        ranges = [(0, 1), (1, 2), (2, 3)]

        def search(self, *_):
            return None

    monkeypatch.setattr(documents, "_ranks", lambda *_: np.array([1, 1, 2, 1, 1, 20]))
    scores = documents._scores(Texts(), "late_sentence", None, 1, "", None)
    assert (scores["recall@1"], scores["recall@10"], scores["queries"]) == (0.5, 0.75, 4)
    assert [position["recall@1"] for position in scores["positions"]] == [1, 1, 0]


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--articles", "14", "--text_file", "ARTICLES"], "articles: expected at most 13 (the different texts of at least 60 tokens), got 14"),
        (["--tasks", "needle", "--candidates", "12", "--text_file", "ARTICLES"], "candidates: expected at most 11 (the searched texts of at least 249 tokens), got 12"),
        (["--tasks", "same_document", "--queries", "12", "--text_file", "ARTICLES"], "queries: expected at most 11 (the searched texts of at least 249 tokens), got 12"),
        (["--tasks", "late_sentence", "--queries", "12", "--text_file", "ARTICLES"], "queries: expected at most 11 (searched texts of at least 249 tokens with"),
        (["--text_file", "ARTICLES", "--text_column", "body"], "articles.jsonl line 1: no column 'body' (text_column); it has"),
        (["--methods", "cut", "whole"], "methods: expected one of cut, pieces, pieces_overlapping, stretched, linearised, got whole"),
        (["--methods", "cut", "cut"], "methods: expected each once, got ['cut', 'cut']"),
        (["--methods", "[]"], "methods, models: expected one or more, got none"),
        (["--tasks", "late_sentence"], "text_file: expected texts for the task late_sentence, got none"),
        (["--tasks", "classification"], "train_file or labelled_task: expected texts for the task classification, got none"),
        (["--tasks", "sts"], "tasks: expected"),
        (["--min_tokens", "3"], "min_tokens: expected none without labelled_task or train_file, got 3"),
        (["--train_file", "LABELLED", "--labelled_text_column", "body", "--label_column", "none"], "labelled.jsonl line 1: no column 'none' (label_column); it has"),
        (["--train_file", "LABELLED", "--labelled_text_column", "body", "--label_column", "kind", "--min_tokens", "9999"], "min_tokens: expected texts of more tokens, got none of more than 9999"),
        (["--train_file", "LISTS", "--labelled_text_column", "body", "--label_column", "kind"], "label_column: expected one class for each text, got lists of classes"),
        (["--train_file", "LABELLED", "--labelled_text_column", "body", "--label_column", "kind", "--max_train_samples", "1"], "expected training texts of two or more classes, got 1 texts"),
        (["--labelled_task", "qnli", "--data_dir", "TASKS"], "labelled_task: expected a task with single texts, got qnli"),
        (["--models", "STUDENT", "--lengths", "61", "257"], "lengths: expected at most 251 (the limit of student), got 257"),
        (["--models", "STUDENT", "--names", "cut"], "names: expected 1 different names, none of a method, got ['cut']"),
        (["--lengths", "2"], "lengths: expected 3 or more, got 2"),
        (["--lengths", "61", "61"], "lengths: expected one or more different lengths from 1 to 16,777,216, got [61, 61]"),
        (["--fact_lengths", "5"], "fact_lengths: expected more than the "),
        (["--candidates", "401"], "candidates: expected at most 400, got 401"),
        (["--queries", "0"], "queries: expected 1 or more, got 0"),
    ],
)  # fmt: skip
def test_refused(options, message, given, tmp_path, capsys):
    places = {name.upper(): path for name, path in given.items()}
    if "TASKS" in options:
        (tmp_path / "tasks").mkdir()
        places["TASKS"] = write_tasks(tmp_path / "tasks")
    if "LISTS" in options:
        places["LISTS"] = tmp_path / "lists.jsonl"
        places["LISTS"].write_text(given["labelled"].read_text().replace('"0"', '["a"]').replace('"1"', '["b", "c"]'))
    options = [places.get(option, option) for option in options]
    error = fail(capsys, *command(given, tmp_path / "out", *options))
    assert message in error and not (tmp_path / "out").exists()
