"""What to pretrain on, and how."""

from dataclasses import dataclass
from typing import Literal

from linformer_kit.settings.model import ModelSettings
from linformer_kit.settings.training import OneModelTrainingSettings


@dataclass(kw_only=True)
class CorpusSettings:
    """The text to learn from.

    Attributes:
        train_file: Files, folders or globs (.txt .py .md .jsonl .csv .tsv .parquet); without any, the Python
            standard library's own source.
        validation_file: The same for validation; without any, a part of the training documents is held out.
        dataset_name: Data set on the Hugging Face hub, streamed, instead of train_file.
        dataset_config_name: Configuration of that data set.
        text_column: Column that holds the text of .jsonl, .csv, .tsv, .parquet and hub data.
        document: What one document is in a .txt file; `auto` is `wikitext` where the file starts with such a
            heading, else the whole `file`.
        validation_fraction: Share of the documents held out for validation.
        split_seed: Seed of the choice of these documents; default: seed.
        streaming: Read and tokenise while training and cache nothing; default: only for hub data.
        cache_dir: Where tokenised text is kept; default: linformer_kit in $XDG_CACHE_HOME or ~/.cache.
    """

    train_file: list[str] | None = None
    validation_file: list[str] | None = None
    dataset_name: str | None = None
    dataset_config_name: str | None = None
    text_column: str = "text"
    document: Literal["auto", "file", "line", "blank_line", "wikitext"] = "auto"
    validation_fraction: float = 0.05
    split_seed: int | None = None
    streaming: bool | None = None
    cache_dir: str | None = None


@dataclass(kw_only=True)
class PretrainSettings(CorpusSettings, OneModelTrainingSettings):
    """Masked-language-model pretraining.

    Attributes:
        model: The architecture.
        from_model: Folder or hub id of a masked language model of this package to go on from, with its architecture
            and tokenizer; `model` and `tokenizer` do not count then.
        tokenizer: Folder or hub id of an existing tokenizer; without one, a byte-level BPE is trained on the corpus.
        mlm_probability: Share of the tokens to predict; of these 80 % become <mask>, 10 % another token, 10 % stay.
        max_steps: Updates.
        warmup_steps: Updates of linear warm-up.
        elastic_projected_dims: Numbers of slots of which each update draws one, so that the model can be run with any
            of them (`set_projected_dim`); default: projected_dim alone.
        eval_steps: Updates between evaluations.
        save_steps: Updates between checkpoints.
        load_best_model_at_end: Keep the checkpoint of the lowest validation loss, and end with its weights; needs
            save_steps equal to eval_steps.
        seed: Seed of everything that is drawn.
        compare_full: Train an equal model with full attention too and put its results beside.
    """

    model: ModelSettings
    from_model: str | None = None
    tokenizer: str | None = None
    mlm_probability: float = 0.15
    max_steps: int
    warmup_steps: int
    elastic_projected_dims: list[int] | None = None
    eval_steps: int
    save_steps: int
    load_best_model_at_end: bool = False
    seed: int = 0
    compare_full: bool = False
