"""A vision transformer with linear attention, beside the same with full attention: handwritten digits.

    python examples/images.py results.json

ViT from a random start on the digits that scikit-learn ships: 1,437 images to learn from and 360 to test, 8 × 8 pixels,
each pixel a token, so n is 65 with the class token. `linear` has it linearised before training: 16 slots, each the mean
of 4 pixels of a row, 8 exact neighbours (in the order of the pixels, row by row), and the class token for all. `made
linear` is the trained full one, linearised and trained for a fifth of the epochs more.

Results (benchmarks/images_xeon-2-cores_202611/images.json), accuracy over three seeds: full attention 96.2 %, linear
from the start 96.6 %, made linear 35.5 %, and after 12 more epochs 96.7 %.

Last, the time of an untrained ViT of base size for one image, at two sizes. What the results have already is kept.
"""

import copy
import json
import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from transformers import ViTConfig, ViTForImageClassification, ViTModel

import linformer_kit as lk
from linformer_kit.analysis.measure import interleaved, summary
from linformer_kit.report.environment import environment

SEEDS, EPOCHS = (0, 1, 2), 60
BATCH = 64
SIZES = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128}
SLOTS = {"projected_dim": 16, "sliding_window": 8, "global_tokens": 1}
CPU = torch.device("cpu")

Split = tuple[torch.Tensor, torch.Tensor]  # images and their classes


def digits() -> tuple[Split, Split]:
    """Images `[count, 1, 8, 8]` from -1 to 1, to train and to test."""
    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32)[:, None] / 8 - 1
    train, test = train_test_split(np.arange(len(images)), test_size=360, random_state=0, stratify=found.target)
    classes = torch.tensor(found.target)
    return (images[train], classes[train]), (images[test], classes[test])


def vit(seed: int) -> ViTForImageClassification:
    torch.manual_seed(seed)
    return ViTForImageClassification(
        ViTConfig(image_size=8, patch_size=1, num_channels=1, num_labels=10, **SIZES, attn_implementation="sdpa")
    )


def train(model: torch.nn.Module, images: Split, epochs: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
    updates = epochs * -(-len(images[0]) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, updates)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(images[0]), generator=draw).split(BATCH):
            model(pixel_values=images[0][rows], labels=images[1][rows]).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    model.eval()


@torch.inference_mode()
def accuracy(model: torch.nn.Module, images: Split) -> float:
    return float((model(pixel_values=images[0]).logits.argmax(-1) == images[1]).float().mean())


def learn() -> dict[str, list[float]]:
    """Test accuracy of each model, a number for each seed."""
    to_train, to_test = digits()
    found: dict[str, list[float]] = {"full": [], "linear": [], "made linear, untrained": [], "made linear": []}
    for seed in SEEDS:
        full, linear = vit(seed), lk.linearize(vit(seed), **SLOTS)
        for model in (full, linear):
            train(model, to_train, EPOCHS, seed)
        made = lk.linearize(copy.deepcopy(full), **SLOTS)
        found["full"].append(accuracy(full, to_test))
        found["linear"].append(accuracy(linear, to_test))
        found["made linear, untrained"].append(accuracy(made, to_test))
        train(made, to_train, max(1, EPOCHS // 5), seed)
        found["made linear"].append(accuracy(made, to_test))
        print(f"seed {seed}: " + ", ".join(f"{name} {values[-1]:.1%}" for name, values in found.items()), flush=True)
    return found


@torch.inference_mode()
def times(sides: tuple[int, ...] = (224, 512)) -> dict[str, dict[str, float]]:
    """Seconds of ViT-Base for one image of some sides, in pixels; patches of 16."""
    found = {}
    for side in sides:
        full = ViTModel(ViTConfig(image_size=side), add_pooling_layer=False).eval()
        linear = lk.linearize(copy.deepcopy(full), projected_dim=64, sliding_window=32, global_tokens=1)
        image = torch.randn(1, 3, side, side)
        cases = {"full": lambda full=full, image=image: full(image), "linear": lambda m=linear, image=image: m(image)}
        runs = interleaved(cases, device=CPU, repetitions=7, seconds=60)
        found[str(side)] = {name: summary(each)["median_s"] for name, each in runs.items()}
        print(f"{side} pixels, n {(side // 16) ** 2 + 1}: {found[str(side)]}", flush=True)
    return found


def main(path: Path) -> None:
    results = {"environment": environment(CPU), "epochs": EPOCHS, "seeds": SEEDS, "sizes": SIZES, "slots": SLOTS}
    results |= json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for name, measure in (("accuracy", learn), ("seconds", times)):
        if name not in results:
            results[name] = measure()
            path.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
