"""The layout: imports point down one list, light modules stay light."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
import torch
from jaxtyping import TypeCheckError

import linformer_cli
import linformer_kit
from linformer_cli.settings.declare import COMMANDS
from linformer_kit.operator import slots

PACKAGE = Path(linformer_kit.__file__).parent
# From applications down to what everything may use. A module may import what stands below it.
LAYERS = (
    "__main__",
    "export",
    "analysis",
    "training",
    "inference",
    "compat",
    "interop",
    "linearized",
    "models",
    "report",
    "operator",
    "data",
    "files",
    "internals",
)
MODEL = LAYERS[LAYERS.index("linearized") : LAYERS.index("operator") + 1]
PURE_TORCH = ("operator",)
HEAVY = {"torch", "transformers", "datasets", "matplotlib", "numpy"}
OF_EXTRAS = {"accelerate", "datasets", "matplotlib", "onnx", "onnxruntime", "onnxscript", "openvino", "pandas", "peft"}
OF_EXTRAS |= {"pyarrow", "scipy", "sentence_transformers", "sklearn", "tensorboard"}

FILES = {
    ".".join(("linformer_kit", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}


def modules() -> dict[Path, str]:
    """Each file and the layer that it belongs to; `__init__`, which has the public names, stands outside."""
    return {FILES[name]: layer for name, layer in modules_by_name().items()}


def modules_by_name() -> dict[str, str]:
    return {name: name.split(".")[1] for name in FILES if name != "linformer_kit"}


@functools.cache
def imports(path: Path) -> set[str]:
    """Every module that a file imports, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            whole = (f"{node.module}.{alias.name}" for alias in node.names)
            names |= {name if name in FILES else str(node.module) for name in whole}
    return names


def layers_of(names: set[str]) -> set[str]:
    return {name.split(".")[1] for name in names if name.startswith("linformer_kit.")}


def test_imports_point_down():
    for path, layer in modules().items():
        found, allowed = imports(path), {*LAYERS[LAYERS.index(layer) + 1 :], layer}
        assert layers_of(found) <= allowed, path
        assert layer not in MODEL or "data" not in layers_of(found), f"{path}: models never import data"
        names = {name.partition(".")[0] for name in found}
        is_pure = "transformers" not in names and "linformer_kit.internals" not in found
        assert layer not in PURE_TORCH or is_pure, f"{path}: the operator imports no other library of models or data"


def test_the_command_line_imports_no_library():
    """Parser, settings and errors stand below everything, and start fast."""
    for path in Path(linformer_cli.__file__).parent.rglob("*.py"):
        assert not {name.partition(".")[0] for name in imports(path)} & {"linformer_kit", *HEAVY}, path


# What is private of other libraries, or of ours and named like it: torch's modules, datasets, sentence-transformers.
_NOT_OF_TRANSFORMERS = {"_modules", "_buffers", "_replace", "_fingerprint", "_model_card_text", "_mask_length"}
_MAY_CHANGE = re.compile(
    r"(transformers\.(models|masking_utils|integrations|[Tt]rain|utils\.output_cap)|(?!linformer_|__|torch\.fx).*\._)"
)


@pytest.mark.parametrize("name", [name for name, layer in modules_by_name().items() if layer not in PURE_TORCH])
def test_private_names_of_libraries_are_in_one_file(name):
    """So that a new transformers is checked there only; `self._…` are names of our classes, which may override."""
    if name == "linformer_kit.internals":
        return
    found, tree = set(), ast.parse(FILES[name].read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not is_own(node.value):
            found.add(node.attr)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("attr"):
            owner, *names = node.args
            found |= {each.value for each in names if isinstance(each, ast.Constant) and not is_own(owner)}
    own = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    own |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and is_own(node.value)}
    private = {each for each in found if isinstance(each, str) and re.match("_[^_]", each)}
    assert private <= own | _NOT_OF_TRANSFORMERS
    borrowed = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    theirs = [f"{node.module}.{each.name}" for node in borrowed for each in node.names]
    assert not [each for each in theirs if _MAY_CHANGE.match(each)]


def is_own(owner: ast.expr) -> bool:
    """`self`, `cls` or `super()`."""
    called = owner.func if isinstance(owner, ast.Call) else owner
    return isinstance(called, ast.Name) and called.id in ("self", "cls", "super")


def test_kernels_are_called_through_one_interface():
    """Nothing outside the folder imports a module of it."""
    inside = PACKAGE / "operator" / "kernels"
    for path in modules():
        if inside not in path.parents:
            assert not any(name.startswith("linformer_kit.operator.kernels.") for name in imports(path)), path


def test_no_file_imports_itself_by_way_of_others():
    graph = {name: imports(path) & set(FILES) for name, path in FILES.items()}
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def loaded_by(code: str, before: str = "") -> set[str]:
    """Top-level modules that code loads in a fresh interpreter, which has run the code before."""
    names = "{name.split('.')[0] for name in sys.modules}"
    script = f"{before}\nimport sys; loaded = {names}\n{code}\nprint(*({names} - loaded))"
    result = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return set(result.stdout.splitlines()[-1].split())  # what the code itself prints stands before


@pytest.mark.e2e
def test_help_is_light():
    code = "from linformer_cli.cli import main\nfor command in ([], ['pretrain'], ['predict'], ['embed']):\n"
    code += "    try: main([*command, '--help'])\n    except SystemExit: pass"
    assert not loaded_by(code) & HEAVY


@pytest.mark.e2e
def test_the_library_is_light():
    """No package of an extra is imported, beside those that the base class of its models imports where it finds them."""
    added = loaded_by("import linformer_kit", before="from transformers import PreTrainedModel")
    assert "linformer_kit" in added and not added & OF_EXTRAS


WITHOUT_EXTRAS = """
import shlex, sys
sys.modules |= dict.fromkeys(sys.argv[1:])  # as if they were not installed
import torch
import linformer_kit as lk
from linformer_cli.cli import main
from linformer_cli.settings.declare import COMMANDS
from transformers import AutoModel, BertConfig, BertModel

x = torch.zeros(1, 7, 6)
print(*lk.LinformerAttention(6, 2, max_seq_len=7, projected_dim=3)(x, x, x)[0].shape)
sizes = dict(hidden_size=6, num_attention_heads=2, intermediate_size=5, num_hidden_layers=1, vocab_size=11)
encoder = BertModel(BertConfig(**sizes))
print(type(AutoModel.from_config(lk.LinformerConfig(**sizes))).__name__)
try:
    lk.linearize(encoder, adapter="all-MiniLM-L6-v2-4096")
except lk.InputError as error:
    print(error)
print(type(lk.linearize(encoder, 3)).__name__)
for name, command in COMMANDS.items():
    if name not in ("linearize", "resize", "bench"):  # which need none
        print(name, file=sys.stderr)
        try:
            main([name, *shlex.split(command.example)])
        except SystemExit as exit_:
            assert exit_.code == 2
"""


@pytest.mark.e2e
def test_what_a_missing_extra_takes_away_is_said_in_one_line(tmp_path):
    command = [sys.executable, "-c", WITHOUT_EXTRAS, *OF_EXTRAS]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    expected = 'expected the package {} (pip install "linformer-kit[{}]"), got none'
    lines = ["1 7 6", "LinformerModel", expected.format("peft", "adapters"), "LinearBertModel"]
    assert result.stdout.splitlines() == lines, result.stderr
    said = dict(zip(*[iter(result.stderr.splitlines())] * 2, strict=True))  # a line for each command
    assert len(said) == len(COMMANDS) - 3 and result.returncode == 0
    for name, line in said.items():
        extra = "export" if name == "export" else "commands"
        assert re.fullmatch(re.escape("linformer: error: " + expected).replace(r"\{\}", r"(\w+)"), line)[2] == extra, (
            line
        )


def test_shapes_in_the_signatures_are_checked():
    """By jaxtyping's hook."""
    with pytest.raises(TypeCheckError, match="split_heads"):
        slots.split_heads(torch.zeros(2, 3), 3)
