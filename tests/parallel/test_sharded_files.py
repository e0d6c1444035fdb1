"""Files of sharded models: damaged and foreign ones are refused, and what cannot be written leaves what was there."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from pathlib import Path
from unittest import mock

import pytest
import torch

from linformer_kit import InputError
from linformer_kit.errors import MachineError, OutOfMemoryError
from linformer_kit.files.manifest import write_manifest
from linformer_kit.parallel.sharded import load_sharded, save_full, save_sharded, shard
from tests.parallel.small_model import assert_equal, build, build_optimizer, everything, flip, train

pytestmark = pytest.mark.e2e

SHARD = "shard-00001-model-00001-of-00001.safetensors"


@pytest.fixture
def saved(tmp_path):
    """A checkpoint of one process."""
    model = build()
    optimizer = build_optimizer(model)
    train(model, optimizer, 0, 1, 1)
    save_sharded(tmp_path / "saved", model, optimizer, extra={"step": 1})
    return tmp_path / "saved"


@pytest.mark.parametrize("name", [SHARD, "state.json"])
@pytest.mark.parametrize("damage", [flip, Path.unlink, lambda path: os.truncate(path, 100)], ids=["bit", "gone", "cut"])
def test_a_broken_file_is_refused_and_nothing_is_changed(name, damage, saved):
    damage(saved / name)
    model = build("layerwise")
    before = {key: value.clone() for key, value in model.state_dict().items()}
    message = f"{saved / name}: expected the file that manifest.json describes, got another"
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        load_sharded(saved, model)
    assert_equal(model.state_dict(), before)


def test_a_file_that_nobody_knows_is_refused(saved):
    shutil.copy(saved / SHARD, saved / "shard-00002-model-00001-of-00001.safetensors")
    with pytest.raises(
        InputError, match=r"shard-00002-.*: expected the file that manifest.json describes, got another"
    ):
        load_sharded(saved, build())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "{folder}/manifest.json: expected a manifest, got no such file"),
        ("{", "{folder}/manifest.json: expected names, sizes and SHA-256 of files, got JSONDecodeError"),
        ("{}", "{folder}/manifest.json: expected names, sizes and SHA-256 of files, got KeyError"),
    ],
)
def test_without_a_manifest_nothing_is_loaded(content, message, saved):
    (saved / "manifest.json").unlink()
    if content is not None:
        (saved / "manifest.json").write_text(content)
    with pytest.raises(InputError, match=f"^{re.escape(message.format(folder=saved))}"):
        load_sharded(saved, build())


def test_another_format_is_refused(saved):
    state = json.loads((saved / "state.json").read_text())
    (saved / "state.json").write_text(json.dumps({**state, "format": 2}))
    (saved / "manifest.json").unlink()
    write_manifest(saved)
    with pytest.raises(InputError, match=r"state.json: expected format 1, got 2$"):
        load_sharded(saved, build())


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"hidden_size": 39}, r"to be \[101, 39\] in torch.float64, got \[101, 33\] in torch.float64$"),
        (
            {"sharing": "key_value"},
            "got linformer.encoder.layers.0.self_attn.projection.key_projection in the model, not /",
        ),
        ({"num_hidden_layers": 1}, "got linformer.encoder.layers.1.*in /.*, not the model$"),
    ],
)
def test_another_model_is_refused(others, message, saved):
    with pytest.raises(InputError, match=message):
        load_sharded(saved, build(**others))


def test_another_number_format_is_refused(saved):
    with pytest.raises(InputError, match=r"in torch.float32, got .* in torch.float64$"):
        load_sharded(saved, build().float())


def test_a_model_without_memory_is_refused(saved):
    with pytest.raises(InputError, match=r"^model: expected one with memory for its values, got one on meta; call"):
        load_sharded(saved, build().to("meta"))


def test_other_groups_are_refused(saved, tmp_path):
    model = build()
    with pytest.raises(InputError, match=r"expected groups of \[\d+\] equal parameters, got \[\d+, \d+\]$"):
        load_sharded(saved, model, torch.optim.AdamW(model.parameters()))
    with pytest.raises(InputError, match=r"expected the state of SGD, got that of AdamW$"):
        load_sharded(saved, model, torch.optim.SGD(model.parameters()))
    save_sharded(tmp_path / "alone", model)
    with pytest.raises(InputError, match=r"expected the state of AdamW, got that of None$"):
        load_sharded(tmp_path / "alone", model, torch.optim.AdamW(model.parameters()))


def test_a_parameter_without_a_gradient_stays_without_state(tmp_path):
    model = build()
    model.lm_head.requires_grad_(False)
    optimizer = build_optimizer(model)
    train(model, optimizer, 0, 1, 1)
    save_sharded(tmp_path / "saved", model, optimizer)
    other = build()
    again = build_optimizer(other)
    load_sharded(tmp_path / "saved", other, again)
    assert len(again.state) == len(optimizer.state) < len(list(model.parameters()))
    assert_equal(everything(other, again), everything(model, optimizer))


def test_what_cannot_be_written_is_refused(tmp_path, saved):
    model = build()
    with pytest.raises(InputError, match=f"^folder: expected a new one, got {saved}, which exists$"):
        save_sharded(saved, model)
    with pytest.raises(InputError, match=f"^folder: expected a new one, got {saved}, which exists$"):
        save_full(saved, model)
    with pytest.raises(InputError, match=r"^extra, optimizer: expected what JSON can hold, got "):
        save_sharded(tmp_path / "new", model, extra={"step": torch.ones(1)})
    with pytest.raises(InputError, match=r"^optimizer: expected one made after shard, got parameters"):
        save_sharded(tmp_path / "new", model, build_optimizer(build()))
    factored = torch.optim.Adafactor(model.parameters())
    train(model, factored, 0, 1, 1)
    message = (
        r"^optimizer: expected numbers and tensors \[101, 33\] as the state of .*word_emb.*, got \[101, 1\] as row_var$"
    )
    with pytest.raises(InputError, match=message):
        save_sharded(tmp_path / "new", model, factored)
    with pytest.raises(InputError, match=r"^model: expected one with layers of transformers, got Linear without$"):
        shard(torch.nn.Linear(2, 2), mesh=None)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("step", ["write_whole", "write_manifest", "os.replace"])
def test_a_kill_while_writing_leaves_what_was_there(step, saved):
    """The process dies, as by kill -9, at each step of the writing."""
    model = build()
    place = f"linformer_kit.parallel.sharded.{step}"
    child = os.fork()
    if child == 0:
        try:
            with mock.patch(place, side_effect=lambda *_: os._exit(9)):
                save_sharded(saved.with_name("next"), model)
        finally:
            os._exit(0)  # whatever happens: there must not be a second one of these tests
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert not saved.with_name("next").exists()
    assert any(saved.with_name(".next.part").iterdir())
    assert load_sharded(saved, model) == {"step": 1}
    save_sharded(saved.with_name("next"), model)  # what was left is no hindrance
    assert load_sharded(saved.with_name("next"), build()) == {}
    assert sorted(path.name for path in saved.parent.iterdir()) == ["next", "saved"]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), MachineError),
        (MemoryError(), OutOfMemoryError),
        (ValueError("odd"), InputError),
    ],
)
def test_a_save_that_fails_says_whose_fault_it_is(error, kind, tmp_path):
    place = tmp_path / "next"
    with (
        mock.patch("linformer_kit.parallel.sharded.write_manifest", side_effect=error),
        pytest.raises(kind, match=f"^{re.escape(str(place))}: could not be written: "),
    ):
        save_sharded(place, build())
    assert not list(tmp_path.iterdir())
