"""The errors of approximate attention by theorem, method and k. Axes as in `statements`."""

from __future__ import annotations

import math
from typing import Any

from jaxtyping import Float
from torch import Tensor

from linformer_kit.experiments.theorems.statements import Heads, theorem1_errors, theorem2_errors


class Meter:
    """Statistics of the errors of each theorem, method and k: means, and shares of errors of at most ε."""

    def __init__(self, epsilons: list[float]) -> None:
        self._epsilons = epsilons
        self._sums: dict[tuple[str, str, int], dict[str, list[float]]] = {}

    def add(self, theorem: str, method: str, k: int, errors: dict[str, Tensor]) -> None:
        """Add errors, by measure: their logarithms, and the number within each ε."""
        sums = self._sums.setdefault((theorem, method, k), {})
        for measure, values in errors.items():
            logs = values.clamp(1e-16, 1e16).log()  # relative errors of zero outputs are infinite
            counts = [float((values <= epsilon).sum()) for epsilon in self._epsilons]
            new = [float(values.numel()), float(logs.sum()), float(logs.square().sum()), *counts]
            sums[measure] = [a + b for a, b in zip(sums.get(measure, [0.0] * len(new)), new, strict=True)]

    def results(self) -> dict[str, dict[str, list[dict[str, Any]]]]:
        """Statistics by theorem and method, in ascending order of k."""
        results: dict[str, dict[str, list[dict[str, Any]]]] = {"theorem1": {}, "theorem2": {}}
        for (theorem, method, k), sums in sorted(self._sums.items(), key=lambda item: item[0][2]):
            entry: dict[str, Any] = {"k": k}
            for measure, (count, logs, squares, *held) in sums.items():
                mean = logs / count
                entry[measure] = {
                    "error": round(math.exp(mean), 6),
                    "factor": round(math.exp(math.sqrt(max(0.0, squares / count - mean**2))), 3),
                    "held": [round(share / count, 4) for share in held],
                }
            results[theorem].setdefault(method, []).append(entry)
        return results


class Trial:
    """The attention of some heads; adds the errors of approximate outputs to a meter."""

    def __init__(self, heads: Heads, mapping: Tensor, exact: Tensor, meter: Meter) -> None:
        self.heads, self.mapping, self._exact, self._meter = heads, mapping, exact, meter

    def record(self, theorem: str, method: str, k: int, approximate: Float[Tensor, "heads n d"]) -> None:
        """Add the errors of one method at one k, by the measures of one theorem or of both."""
        arguments = (self.mapping, self.heads.value, self._exact, approximate)
        if theorem != "theorem2":
            self._meter.add("theorem1", method, k, theorem1_errors(*arguments)._asdict())
        if theorem != "theorem1":
            self._meter.add("theorem2", method, k, theorem2_errors(*arguments)._asdict())
