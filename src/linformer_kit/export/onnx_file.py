"""Models as ONNX files, in float32 or int8, and ONNX Runtime, which runs them.

Imports the packages of the extra `export`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import onnxscript  # noqa: F401  torch.onnx imports it
import torch
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from linformer_cli.errors import InputError, input_errors
from linformer_kit.export.exportable import Arrays, Exportable, Run, example, quiet

RUNTIME, FILE = "ONNX Runtime", "model.onnx"
PACKAGES, INT8_PACKAGES = ("onnx", "onnxscript", "onnxruntime"), ()
_LARGEST = 2**31 - 2**20  # bytes of weights: the protobuf limit, less room for the graph
_SILENT = 4
IMPORTS = "import numpy as np\nimport onnxruntime"
RUN = """session = onnxruntime.InferenceSession("FOLDER/model.onnx")
outputs = session.run(OUTPUTS, {value.name: np.array(inputs[value.name]) for value in session.get_inputs()})"""
NOTES = ""


def write(source: Exportable, path: Path) -> None:
    """Write the model as one file, for every batch size and every length up to the limit.

    Raises:
        InputError: for weights too large for one file, and models that the exporter cannot convert.
    """
    if source.size > _LARGEST:
        raise InputError(
            f"model: expected at most 2 GB of weights, the limit of one ONNX file, got {source.size:,} bytes"
        )
    inputs = example(source)
    what = f"model: expected one that ONNX can express, got {type(source.model).__name__}"
    with quiet(), torch.no_grad(), input_errors(what):
        program = torch.onnx.export(
            source,
            (),
            kwargs=inputs,
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


def finish(path: Path, folder: Path, dtype: str) -> Run:
    """Write the int8 form of a file into a folder, if that is asked for; returns what runs the result."""
    if dtype == "int8":
        quantise(path, folder / FILE)
    return runner(folder / FILE)


def quantise(path: Path, out: Path) -> None:
    """Write the int8 form of a file: weights per channel, activations dynamically.

    Embeddings, and E and F if they are matrices, are read by `Gather`: stored as int8, used as floats.
    """
    kinds = ["MatMul", "Gather"]
    with quiet():
        quantize_dynamic(path, out, op_types_to_quantize=kinds, per_channel=True, weight_type=QuantType.QInt8)


def runner(path: Path, dtype: str = "float32") -> Run:
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
