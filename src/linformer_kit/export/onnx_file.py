"""`linformer export`: a model as an ONNX file, in float32 or int8, which runs without PyTorch and agrees with it.

Imports the packages of the extra `export`.
"""

from __future__ import annotations

import json
import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import onnxscript  # noqa: F401  torch.onnx imports it
import torch
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from transformers import PreTrainedModel

from linformer_cli.errors import InputError, input_errors
from linformer_cli.settings import ExportSettings, without_local_paths
from linformer_kit.environment import environment
from linformer_kit.export.exportable import (
    CLASSIFIER,
    EMBEDDER,
    Arrays,
    Case,
    Exportable,
    Run,
    cases,
    check_agreement,
    check_tokenizer,
    differences,
    load,
    random_inputs,
)
from linformer_kit.files.manifest import write_manifest
from linformer_kit.files.tokenizer import save_tokenizer
from linformer_kit.files.writing import whole_folder
from linformer_kit.interop.checkpoints.sentences import sentence_files, warn_of_left_out, write_files
from linformer_kit.linearized.classes import stock_name
from linformer_kit.models.configuration import LinformerConfig
from linformer_kit.report.base import write_json
from linformer_kit.report.card import write_card

FILE = "model.onnx"
_LARGEST = 2**31 - 2**20  # bytes of weights: the protobuf limit, less room for the graph
_SILENT = 4
_USE = """ONNX Runtime runs it; neither PyTorch nor linformer-kit is needed.

```python
import json

import numpy as np
import onnxruntime
TOKENS
session = onnxruntime.InferenceSession("FOLDER/model.onnx")
outputs = session.run(OUTPUTS, {value.name: np.array(inputs[value.name]) for value in session.get_inputs()})
ANSWER
```"""
# By whether there is a file for the library `tokenizers`.
_TOKENS = {
    True: """from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("FOLDER/tokenizer.json")  # truncates at LIMIT tokens
tokenizer.enable_padding(pad_id=PADDING)
encoded = tokenizer.encode_batch([TEXTS])
inputs = {
    "input_ids": [each.ids for each in encoded],
    "attention_mask": [each.attention_mask for each in encoded],
    "token_type_ids": [each.type_ids for each in encoded],
}""",
    False: """from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
inputs = tokenizer([TEXTS], padding=True, truncation=True)""",
}
_PAIR = '("A text.", "The second text of the pair.")'
_ANSWER_OF_CLASSIFIER = """labels = json.load(open("FOLDER/config.json"))["id2label"]
print([labels[str(number)] for number in outputs[0].argmax(axis=1)])"""
_ANSWER_OF_EMBEDDER = "embeddings = outputs[0]  # a row for each text\nprint(embeddings.shape)"
_ANSWER = "print([output.shape for output in outputs])"


def main(settings: ExportSettings) -> None:
    """Export and print the results."""
    results = export(settings)
    agreement = results["agreement"]
    print(f"{results['model']}, inputs {', '.join(results['inputs'])}, at most {results['max_length']:,} tokens")
    print(
        f"Largest difference from PyTorch over {len(agreement['shapes'])} shapes: "
        f"{agreement['largest_difference']:.1e} (PyTorch's own from float64: {agreement['float32_error']:.1e}, "
        f"allowed: {agreement['tolerance']:.1e})"
    )
    print("Size: " + ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in results["bytes"].items()))
    if "int8_difference" in results:
        print(f"Largest difference of int8: {results['int8_difference']:.1e}")
    print(f"Saved in {settings.out}")


def export(settings: ExportSettings) -> dict[str, Any]:
    """Write a model as `model.onnx`, its tokenizer, configuration and card; float32 is checked before it is quantised.

    Returns:
        The description of the result, as in `export.json`: `bytes` of each form, `agreement` as from `check_agreement`,
        and of int8 the largest difference from PyTorch.

    Raises:
        InputError: for a model that cannot be exported, or a result that does not agree with PyTorch. Nothing is
            written then.
    """
    source = load(settings.model)
    files = sentence_files(settings.model) if source.head == EMBEDDER else {}
    warn_of_left_out(settings.model, files)
    with whole_folder(Path(settings.out)) as folder, tempfile.TemporaryDirectory() as scratch:
        save_tokenizer(source.tokenizer, folder)
        check_tokenizer(source, folder)
        path = (Path(scratch) if settings.int8 else folder) / FILE
        write_onnx(source, path)
        results: dict[str, Any] = {
            "command": "export",
            "model": type(source.model).__name__,
            "inputs": list(source.input_names),
            "outputs": list(source.head.outputs),
            "max_length": source.limit,
            "bytes": {"PyTorch": source.size, "ONNX Runtime": path.stat().st_size},
            "agreement": check_agreement(source, runner(path)),
        }
        if settings.int8:
            quantise(path, folder / FILE)
            results["bytes"]["ONNX Runtime int8"] = (folder / FILE).stat().st_size
            results["int8_difference"] = max(differences(source, runner(folder / FILE), cases(source.limit)).values())
        write_files(files, folder)
        write_configuration(source.model, folder)
        write_card(source.model, folder, source.limit, use=_use(source))
        versions = {name: version(name) for name in ("onnx", "onnxscript", "onnxruntime")}
        results["environment"] = environment(torch.device("cpu")) | versions
        results["settings"] = without_local_paths(settings)
        write_json(results, folder / "export.json")
        write_manifest(folder)
    return results


def _use(source: Exportable) -> str:
    """How to run the file, on texts or, where the model was trained on pairs, on a pair; with the default prompt."""
    is_pair = (getattr(source.model.config, "trained_columns", None) or {}).get("text_pair")
    answers = {CLASSIFIER: _ANSWER_OF_CLASSIFIER, EMBEDDER: _ANSWER_OF_EMBEDDER}
    texts = [f"{source.prompt}A text.", f"{source.prompt}Another, longer text."]
    parts = {
        "TOKENS": _TOKENS[source.tokenizer.is_fast],
        "ANSWER": answers.get(source.head, _ANSWER),
        "TEXTS": _PAIR if is_pair else json.dumps(texts, ensure_ascii=False)[1:-1],
        "PADDING": str(source.tokenizer.pad_token_id or 0),
        "LIMIT": f"{source.limit:,}",
        "OUTPUTS": '["sentence_embedding"]' if source.head == EMBEDDER else "None",
    }
    use = _USE
    for name, part in parts.items():
        use = use.replace(name, part)
    return use


def write_configuration(model: PreTrainedModel, folder: Path) -> None:
    """Write `config.json` without the model types of this package: programs that run ONNX files do not know them."""
    fields = json.loads(model.config.to_json_string())
    if "Classification" in type(model).__name__:
        fields["id2label"] = model.config.id2label  # which transformers leaves out where the names are its own
    if model.config.model_type == LinformerConfig.model_type:
        del fields["model_type"]
    if linear := fields.pop("linformer", None):
        del fields["attn_implementation"]
        fields["model_type"] = linear["base_model_type"]
        fields["architectures"] = [stock_name(type(model).__name__)]
    (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


def write_onnx(source: Exportable, path: Path) -> None:
    """Write the model as one file, for every batch size and every length up to the limit.

    Raises:
        InputError: for weights too large for one file, and models that the exporter cannot convert.
    """
    if source.size > _LARGEST:
        raise InputError(
            f"model: expected at most 2 GB of weights, the limit of one ONNX file, got {source.size:,} bytes"
        )
    inputs = random_inputs(source, Case(2, min(7, source.limit), "left"))
    what = f"model: expected one that ONNX can express, got {type(source.model).__name__}"
    with _quiet(), torch.no_grad(), input_errors(what):
        program = torch.onnx.export(
            source,
            (),
            kwargs={name: torch.from_numpy(array) for name, array in inputs.items()},
            input_names=list(inputs),
            output_names=list(source.head.outputs),
            dynamic_shapes={name: {0: "batch", 1: "sequence"} for name in inputs},
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    for part in (*model.graph.node, *model.graph.input, *model.graph.output, *model.graph.value_info):
        part.ClearField("metadata_props")  # paths and lines of the source code
    _reject_longer(model, source.limit)
    helper.set_model_props(model, {"max_length": str(source.limit)})
    onnx.save(model, path)


def quantise(path: Path, out: Path) -> None:
    """Write the int8 form of a file: weights per channel, activations dynamically.

    Embeddings, and E and F if they are matrices, are read by `Gather`: stored as int8, used as floats.
    """
    kinds = ["MatMul", "Gather"]
    with _quiet():
        quantize_dynamic(path, out, op_types_to_quantize=kinds, per_channel=True, weight_type=QuantType.QInt8)


def runner(path: Path) -> Run:
    """A function that runs a file, with as many threads as PyTorch."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _SILENT  # errors are raised as well
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(inputs: Arrays) -> list[Any]:
        return session.run(None, inputs)

    return run


def _reject_longer(model: onnx.ModelProto, limit: int) -> None:
    """Insert a check of the length at the start; ONNX has no raise, but the error of a failing node contains its name.

    It takes element `length - 1` of `limit` zeros and adds it to every input, so that all other nodes depend on it;
    in PyTorch code, nodes that read only the shape of an input would not.
    """
    graph = model.graph
    zeros = numpy_helper.from_array(torch.zeros(limit, dtype=torch.int64).numpy(), "length_zeros")
    one = numpy_helper.from_array(torch.ones((), dtype=torch.int64).numpy(), "length_one")
    graph.initializer.extend([zeros, one])
    names = [value.name for value in graph.input]
    for node in graph.node:
        node.input[:] = [f"{name}_checked" if name in names else name for name in node.input]
    nodes = [
        helper.make_node("Shape", [names[0]], ["length_list"], start=1, end=2),
        helper.make_node("Squeeze", ["length_list"], ["length"]),
        helper.make_node("Sub", ["length", "length_one"], ["length_last"]),
        helper.make_node(
            "Gather", ["length_zeros", "length_last"], ["length_zero"], name=f"input longer than {limit} tokens"
        ),
        *(helper.make_node("Add", [name, "length_zero"], [f"{name}_checked"]) for name in names),
    ]
    for node in reversed(nodes):
        graph.node.insert(0, node)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the exporters' warnings, which are about missing optional libraries and their own internals."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
