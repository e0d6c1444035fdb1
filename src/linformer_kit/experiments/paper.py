"""Tables 2 and 3 of Wang et al. 2020.

Table 3: savings of a Linformer of base size over a Transformer on one V100 with 16 GB, by n (tokens in a
sequence), then by k.
"""

from __future__ import annotations

LAYERS = 12  # of the models for which the largest batches are given

# Time of the Transformer's forward pass divided by the Linformer's.
TIME_SAVED: dict[int, dict[int, float]] = {
    512: {128: 1.5, 256: 1.3},
    1024: {128: 1.7, 256: 1.6, 512: 1.3},
    2048: {128: 2.6, 256: 2.4, 512: 2.1, 1024: 1.3},
    4096: {128: 3.4, 256: 3.2, 512: 2.8, 1024: 2.2, 2048: 1.3},
    8192: {128: 5.5, 256: 5.0, 512: 4.4, 1024: 3.5, 2048: 2.1},
    16384: {128: 8.6, 256: 7.8, 512: 7.0, 1024: 5.6, 2048: 3.3},
    32768: {128: 13, 256: 12, 512: 11, 1024: 8.8, 2048: 5.0},
    65536: {128: 20, 256: 18, 512: 16, 1024: 14, 2048: 7.9},
}

# Largest batch of the Linformer in 16 GB divided by the Transformer's.
MEMORY_SAVED: dict[int, dict[int, float]] = {
    512: {128: 1.7, 256: 1.5},
    1024: {128: 3.0, 256: 2.9, 512: 1.8},
    2048: {128: 6.1, 256: 5.6, 512: 3.6, 1024: 2.0},
    4096: {128: 14, 256: 13, 512: 8.3, 1024: 4.3, 2048: 2.3},
    8192: {128: 28, 256: 26, 512: 17, 1024: 8.5, 2048: 4.5},
    16384: {128: 56, 256: 48, 512: 32, 1024: 16, 2048: 8},
    32768: {128: 56, 256: 48, 512: 36, 1024: 18, 2048: 16},
    65536: {128: 60, 256: 52, 512: 40, 1024: 20, 2048: 18},
}


def lookup(table: dict[int, dict[int, float]], seq_len: int, projected_dim: int) -> float | None:
    """The paper's figure, or None where it has none."""
    return table.get(seq_len, {}).get(projected_dim)


# Table 2: accuracy in percent on the validation sets of SST-2, IMDB, QNLI and QQP, by n and model.
SCORES: dict[tuple[int, str], tuple[float, float, float, float]] = {
    (512, "RoBERTa-base"): (93.1, 94.1, 90.9, 90.9),
    (512, "Linformer, 128"): (92.4, 94.0, 90.4, 90.2),
    (512, "Linformer, 128, shared kv"): (93.4, 93.4, 90.3, 90.3),
    (512, "Linformer, 128, shared kv, layer"): (93.2, 93.8, 90.1, 90.2),
    (512, "Linformer, 256"): (93.2, 94.0, 90.6, 90.5),
    (512, "Linformer, 256, shared kv"): (93.3, 93.6, 90.6, 90.6),
    (512, "Linformer, 256, shared kv, layer"): (93.1, 94.1, 91.2, 90.8),
    (512, "BERT-base"): (92.7, 93.5, 91.8, 89.6),
    (512, "Distilled BERT"): (91.3, 92.8, 89.2, 88.5),
    (1024, "Linformer, 256"): (93.0, 93.8, 90.4, 90.4),
    (1024, "Linformer, 256, shared kv"): (93.0, 93.6, 90.3, 90.4),
    (1024, "Linformer, 256, shared kv, layer"): (93.2, 94.2, 90.8, 90.5),
}
