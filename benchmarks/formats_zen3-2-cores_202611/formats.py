"""The time of one layer in bfloat16 and float16 over its time in float32, on this processor.

    python formats.py formats.json

Base size (768 wide, 12 heads, feed-forward 3,072), 4,096 tokens, or one text if that is longer. Medians of 7
interleaved runs; `plain` is the same without the kernels of this package, which leaves the format to torch.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
from pathlib import Path

import torch

import linformer_kit as lk
from linformer_kit.analysis.measure import interleaved
from linformer_kit.environment import environment
from linformer_kit.operator import kernels

CPU = torch.device("cpu")
FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CASES = {  # n, training, settings of the model
    "n 512, k 128": (512, False, {"projected_dim": 128}),
    "n 2,048, k 128": (2048, False, {"projected_dim": 128}),
    "n 4,096, k 256": (4096, False, {"projected_dim": 256}),
    "n 8,192, k 128": (8192, False, {"projected_dim": 128}),
    "n 4,096, k 128, 64 neighbours": (4096, False, {"projected_dim": 128, "sliding_window": 64}),
    "n 4,096, 128 dynamic slots, 64 neighbours": (
        4096,
        False,
        {"projected_dim": 128, "sliding_window": 64, "projection": "dynamic", "sharing": "headwise"},
    ),
    "full attention, n 1,024": (1024, False, {"attention": "full"}),
    "training, n 512, k 128": (512, True, {"projected_dim": 128}),
    "training, n 2,048, k 128": (2048, True, {"projected_dim": 128}),
    "training, n 4,096, k 128, 64 neighbours": (4096, True, {"projected_dim": 128, "sliding_window": 64}),
}
PLAIN = ("n 512, k 128", "n 2,048, k 128", "n 8,192, k 128", "training, n 512, k 128")


def runs(n: int, train: bool, fields: dict, *, plain: bool) -> dict:
    """A function for each format."""
    found = {}
    for name, dtype in FORMATS.items():
        torch.manual_seed(0)
        config = lk.LinformerConfig(
            vocab_size=1000,
            max_position_embeddings=n,
            num_hidden_layers=1,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            **{"sharing": "layerwise", **fields},
        )
        layer = lk.LinformerModel(config, add_pooling_layer=False).encoder.layers[0].to(dtype).train(train)
        projection = None
        if config.sharing == "layerwise" and config.attention == "linformer":
            projection = lk.LinformerModel(config, add_pooling_layer=False).encoder.projection.to(dtype)
        hidden = torch.randn(max(1, 4096 // n), n, 768).to(dtype)

        def run(layer=layer, hidden=hidden, projection=projection) -> None:
            with contextlib.ExitStack() as stack:
                if plain:
                    stack.enter_context(kernels.plain())
                if not train:
                    stack.enter_context(torch.inference_mode())
                output, _ = layer(hidden, None, projection)
                if train:
                    output.float().square().mean().backward()
                    layer.zero_grad(set_to_none=True)

        found[name] = run
    return found


def main(path: Path) -> None:
    results: dict = {"environment": environment(CPU), "cases": []}
    for plain in (False, True):
        for name, (n, train, fields) in CASES.items():
            if plain and name not in PLAIN:
                continue
            timings = interleaved(runs(n, train, fields, plain=plain), device=CPU, repetitions=7, seconds=12.0)
            seconds = {kind: statistics.median(taken) for kind, taken in timings.items()}
            results["cases"].append({"case": name, "plain": plain, "seconds": seconds})
            print(name, "plain" if plain else "", {kind: f"{1e3 * taken:.0f} ms" for kind, taken in seconds.items()})
            path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
