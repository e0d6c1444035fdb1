"""The layout: imports point down one list, light modules stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import linformer_kit
from tests.conftest import slow_but

PACKAGE = Path(linformer_kit.__file__).parent
# From applications down to what everything may use. A module may import what stands below it.
LAYERS = (
    "__main__",
    "commands",
    "export",
    "experiments",
    "training",
    "inference",
    "report",
    "environment",
    "interop",
    "parallel",
    "linearized",
    "models",
    "operator",
    "data",
    "files",
    "settings",
    "errors",
    "_version",
)
MODEL = LAYERS[LAYERS.index("parallel") : LAYERS.index("operator") + 1]
PURE_TORCH = ("operator",)


def modules() -> dict[Path, str]:
    """Each file and the layer that it belongs to; `__init__` loads names lazily and stands outside."""
    files = {path: path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in PACKAGE.rglob("*.py")}
    return {path: layer for path, layer in files.items() if layer != "__init__"}


def imports(path: Path) -> set[str]:
    """Every module that a file imports, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            # `from linformer_kit import errors` names a module, `from linformer_kit.x import y` stands in one.
            whole = node.module == "linformer_kit"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} if whole else {node.module}
    return found


def layers_of(names: set[str]) -> set[str]:
    return {name.split(".")[1] for name in names if name.startswith("linformer_kit.")}


def test_every_file_has_a_place():
    assert set(modules().values()) <= set(LAYERS)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path):
    layer = modules()[path]
    allowed = {*LAYERS[LAYERS.index(layer) + 1 :], layer}
    assert layers_of(imports(path)) <= allowed
    if layer in MODEL:
        assert "data" not in layers_of(imports(path)), "models never import data"
    if layer in PURE_TORCH:
        assert not any(name.split(".")[0] == "transformers" for name in imports(path)), "the operator is pure torch"


def test_kernels_are_called_through_one_interface():
    """Nothing outside the folder imports a module of it."""
    inside = PACKAGE / "operator" / "kernels"
    for path in modules():
        if inside not in path.parents:
            assert not any(name.startswith("linformer_kit.operator.kernels.") for name in imports(path)), path


def loaded_after(code: str) -> set[str]:
    """Top-level modules that are loaded after running code in a fresh interpreter."""
    script = f"{code}\nimport sys; print(' '.join({{name.split('.')[0] for name in sys.modules}}))"
    result = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return set(result.stdout.splitlines()[-1].split())  # what the code itself prints stands before


HEAVY = {"torch", "transformers", "datasets", "matplotlib", "numpy"}


@pytest.mark.e2e
def test_importing_the_package_is_light():
    assert not loaded_after("import linformer_kit") & HEAVY
    assert "torch" in loaded_after("import linformer_kit; linformer_kit.LinformerAttention")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["pretrain", "--help"],
        ["finetune", "--help"],
        ["predict", "--help"],
        ["spectrum", "--help"],
        ["theorems", "--help"],
        ["export", "--help"],
        ["bench"],
        ["bench", "table2", "--help"],
    ],
)
@pytest.mark.e2e
def test_help_is_light(arguments):
    code = f"from linformer_kit.commands.cli import main\ntry: main({arguments})\nexcept SystemExit: pass"
    assert not loaded_after(code) & HEAVY


AUTO = "from transformers import AutoConfig, AutoModelForMaskedLM; c = AutoConfig.for_model('linformer'); "
AUTO += "from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING as m; assert type(c) in m"


FIRST = (
    "import linformer_kit, importlib.util; importlib.util.find_spec('transformers')",
    "import transformers, linformer_kit",
    "import linformer_kit.models.configuration",
    "import linformer_kit, transformers",
    "import transformers.models.auto.configuration_auto, linformer_kit",
    "from transformers import AutoModel; import linformer_kit",
    "import transformers.modeling_layers, linformer_kit",
    "import linformer_kit, transformers.modeling_layers",
    "import linformer_kit; linformer_kit.LinformerConfig",
    "import linformer_kit.models.encoder",
    "import linformer_kit.models.modeling",
    "import linformer_kit.models.heads",
)


@pytest.mark.parametrize("first", slow_but(FIRST[:3], FIRST))
@pytest.mark.e2e
def test_auto_classes_know_linformer_whatever_is_imported_first(first):
    assert "torch" in loaded_after(f"{first}\n{AUTO}")


@pytest.mark.e2e
def test_shapes_in_the_signatures_are_true():
    """The annotations, checked by a type checker while the models run, in a process of its own."""
    code = """
from jaxtyping import install_import_hook
with install_import_hook(["linformer_kit.operator.slots", "linformer_kit.operator.padding", "linformer_kit.operator.reference", "linformer_kit.operator.kernels.products", "linformer_kit.operator.kernels.softmax",
                          "linformer_kit.operator.kernels.tokens", "linformer_kit.operator.projections", "linformer_kit.operator.attention",
                          "linformer_kit.models.embeddings", "linformer_kit.models.losses",
                          "linformer_kit.models.encoder", "linformer_kit.models.modeling", "linformer_kit.models.heads", "linformer_kit.parallel.sequence",
                          "linformer_kit.parallel.collectives", "linformer_kit.experiments.inspection",
                          "linformer_kit.training.metrics", "linformer_kit.experiments.cost.ceiling",
                          "linformer_kit.experiments.cost.encoders"], "beartype.beartype"):
    import torch
    import linformer_kit as lk
    from linformer_kit.operator import reference, slots
    from linformer_kit.models import modeling
    from linformer_kit.training import metrics
    from linformer_kit.experiments import inspection
    from linformer_kit.experiments.cost import ceiling, encoders
    from linformer_kit.settings import bench as settings
from jaxtyping import TypeCheckError
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
ids = torch.randint(5, 101, (2, 31))
mask = torch.ones(2, 31, dtype=torch.long)
mask[0, 19:] = 0
kinds = [{"projection": name, "shorter_input": form} for name in ("linear", "mean_pool", "max_pool", "conv", "dense_conv", "random")
         for form in ("prefix", "stretch")]
kinds += [{"sharing": "none", "projected_dim": [[7, 5, 3], [2, 2, 2]]}, {"sharing": "layerwise"}, {"attention": "full"}]
for fields in kinds:
    sizes = {"vocab_size": 101, "max_position_embeddings": 37, "projected_dim": 7, "hidden_size": 33,
             "num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 29}
    config = lk.LinformerConfig(**{**sizes, **fields})
    model = lk.LinformerForMaskedLM(config)
    model(ids, attention_mask=mask, labels=ids, output_attentions=True)
    metrics.masked_token_losses(model, ids, ids)
    labels = torch.tensor([0, 1])
    lk.LinformerForSequenceClassification(config)(ids, mask, labels=labels)
    lk.LinformerForTokenClassification(config)(ids, mask, labels=ids % 2)
    lk.LinformerForQuestionAnswering(config)(ids, mask, start_positions=labels, end_positions=labels)
    model.resize_sequence_length(74, mode="interpolate")
    if config.attention == "linformer" and config.shorter_input == "prefix" and config.projection in ("linear", "mean_pool"):
        parallel = lk.SequenceParallel(lk.LinformerForSequenceClassification(config), mesh)
        hidden = parallel.model(**parallel.shard({"input_ids": ids, "attention_mask": mask}), output_hidden_states=True)
        parallel.gather(hidden.hidden_states[0], 31)
        parallel.count_labels(labels)
        parallel.full_state_dict()
    inspection.context_mappings(model.linformer, ids[:1], [0], [1])
x = torch.randn(1, 2, 5, 3)
reference.svd_attention(x, x, x, 2)
cpu, small = torch.device("cpu"), settings.BenchSettings(hidden_size=33, num_attention_heads=3, intermediate_size=29)
for product in ceiling.layer_products(37, 7, 2, settings=small, device=cpu).values():
    product.run()
encoder = encoders.Encoder(kind="linformer", seq_len=37, layers=2, projected_dim=7)
encoders.runner(encoders.build(encoder, small, cpu), encoders.random_ids(2, 37, 101, 0, cpu), "train")()
try:
    slots.split_heads(torch.zeros(2, 3), 3)
except TypeCheckError:
    print("checked")
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "checked\n"
