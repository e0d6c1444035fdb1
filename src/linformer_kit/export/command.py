"""`linformer export`: a folder with a model as a file that agrees with PyTorch, and what is needed to run it."""

from __future__ import annotations

import importlib
import json
import logging
import math
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from linformer_cli.errors import InputError, extra_errors
from linformer_cli.settings import ExportSettings, without_local_paths
from linformer_kit.export.exportable import (
    CLASSIFIER,
    EMBEDDER,
    Exportable,
    cases,
    check_agreement,
    check_tokenizer,
    differences,
    load,
)
from linformer_kit.files.manifest import write_manifest
from linformer_kit.files.tokenizer import save_tokenizer
from linformer_kit.files.writing import whole_folder
from linformer_kit.interop.checkpoints import sentence_files, warn_of_left_out, write_files
from linformer_kit.linearized.classes import stock_name
from linformer_kit.models.configuration import LinformerConfig
from linformer_kit.report.base import write_json
from linformer_kit.report.card import write_card
from linformer_kit.report.environment import environment

logger = logging.getLogger(__name__)

_EXTRAS = {"onnx": "export", "openvino": "openvino"}
_USE = """RUNTIME runs it; neither PyTorch nor linformer-kit is needed.

```python
import json

IMPORTS
TOKENS
RUN
ANSWER
```
NOTES"""
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
_LABELS = 'labels = json.load(open("FOLDER/config.json"))["id2label"]\n'
_ANSWER_OF_CLASSIFIER = f"{_LABELS}print([labels[str(number)] for number in outputs[0].argmax(axis=1)])"
_ANSWER_OF_MULTI_LABEL = f"""{_LABELS}for logits in outputs[0]:
    print([labels[str(number)] for number in (logits >= 0).nonzero()[0]])  # those of a probability of 0.5 or more"""
_ANSWER_OF_REGRESSION = "print(outputs[0])"
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
    if settings.dtype != "float32":
        print(f"Largest difference of {settings.dtype}: {results[f'{settings.dtype}_difference']:.1e}")
    print(f"Saved in {settings.out}")


def export(settings: ExportSettings) -> dict[str, Any]:
    """Write a model as a file of its format, its tokenizer, configuration and card.

    The file is checked in float32, and then in the number format that it is for.

    Returns:
        The description of the result, as in `export.json`: `bytes` of each form, `agreement` as from `check_agreement`,
        and of another format than float32 the largest difference from PyTorch.

    Raises:
        InputError: for a model that cannot be exported, or a result that does not agree with PyTorch. Nothing is
            written then.
    """
    with extra_errors(_EXTRAS[settings.format]):
        kind: Any = importlib.import_module(f"linformer_kit.export.{settings.format}_file")
        packages = kind.PACKAGES + (kind.INT8_PACKAGES if settings.dtype == "int8" else ())
        versions = {name: version(name) for name in packages}
    source = load(settings.model)
    files = sentence_files(settings.model) if source.head == EMBEDDER else {}
    warn_of_left_out(settings.model, files)
    if getattr(source.model.config, "trained_pieces", False):
        logger.warning("model: reads long texts as pieces; the file reads their first %d tokens only", source.limit)
    with whole_folder(Path(settings.out)) as folder, tempfile.TemporaryDirectory() as scratch:
        save_tokenizer(source.tokenizer, folder)
        check_tokenizer(source, folder)
        path = (Path(scratch) if settings.dtype == "int8" else folder) / kind.FILE
        kind.write(source, path)
        results: dict[str, Any] = {
            "command": "export",
            "model": type(source.model).__name__,
            "inputs": list(source.input_names),
            "outputs": list(source.head.outputs),
            "max_length": source.limit,
            "bytes": {"PyTorch": source.size, kind.RUNTIME: _size(path)},
            "agreement": check_agreement(source, kind.runner(path)),
        }
        run = kind.finish(path, folder, settings.dtype)
        if settings.dtype == "int8":
            results["bytes"][f"{kind.RUNTIME} int8"] = _size(folder / kind.FILE)
        if settings.dtype != "float32":
            found = differences(source, run, cases(source.limit)).values()
            if not all(map(math.isfinite, found)):
                raise InputError(f"dtype: expected finite outputs in {settings.dtype}, got NaN or infinite ones")
            results[f"{settings.dtype}_difference"] = max(found)
        write_files(files, folder)
        write_configuration(source.model, folder)
        write_card(source.model, folder, source.limit, use=_use(source, kind))
        results["environment"] = environment(torch.device("cpu")) | versions
        results["settings"] = without_local_paths(settings)
        write_json(results, folder / "export.json")
        write_manifest(folder)
    return results


def _size(path: Path) -> int:
    """Bytes of a file, and of the weights beside it."""
    return sum(part.stat().st_size for part in path.parent.glob(f"{path.stem}.*"))


def _use(source: Exportable, kind: Any) -> str:
    """How to run the file, on texts or, where the model was trained on pairs, on a pair; with the default prompt."""
    is_pair = (getattr(source.model.config, "trained_columns", None) or {}).get("text_pair")
    texts = [f"{source.prompt}A text.", f"{source.prompt}Another, longer text."]
    parts = {
        **{name: getattr(kind, name) for name in ("RUNTIME", "IMPORTS", "RUN", "NOTES")},
        "TOKENS": _TOKENS[source.tokenizer.is_fast],
        "ANSWER": _answer(source),
        "TEXTS": _PAIR if is_pair else json.dumps(texts, ensure_ascii=False)[1:-1],
        "PADDING": str(source.tokenizer.pad_token_id or 0),
        "LIMIT": f"{source.limit:,}",
        "OUTPUTS": json.dumps(source.head.of_texts or source.head.outputs),
    }
    use = _USE
    for name, part in parts.items():
        use = use.replace(name, part)
    return use


def _answer(source: Exportable) -> str:
    """Code that prints what the outputs say."""
    config = source.model.config
    if source.head == EMBEDDER:
        return _ANSWER_OF_EMBEDDER
    if source.head != CLASSIFIER:
        return _ANSWER
    if config.problem_type == "multi_label_classification":
        return _ANSWER_OF_MULTI_LABEL
    return _ANSWER_OF_CLASSIFIER if config.num_labels > 1 else _ANSWER_OF_REGRESSION


def write_configuration(model: PreTrainedModel, folder: Path) -> None:
    """Write `config.json` without the model types of this package: programs that run ONNX files do not know them."""
    fields = json.loads(model.config.to_json_string())
    if "Classification" in type(model).__name__:
        fields["id2label"] = model.config.id2label  # which transformers leaves out where the names are its own
    if model.config.model_type == LinformerConfig.model_type:
        del fields["model_type"]
    fields.pop("trained_pieces", None)  # the file reads one input
    if linear := fields.pop("linformer", None):
        del fields["attn_implementation"]
        fields["model_type"] = linear["base_model_type"]
        fields["architectures"] = [stock_name(type(model).__name__)]
    (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
