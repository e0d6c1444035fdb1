"""Settings of the training text and of masked-language-model pretraining."""

from linformer_kit.settings.declare import (
    Column,
    Count,
    CountOrZero,
    Document,
    Evaluation,
    File,
    Folder,
    Linear,
    Model,
    ModelName,
    Seed,
    Share,
    Texts,
    Training,
    settings,
)
from linformer_kit.settings.model import ModelSettings
from linformer_kit.settings.training import OneModelTrainingSettings


@settings
class CorpusSettings:
    """Text for training and validation.

    Attributes:
        train_file: Training files, folders or globs (.txt .py .md .jsonl .csv .tsv .parquet); default: the source of
            the Python standard library.
        validation_file: Validation files, folders or globs; default: a part of the training documents is held out.
        dataset_name: Data set on the Hugging Face hub, instead of train_file.
        dataset_config_name: Configuration of that data set.
        text_column: Text column of .jsonl, .csv, .tsv, .parquet and hub data.
        document: How .txt files are split into documents; `auto`: `wikitext` if the file starts with a WikiText
            heading, else `file`.
        validation_fraction: Share of the documents held out for validation.
        split_seed: Seed of the validation split; default: seed.
        streaming: Read and tokenise text during training, without a cache; default: only for hub data.
        cache_dir: Folder of the cache of tokenised text; default: linformer_kit in $XDG_CACHE_HOME or ~/.cache.
    """

    train_file: Texts[list[File] | None] = None
    validation_file: Texts[list[File] | None] = None
    dataset_name: Texts[str | None] = None
    dataset_config_name: Texts[str | None] = None
    text_column: Texts[Column] = "text"
    document: Texts[Document] = "auto"
    validation_fraction: Texts[Share] = 0.05
    split_seed: Texts[Seed | None] = None
    streaming: Texts[bool | None] = None
    cache_dir: Texts[Folder | None] = None


@settings
class PretrainSettings(CorpusSettings, OneModelTrainingSettings):
    """Masked-language-model pretraining.

    Attributes:
        model: The architecture: its settings are --model.NAME.
        from_model: Folder or hub id of a masked language model of this package to train further. Its architecture and
            tokenizer replace `model` and `tokenizer`; default: a new model.
        tokenizer: Folder or hub id of an existing tokenizer; default: a byte-level BPE trained on the corpus.
        mlm_probability: Share of the tokens to predict; of these 80 % become <mask>, 10 % a random token, 10 % stay.
        max_steps: Number of updates.
        warmup_steps: Updates of linear warm-up.
        elastic_projected_dims: Values of k: each update draws one, so that the model runs with any of them
            (`set_projected_dim`); default: only projected_dim.
        eval_steps: Updates between evaluations.
        save_steps: Updates between checkpoints.
        load_best_model_at_end: Keep the checkpoint with the lowest validation loss and load it at the end; needs
            save_steps equal to eval_steps.
        seed: Seed of all random numbers.
    """

    model: ModelSettings
    from_model: Model[ModelName | None] = None
    tokenizer: Model[ModelName | None] = None
    mlm_probability: Training[Share] = 0.15
    max_steps: Training[Count]
    warmup_steps: Training[CountOrZero]
    elastic_projected_dims: Linear[list[int] | None] = None
    eval_steps: Evaluation[Count]
    save_steps: Evaluation[Count]
    load_best_model_at_end: Evaluation[bool] = False
    seed: Training[Seed] = 0
