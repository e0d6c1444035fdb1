"""Pretraining of language models, masked or causal: text → tokens → batches → model → checkpoint → results."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.special import entr
from torch import Tensor
from torch.utils.data import default_collate
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    set_seed,
)

from linformer_cli.errors import DivergedError, InputError, check_input, renamed
from linformer_cli.settings import IGNORED_LABEL, ModelSettings, PretrainSettings
from linformer_kit.data.packing import MaskedText, load_masked_text, shuffled_blocks
from linformer_kit.data.tokenizer import end_token_id, start_token_id, tokenizer_fingerprint, vocabulary_size
from linformer_kit.interop.checkpoints import read_config
from linformer_kit.interop.loading import load_model, model_fingerprint
from linformer_kit.models.causal import LinformerForCausalLM
from linformer_kit.models.configuration import LinformerConfig
from linformer_kit.models.heads import LinformerForMaskedLM, LinformerLanguageModel, labelled_positions
from linformer_kit.report.training import perplexity, write_pretrain_report
from linformer_kit.training.checkpoint import save_model
from linformer_kit.training.process import callers_random_state, keep_freed_memory
from linformer_kit.training.run import Run, print_results
from linformer_kit.training.state import Plan, learning_rate_schedule
from linformer_kit.training.task import Batch, Task

# The head runs on a multiple of this number of tokens. With another number in each update, logits of ever new sizes
# would leave gaps in the memory of the process, which would grow to several times what it uses.
_PREDICTED = 256
_SHOWN = 12  # tokens around a masked word that the report shows

# Settings that may change on resume, besides those that may change in all commands.
_MAY_CHANGE = ("max_steps", "eval_steps", "save_steps", "activation_checkpointing", "from_model")


def main(settings: PretrainSettings) -> None:
    """Pretrain and print the results."""
    keep_freed_memory()
    results, folder = pretrain(settings)
    if results["diverged"] is not None:
        raise DivergedError(results["diverged"])
    mask = AutoTokenizer.from_pretrained(folder, trust_remote_code=False).mask_token
    of_python = settings.train_file is None and settings.dataset_name is None
    text = f"def __init__({mask}, name):" if of_python else f"A text with a {mask}"
    how = f"linformer fill-mask {folder} '{text}'"
    if results["model"]["causal"]:
        how = f"transformers.pipeline('text-generation', '{folder}')('The', max_new_tokens=20)"
        how = f'python -c "import linformer_kit, transformers; print({how})"'
    print_results(folder, f"Saved in {folder}. Try it:\n  {how}")


@callers_random_state()
def pretrain(settings: PretrainSettings) -> tuple[dict[str, Any], Path]:
    """Pretrain a masked or a causal language model.

    Returns:
        The results, as in `metrics.json`, and the folder that holds them, the model, the tokenizer and the checkpoints.

    Raises:
        InputError: for invalid settings or unsuitable data. Existing files are kept.
    """
    settings, start = _starting_from(settings)
    _check_settings(settings)
    with Run("pretrain", settings, may_change=_MAY_CHANGE) as run:
        return _pretrain(run, settings, start), run.folder


def _pretrain(run: Run, settings: PretrainSettings, start: LinformerLanguageModel | None) -> dict[str, Any]:
    with run.process.local_main_process_first():  # the others read its cache
        data = load_masked_text(settings)
    fingerprints = {
        "train_text_fingerprint": data.corpus.train.fingerprint,
        "validation_text_fingerprint": data.corpus.validation.fingerprint,
        "tokenizer_fingerprint": tokenizer_fingerprint(data.tokenizer),
        "from_model_fingerprint": "" if start is None else model_fingerprint(start),
    }
    run.open({"corpus": data.corpus.description}, fingerprints)
    set_seed(settings.seed)
    model_class, task_class = language_model(settings.model)
    model = start or model_class(_model_config(settings, data.tokenizer))
    task = task_class(
        model,
        data.tokenizer,
        train=data.train,
        validation=data.validation,
        collate=default_collate,
        seed=settings.seed,
    )
    label = f"{model.config.attention} attention, {model.projection_matrix_count()} n → k matrices"
    run.train(task, _plan(settings), label=label)
    if run.diverged is None:  # else no model is saved, except in earlier checkpoints
        save_model(model, data.tokenizer, run.folder)
    results = _results(run, model, data)
    run.write(write_pretrain_report, results)
    return results


def _check_settings(settings: PretrainSettings) -> None:
    """Raise the errors of settings that contradict each other."""
    if settings.load_best_model_at_end:
        expected = f"{settings.eval_steps}, as eval_steps, with load_best_model_at_end"
        check_input(settings.save_steps == settings.eval_steps, "save_steps", expected, settings.save_steps)
    longest = settings.model.max_position_embeddings
    check_input(longest > 1, "max_position_embeddings", "2 or more, a start token and text", longest)
    try:
        LinformerConfig(**dataclasses.asdict(settings.model))  # which checks the architecture
    except InputError as error:
        advice = "; the recipe `causal` has settings that fit" if settings.model.causal else ""
        raise InputError(f"model.{error}{advice}") from None


def _results(run: Run, model: LinformerLanguageModel, data: MaskedText) -> dict[str, Any]:
    """The results; of a training that diverged, without a loss at its end."""
    curve, seed = run.state.logged("eval_loss"), run.plan.seed
    if run.diverged is not None:
        curve[run.state.update] = math.nan
    loss = curve[run.state.update if run.diverged else run.plan.result_update(run.state)]
    return run.results(
        model={
            "attention": model.config.attention,
            "causal": model.config.causal,
            "parameters": model.num_parameters(),
            "projection_matrices": model.projection_matrix_count(),
        },
        corpus={
            "description": data.corpus.description,
            "train_fingerprint": data.corpus.train.fingerprint,
            "validation_fingerprint": data.corpus.validation.fingerprint,
            "vocab_size": vocabulary_size(data.tokenizer),
            "seq_len": model.config.max_position_embeddings,
            "train_sequences": len(data.train),
            "validation_sequences": len(data.validation),
        },
        validation_loss=loss,
        perplexity=perplexity(loss),
        unigram_entropy=_unigram_entropy(data, causal=model.config.causal),
        curve=sorted(curve.items()),
        training_curve=run.state.curve("loss"),
        guesses=[] if run.diverged or model.config.causal else _guesses(model, data, seed=seed),
    )


def _plan(settings: PretrainSettings) -> Plan:
    return Plan(
        updates=settings.max_steps,
        schedule=learning_rate_schedule(
            settings.lr_scheduler_type, updates=settings.max_steps, warmup_steps=settings.warmup_steps
        ),
        seed=settings.seed,
        evaluate_every=settings.eval_steps,
        save_every=settings.save_steps,
        evaluate_first=True,
        metric="loss" if settings.load_best_model_at_end else None,
    )


@torch.no_grad()
def _guesses(model: LinformerLanguageModel, data: MaskedText, *, seed: int, count: int = 5) -> list[dict[str, Any]]:
    """The likeliest three tokens for one masked word in each of some held-out sequences, and the text around it."""
    tokenizer, blocks = data.tokenizer, data.validation.blocks
    generator, guesses = np.random.default_rng(seed), []
    model.eval()
    for index in generator.permutation(len(blocks)).tolist():
        ids = blocks[index]["input_ids"].astype(np.int64)
        places = generator.permutation(np.arange(1, len(ids) - 1)).tolist()
        place = next((place for place in places if _is_word(tokenizer, ids, place)), None)
        if place is None:
            continue
        masked = torch.tensor(ids, device=model.device)
        masked[place] = tokenizer.mask_token_id
        likeliest = model(masked[None]).logits[0, place].float().softmax(dim=-1).topk(3)
        around = masked[max(1, place - _SHOWN) : place + _SHOWN]
        guess = {"text": tokenizer.decode(around), "word": tokenizer.decode(ids[place])}
        guesses.append(guess | {"tokens": tokenizer.batch_decode(likeliest.indices[:, None])})
        guesses[-1]["probabilities"] = likeliest.values.tolist()
        if len(guesses) == count:
            break
    return guesses


def _is_word(tokenizer: PreTrainedTokenizerFast, ids: np.ndarray, place: int) -> bool:
    """Whether a token is a whole word of three letters or more."""
    word = tokenizer.decode(ids[place]).strip()
    around = tokenizer.decode(ids[place - 1 : place + 2])
    return len(word) > 2 and word.isalpha() and re.search(rf"\b{word}\b", around) is not None


def _model_config(settings: PretrainSettings, tokenizer: PreTrainedTokenizerFast) -> LinformerConfig:
    """Configuration from the settings' architecture and the tokenizer's vocabulary and special tokens."""
    ids = {
        "vocab_size": vocabulary_size(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": start_token_id(tokenizer),
        "eos_token_id": end_token_id(tokenizer),
    }
    return LinformerConfig(**(dataclasses.asdict(settings.model) | ids))


def _starting_from(settings: PretrainSettings) -> tuple[PretrainSettings, LinformerLanguageModel | None]:
    """The settings with the architecture of `from_model`, and that model; None for a new model.

    Raises an error for settings that were given and contradict the model.
    """
    if settings.from_model is None:
        return settings, None
    with renamed("model", "from_model"):
        config = read_config(settings.from_model, f"model: expected a language model, got {settings.from_model}")
        auto_class = AutoModelForCausalLM if getattr(config, "causal", False) else AutoModelForMaskedLM
        model = load_model(settings.from_model, auto_class, "a language model", config=config).model
    model = model.float()  # the trainer mixes precisions by itself
    if not isinstance(model, LinformerLanguageModel):
        expected = "a language model of this package"
        raise InputError(f"from_model: expected {expected}, got {type(model).__name__}")
    fields = model.config.own_fields
    for name, value in fields.items():
        if f"model.{name}" in settings.given and (got := getattr(settings.model, name)) != value:
            raise InputError(f"model.{name}: expected {value}, as from_model {settings.from_model}, got {got}")
    tokenizer = settings.tokenizer if "tokenizer" in settings.given else None
    return dataclasses.replace(settings, model=ModelSettings(**fields), tokenizer=tokenizer), model


def _unigram_entropy(data: MaskedText, *, causal: bool) -> float:
    """Entropy of the frequencies of the validation text's tokens that may be targets, in nats: the loss of the best
    prediction that ignores all context. A masked model predicts no special tokens, and no model the start of a block.
    """
    size = vocabulary_size(data.tokenizer)
    counts = np.zeros(size, dtype=np.int64)
    for batch in data.validation.blocks.iter(batch_size=1024):
        counts += np.bincount(np.asarray(batch["input_ids"])[:, 1:].ravel(), minlength=size)
    if not causal:
        counts[data.tokenizer.all_special_ids] = 0
    return float(entr(counts / counts.sum()).sum())


class MaskedLanguageModel(Task):
    """Predict the masked tokens of blocks.

    The loss is the mean negative log-likelihood over all masked tokens, in nats; a mean of batch means would give more
    weight to tokens of batches with fewer masked tokens.
    """

    unit = "tokens"
    uses_every_parameter = True

    @property
    def size(self) -> int:
        return self.model.config.max_position_embeddings

    def order(self, epoch: int, update_size: int) -> list[Any]:
        return shuffled_blocks(len(self.train_items), seed=self.seed, epoch=epoch)

    def labels(self, batch: Batch) -> Tensor:
        return (batch["labels"] != IGNORED_LABEL).sum()

    def forward(self, batch: Batch, labels: Tensor | None) -> Tensor:
        """Mean negative log-likelihood of the masked tokens; the head runs on these and few others."""
        positions = _predicted_positions(batch["labels"])
        return self.model(**batch, predicted_positions=positions, num_items_in_batch=labels).loss

    def measure(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Sum of losses and number of masked tokens of each sequence; the head runs on masked tokens only.

        Sums over sequences, unlike means, add up exactly over batches and processes.
        """
        labels = batch["labels"]
        positions = labelled_positions(labels)
        logits = self.model(batch["input_ids"], predicted_positions=positions).logits
        losses = F.cross_entropy(logits.float(), labels.flatten()[positions], reduction="none")
        sums = torch.zeros(len(labels), device=losses.device).index_add(0, positions // labels.shape[1], losses)
        return sums, (labels != IGNORED_LABEL).sum(dim=1)

    def metrics(self, sums: np.ndarray, counts: np.ndarray) -> dict[str, float]:  # type: ignore[override]
        loss = float(sums.sum(dtype="float64") / counts.sum())
        return {"loss": loss, "perplexity": perplexity(loss)}


class CausalLanguageModel(MaskedLanguageModel):
    """Predict the next token of each. The loss is over all tokens but the first of a block."""

    def forward(self, batch: Batch, labels: Tensor | None) -> Tensor:
        return self.model(**batch, num_items_in_batch=labels).loss

    def measure(self, batch: Batch) -> tuple[Tensor, Tensor]:
        logits, targets = self.model(batch["input_ids"]).logits[:, :-1], batch["labels"][:, 1:]
        losses = F.cross_entropy(logits.float().transpose(1, 2), targets, ignore_index=IGNORED_LABEL, reduction="none")
        return losses.sum(dim=1), (targets != IGNORED_LABEL).sum(dim=1)


def language_model(model: ModelSettings) -> tuple[type[LinformerLanguageModel], type[MaskedLanguageModel]]:
    """The classes of a new model and of its training: causal, or masked."""
    if model.causal:
        return LinformerForCausalLM, CausalLanguageModel
    return LinformerForMaskedLM, MaskedLanguageModel


def _predicted_positions(labels: Tensor) -> Tensor:
    """Indices of the labelled tokens in the flattened batch, then of some others up to a multiple of `_PREDICTED`."""
    ignored = (labels == IGNORED_LABEL).flatten()
    count = int((~ignored).sum())
    return ignored.argsort(stable=True)[: -(-count // _PREDICTED) * _PREDICTED]
