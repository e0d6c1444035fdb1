"""Settings of linearisation and of the distillation of a full-attention teacher into a linear student."""

from linformer_kit.settings.declare import (
    Adapter,
    Amount,
    Column,
    Count,
    CountOrZero,
    Distillation,
    Document,
    Evaluation,
    File,
    Folder,
    Linear,
    Model,
    ModelName,
    Positive,
    Seed,
    Share,
    Texts,
    Training,
    settings,
)
from linformer_kit.settings.model import Projection, ProjectionInitializer, ResizeMode, Sharing, ShorterInput
from linformer_kit.settings.training import TrainingSettings


@settings
class LinearizeSettings:
    """Linearisation: how the attention of an encoder of transformers is replaced.

    Attributes:
        projected_dim: k, the number of slots; or a list with one k per layer, or for each layer a list of one k per
            head; default: 128, at most n.
        sharing: Which of the matrices E and F are shared.
        projection: How n positions are projected to k slots.
        projection_initializer: Initialisation of E and F where `projection` is `linear`.
        shorter_input: How inputs shorter than n use E and the pooling windows: the first columns and windows
            (`prefix`), or all, resampled to the length of the input (`stretch`). With `stretch`, the outputs for inputs
            of up to k tokens hardly change.
        sliding_window: Number of neighbouring tokens that each query attends to exactly, its own included; 0: none.
        global_tokens: Number of tokens at the start that every query attends to exactly; default: 1 where slots are
            windows of tokens, else 0.
        layers: Layers to linearise, numbered from 0; the others keep full attention; default: all.
        max_position_embeddings: n, the maximum sequence length in tokens; default: that of the model.
        resize_mode: How position embeddings are resized to n: repeated (`extend`) or interpolated (`interpolate`).
    """

    projected_dim: Linear[int | list[int] | list[list[int]] | None] = None
    sharing: Linear[Sharing] = "headwise"
    projection: Linear[Projection] = "mean_pool"
    projection_initializer: Linear[ProjectionInitializer] = "mean_pooling"
    shorter_input: Linear[ShorterInput] = "stretch"
    sliding_window: Linear[int] = 128
    global_tokens: Linear[int | None] = None
    layers: Linear[list[int] | None] = None
    max_position_embeddings: Linear[int | None] = None
    resize_mode: Linear[ResizeMode] = "extend"


@settings
class DistillSettings(LinearizeSettings, TrainingSettings):
    """Distillation of a full-attention teacher into a linear student.

    Attributes:
        teacher: Folder or hub id of an encoder: a masked language model, a text or token classifier, a question
            answering model, or an encoder without a head.
        output_dir: Folder for the model, checkpoints and results.
        adapter: Train a LoRA adapter of the layers' linear maps, and E and F, instead of all weights.
            It is saved in `adapter/` in PEFT's format, in addition to the model.
        adapter_rank: Rank r of the LoRA adapter.
        base_model_name: Hub id of the teacher, for the adapter's files; default: the name of the teacher.
        train_file: Training files, folders or globs (.txt .py .md .jsonl .csv .tsv .parquet); default: the source of
            the Python standard library.
        validation_file: Validation files, folders or globs; default: a part of the texts is held out.
        text_column: Text column of .jsonl, .csv, .tsv and .parquet files.
        text_pair_column: Column of the second text, where inputs are pairs.
        document: How .txt files are split into documents; `auto`: `wikitext` if the file starts with a WikiText
            heading, else `file`.
        packing: Cut documents into passages of whole sentences: half of the batches have n tokens, the others random
            lengths; false: each text is one input; default: false for text classifiers and pairs, else true.
        validation_fraction: Share of the texts held out for validation.
        max_eval_samples: Maximum number of validation inputs.
        cache_dir: Folder of the cache of text; default: linformer_kit in $XDG_CACHE_HOME or ~/.cache.
        max_steps: Number of updates.
        layerwise_steps: Updates of the first phase, which trains each layer separately on the inputs of the teacher's
            layer; default: a quarter of max_steps.
        joint_learning_rate_factor: Learning rate of the second phase, which trains all layers together, as a multiple
            of learning_rate; each phase has its own warm-up and decay to 0.
        temperature: Softmax temperature of the loss on the predictions.
        mlm_probability: Share of the tokens to mask where the teacher is a masked language model.
        warmup_steps: Updates of linear warm-up.
        eval_steps: Updates between evaluations.
        save_steps: Updates between checkpoints.
        seed: Seed of all random numbers.
    """

    teacher: Model[ModelName]
    adapter: Adapter[bool] = False
    adapter_rank: Adapter[Count] = 16
    base_model_name: Adapter[str | None] = None
    train_file: Texts[list[File] | None] = None
    validation_file: Texts[list[File] | None] = None
    text_column: Texts[Column] = "text"
    text_pair_column: Texts[Column | None] = None
    document: Texts[Document] = "auto"
    packing: Texts[bool | None] = None
    validation_fraction: Texts[Share] = 0.05
    max_eval_samples: Texts[Count] = 64
    cache_dir: Texts[Folder | None] = None
    per_device_train_batch_size: Training[Count] = 8
    per_device_eval_batch_size: Evaluation[Count] = 8
    learning_rate: Training[Amount] = 3e-4
    weight_decay: Training[Amount] = 0.0
    max_steps: Training[Count] = 1200
    layerwise_steps: Distillation[int | None] = None
    joint_learning_rate_factor: Distillation[Positive] = 0.2
    temperature: Distillation[Positive] = 1.0
    mlm_probability: Training[Share] = 0.15
    warmup_steps: Training[CountOrZero] = 50
    eval_steps: Evaluation[Count] = 200
    save_steps: Evaluation[Count] = 200
    seed: Training[Seed] = 0
