"""Everything runs offline; models are tiny; sizes are distinct primes, so that a swapped axis cannot pass."""

from __future__ import annotations

import base64
import copy
import gc
import itertools
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import hypothesis
import pytest
import torch
import transformers
from jaxtyping import config as jaxtyping_config
from matplotlib.figure import Figure
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from linformer_cli.cli import main
from linformer_cli.settings import BiasOrder, Sharing, ShorterInput
from linformer_kit import LinformerConfig, LinformerForMaskedLM, linearize
from linformer_kit.data.tokenizer import train_tokenizer
from linformer_kit.models import encoder
from linformer_kit.operator.kernels import softmax
from linformer_kit.operator.projections import PROJECTIONS

hypothesis.settings.register_profile("quick", max_examples=50, deadline=None, derandomize=True)
hypothesis.settings.register_profile("thorough", max_examples=1000, deadline=None, derandomize=True)
hypothesis.settings.load_profile("quick")  # --hypothesis-profile=thorough comes later and wins
torch.set_num_threads(1)  # the tensors are tiny: threads would only wait for each other

SHARINGS, SHORTER_INPUTS, BIAS_ORDERS = map(get_args, (Sharing, ShorterInput, BiasOrder))
# Models that differ in more than sharing or projection.
OTHERS = {
    "full": {"attention": "full"},
    "norm_first": {"norm_first": True},
    "local": {"local_convolution": 5},
    "local_norm_first": {"local_convolution": 3, "norm_first": True, "sharing": "layerwise"},
    "window": {"sliding_window": 5},
    "window_norm_first": {"sliding_window": 4, "norm_first": True, "sharing": "layerwise", "local_convolution": 3},
    "window_mean_pool": {"sliding_window": 5, "projection": "mean_pool", "global_tokens": 1},
    "local_full": {"local_convolution": 3, "attention": "full"},
}
KINDS = (*SHARINGS, *(name for name in PROJECTIONS if name != "linear"), *OTHERS)
CAUSAL = {
    "causal": {"causal": True, "sliding_window": 9, "projection": "mean_pool", "global_tokens": 1},
    "causal_full": {"causal": True, "attention": "full"},
}
ENCODERS = (*KINDS, *CAUSAL)
SIZES = {
    "vocab_size": 101,
    "max_position_embeddings": 37,
    "projected_dim": 7,
    "hidden_size": 33,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "intermediate_size": 29,
}


# Of models with a tokenizer of their own.
PRETRAIN_SIZES = {**SIZES, "vocab_size": 277, "max_position_embeddings": 23}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tiers that an expression of markers (`-m`) does not name."""
    left_out = [tier for tier in ("slow", "gpu", "network") if tier not in config.option.markexpr]
    deselected = [item for item in items if any(map(item.get_closest_marker, left_out))]
    config.hook.pytest_deselected(items=deselected)
    items[:] = [item for item in items if item not in set(deselected)]


def pytest_collection_finish() -> None:
    """Leave what was imported, which stays to the end, out of garbage collection."""
    gc.freeze()


def write_corpus(folder: Path) -> Path:
    """A few similar documents, enough for pretraining."""
    for number in range(13):
        lines = [f"def function_{number}_{line}(first, second): return first + second" for line in range(17)]
        (folder / f"{number}.txt").write_text("\n".join(lines))
    return folder


def write_model(folder: Path, text: str, **fields: object) -> Path:
    """An untrained masked language model, and a tokenizer of the words of a text."""
    length = PRETRAIN_SIZES["max_position_embeddings"]
    tokenizer = train_tokenizer([text] * 5, vocab_size=PRETRAIN_SIZES["vocab_size"], max_length=length)
    torch.manual_seed(0)
    config = LinformerConfig(**{**PRETRAIN_SIZES, "vocab_size": len(tokenizer), **fields})
    LinformerForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_teacher(folder: Path, text: str, class_name: str = "RobertaForMaskedLM", **fields: object) -> Path:
    """An untrained encoder of transformers, with a tokenizer of the words of a text."""
    length = PRETRAIN_SIZES["max_position_embeddings"]
    tokenizer = train_tokenizer([text] * 5, vocab_size=PRETRAIN_SIZES["vocab_size"], max_length=length)
    positions = length + tokenizer.pad_token_id + 1
    fields = {"max_position_embeddings": positions, "num_hidden_layers": 3, "type_vocab_size": 1, **fields}
    return _write_encoder(folder, tokenizer, class_name, fields)


def write_bert(folder: Path, text: str, *, longest: int) -> Path:
    """An untrained BERT without a head, and a tokenizer of the words of a text."""
    tokenizer = train_tokenizer([text] * 5, vocab_size=701, max_length=longest)
    fields = {"max_position_embeddings": longest, "num_hidden_layers": SIZES["num_hidden_layers"]}
    return _write_encoder(folder, tokenizer, "BertModel", fields)


def _write_encoder(folder: Path, tokenizer: Any, class_name: str, fields: dict[str, object]) -> Path:
    torch.manual_seed(0)
    tokens = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    sizes = {name: SIZES[name] for name in ("hidden_size", "num_attention_heads", "intermediate_size")}
    kind = getattr(transformers, class_name)
    settings = {"vocab_size": len(tokenizer), "initializer_range": 0.2, **tokens, **sizes, **fields}
    kind(kind.config_class(**settings)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_tokenizer(folder: Path, size: int = 53) -> None:
    """A tokenizer of the words w5, w6, ..., each of which is its own id."""
    vocabulary = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 4, **{f"w{i}": i for i in range(5, size)}}
    words = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", mask_token="<mask>")
    tokenizer.save_pretrained(folder)


def save_bert_tokenizer(folder: Path, words: Iterable[str] = ("x", "y")) -> None:
    """A WordPiece tokenizer, whose class has token types."""
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    transformers.BertTokenizer.from_pretrained(folder).save_pretrained(folder)


def pad_always(folder: Path, length: int) -> None:
    """Let the file of a folder's tokenizer pad every text to a length, and truncate it there, as MiniLM's own does."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding(length=length, pad_id=tokenizer.token_to_id("<pad>") or 0)
    tokenizer.enable_truncation(length)
    tokenizer.save(str(folder / "tokenizer.json"))


def encoded_lengths(folder: Path, *texts: str) -> list[int]:
    """Numbers of tokens of texts, as the library `tokenizers` counts them with the file of a folder's tokenizer."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [len(tokenizer.encode(text).ids) for text in texts]


def slow_but(quick: Iterable[Any], values: Iterable[Any]) -> list[Any]:
    """Parameters of a test; all except the quick ones are in the slow tier."""
    quick = list(quick)
    return [value if value in quick else pytest.param(value, marks=pytest.mark.slow) for value in values]


def pairs_of(*axes: Iterable[Any]) -> list[Any]:
    """Combinations of values that cover every pair of them: greedily, the one with most of the pairs that are left."""
    values = [list(axis) for axis in axes]
    pairs = {
        places: set(itertools.combinations(enumerate(places), 2))
        for places in itertools.product(*(range(len(axis)) for axis in values))
    }
    left, chosen = set().union(*pairs.values()), []
    while left:
        chosen.append(max(pairs, key=lambda places: len(pairs[places] & left)))
        left -= pairs[chosen[-1]]
    return [[axis[place] for axis, place in zip(values, places, strict=True)] for places in sorted(chosen)]


def values_of(*axes: Iterable[Any]) -> list[Any]:
    """Combinations of values that cover each of them: shorter axes start again at their end."""
    values = [list(axis) for axis in axes]
    return [[axis[row % len(axis)] for axis in values] for row in range(max(map(len, values)))]


def fail(capsys, *command: str) -> str:
    """The one line on stderr; anything else fails."""
    error = fail_last_line(capsys, *command)
    assert "\n" not in error
    return error


def fail_last_line(capsys, *command: str, code: int = 2) -> str:
    """The last line on stderr of a command that fails late; lines of progress may precede it."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as exit_:
        main([str(word) for word in command])
    assert exit_.value.code == code
    error = capsys.readouterr().err.rstrip("\n")
    assert "Traceback" not in error and error.splitlines()[-1].startswith("linformer: error: ")
    return error


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory) -> None:
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _shapes(request, monkeypatch) -> None:
    """Check shapes in all tests except marked ones."""
    if request.node.get_closest_marker("unchecked"):
        monkeypatch.setattr(jaxtyping_config, "jaxtyping_disable", True)


_PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)


_drawn = Figure.savefig
Figure.savefig = lambda figure, path, **_: Path(path).write_bytes(
    _PICTURE
)  # drawing takes longer than a small training


@pytest.fixture
def drawn(monkeypatch) -> None:
    """Write figures in full; without this fixture, figure files hold one pixel."""
    monkeypatch.setattr(Figure, "savefig", _drawn)


@pytest.fixture
def config():
    """A factory of small configurations without dropout."""

    def build(**fields: object) -> LinformerConfig:
        quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        return LinformerConfig(**{**SIZES, **quiet, **fields})

    return build


@pytest.fixture
def small_blocks(monkeypatch):
    """Make blocks so small that the models of a test run in many of them."""
    monkeypatch.setattr(encoder, "_BLOCK_TOKENS", 2)
    monkeypatch.setattr(encoder, "_LEAST_TOKENS", 4)
    monkeypatch.setattr(encoder, "_BLOCK_ELEMENTS", 1)
    monkeypatch.setattr(softmax, "_SCORES", 200)
    monkeypatch.setattr(softmax, "_COLUMNS", 1000)
    monkeypatch.setattr("linformer_kit.operator.window._ROWS", 3)


def replica_of(model: torch.nn.Module) -> torch.nn.Module:
    """A copy as `nn.DataParallel` makes it, with tensors as attributes and no parameters, which are doubled."""
    copies = {module: module._replicate_for_data_parallel() for module in model.modules()}
    for module, replica in copies.items():
        for name, child in module._modules.items():
            setattr(replica, name, None if child is None else copies[child])
        for name, parameter in module._parameters.items():
            setattr(replica, name, None if parameter is None else 2 * parameter.detach())
        for name, buffer in module._buffers.items():
            setattr(replica, name, 2 * buffer if buffer.is_floating_point() else buffer)
    return copies[model]


def doubled(model: torch.nn.Module) -> torch.nn.Module:
    """A copy with the weights of `replica_of`."""
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for tensor in itertools.chain(copied.parameters(), copied.buffers()):
            if tensor.is_floating_point():
                tensor.mul_(2)
    return copied


def skip_if_peft_is_too_old() -> None:
    """Transformers' own adapters may need a PEFT that is newer than all that were released."""
    from transformers.integrations.peft import MIN_PEFT_VERSION
    from transformers.utils import check_peft_version

    try:
        check_peft_version(min_version=MIN_PEFT_VERSION)
    except ValueError as error:
        pytest.skip(str(error))


def tokens(batch: int, seq_len: int) -> torch.Tensor:
    """Random ordinary tokens of the small vocabulary."""
    return torch.randint(5, SIZES["vocab_size"], (batch, seq_len))


def some_padding(length: int) -> torch.Tensor:
    """A mask of three texts, with 0 on padding: on the right, on the left, and in the middle."""
    mask = torch.ones(3, length, dtype=torch.long)
    mask[0, -5:] = mask[1, :3] = mask[2, 7:11] = 0
    return mask


def randomise(module: torch.nn.Module, scale: float = 0.3) -> torch.nn.Module:
    """Random parameters everywhere: zero biases and pooling starts would hide mistakes."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=scale)
    return module


def as_in_the_paper(model, *arguments, **options):
    """The model linearised with learned E and F and nothing beside the slots, unless options say otherwise."""
    paper = {"projection": "linear", "sliding_window": 0, "global_tokens": 0}
    return linearize(model, *arguments, **paper | options)


def fields(kind: str) -> dict[str, object]:
    """A sharing of the linear projection, another projection, or another model."""
    if kind in OTHERS | CAUSAL:
        return (OTHERS | CAUSAL)[kind]
    return {"sharing": kind} if kind in SHARINGS else {"projection": kind, "sharing": "none"}


def shorter_inputs(fields: Mapping[str, object], wanted: str) -> dict[str, object]:
    """The fields, with the wanted shorter_input where the projection allows it."""
    may_stretch = PROJECTIONS[str(fields.get("projection", "linear"))].windowed and not fields.get("causal")
    return {**fields, "shorter_input": wanted if may_stretch else "prefix"}
