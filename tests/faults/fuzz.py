"""Commands on files of any content.

Each case changes one JSON or safetensors file of a model, a run or a checkpoint (whose manifest is made to fit), and runs
a command in a process of its own, with bounds on time and memory. A failing case says its seed; `case(seed, ...)` makes
it again.
"""

from __future__ import annotations

import copy
import json
import os
import random
import resource
import shutil
import signal
import struct
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, RobertaConfig, RobertaForSequenceClassification

from linformer_cli.cli import main
from linformer_kit.files.manifest import write_manifest
from linformer_kit.training.run import Run
from tests.faults.runs import finetune_command, pretrain_command

CASE_SECONDS = 20
CASE_BYTES = 8 << 30  # of address space, most of which no case ever touches
SIZES = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 17}
# Unusual values; the largest do not fit in 64 bits, in a float, or in memory.
VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2, 3, 7, 10**6, 2**31, 10**12, 2**63, 10**30, 10**400, -(10**12)),
    *(0.5, -0.5, 1e-300, 1e12, 1e308, float("nan"), float("inf"), float("-inf")),
    *("", "a", "0", "none", "../../x", "/etc/passwd", "\n\n", "\0", "é" * 3, "a" * 100_000, "linear", "full", "<mask>"),
    *([], [[]], {}, {"a": 1}, [1, 2, 3], [None], [10**12] * 3, {"": None}, ["a", "b"], [0.5, float("nan")]),
)


@dataclass
class Places:
    """What the cases are made of, and where they run."""

    models: dict[str, Path]
    runs: dict[str, Path]
    commands: dict[str, Callable[[Path], list[str]]]
    scratch: Path
    outcomes: Counter[str] = field(default_factory=Counter)


# Changes -----------------------------------------------------------------------------------------------------------------


def changed_json(draw: random.Random, value: Any) -> Any:
    """A copy of nested JSON with one value changed or removed."""
    root = copy.deepcopy({"": value})
    parent, key = root, ""
    while isinstance(parent[key], dict | list) and parent[key] and draw.random() < 0.8:
        parent = parent[key]
        key = draw.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
    kind = draw.random()
    if kind < 0.1 and parent is not root:
        del parent[key]
    elif kind < 0.2 and isinstance(parent[key], dict):
        parent[key][draw.choice(["", "a", "__class__", "dtype", "num_labels"])] = draw.choice(VALUES)
    elif kind < 0.3:
        parent[key] = [parent[key]]
    else:
        parent[key] = draw.choice(VALUES)
    return root[""]


def changed_bytes(draw: random.Random, content: bytes) -> bytes:
    """Truncated, with bytes inserted, or with one bit flipped."""
    place = draw.randrange(len(content))
    flipped = bytes([content[place] ^ 1 << draw.randrange(8)])
    inserted = draw.randbytes(draw.choice([1, 1000]))
    return content[:place] + draw.choice([b"", inserted + content[place:], flipped + content[place + 1 :]])


def changed_tensor(draw: random.Random, tensor: torch.Tensor) -> torch.Tensor:
    """Of another shape or type, or with other values."""
    return draw.choice(
        [
            torch.zeros(draw.choice([(), (0,), (3, 5), (10**6,)])),
            tensor.to(draw.choice([torch.float64, torch.int64, torch.bool])),
            torch.full_like(tensor, float("nan")) if tensor.is_floating_point() else tensor,
        ]
    )


def change(draw: random.Random, path: Path) -> None:
    """Change one file, depending on its kind."""
    content, kind = path.read_bytes(), draw.random()
    if kind < 0.03:
        path.unlink()
    elif kind < 0.2:
        path.write_bytes(changed_bytes(draw, content))
    elif path.suffix != ".safetensors":
        path.write_text(json.dumps(changed_json(draw, json.loads(content))))
    elif kind < 0.5:
        (size,) = struct.unpack("<Q", content[:8])
        header = json.dumps(changed_json(draw, json.loads(content[8 : 8 + size]))).encode()
        path.write_bytes(struct.pack("<Q", draw.choice([len(header), 2**40])) + header + content[8 + size :])
    else:
        tensors = load_file(path)
        name = draw.choice(sorted(tensors))
        tensors[name] = changed_tensor(draw, tensors[name])
        save_file(tensors, path)


# Cases -------------------------------------------------------------------------------------------------------------------


def of_a_model(draw: random.Random, places: Places, folder: Path) -> list[str]:
    name = draw.choice(sorted(places.models))
    shutil.copytree(places.models[name], folder / "model")
    files = sorted(path for path in (folder / "model").iterdir() if path.suffix in (".json", ".safetensors"))
    weighty = [path for path in files if path.name in ("config.json", "model.safetensors")]
    change(draw, draw.choice(files + 2 * weighty))
    return places.commands[name](folder)


def of_a_run(draw: random.Random, places: Places, folder: Path) -> list[str]:
    name = draw.choice(sorted(places.runs))
    shutil.copytree(places.runs[name], folder / "run")
    change(draw, draw.choice([folder / "run" / file for file in ("run.json", "metrics.json")]))
    return [*places.commands[name](folder), "--resume"]


def of_a_checkpoint(draw: random.Random, places: Places, folder: Path) -> list[str]:
    name = draw.choice(sorted(places.runs))
    shutil.copytree(places.runs[name], folder / "run")
    shutil.rmtree(folder / "run" / "checkpoint-2")  # so that the changed one is read
    checkpoint = folder / "run" / "checkpoint-1"
    read = [path for path in sorted(checkpoint.iterdir()) if path.suffix in (".json", ".safetensors")]
    change(draw, draw.choice([path for path in read if path.name != "manifest.json"]))
    write_manifest(checkpoint)
    return [*places.commands[name](folder), "--resume"]


KINDS = (of_a_model, of_a_checkpoint, of_a_run)


def case(seed: int, places: Places) -> str | None:
    """Run one case; None if it ended as it should, else what happened."""
    draw = random.Random(seed)
    folder = places.scratch / str(seed)
    folder.mkdir()
    try:
        make = KINDS[seed % len(KINDS)]
        command = make(draw, places, folder)
        trained = make is of_a_checkpoint
        keep = {path: path.read_bytes() for path in folder.rglob("checkpoint-1/*") if trained and path.is_file()}
        code, said = run_apart(command, folder / "said", trained=trained)
        lost = [str(path) for path, content in keep.items() if not path.is_file() or path.read_bytes() != content]
        places.outcomes[f"{make.__name__} {code}"] += 1
        lines = said.strip().splitlines()
        clear = code == 0 or (
            code == 2
            and bool(lines)
            and [line for line in lines if line.startswith("linformer: error: ")] == lines[-1:]
            and "Traceback" not in said
        )
        if clear and not lost:
            return None
        return f"case {seed} ({make.__name__}): {' '.join(command[:1])} ended with {code}, lost {lost}: …{said[-1500:]}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_apart(command: list[str], said: Path, *, trained: bool) -> tuple[int, str]:
    """Exit code and stderr of a command in a copy of this process."""
    child = os.fork()
    if child == 0:
        _run_in_child(command, said, trained)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), said.read_text(errors="replace")


def _run_in_child(command: list[str], said: Path, trained: bool) -> NoReturn:
    code = 99
    try:
        signal.alarm(CASE_SECONDS)
        resource.setrlimit(resource.RLIMIT_AS, (CASE_BYTES, CASE_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with said.open("w") as file:
            os.dup2(file.fileno(), 2)
            os.dup2(os.open(os.devnull, os.O_RDWR), 1)
            os.dup2(1, 0)
            sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode) for number, mode in enumerate("rww"))
            if not trained:
                Run.train = _train_nothing
            try:
                main(command)
                code = 0
            except SystemExit as exit_:
                code = exit_.code if isinstance(exit_.code, int) else 98
            except BaseException:
                traceback.print_exc()
            sys.stderr.flush()
    finally:
        os._exit(code)


def _train_nothing(*arguments: Any, **named: Any) -> NoReturn:
    raise SystemExit(0)


def prepared(folder: Path, corpus: Path, texts: Path, encoder: Path) -> Places:
    """Models, runs and the commands for them."""
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    runs = {"pretrain": folder / "pretrain", "finetune": folder / "finetune"}
    main(pretrain_command(corpus, runs["pretrain"], max_steps=2, save_steps=1))
    main(finetune_command(encoder, texts, runs["finetune"], max_steps=2))
    torch.manual_seed(0)
    shared = {**SIZES, "vocab_size": len(tokenizer), "max_position_embeddings": 37}
    theirs = {
        "bert": BertForMaskedLM(BertConfig(**shared)),
        "roberta": RobertaForSequenceClassification(RobertaConfig(**shared, num_labels=3)),
    }
    models = {"encoder": encoder, "classifier": folder / "classifier"}
    ignored = shutil.ignore_patterns("checkpoint-*", "*.png", "manifest.json")
    shutil.copytree(runs["finetune"], models["classifier"], ignore=ignored)
    for name, model in theirs.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
        models[name] = folder / name
    lines = folder / "lines.txt"
    lines.write_text("number 3 was good\nbad\n")
    commands: dict[str, Callable[[Path], list[str]]] = {
        "encoder": lambda case: ["fill-mask", str(case / "model"), "number <mask> was"],
        "bert": lambda case: ["linearize", str(case / "model"), str(case / "out")],
        "roberta": lambda case: ["linearize", str(case / "model"), str(case / "out")],
        "classifier": lambda case: ["predict", str(case / "model"), str(lines)],
        "pretrain": lambda case: pretrain_command(corpus, case / "run", max_steps=3, save_steps=1),
        "finetune": lambda case: finetune_command(encoder, texts, case / "run", max_steps=2),
    }
    for path in [*runs["finetune"].rglob("checkpoint-2"), *runs["pretrain"].glob("model.safetensors")]:
        assert path.exists()
    for name, model in models.items():  # which imports what the cases need
        (folder / "whole" / name).mkdir(parents=True)
        (folder / "whole" / name / "model").symlink_to(model)
        main(commands[name](folder / "whole" / name))
    (folder / "cases").mkdir()
    return Places(models, runs, commands, folder / "cases")
