"""Models as files of OpenVINO, which runs full attention fused and windows in blocks, without an n × n matrix.

Imports the packages of the extra `openvino`.
"""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import openvino
import torch
from openvino import opset14 as operations
from openvino.frontend.pytorch import ConversionExtension

from linformer_cli.errors import input_errors
from linformer_kit.export.exportable import Arrays, Exportable, Run, example, quiet
from linformer_kit.internals import without_length_guards
from linformer_kit.report.base import write_json

RUNTIME, FILE = "OpenVINO", "openvino_model.xml"
PACKAGES, INT8_PACKAGES = ("openvino",), ("nncf",)
SETTINGS = "ov_config.json"  # the name in the pages of sentence-transformers
_OPTIONS: dict[str, dict[str, Any]] = {
    "float32": {"INFERENCE_PRECISION_HINT": "f32"},
    "bfloat16": {"INFERENCE_PRECISION_HINT": "bf16"},
    # Inputs of a linear layer have a scale for 128 numbers of a token: for 32 it is slower, for all less exact. Layers
    # with fewer inputs get them in float32.
    "int8": {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 128},
}
IMPORTS = "import numpy as np\nimport openvino"
RUN = """settings = json.load(open("FOLDER/ov_config.json"))
model = openvino.compile_model("FOLDER/openvino_model.xml", "CPU", settings)
results = model({value.any_name: np.array(inputs[value.any_name]) for value in model.inputs})
outputs = [results[name] for name in OUTPUTS]"""
NOTES = """
A text longer than LIMIT tokens is an error. `ov_config.json` has the settings, which others can join:

| setting | value |
|---|---|
| `INFERENCE_PRECISION_HINT` | `f32`, or `bf16`: about twice as fast on processors with AVX-512 BF16 or AMX |
| `DYNAMIC_QUANTIZATION_GROUP_SIZE` | of an int8 file: how many numbers of a token share a scale; 0: none is quantised |
| `PERFORMANCE_HINT` | `LATENCY`: one request on all cores; `THROUGHPUT`: several at once, with `AsyncInferQueue` |
| `INFERENCE_NUM_THREADS` | threads in all; by default one for each physical core |
| `NUM_STREAMS` | requests that run at once, each with its share of the threads |

The names of files, inputs and outputs are those that optimum-intel reads, by which
`SentenceTransformer("FOLDER", backend="openvino", model_kwargs={"ov_config": "FOLDER/ov_config.json"})` runs embedders.
It needs an environment of its own: its version 2.2 asks for transformers below 5.6, older than linformer-kit does.
"""


def write(source: Exportable, path: Path) -> None:
    """Write the model as `path` and its weights beside it, for every batch size and every length up to the limit.

    Raises:
        InputError: for models that cannot be converted.
    """
    inputs, any_size = example(source), torch.export.Dim.DYNAMIC
    what = f"model: expected one that OpenVINO can express, got {type(source.model).__name__}"
    # As `torch.onnx.export` has it: no guard on lengths, so that short texts have the same program.
    with quiet(), torch.no_grad(), input_errors(what), without_length_guards():
        program = torch.export.export(
            source,
            (),
            kwargs=inputs,
            dynamic_shapes={name: {0: any_size, 1: any_size} for name in inputs},
            strict=False,
        )
        model = openvino.convert_model(program, extension=_CONVERTERS)
        for port, name in zip(model.outputs, source.head.outputs, strict=True):
            port.get_tensor().set_names({name})
        # A longer input is an error of the runtime, which names this shape.
        model.reshape({name: openvino.PartialShape([-1, (1, source.limit)]) for name in inputs})
        openvino.save_model(model, path, compress_to_fp16=False)


def _converter(function: Any, operation: Any) -> ConversionExtension:
    """How a function of two sizes is converted; it goes by the name that programs of torch print."""

    def convert(node: Any) -> list[Any]:
        sizes = [operations.convert(node.get_input(index), "i64") for index in range(2)]
        return operation(*sizes).outputs()

    return ConversionExtension(str(function), convert)


# Functions that OpenVINO's converter does not know.
_CONVERTERS = [_converter(torch.sym_max, operations.maximum), _converter(torch.sym_min, operations.minimum)]


def finish(path: Path, folder: Path, dtype: str) -> Run:
    """Write the settings of the runtime for a number format into a folder; returns what runs the file with them.

    The file of int8 has other weights; the other formats cannot be asked for in the file itself.
    """
    if dtype == "int8":
        quantise(path, folder / FILE)
    write_json({"PERFORMANCE_HINT": "LATENCY", **_OPTIONS[dtype]}, folder / SETTINGS)
    return runner(folder / FILE, dtype)


def quantise(path: Path, out: Path) -> None:
    """Write the int8 form of a file: weights by channel; activations in parts of each token, when it runs."""
    with quiet(), redirect_stdout(sys.stderr):  # progress
        import nncf  # which takes seconds

        model = nncf.compress_weights(_core().read_model(path), mode=nncf.CompressWeightsMode.INT8_ASYM)
        openvino.save_model(model, out, compress_to_fp16=False)


@cache
def _core() -> openvino.Core:
    """The only one of the process.

    Each `Core` that runs something (`openvino.compile_model` makes one) gives its thread a stack for signals. The last
    of several may leave one whose memory is freed, and then the next signal, such as Ctrl-C, crashes the process.
    """
    return openvino.Core()


def runner(path: Path, dtype: str = "float32") -> Run:
    """A function that runs a file, with as many threads as PyTorch."""
    options = {**_OPTIONS[dtype], "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    model = _core().compile_model(path, "CPU", options)

    def run(inputs: Arrays) -> list[Any]:
        results = model(inputs)
        return [results[port] for port in model.outputs]

    return run
