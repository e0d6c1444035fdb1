"""What a linear student learns from its full-attention teacher, and how."""

from dataclasses import dataclass
from typing import Literal

from linformer_kit.settings.model import Projection, ProjectionInitializer, ResizeMode, Sharing, ShorterInput
from linformer_kit.settings.training import TrainingSettings


@dataclass(kw_only=True)
class LinearizeSettings:
    """How an encoder of transformers becomes linear.

    Attributes:
        projected_dim: k; or one for each layer, or a list of one for each head for each layer; default: 128, or the
            longest sequence if that is less.
        sharing: Which E and F are one and the same.
        projection: The map of n positions to k slots.
        projection_initializer: Start of E and F where `projection` is `linear`.
        shorter_input: What texts shorter than n use: E and windows resampled to their length (`stretch`), so that texts
            of up to k tokens change little, or the first columns and windows (`prefix`).
        max_position_embeddings: Longest sequence; default: that of the model.
        resize_mode: How positions for another one come about: repeated (`extend`) or stretched (`interpolate`).
    """

    projected_dim: int | list[int] | list[list[int]] | None = None
    sharing: Sharing = "headwise"
    projection: Projection = "linear"
    projection_initializer: ProjectionInitializer = "mean_pooling"
    shorter_input: ShorterInput = "stretch"
    max_position_embeddings: int | None = None
    resize_mode: ResizeMode = "extend"


@dataclass(kw_only=True)
class DistillSettings(LinearizeSettings, TrainingSettings):
    """Teach a linear student what its full-attention teacher does.

    Attributes:
        teacher: Folder or hub id of an encoder: a masked language model, a classifier of texts or tokens, one that
            answers questions, or a bare one.
        student: Folder of a linear student to go on with; default: the teacher, linearised.
        student_layers: Layers of the student, fewer than the teacher's, taken from it at even distances; default: all.
        text: Files, folders or globs (.txt .py .md .jsonl .csv .tsv .parquet); without any, the Python standard
            library's own source.
        validation_text: The same for validation; without any, a part of the texts is held out.
        text_column: Column that holds the text of .jsonl, .csv, .tsv and .parquet.
        text_pair_column: Column of a second text, where inputs are pairs.
        document: What one text is in a .txt file; `auto` is `wikitext` where the file starts with such a heading, else
            the whole `file`.
        packing: Cut texts to inputs of whole sentences, half of them n tokens long, the others of all lengths, or take
            each text as an input of its own; default: cut, but not for classifiers of texts and for pairs.
        validation_fraction: Share of the texts held out for validation.
        max_eval_samples: Inputs to measure on.
        cache_dir: Where read text is kept; default: linformer_kit in $XDG_CACHE_HOME or ~/.cache.
        max_steps: Updates.
        layerwise_steps: Updates at the start in which each layer learns on its own, from what its teacher takes in;
            default: a quarter of all.
        joint_learning_rate_factor: Learning rate once all learn together, as a multiple of learning_rate; either part
            has a warm-up and falls to 0.
        hidden_weight: What the error of the hidden states after each layer counts.
        attention_weight: What the error of what attention gives out counts.
        output_weight: What the error at the end counts: Kullback-Leibler divergence of the answers where there is a
            head, else cosine distance of mean embeddings.
        temperature: Of the answers.
        mlm_probability: Share of the tokens that are hidden where the teacher is a masked language model.
        warmup_steps: Updates of linear warm-up.
        eval_steps: Updates between evaluations.
        save_steps: Updates between checkpoints.
        seed: Seed of everything that is drawn.
    """

    teacher: str
    student: str | None = None
    student_layers: int | None = None
    text: list[str] | None = None
    validation_text: list[str] | None = None
    text_column: str = "text"
    text_pair_column: str | None = None
    document: Literal["auto", "file", "line", "blank_line", "wikitext"] = "auto"
    packing: bool | None = None
    validation_fraction: float = 0.05
    max_eval_samples: int = 64
    cache_dir: str | None = None
    per_device_train_batch_size: int = 8
    per_device_eval_batch_size: int = 8
    learning_rate: float = 3e-4
    weight_decay: float = 0.0
    max_steps: int = 1200
    layerwise_steps: int | None = None
    joint_learning_rate_factor: float = 0.2
    hidden_weight: float = 1.0
    attention_weight: float = 1.0
    output_weight: float = 1.0
    temperature: float = 1.0
    mlm_probability: float = 0.15
    warmup_steps: int = 50
    eval_steps: int = 200
    save_steps: int = 200
    seed: int = 0
