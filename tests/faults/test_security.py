"""No code is run on loading: pickles and code in every place where a run or a model could hold them."""

from __future__ import annotations

import ast
import builtins
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import linformer_kit
from linformer_cli.cli import main
from linformer_kit import InputError, load_fairseq_checkpoint
from linformer_kit.files import folders, manifest
from linformer_kit.files.folders import find_checkpoint, rotate_checkpoints
from linformer_kit.files.manifest import MANIFEST, damage, write_manifest
from linformer_kit.files.writing import whole_folder, write_whole
from linformer_kit.training.checkpoint import save_model
from tests.faults.runs import finetune_command, pretrain_command, run_all

pytestmark = pytest.mark.e2e

# Names under which some library keeps, or has kept, a pickle.
PICKLES = (
    *("training_args.bin", "optimizer.pt", "optimizer.bin", "scheduler.pt", "rng_state.pth", "random_states_0.pkl"),
    *("pytorch_model.bin", "pytorch_model_fsdp_0/.metadata", "adapter_model.bin", "model.ckpt", "tokenizer.pkl"),
    *("tokenizer.model", "vocab.bpe", "arrays.npz", "dataset.arrow"),
)
MODULES = ("modeling_evil.py", "configuration_evil.py", "tokenization_evil.py", "custom_generate/generate.py")
STARTED_BY_PYTHON = ("conftest.py", "sitecustomize.py", "__init__.py", "transformers.py", "json.py", "handler.py")
AUTO_MAP = {
    "AutoConfig": "configuration_evil.Evil",
    "AutoModel": "modeling_evil.Evil",
    "AutoModelForMaskedLM": "modeling_evil.Evil",
    "AutoModelForSequenceClassification": "modeling_evil.Evil",
    "AutoTokenizer": ["tokenization_evil.Evil", "tokenization_evil.Evil"],
}


class Evil:
    """Unpickled, it leaves a file behind."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.witness,)


def plant(folder: Path, witness: Path) -> None:
    """Put pickles and code wherever a library might load them; existing files stay."""
    for name in PICKLES:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if path.suffix == ".npz":
            np.savez(path, evil=np.array([Evil(witness)], dtype=object))
        elif path.suffix in (".pt", ".pth", ".ckpt") or path.name.startswith("pytorch_model"):
            torch.save({"state": Evil(witness), "weight": torch.ones(2)}, path)
        else:
            path.write_bytes(pickle.dumps(Evil(witness)))
    for name in (*MODULES, *STARTED_BY_PYTHON):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"open({str(witness)!r}, 'w').close()\nclass Evil: pass\n")
    index = {"metadata": {}, "weight_map": {"linformer.embeddings.word_embeddings.weight": "pytorch_model.bin"}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    template = "{% for c in ().__class__.__base__.__subclasses__() %}{{ c.__init__.__globals__ }}{% endfor %}"
    (folder / "chat_template.jinja").write_text(template)
    processor = {"processor_class": "Evil", "auto_map": {"AutoProcessor": "modeling_evil.Evil"}}
    (folder / "processor_config.json").write_text(json.dumps(processor))
    modules = [{"idx": 0, "name": "0", "path": "", "type": "modeling_evil.Evil"}]
    (folder / "modules.json").write_text(json.dumps(modules))


def remote_code(folder: Path, *, model_type: str | None = None) -> None:
    """Name the code in the files of configuration."""
    for name, more in (("config.json", {}), ("tokenizer_config.json", {"chat_template": "{{ cycler.__init__ }}"})):
        path = folder / name
        content = json.loads(path.read_text()) | {"auto_map": AUTO_MAP, "custom_pipelines": AUTO_MAP} | more
        if model_type and name == "config.json":
            content["model_type"] = model_type
        if name == "config.json":
            content.pop("custom_pipelines")  # of which ours knows nothing
        elif model_type:
            content["tokenizer_class"] = "Evil"
        path.write_text(json.dumps(content))


@pytest.fixture
def witness(tmp_path, monkeypatch):
    """A file that must not exist in the end; opening a pickle, or importing from the folders, fails."""
    path = tmp_path / "witness"

    def forbidden(*arguments: Any, **named: Any) -> Any:
        raise AssertionError("unpickled")

    run_code = builtins.exec

    def no_planted_code(code: Any, *arguments: Any, **named: Any) -> Any:
        assert str(tmp_path) not in str(getattr(code, "co_filename", code)), "executed"
        return run_code(code, *arguments, **named)

    monkeypatch.setattr(torch, "load", forbidden)
    monkeypatch.setattr(pickle, "load", forbidden)
    monkeypatch.setattr(pickle, "Unpickler", forbidden)
    monkeypatch.setattr(builtins, "exec", no_planted_code)
    monkeypatch.setattr(builtins, "input", forbidden)  # nobody is asked whether to trust it either
    yield path
    assert not path.exists(), "executed"


@pytest.fixture(scope="module")
def pretrained(corpus, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pretrained") / "out"
    run_all([pretrain_command(corpus, folder, max_steps=2)])
    return folder


@pytest.fixture(scope="module")
def finetuned(encoder, texts, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finetuned") / "out"
    run_all([finetune_command(encoder, texts, folder, max_steps=2)])
    return folder


def copied(source: Path, place: Path) -> Path:
    shutil.copytree(source, place)
    return place


def outcome(capsys, command: list[Any]) -> str | None:
    """None for success, or the one line of the rejection; anything else fails."""
    capsys.readouterr()
    try:
        main([str(word) for word in command])
    except SystemExit as exit_:
        assert exit_.code == 2, exit_.code
        lines = capsys.readouterr().err.strip().splitlines()
        assert [line for line in lines if line.startswith("linformer: error: ")] == lines[-1:], lines
        assert not any("Traceback" in line for line in lines)
        return lines[-1]
    return None


def everywhere(run: Path, witness: Path) -> None:
    """Plant into a run and each of its checkpoints, with manifests that fit."""
    for folder in (run, *run.rglob("checkpoint-*")):
        plant(folder, witness)
        remote_code(folder)
        write_manifest(folder)


def test_a_run_is_resumed_beside_pickles_and_code(
    corpus, encoder, texts, pretrained, finetuned, tmp_path, witness, capsys
):
    run = copied(pretrained, tmp_path / "run")
    everywhere(run, witness)
    assert outcome(capsys, [*pretrain_command(corpus, run, max_steps=2), "--resume"]) is None, "a finished one"
    assert outcome(capsys, [*pretrain_command(corpus, run, max_steps=3), "--resume"]) is None
    assert find_checkpoint(run) == (run / "checkpoint-3", [])
    classifier = copied(finetuned, tmp_path / "classifier")
    everywhere(classifier, witness)
    shutil.rmtree(classifier / "checkpoint-2")
    assert outcome(capsys, [*finetune_command(encoder, texts, classifier, max_steps=2), "--resume"]) is None


@pytest.mark.parametrize("missing", ["model", "optimizer"])
def test_a_checkpoint_of_pickles_is_none(corpus, pretrained, tmp_path, witness, capsys, missing):
    """An attacker's, whose manifest says that it is whole."""
    run = copied(pretrained, tmp_path / "run")
    everywhere(run, witness)
    (run / "checkpoint-2" / f"{missing}.safetensors").unlink()
    write_manifest(run / "checkpoint-2")
    error = outcome(capsys, [*pretrain_command(corpus, run, max_steps=3), "--resume"])
    assert error is not None and "checkpoint-2" in error and "expected" in error


def uses(model: Path, texts: Path, corpus: Path, place: Path) -> dict[str, list[Any]]:
    """Commands that are given a model, by what they do with it."""
    lines = place.parent / "lines.txt"
    lines.write_text("number 3 was good\n")
    return {
        "fill-mask": ["fill-mask", model, "def <mask>("],
        "resize": ["resize", model, place / "resize", "--max_position_embeddings=999"],
        "linearize": ["linearize", model, place / "linearize"],
        "predict": ["predict", model, lines],
        "finetune": finetune_command(model, texts, place / "finetune", max_steps=1),
        "from_model": [*pretrain_command(corpus, place / "pretrain", max_steps=1), f"--from_model={model}"],
        "tokenizer": [*pretrain_command(corpus, place / "tokenizer", max_steps=1), f"--tokenizer={model}"],
    }


WORK = {"encoder": {"fill-mask", "finetune", "from_model", "tokenizer"}, "classifier": {"predict"}}


@pytest.mark.parametrize("kind", WORK)
def test_models_are_used_beside_pickles_and_code(encoder, finetuned, texts, corpus, tmp_path, witness, capsys, kind):
    model = copied(encoder if kind == "encoder" else finetuned, tmp_path / "model")
    plant(model, witness)
    remote_code(model)
    (model / MANIFEST).unlink(missing_ok=True)
    for name, command in uses(model, texts, corpus, tmp_path / "out").items():
        error = outcome(capsys, command)
        assert error is None or name not in WORK[kind], (name, error)


@pytest.mark.parametrize("change", ["pickled weights", "index", "unknown"])
def test_models_that_would_need_a_pickle_or_code_are_rejected(
    encoder, texts, corpus, tmp_path, witness, capsys, change
):
    model = copied(encoder, tmp_path / "model")
    plant(model, witness)
    remote_code(model)
    if change == "pickled weights":
        (model / "model.safetensors").unlink()
    elif change == "index":
        (model / "model.safetensors").rename(model / "more.safetensors")
        index = {"weight_map": {"lm_head.decoder.bias": "pytorch_model.bin"}}
        (model / "model.safetensors.index.json").write_text(json.dumps(index))
    else:
        remote_code(model, model_type="evil")
    commands = uses(model, texts, corpus, tmp_path / "out")
    commands.pop("tokenizer")  # which looks at no weights
    for name, command in commands.items():
        error = outcome(capsys, command)
        assert error is not None and "expected" in error, name


def test_a_fairseq_file_is_the_one_pickle_and_runs_nothing(tmp_path):
    """It may hold only tensors, containers and argparse.Namespace."""
    witness = tmp_path / "witness"
    for number, content in enumerate((Evil(witness), {"model": {"weight": Evil(witness)}}, {"args": Evil(witness)})):
        for legacy in (False, True):
            path = tmp_path / f"{number}-{legacy}.pt"
            torch.save(content, path, _use_new_zipfile_serialization=not legacy)
            with pytest.raises(InputError, match=r"its pickle is broken or holds disallowed objects$"):
                load_fairseq_checkpoint(path)
        path.write_bytes(pickle.dumps(content))
        with pytest.raises(InputError, match="its pickle is broken"):
            load_fairseq_checkpoint(path)
    assert not witness.exists()


# Names and links that lead elsewhere -----------------------------------------------------------------------------------


@pytest.fixture
def precious(tmp_path) -> Path:
    folder = tmp_path / "precious"
    folder.mkdir()
    for name in ("thesis.txt", MANIFEST, "config.json", "run.json", "events.out.tfevents.1"):
        (folder / name).write_text(name)
    return folder


def intact(folder: Path) -> bool:
    names = {path.name: path.read_text() for path in folder.iterdir()}
    return len(names) == 5 and all(name == text for name, text in names.items())


def test_a_manifest_names_no_file_elsewhere(tmp_path):
    write_manifest(tmp_path)
    for name in ("../thesis.txt", "/etc/passwd", "a/../../b"):
        content = {name: {"bytes": 1, "sha256": ""}}
        (tmp_path / MANIFEST).write_text(json.dumps({"files": content, "sha256": manifest._digest(content)}))
        assert f"expected names of files in its folder, got '{name}'" in damage(tmp_path)


def test_nothing_behind_a_link_is_removed(tmp_path, precious):
    run = tmp_path / "run"
    run.mkdir()
    for name in (".checkpoint-3.part", "checkpoint-1"):
        (run / name).symlink_to(precious)
    folders.recover_checkpoints(run)
    assert not (run / ".checkpoint-3.part").is_symlink()
    (run / "checkpoint-5").mkdir()
    write_manifest(run / "checkpoint-5")
    rotate_checkpoints(run, 1, keep=None)
    assert [path.name for path in sorted(run.glob("checkpoint-*"))] == ["checkpoint-5"]
    assert intact(precious)


def test_nothing_is_written_through_a_link(tmp_path, precious, encoder):
    from transformers import AutoTokenizer

    from linformer_kit import LinformerForMaskedLM

    run = tmp_path / "run"
    run.mkdir()
    for name in (".run.part", ".checkpoint-1.part", "checkpoint-1"):
        (run / name).symlink_to(precious)
    (run / ".run.json.part").symlink_to(precious / "thesis.txt")
    write_whole(run / "run.json", "new")
    save_model(LinformerForMaskedLM.from_pretrained(encoder), AutoTokenizer.from_pretrained(encoder), run)
    with whole_folder(run / "checkpoint-1", replace=True) as part:
        (part / "file").write_text("new")
        write_manifest(part)
    assert find_checkpoint(run) == (run / "checkpoint-1", []) and intact(precious)


# What the code itself may call ------------------------------------------------------------------------------------------


def test_no_call_that_trusts():
    """Of the package's own calls: no code of models, no pickle but a fairseq file's."""
    for path in Path(linformer_kit.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            named = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if called.startswith(("Auto", "auto_class.")) and called.endswith("from_pretrained"):
                assert named.get("trust_remote_code") == "False", f"{path.name}: {called}"
            if called.endswith("from_pretrained") and ("auto_class" in called or "model_class" in called):
                assert named.get("use_safetensors") == "True", f"{path.name}: {called}"
            if called == "torch.load":
                assert path.name == "fairseq.py" and named["weights_only"] == "True", path.name
            assert not called.startswith(("pickle.load", "pickle.Unpickler", "dill.", "joblib.")), path.name
            assert called not in ("eval", "exec", "yaml.load", "yaml.unsafe_load"), path.name
            assert "allow_pickle" not in named, path.name
