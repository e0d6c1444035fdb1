"""Compare an exported model with PyTorch at many lengths, batch sizes and kinds of padding."""

from __future__ import annotations

import copy
import itertools
from typing import Any, Literal, NamedTuple

import numpy as np
from tqdm import tqdm

from linformer_kit.errors import InputError
from linformer_kit.export.exportable import Arrays, Exportable, Run, Source

# Largest difference allowed between ONNX Runtime and PyTorch, as a multiple of PyTorch's float32 error (from float64).
_TOLERANCE = 8
_LONGEST_IN_FLOAT64 = 512  # tokens; of longer inputs only the longest runs in float64, without padding
_MOST_ROWS_BELOW = 1024  # tokens; inputs of this length or longer have one row


class Case(NamedTuple):
    """The shape of one input."""

    rows: int
    length: int
    padding: Literal["none", "right", "left"]

    def __str__(self) -> str:
        padding = "" if self.padding == "none" else f", padded on the {self.padding}"
        return f"{self.rows} x {self.length} tokens{padding}"


def cases(limit: int) -> list[Case]:
    """Twenty shapes from one token to `limit`; fewer if `limit` is small."""
    lengths = sorted({max(2, length) for length in (2, limit // 8, limit // 4, limit // 2, limit - 1, limit)})
    paddings: tuple[Literal["none", "right", "left"], ...] = ("none", "right", "left")
    shapes = zip(itertools.cycle((1, 2, 3, 2, 3)), itertools.product(lengths, paddings))
    several = [
        Case(rows if length < _MOST_ROWS_BELOW else 1, length, padding)
        for rows, (length, padding) in shapes
        if length <= limit
    ]
    return [Case(1, 1, "none"), Case(3, 1, "none"), *several]


def random_inputs(source: Source, case: Case, *, seed: int = 0) -> Arrays:
    """Random tokens with padding of at most half of each row."""
    exportable, tokenizer, _ = source
    generator = np.random.default_rng([seed, case.rows, case.length])
    shape = (case.rows, case.length)
    padded = generator.integers(1, case.length // 2 + 1, size=(case.rows, 1)) if case.length > 1 else np.zeros((1, 1))
    place = np.arange(case.length)[None] if case.padding == "left" else np.arange(case.length)[None, ::-1]
    real = np.ones(shape, dtype=bool) if case.padding == "none" else np.broadcast_to(place, shape) >= padded
    pad = tokenizer.pad_token_id or 0
    vocabulary = np.setdiff1d(np.arange(exportable.model.config.vocab_size), [pad])
    inputs = {"input_ids": np.where(real, generator.choice(vocabulary, size=shape), pad), "attention_mask": real}
    if "token_type_ids" in exportable.input_names:
        inputs["token_type_ids"] = generator.integers(exportable.model.config.type_vocab_size, size=shape)
    return {name: inputs[name].astype(np.int64) for name in exportable.input_names}


def difference(exportable: Exportable, inputs: Arrays, ours: list[np.ndarray], theirs: list[np.ndarray]) -> float:
    """Largest difference between two lists of outputs, without those at padded positions; NaN if an output is NaN."""
    real = inputs["attention_mask"] == 1
    pairs = [(a[real], b[real]) if exportable.head.by_token else (a, b) for a, b in zip(ours, theirs, strict=True)]
    return max(float(np.abs(a.astype(np.float64) - b).max()) for a, b in pairs)


def check_agreement(source: Source, run: Run) -> dict[str, Any]:
    """Compare an exported model with PyTorch at all `cases`.

    Args:
        source: The model in PyTorch.
        run: The exported model.

    Returns:
        The `shapes` compared, `largest_difference`, `float32_error` (of PyTorch, from float64) and `tolerance`.

    Raises:
        InputError: if a difference is above the tolerance.
    """
    exportable = source.exportable
    exact = copy.deepcopy(exportable).double()
    differences: dict[Case, float] = {}
    own = 0.0
    for case in tqdm(cases(source.limit), desc="compare with PyTorch", unit=" shapes", dynamic_ncols=True, delay=2):
        inputs = random_inputs(source, case)
        expected = exportable.run(inputs)
        differences[case] = difference(exportable, inputs, run(inputs), expected)
        if case.length <= _LONGEST_IN_FLOAT64 or (case.length == source.limit and case.padding == "none"):
            own = max(own, difference(exportable, inputs, expected, exact.run(inputs)))
    worst = max(differences, key=lambda case: np.nan_to_num(differences[case], nan=np.inf))
    if not differences[worst] <= _TOLERANCE * own:
        raise InputError(
            f"model: expected the exported model within {_TOLERANCE * own:.1e} of PyTorch, "
            f"got {differences[worst]:.1e} for {worst}"
        )
    return {
        "shapes": [str(case) for case in differences],
        "largest_difference": differences[worst],
        "float32_error": own,
        "tolerance": _TOLERANCE * own,
    }
