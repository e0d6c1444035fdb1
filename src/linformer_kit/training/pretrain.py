"""Masked-language-model pretraining: text → tokens → batches → model → checkpoint → results."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import logging
import math
import shutil
from pathlib import Path
from typing import Any

from accelerate import PartialState
from datasets import Dataset
from transformers import PreTrainedTokenizerFast, set_seed

from linformer_kit.data.cached import cache_folder, make_cache_folder
from linformer_kit.data.corpus import Corpus, load_corpus
from linformer_kit.data.masking import MaskedBlocks
from linformer_kit.data.packing import StreamedBlocks, pack
from linformer_kit.data.tokenizer import (
    end_token_id,
    load_tokenizer,
    start_token_id,
    tokenizer_fingerprint,
    train_tokenizer,
)
from linformer_kit.environment import versions
from linformer_kit.errors import DivergedError, InputError, renamed
from linformer_kit.files.runs import TWIN_FOLDER, check_output_dir, open_output_dir
from linformer_kit.files.writing import whole_folder
from linformer_kit.inference.fill_mask import guess_held_out, load_masked_language_model
from linformer_kit.interop.loading import fingerprint, resize
from linformer_kit.models.configuration import LinformerConfig
from linformer_kit.models.heads import LinformerForMaskedLM
from linformer_kit.operator.projections import PROJECTIONS
from linformer_kit.report.pretraining import write_pretrain_report
from linformer_kit.settings import IGNORED_LABEL, ModelSettings, PretrainSettings
from linformer_kit.training.arguments import training_arguments
from linformer_kit.training.checkpoint import save_model
from linformer_kit.training.identity import check_same_run, check_same_source, has_twin, save_run
from linformer_kit.training.metrics import unigram_entropy
from linformer_kit.training.pretraining import PRETRAINING, PretrainTrainer, check_training
from linformer_kit.training.randomness import callers_random_state
from linformer_kit.training.resume import checkpoint_to_resume

logger = logging.getLogger(__name__)

# Documents of a stream that a tokenizer is trained on.
STREAM_TOKENIZER_DOCUMENTS = 10_000


@dataclasses.dataclass(frozen=True)
class Data:
    """What both models of a comparison see.

    Attributes:
        corpus: The documents.
        tokenizer: The tokenizer.
        train: Masked training sequences.
        validation: Masked validation sequences, the same at each evaluation.
        validation_blocks: The validation sequences before masking.
    """

    corpus: Corpus
    tokenizer: PreTrainedTokenizerFast
    train: MaskedBlocks | StreamedBlocks
    validation: MaskedBlocks
    validation_blocks: Dataset


@callers_random_state()
def pretrain(settings: PretrainSettings) -> tuple[dict[str, Any], Path]:
    """Pretrain a masked language model, and an equal one with full attention where `compare_full` asks for it.

    Args:
        settings: What to train on, what to train and how.

    Returns:
        The results, as in `metrics.json`, and the folder that holds them, the model, the tokenizer and the checkpoints.

    Raises:
        InputError: for anything in the settings or the data that does not fit. Nothing that was there is lost.
    """
    settings, start = starting_from(settings)
    check(settings)
    process = PartialState()
    if process.num_processes > 1 and settings.output_dir is None:
        raise InputError(f"output_dir: expected a folder for {process.num_processes} processes to share, got none")
    if process.is_main_process:
        check_output_dir(
            settings.output_dir, resume=settings.resume, overwrite=settings.overwrite, twin=has_twin(settings)
        )
        check_same_run(settings)
    with process.main_process_first():
        data = load_data(settings)
    fingerprints = {
        "corpus_fingerprint": data.corpus.fingerprint,
        "tokenizer_fingerprint": tokenizer_fingerprint(data.tokenizer),
        **({} if start is None else {"from_model_fingerprint": fingerprint(start)}),
    }
    model_config(settings, data.tokenizer, attention=settings.model.attention)  # refused while nothing is removed yet
    folder = Path(settings.output_dir or "")
    if process.is_main_process:
        check_same_source(settings, fingerprints)
        folder = open_output_dir(settings.output_dir, command="pretrain", overwrite=settings.overwrite)
        settings = dataclasses.replace(settings, output_dir=str(folder))
        source = {"corpus": data.corpus.description}
        save_run(settings, folder, command="pretrain", source=source, fingerprints=fingerprints)
    process.wait_for_everyone()
    results: dict[str, Any] = {
        "command": "pretrain",
        "unigram_entropy": _unigram_entropy(data),
        "corpus": {
            "description": data.corpus.description,
            "fingerprint": data.corpus.fingerprint,
            "vocab_size": len(data.tokenizer),
            "seq_len": settings.model.max_position_embeddings,
            "train_sequences": len(data.train) if isinstance(data.train, MaskedBlocks) else None,
            "validation_sequences": len(data.validation),
        },
        "models": {},
        "settings": dataclasses.asdict(settings),
        "versions": versions(),
    }
    runs = {settings.model.attention: folder}
    if has_twin(settings):
        runs["full"] = folder / TWIN_FOLDER
    for attention, model_folder in runs.items():
        result = train_model(settings, data, model_folder, attention=attention, start=start)
        results["models"][attention] = result
        if process.is_main_process:
            write_pretrain_report(results, folder)
    return results, folder


def check(settings: PretrainSettings) -> None:
    """Refuse what will not fit, before the work on the text."""
    _check_elastic(settings, LinformerConfig(**dataclasses.asdict(settings.model)))
    check_training(settings)
    if not 0 < settings.mlm_probability < 1:
        raise InputError(f"mlm_probability: expected more than 0 and less than 1, got {settings.mlm_probability}")


def load_data(settings: PretrainSettings) -> Data:
    """Documents, tokenizer and masked sequences; tokenised text comes from the cache where it is there."""
    seq_len = settings.model.max_position_embeddings
    if existing := _existing_tokenizer(settings):
        load_tokenizer(existing, max_length=seq_len)  # refused before the work on the text
    corpus = load_corpus(settings, seed=settings.seed if settings.split_seed is None else settings.split_seed)
    logger.info("%s", corpus.description)
    tokenizer = _load_or_train_tokenizer(settings, corpus)
    cache = None if corpus.streaming else cache_folder(settings.cache_dir) / "blocks"
    masking: dict[str, Any] = {"seed": settings.seed, "probability": settings.mlm_probability}
    packing: dict[str, Any] = {"seq_len": seq_len, "cache": cache}
    held_out = corpus.validation
    if corpus.streaming:
        held_out = Dataset.from_list(list(held_out))
        train: MaskedBlocks | StreamedBlocks = StreamedBlocks(corpus.train, tokenizer, seq_len=seq_len, **masking)
    else:
        blocks = pack(
            corpus.train, tokenizer, key=f"train {corpus.fingerprint}", description="training text", **packing
        )
        train = MaskedBlocks(blocks, tokenizer, **masking)
    validation_blocks = pack(
        held_out, tokenizer, key=f"validation {corpus.fingerprint}", description="validation text", **packing
    )
    validation = MaskedBlocks(validation_blocks, tokenizer, **masking)
    if not any((validation[index]["labels"] != IGNORED_LABEL).any() for index in range(len(validation))):
        raise InputError(
            f"mlm_probability: expected enough to mask any of {len(validation)} validation sequences, "
            f"got {settings.mlm_probability}"
        )
    return Data(corpus, tokenizer, train, validation, validation_blocks)


def train_model(
    settings: PretrainSettings, data: Data, folder: Path, *, attention: str, start: LinformerForMaskedLM | None = None
) -> dict[str, Any]:
    """Train one model, save it and measure it.

    Args:
        settings: As for `pretrain`.
        data: What to train on.
        folder: Where model and checkpoints go.
        attention: `linformer` or `full`.
        start: The model to go on from, which is changed; None: a new one.

    Returns:
        Validation loss in nats and its curve, time, size and guesses in held-out text. Where training came to what is
        no number, `diverged` says where, the loss is NaN, and no model is saved but in the checkpoints before.
    """
    set_seed(settings.seed)
    checkpoint = checkpoint_to_resume(folder) if settings.resume else None
    diverged: str | None = None
    model = start or LinformerForMaskedLM(model_config(settings, data.tokenizer, attention=attention))
    trainer = build_trainer(settings, data, folder, model)
    logger.info(
        "%s attention: %s parameters, %s n → k matrices, %s, on %s",
        attention,
        f"{model.num_parameters():,}",
        model.projection_matrix_count(),
        "bf16 mixed precision" if trainer.args.bf16 else "float32",
        trainer.args.device,
    )
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except DivergedError as error:
        diverged = str(error)
    updates = trainer.state.global_step
    curve = {entry["step"]: entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry}
    if diverged is not None:
        curve[updates] = math.nan
    elif updates not in curve or trainer.args.load_best_model_at_end:
        curve[updates] = trainer.evaluate()["eval_loss"]
    loss = curve[updates]
    if not math.isfinite(loss) and diverged is None:
        diverged = f"learning_rate: expected one that training survives, got {settings.learning_rate}"
    if trainer.is_world_process_zero() and diverged is None:
        save_model(model, data.tokenizer, folder)
    return {
        "parameters": model.num_parameters(),
        "projection_matrices": model.projection_matrix_count(),
        "updates": updates,
        "diverged": diverged,
        "skipped_updates": trainer.skipped_updates,
        "validation_loss": loss,
        "perplexity": math.exp(min(loss, 700)),
        "curve": sorted(curve.items()),
        "seconds": trainer.progress.seconds,
        "tokens_per_second": trainer.progress.rate,
        "bf16": trainer.args.bf16,
        "guesses": []
        if diverged
        else guess_held_out(model, data.tokenizer, data.validation_blocks, seed=settings.seed),
    }


def build_trainer(settings: PretrainSettings, data: Data, folder: Path, model: LinformerForMaskedLM) -> PretrainTrainer:
    """The trainer of a model by the settings; checkpoints go below the folder."""
    return PretrainTrainer(
        model,
        training_arguments(settings, folder, PRETRAINING),
        train_dataset=data.train,
        eval_dataset=data.validation,
        processing_class=data.tokenizer,
        seq_len=settings.model.max_position_embeddings,
        projection_learning_rate_factor=settings.projection_learning_rate_factor,
        projection_weight_decay=settings.projection_weight_decay,
        skip_bad_batches=settings.skip_bad_batches,
        elastic_projected_dims=None if model.config.attention == "full" else settings.elastic_projected_dims,
    )


def model_config(settings: PretrainSettings, tokenizer: PreTrainedTokenizerFast, *, attention: str) -> LinformerConfig:
    """The architecture of the settings with the vocabulary and special tokens of the tokenizer."""
    fields: dict[str, Any] = dataclasses.asdict(settings.model) | {
        "attention": attention,
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": start_token_id(tokenizer),
        "eos_token_id": end_token_id(tokenizer),
    }
    return LinformerConfig(**fields)


def starting_from(settings: PretrainSettings) -> tuple[PretrainSettings, LinformerForMaskedLM | None]:
    """The settings, with the architecture of the model to go on from, and that model, resized; None for a new one.

    Raises:
        InputError: for a model that is not ours or cannot be resized so.
    """
    if settings.from_model is None:
        if settings.resize_to is not None:
            raise InputError(f"resize_to: expected none without from_model, got {settings.resize_to}")
        return settings, None
    if settings.compare_full:
        raise InputError("compare_full: expected false with from_model, which has one kind of attention, got true")
    with renamed("model", "from_model"):
        model = load_masked_language_model(settings.from_model)[0].float()  # the trainer mixes precisions by itself
    if not isinstance(model, LinformerForMaskedLM):
        raise InputError(
            f"from_model: expected a Linformer (`linformer convert` makes one), got {type(model).__name__}"
        )
    resize(model, settings.resize_to, settings.resize_mode)
    fields = {field.name: getattr(model.config, field.name) for field in dataclasses.fields(ModelSettings)}
    return dataclasses.replace(settings, model=ModelSettings(**fields)), model


def _check_elastic(settings: PretrainSettings, config: LinformerConfig) -> None:
    """Refuse numbers of slots that the model cannot be run with."""
    dims = settings.elastic_projected_dims
    if dims is None:
        return
    if config.attention == "full" or not PROJECTIONS[config.projection].nested:
        kind = "full attention" if config.attention == "full" else f"projection {config.projection}"
        raise InputError(f"elastic_projected_dims: expected none with {kind}, got {dims}")
    for dim in dims or [0]:
        if not 1 <= dim <= config.largest_projected_dim:
            expected = f"one or more, each 1 to {config.largest_projected_dim} (projected_dim)"
            raise InputError(f"elastic_projected_dims: expected {expected}, got {dims}")


def _existing_tokenizer(settings: PretrainSettings) -> str | None:
    """Folder or hub id of the tokenizer, where there is one to use."""
    return settings.from_model or settings.tokenizer


def _load_or_train_tokenizer(settings: PretrainSettings, corpus: Corpus) -> PreTrainedTokenizerFast:
    max_length = settings.model.max_position_embeddings
    if existing := _existing_tokenizer(settings):
        return load_tokenizer(existing, max_length=max_length)
    vocab_size = settings.model.vocab_size
    if corpus.streaming:
        texts = (row["text"] for row in itertools.islice(corpus.train, STREAM_TOKENIZER_DOCUMENTS))
        return train_tokenizer(texts, vocab_size=vocab_size, max_length=max_length)
    key = hashlib.sha256(json.dumps([corpus.fingerprint, vocab_size]).encode()).hexdigest()
    folder = cache_folder(settings.cache_dir) / "tokenizers" / key
    if folder.exists():
        try:
            return load_tokenizer(str(folder), max_length=max_length)
        except InputError:
            shutil.rmtree(folder)  # damaged: make it again
    tokenizer = train_tokenizer((row["text"] for row in corpus.train), vocab_size=vocab_size, max_length=max_length)
    make_cache_folder(folder.parent)
    try:
        with whole_folder(folder) as part:
            tokenizer.save_pretrained(part)
    except OSError:
        if not folder.exists():  # else another process was first with the same
            raise
    return load_tokenizer(str(folder), max_length=max_length)


def _unigram_entropy(data: Data) -> float:
    return unigram_entropy(
        (batch["input_ids"] for batch in data.validation_blocks.with_format("numpy").iter(batch_size=1024)),
        vocab_size=len(data.tokenizer),
        special_ids=data.tokenizer.all_special_ids,
    )
