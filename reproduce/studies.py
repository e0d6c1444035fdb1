"""The studies of what a small Linformer learns by: settings, learning rates and seeds of each variant.

`reproduce.learning` trains them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

BASE: dict[str, Any] = {
    "vocab_size": 2048,
    "max_position_embeddings": 128,
    "projected_dim": 32,
    "projection_initializer": "pooling",
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "linear_initializer": "lecun_normal",
    "norm_first": True,
    "mlm_probability": 0.3,
    "split_seed": 0,
    "max_steps": 1000,
    "per_device_train_batch_size": 32,
    "warmup_steps": 125,
    "eval_steps": 125,
    "save_steps": 500,
    "save_total_limit": 1,
    "report_to": "none",
    "adam_beta2": 0.98,
}
FULL = {"attention": "full"}
SHIFTED = {"sharing": "none", "projection_initializer": "shifted_pooling"}
TENTH = {"projection_learning_rate_factor": 0.1}
FIVE = {"local_convolution": 5}
DYNAMIC = {"projection": "dynamic", "sharing": "none"}
DYNAMIC_32 = DYNAMIC | {"projected_dim": 32}
NEAR_17, NEAR_33 = {"sliding_window": 17}, {"sliding_window": 33}


class Variant(NamedTuple):
    """Settings that differ from the base of a study, the learning rates to try, and the seeds.

    One seed for large effects; none for what is only tried.
    """

    changes: dict[str, Any]
    rates: tuple[float, ...]
    seeds: tuple[int, ...] = (0, 1, 2)
    updates_of: str | None = None  # trained for as many updates as this variant; None: as its own time allows


class Study(NamedTuple):
    """Variants to compare with the first of them."""

    title: str  # its heading
    base: dict[str, Any]  # settings that differ from `BASE`
    variants: dict[str, Variant]  # by name
    # Time of each training, instead of a number of updates: as many as fit into it at the median time of an update, all
    # variants alternately. Warm-up and evaluations keep their share.
    minutes: float | None = None
    trial: float | None = None  # minutes of the trainings that try rates; default: as long as the others
    # The variants in the figure; default: the first, and those with the most seeds, then the least loss.
    drawn: tuple[str, ...] = ()


def start(sharing: str, initializer: str) -> Variant:
    """A variant of the study `start`."""
    return Variant({"sharing": sharing, "projection_initializer": initializer}, (1e-3, 2e-3, 4e-3))


def at_length(n: int, seeds: tuple[int, ...]) -> Study:
    """Equal time for long enough to learn from far context; far_context.py reads the encoders."""
    base = {
        "vocab_size": 8192,  # most names are few tokens
        "validation_fraction": 0.01,
        "max_position_embeddings": n,
        "per_device_train_batch_size": 4096 // n,
        "save_steps": 125,
    }
    rates = (1e-3, 2e-3, 4e-3)
    variants = {
        "Transformer": Variant(FULL, rates, seeds),
        "dynamic, k 32": Variant(DYNAMIC_32, rates, seeds),
        "dynamic, k 128": Variant(DYNAMIC, (2e-3,), ()),
        "dynamic, k 32, 33 neighbours": Variant(DYNAMIC_32 | NEAR_33, (2e-3,), ()),
        "dynamic, k 32, layer 2 full": Variant(DYNAMIC_32 | {"attention": ["linformer", "full"]}, (2e-3,), ()),
        "means, k 128": Variant({"projection": "mean_pool"}, (2e-3,), ()),
        "means, k 128, 33 neighbours": Variant({"projection": "mean_pool"} | NEAR_33, (2e-3,), ()),
    }
    title = f"Equal time at length, n {n:,}, each with a convolution of 5"
    return Study(title, FIVE | {"projected_dim": 128} | base, variants, minutes=40, trial=5)


def causal(n: int) -> Study:
    """Equal time and equal updates of models that predict the next token; reproduce.causal has the cost."""
    base: dict[str, Any] = {"causal": True, "max_position_embeddings": n, "per_device_train_batch_size": 4096 // n}
    base |= {"validation_fraction": 0.003}  # an evaluation takes few seconds
    rates = (2e-3, 4e-3, 8e-3)

    def windows(tokens: int, seen: int, projection: str = "mean_pool") -> dict[str, Any]:
        slots = {"projection": projection, "projected_dim": n // tokens, "sharing": "none"}
        return slots | {"sliding_window": seen, "global_tokens": 1, "shorter_input": "prefix"}

    sixteen = windows(16, 64)
    variants = {
        "Transformer": Variant(FULL, rates),
        "means of 16 tokens, w 64": Variant(sixteen, rates),
        "means of 16 tokens, w 64, as many updates": Variant(sixteen, (2e-3,), updates_of="Transformer"),
        "means of 32 tokens, w 32": Variant(windows(32, 32), (4e-3,), ()),
        "means of 16 tokens, w 128": Variant(windows(16, 128), (4e-3,), ()),
        "convolutions of 16 tokens, w 64": Variant(windows(16, 64, "conv"), (4e-3,), ()),
    }
    return Study(f"Causal, n {n:,}, each with a convolution of 5", FIVE | base, variants, minutes=5, trial=2)


_MANY_RATES = (3e-3, 4e-3, 6e-3, 8e-3, 1.2e-2)
STUDIES = {
    "start": Study(
        "Start of E and F",
        {},
        {
            "Transformer": Variant(FULL, (1e-3, 2e-3, 4e-3)),
            "headwise, pooling": start("headwise", "pooling"),
            "headwise, normal": start("headwise", "normal"),
            "none, pooling": start("none", "pooling"),
            "none, shifted_pooling": start("none", "shifted_pooling"),
            "key_value, pooling": start("key_value", "pooling"),
            "layerwise, pooling": start("layerwise", "pooling"),
        },
        drawn=("Transformer", "headwise, pooling", "headwise, normal", "none, shifted_pooling"),
    ),
    "gap": Study(
        "The gap to the Transformer",
        {"max_steps": 2000, "warmup_steps": 250, "eval_steps": 250},
        {
            "Transformer": Variant(FULL, (3e-3, 4e-3, 6e-3)),
            "Linformer": Variant({}, (2e-3, 3e-3, 4e-3)),
            "E and F learn at 0.1": Variant(TENTH, (3e-3,)),
            "none, shifted_pooling, at 0.1": Variant(SHIFTED | TENTH, (2e-3, 3e-3, 4e-3)),
            "none, pooling, at 0.1": Variant({"sharing": "none"} | TENTH, (3e-3,)),
            "none, shifted_pooling": Variant(SHIFTED, (3e-3,)),
            "convolution of 5": Variant(FIVE, (2e-3, 4e-3)),
            "Transformer, convolution of 5": Variant(FULL | FIVE, (2e-3, 4e-3)),
            "none, shifted_pooling, convolution of 5": Variant(SHIFTED | FIVE, (4e-3,), (0,)),
            "projection conv": Variant({"projection": "conv"}, (3e-3,), (0,)),
            "projection max_pool": Variant({"projection": "max_pool"}, (3e-3,), (0,)),
            "convolution of 9": Variant({"local_convolution": 9}, (4e-3,), (0,)),
            "E and F stay": Variant({"projection_learning_rate_factor": 0.0}, (3e-3,), (0,)),
            "k 48 in layer 1, 16 in 2": Variant({"projected_dim": [48, 16]}, (2e-3, 3e-3), (0,)),
            "k 16 in layer 1, 48 in 2": Variant({"projected_dim": [16, 48]}, (2e-3,), (0,)),
            "warm-up 600": Variant({"warmup_steps": 600}, (2e-3,), (0,)),
            "post-norm": Variant({"norm_first": False}, (2e-3,), (0,)),
            "Transformer, post-norm": Variant(FULL | {"norm_first": False}, (4e-3,), (0,)),
            "k 64": Variant({"projected_dim": 64}, (3e-3,), (0,)),
            "k 128, as many as tokens": Variant({"projected_dim": 128}, (3e-3,), (0,)),
            "k 1, convolution of 5": Variant({"projected_dim": 1} | FIVE, (4e-3,), (0,)),
            "k 64, at 0.1": Variant({"projected_dim": 64} | TENTH, (3e-3,), (0,)),
            "k 128, at 0.1": Variant({"projected_dim": 128} | TENTH, (3e-3,), (0,)),
        },
    ),
    "neighbours": Study(
        "Exact neighbours beside slots",
        {"max_steps": 2000, "warmup_steps": 250, "eval_steps": 250},
        {
            "Transformer, convolution of 5": Variant(FULL | FIVE, _MANY_RATES),
            "linear, convolution of 5, 17 neighbours": Variant(SHIFTED | TENTH | FIVE | NEAR_17, _MANY_RATES, (0,)),
            "dynamic, convolution of 5, 17 neighbours": Variant(DYNAMIC | FIVE | NEAR_17, _MANY_RATES, (0,)),
            "dynamic, convolution of 5, 33 neighbours": Variant(DYNAMIC | FIVE | NEAR_33, (6e-3, 8e-3, 1.2e-2)),
            "dynamic, convolution of 5": Variant(DYNAMIC | FIVE, (6e-3,), (0,)),
            "dynamic, 17 neighbours": Variant(DYNAMIC | NEAR_17, (6e-3,), (0,)),
            "dynamic, k 64, convolution of 5, 17 neighbours": Variant(
                DYNAMIC | FIVE | NEAR_17 | {"projected_dim": 64}, (6e-3,), (0,)
            ),
            "dynamic, convolution of 5, 17 neighbours, 1 global token": Variant(
                DYNAMIC | FIVE | NEAR_17 | {"global_tokens": 1}, (6e-3,), (0,)
            ),
            "linear, 17 neighbours": Variant(SHIFTED | TENTH | NEAR_17, (6e-3,), (0,)),
            "mean_pool, convolution of 5, 17 neighbours": Variant(
                FIVE | NEAR_17 | {"projection": "mean_pool"}, (6e-3,), (0,)
            ),
        },
    ),
    "equal-time": Study(
        "Equal time, n 512, each with a convolution of 5",
        FIVE | {"max_position_embeddings": 512, "projected_dim": 128, "per_device_train_batch_size": 8},
        {
            "Transformer": Variant(FULL, (3e-3, 4e-3, 6e-3)),
            "dynamic, k 32": Variant(DYNAMIC_32, (4e-3, 6e-3, 8e-3)),
            "dynamic, k 32, 33 neighbours": Variant(DYNAMIC_32 | NEAR_33, (6e-3,), (0,)),
            "dynamic, k 128": Variant(DYNAMIC, (6e-3,), (0,)),
            "linear, k 128": Variant(SHIFTED | TENTH, (4e-3,), (0,)),
        },
        minutes=2,
    ),
    "equal-time-2048": Study(
        "Equal time, n 2,048, each with a convolution of 5",
        FIVE | {"max_position_embeddings": 2048, "projected_dim": 128, "per_device_train_batch_size": 2},
        {
            "Transformer": Variant(FULL, (1e-3, 2e-3, 4e-3)),
            "dynamic, k 32": Variant(DYNAMIC_32, (2e-3, 4e-3)),
            "headwise, k 128": Variant({}, (2e-3,)),
            "layerwise, k 128": Variant({"sharing": "layerwise"}, (2e-3,), (0,)),
            "linear, k 128": Variant(SHIFTED | TENTH, (2e-3,), (0,)),
            "dynamic, k 32, 33 neighbours": Variant(DYNAMIC_32 | NEAR_33, (4e-3,), (0,)),
        },
        minutes=3,
    ),
    "length-2048": at_length(2048, (0, 1, 2)),
    "length-4096": at_length(4096, (0,)),
    **{f"causal-{n}": causal(n) for n in (512, 2048, 4096)},
    "slots": Study(
        "Where 512 slots are worth most",
        SHIFTED | TENTH | {"num_hidden_layers": 4, "max_steps": 1500, "warmup_steps": 200, "eval_steps": 250},
        {
            "uniform, k 32": Variant({}, (3e-3,)),
            # By the spectrum of an equal Transformer (benchmarks/figure1_xeon-2-cores_202611/code).
            "most for the least head": Variant(
                {"projected_dim": [[74, 39, 33, 74], [48, 40, 46, 12], [12, 13, 35, 32], [15, 10, 19, 10]]}, (3e-3,)
            ),
            "most in total": Variant(
                {"projected_dim": [[1, 48, 41, 1], [55, 48, 53, 24], [25, 26, 45, 42], [27, 22, 31, 23]]}, (3e-3,)
            ),
            "most for the least layer": Variant({"projected_dim": [54, 37, 23, 14]}, (3e-3,)),
            # Does the spectrum matter, or only that the values of k differ?
            "most for the least layer, upside down": Variant({"projected_dim": [14, 23, 37, 54]}, (3e-3,), (0,)),
        },
    ),
}
