"""Commands on files of any content.

Each case changes one file of a model, a run, a checkpoint (whose manifest is made to fit) or the settings, and runs a
command in a process of its own, with bounds on time and memory. A failing case says its seed; `case(seed, ...)` makes
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
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
import yaml
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, RobertaConfig, RobertaForSequenceClassification

from linformer_kit.commands.cli import main
from linformer_kit.files.manifest import write_manifest
from linformer_kit.training import finetune, pretrain
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
YAMLS = (
    b"a: &a [b, b]\nc: &c [*a, *a]\nd: [*c, *c]\n",
    b"\n".join(b"a%d: &a%d [%s]" % (n, n, b", ".join([b"*a%d" % (n - 1) if n else b"x"] * 9)) for n in range(12)),
    b"model: &a {b: *a}\n",
    b"!!python/object/apply:os.system ['true']\n",
    b"seed: !!python/name:os.system\n",
    b"[" * 5000,
    b"{a: " * 3000,
    b"\0\1\2\xff\xfe",
    b"a: b: c\n\t- d\n",
    b"---\na: 1\n---\nb: 2\n",
    b"seed: 0x_\nmax_steps: 1:2:3\nlearning_rate: .inf\n",
    b"? [a, b]\n: c\n",
    b"<<: [1, 2]\n",
    b"seed: 2026-99-99\n",
    b"seed: !!timestamp x\nmax_steps: !!int ''\n",
    b"seed: !!binary '%'\n",
    b"seed: !!float ''\nmax_steps: !!bool maybe\n",
    b"learning_rate: 1" + b"0" * 400,
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
    """A copy of nested JSON with one value changed, removed or added."""
    root = copy.deepcopy({"": value})
    parent, key = root, ""
    while isinstance(parent[key], dict | list) and parent[key] and draw.random() < 0.8:
        parent = parent[key]
        key = draw.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
    kind = draw.random()
    if kind < 0.1 and parent is not root:
        del parent[key]
    elif kind < 0.2 and isinstance(parent[key], dict):
        parent[key][draw.choice(["", "a", "__class__", "dtype", "quantization_config", "num_labels"])] = draw.choice(
            VALUES
        )
    elif kind < 0.3 and isinstance(parent[key], list):
        parent[key] = parent[key] * draw.choice([2, 100]) if len(parent[key]) < 1000 else parent[key][:1]
    elif kind < 0.35:
        parent[key] = [parent[key]]
    elif kind < 0.4 and isinstance(parent[key], int | float):
        parent[key] = draw.choice(
            [-parent[key], parent[key] + 1, str(parent[key]), float(parent[key]), parent[key] * 1000]
        )
    else:
        parent[key] = draw.choice(VALUES)
    return root[""]


def changed_text(draw: random.Random, content: bytes) -> bytes:
    """JSON of another content, or no JSON at all."""
    if draw.random() < 0.15:
        return changed_bytes(draw, content)
    if draw.random() < 0.05:
        deep = draw.choice([50, 900, 100_000])
        return draw.choice([b"[" * deep + b"]" * deep, b'{"a":' * deep + b"1" + b"}" * deep, b"1" * 5000, b'"\\ud800"'])
    try:
        value = json.loads(content)
    except ValueError:
        return changed_bytes(draw, content)
    for _ in range(draw.choice([1, 1, 1, 2, 5])):
        value = changed_json(draw, value)
    return json.dumps(value).encode()


def changed_bytes(draw: random.Random, content: bytes) -> bytes:
    place, kind = draw.randrange(len(content) + 1), draw.randrange(6)
    if kind == 0:
        return content[:place]
    if kind == 1:
        return content[:place] + draw.randbytes(draw.choice([1, 8, 1000])) + content[place:]
    if kind == 2:
        flipped = bytearray(content)
        for _ in range(draw.choice([1, 10])):
            flipped[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        return bytes(flipped)
    return (b"", draw.randbytes(1000), b"\xef\xbb\xbf" + content)[kind - 3]


def changed_safetensors(draw: random.Random, path: Path) -> None:
    """Another header, other tensors, or another structure in the metadata."""
    content, kind = path.read_bytes(), draw.random()
    (size,) = struct.unpack("<Q", content[:8])
    header, body = json.loads(content[8 : 8 + size]), content[8 + size :]
    if kind < 0.15:
        path.write_bytes(changed_bytes(draw, content))
    elif kind < 0.3:
        path.write_bytes(struct.pack("<Q", draw.choice([0, 1, size + 1, 2**40, 2**64 - 1])) + content[8:])
    elif kind < 0.5:
        text = json.dumps(changed_json(draw, header)).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    elif kind < 0.75 and "structure" in header.get("__metadata__", {}):
        header["__metadata__"]["structure"] = changed_text(draw, header["__metadata__"]["structure"].encode()).decode(
            errors="replace"
        )
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    else:
        tensors = load_file(path)
        for name in draw.sample(sorted(tensors), min(len(tensors), draw.choice([1, 1, 3]))):
            tensors[name] = changed_tensor(draw, tensors[name])
        if tensors and draw.random() < 0.2:
            tensors.pop(draw.choice(sorted(tensors)), None)
        if draw.random() < 0.1:
            tensors["a"] = torch.zeros(3)
        save_file(tensors, path, metadata=header.get("__metadata__"))


def changed_tensor(draw: random.Random, tensor: torch.Tensor) -> torch.Tensor:
    kind = draw.randrange(7)
    if kind == 0:
        return torch.zeros(draw.choice([(), (0,), (1,), (3, 5), (2, 2, 2, 2), (10**6,)]))
    if kind == 1:
        return tensor.to(
            draw.choice([torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool, torch.bfloat16])
        )
    if kind == 2:
        return torch.full_like(tensor, draw.choice([0, 1, 255]) if not tensor.is_floating_point() else float("nan"))
    if kind == 3:
        return tensor[None].contiguous()
    if kind == 4:
        return tensor.flatten()[: tensor.numel() // 2].clone()
    if kind == 5:
        return tensor.float() * 1e30
    return tensor.t().contiguous() if tensor.dim() == 2 else tensor.clone()


def change(draw: random.Random, path: Path) -> None:
    """Change one file, depending on its kind."""
    if draw.random() < 0.03:
        path.unlink()
        if draw.random() < 0.5:
            path.mkdir()
    elif path.suffix == ".safetensors":
        changed_safetensors(draw, path)
    elif path.suffix == ".yaml":
        path.write_bytes(changed_yaml(draw, yaml.safe_load(path.read_text())))
    else:
        path.write_bytes(changed_text(draw, path.read_bytes()))


def changed_yaml(draw: random.Random, content: dict[str, Any]) -> bytes:
    kind = draw.random()
    if kind < 0.3:
        return draw.choice(YAMLS)
    text = yaml.safe_dump(changed_json(draw, content)).encode()
    return changed_bytes(draw, text) if kind < 0.4 else text


# Cases -------------------------------------------------------------------------------------------------------------------


def of_a_model(draw: random.Random, places: Places, folder: Path) -> list[str]:
    name = draw.choice(sorted(places.models))
    shutil.copytree(places.models[name], folder / "model")
    files = sorted(path for path in (folder / "model").iterdir() if path.suffix in (".json", ".safetensors", ".yaml"))
    weighty = [path for path in files if path.name in ("config.json", "model.safetensors")]
    change(draw, draw.choice(files + 2 * weighty))
    return places.commands[name](folder)


def of_a_run(draw: random.Random, places: Places, folder: Path) -> list[str]:
    name = draw.choice(sorted(places.runs))
    shutil.copytree(places.runs[name], folder / "run")
    change(draw, draw.choice([folder / "run" / file for file in ("settings.yaml", "run.json", "metrics.json")]))
    return [*places.commands[name](folder), "--resume"]


def checkpoint(folder: Path) -> Path:
    """The first of a copied run."""
    return next((folder / "run").rglob("checkpoint-1"))


def of_a_checkpoint(draw: random.Random, places: Places, folder: Path) -> list[str]:
    name = draw.choice(sorted(places.runs))
    shutil.copytree(places.runs[name], folder / "run")
    for path in (folder / "run").rglob("metrics.json"):
        path.unlink()  # so that there is something left to do
    files = [path for path in sorted(checkpoint(folder).iterdir()) if path.name != "manifest.json"]
    change(draw, draw.choice(files))
    write_manifest(checkpoint(folder))
    return [*places.commands[name](folder), "--resume"]


def of_settings(draw: random.Random, places: Places, folder: Path) -> list[str]:
    name = draw.choice(sorted(places.runs))
    content = yaml.safe_load((places.runs[name] / "settings.yaml").read_text())
    content = {key: value for key, value in content.items() if value is not None or draw.random() < 0.1}
    (folder / "settings.yaml").write_bytes(changed_yaml(draw, content))
    return [name, f"--config={folder / 'settings.yaml'}", f"--output_dir={folder / 'new'}"]


KINDS = (of_a_model, of_a_model, of_a_checkpoint, of_a_checkpoint, of_a_run, of_settings)


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
    end = time.monotonic() + CASE_SECONDS
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return -signal.SIGKILL, f"no end after {CASE_SECONDS} seconds; {said.read_text(errors='replace')}"
        time.sleep(0.005)
    return os.waitstatus_to_exitcode(status), said.read_text(errors="replace")


def _run_in_child(command: list[str], said: Path, trained: bool) -> NoReturn:
    code = 99
    try:
        resource.setrlimit(resource.RLIMIT_AS, (CASE_BYTES, CASE_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with said.open("w") as file:
            os.dup2(file.fileno(), 2)
            os.dup2(os.open(os.devnull, os.O_RDWR), 1)
            os.dup2(1, 0)
            sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode) for number, mode in enumerate("rww"))
            if not trained:
                pretrain.train_model = finetune._train = _train_nothing
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


def fuzz(places: Places, seconds: float, first: int = 0) -> Iterator[str]:
    """Run cases until the time is over; return the failures."""
    end = time.monotonic() + seconds
    seed = first
    while time.monotonic() < end:
        if (found := case(seed, places)) is not None:
            yield found
        seed += 1


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
    ignored = shutil.ignore_patterns("seed-*", "*.png", "manifest.json")
    shutil.copytree(runs["finetune"], models["classifier"], ignore=ignored)
    for name, model in theirs.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
        models[name] = folder / name
    lines = folder / "lines.txt"
    lines.write_text("number 3 was good\nbad\n")
    commands: dict[str, Callable[[Path], list[str]]] = {
        "encoder": lambda case: ["fill-mask", str(case / "model"), "number <mask> was"],
        "bert": lambda case: ["convert", str(case / "model"), str(case / "out")],
        "roberta": lambda case: ["convert", str(case / "model"), str(case / "out")],
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
