"""Adapters: what a distillation trains and saves, and what `linearize` makes of it."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModel

import linformer_kit as lk
from linformer_cli.cli import main
from linformer_kit.linearized.adapter import read_adapter
from tests.conftest import fail_last_line, write_teacher
from tests.training.test_distill import LENGTH, WORDS, distill

pytestmark = pytest.mark.e2e
TRAINED = {"adapter_rank": 3, "learning_rate": 0.01, "max_position_embeddings": 2 * LENGTH}


@pytest.fixture(scope="module")
def run(texts, tmp_path_factory) -> tuple[Path, Path]:
    """A base model, and the folder of a distillation with an adapter, which learns E and F too."""
    folder = tmp_path_factory.mktemp("run")
    teacher = write_teacher(folder / "teacher", WORDS, "RobertaModel")
    (teacher / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    distill(teacher, folder / "student", train_file=texts, **TRAINED, projection="linear", global_tokens=1)
    return teacher, folder / "student"


@pytest.fixture(scope="module")
def ids() -> torch.Tensor:
    return torch.randint(5, 20, (3, 2 * LENGTH), generator=torch.Generator().manual_seed(0))


def test_an_adapter_makes_the_student_of_its_base_model(run, ids):
    teacher, student = run
    base = AutoModel.from_pretrained(teacher)
    before = lk.linearize(copy.deepcopy(base), 5, max_position_embeddings=2 * LENGTH)
    model = lk.linearize(base, adapter=student / "adapter").eval()
    with torch.no_grad():
        merged = AutoModel.from_pretrained(student)(ids).last_hidden_state
        torch.testing.assert_close(model(ids).last_hidden_state, merged)
        assert (before(ids).last_hidden_state - merged).abs().max() > 1e-3


def test_linearize_merges_it(run, tmp_path, ids, capsys):
    teacher, student = run
    adapter = str(student / "adapter")
    capsys.readouterr()
    main(["linearize", str(teacher), str(tmp_path / "linear"), "--adapter", adapter])
    printed = capsys.readouterr().out
    assert f"n {2 * LENGTH}, k 5" in printed and "distill" not in printed  # it is what a distillation made
    expected = AutoModel.from_pretrained(student)(ids).last_hidden_state
    torch.testing.assert_close(AutoModel.from_pretrained(tmp_path / "linear")(ids).last_hidden_state, expected)


def test_the_list_of_those_that_ship(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("linformer_kit.linearized.adapter.SHIPPED", tmp_path)
    shutil.copytree(run[1] / "adapter", tmp_path / "tiny")
    main(["adapters"])
    assert f"| tiny | teacher | apache-2.0 | {2 * LENGTH} | 5 |" in capsys.readouterr().out
    main(["adapters", "--card", "tiny"])
    assert "# Linear attention for teacher" in capsys.readouterr().out
    lk.linearize(AutoModel.from_pretrained(run[0]), adapter="tiny")
    assert "got other" in fail_last_line(capsys, "adapters", "--card", "other")


def test_peft_loads_it(run, ids):
    teacher, student = run
    about = json.loads((student / "adapter" / "linformer.json").read_text())
    assert about["linearize"]["shorter_input"] == "prefix", "the default of E and F, as resolved"
    linear = lk.linearize(AutoModel.from_pretrained(teacher), **about["linearize"])
    model = PeftModel.from_pretrained(linear, student / "adapter").eval()
    expected = AutoModel.from_pretrained(student)(ids).last_hidden_state
    torch.testing.assert_close(model(ids).last_hidden_state, expected, rtol=1e-4, atol=1e-4)


def test_only_the_adapter_is_trained_and_saved(run):
    teacher, student = run
    base, merged = AutoModel.from_pretrained(teacher), AutoModel.from_pretrained(student)
    adapter = read_adapter(str(student / "adapter"))
    for name, parameter in base.named_parameters():
        changed = f"{name.removesuffix('.weight')}.lora_A.weight" in adapter.weights
        same = name.endswith("position_embeddings.weight") or torch.equal(parameter, merged.get_parameter(name))
        assert changed != same or "pooler" in name, name
    results = json.loads((student / "metrics.json").read_text())["student"]
    assert results["adapter"] == {"rank": 3, "parameters": sum(each.numel() for each in adapter.weights.values())}
    assert results["parameters"] == merged.num_parameters()
    assert all(each.dtype == torch.bfloat16 for each in adapter.weights.values())
    assert adapter.about["base_model"]["license"] == "apache-2.0"
    learned = {name.rpartition(".")[2] for name in adapter.weights if "lora" not in name}
    assert learned and all("projection" in name for name in learned)
    card = (student / "adapter" / "README.md").read_text()
    assert "base_model: teacher\n" in card and "| cosine of mean embeddings |" in card
    assert f"texts of up to {2 * LENGTH} tokens" in card


def test_what_does_not_fit_is_rejected(run, tmp_path):
    """And changes nothing. Other tests have another base model."""
    teacher, student = run
    model = AutoModel.from_pretrained(teacher)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    folder = shutil.copytree(student / "adapter", tmp_path / "adapter")
    with pytest.raises(lk.InputError, match=r"projected_dim: expected 5, as adapter .* has, got 7"):
        lk.linearize(model, adapter=folder, projected_dim=7)
    (folder / "adapter_model.safetensors").write_bytes(b"other")
    with pytest.raises(lk.InputError, match=r"adapter: .*adapter_model.safetensors"):
        lk.linearize(model, adapter=folder)
    (folder / "linformer.json").unlink()
    with pytest.raises(lk.InputError, match="adapter: expected one of `linformer distill --adapter_rank`"):
        lk.linearize(model, adapter=folder)
    assert type(model).__name__ == "RobertaModel"
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())
