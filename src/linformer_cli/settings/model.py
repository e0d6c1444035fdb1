"""The architecture: the settings of slots, and the fields of `LinformerConfig`."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import ValidationError, WrapValidator
from pydantic_core import PydanticCustomError

from linformer_cli.settings.declare import (
    BelowOne,
    Count,
    CountOrZero,
    Encoder,
    Length,
    Linear,
    OfFiles,
    Positive,
    Tokens,
    settings,
)

Sharing = Literal["none", "headwise", "key_value", "layerwise"]
ProjectionName = Literal["linear", "mean_pool", "max_pool", "conv", "random", "dynamic"]
REGISTERED_PROJECTIONS: set[str] = set()  # names of users' own, by `lk.register_projection`


def _registered_or_known(value: Any, check: Callable[[Any], Any]) -> Any:
    try:
        return value if value in [*REGISTERED_PROJECTIONS] else check(value)
    except ValidationError as error:
        expected = error.errors()[0]["msg"].removeprefix("Input should be ")
        raise PydanticCustomError("projection", f"{expected}, or a name for lk.register_projection") from None


Projection = Annotated[ProjectionName, WrapValidator(_registered_or_known)]
Attention = Literal["linformer", "full"]
BiasOrder = Literal["before_projection", "after_projection"]
ShorterInput = Literal["prefix", "stretch"]
ResizeMode = Literal["extend", "interpolate"]
LinearInitializer = Literal["normal", "lecun_normal"]
ProjectionInitializer = Literal["pooling", "mean_pooling", "shifted_pooling", "normal"]
ClassifierPooling = Literal["cls", "mean"]
Dims = int | list[int] | list[list[int]]  # k of all layers, of each layer, or of each head of each layer

IGNORED_LABEL = -100  # a position without a target, in data and models; torch's losses ignore it


@settings
class SlotSettings:
    """What queries attend to instead of n tokens, with the paper's choices as defaults."""

    projected_dim: Linear[Dims] = 128
    """k, the number of slots (projected keys and values); or a list with one k per layer, or for each layer a list of
    one k per head."""
    sharing: Linear[Sharing] = "headwise"
    """Sharing of E and F (section 4 of the paper): `none`; `headwise`, one E and one F for all heads of a layer;
    `key_value`, one E = F for each layer; `layerwise`, one E = F for all layers."""
    projection: Linear[Projection] = "linear"
    """How n positions are projected to k slots; `dynamic` computes E = F from the tokens (docs/operator.md)."""
    projection_initializer: Linear[ProjectionInitializer] = "shifted_pooling"
    """Initialisation of E and F where `projection` is `linear` (docs/learning.md)."""
    shorter_input: Linear[ShorterInput] = "prefix"
    """What inputs shorter than n use: the first columns of E and the first windows (`prefix`), or windows that tile the
    input (`stretch`)."""
    sliding_window: Linear[Tokens] = 0
    """w, the number of neighbouring tokens that each query attends to exactly, its own included, in one softmax with
    the slots; 0: none, as in the paper (docs/operator.md)."""
    global_tokens: Linear[Tokens] = 0
    """g, the number of tokens at the start of a text that every query attends to exactly, besides the slots; 0: none,
    as in the paper."""

    def projected_dim_of(self, layer: int) -> int | list[int]:
        """k of a layer, or of each of its heads."""
        return self.projected_dim[layer] if isinstance(self.projected_dim, list) else self.projected_dim


@settings
class LinearizeSettings(SlotSettings):
    """Slots in place: they start such that the outputs of the pretrained encoder hardly change."""

    projected_dim: Linear[Dims | None] = None  # type: ignore[assignment]
    """k, the number of slots; or a list with one k per layer, or for each layer a list of one k per head; default: 128,
    at most n."""
    max_position_embeddings: Linear[Length | None] = None
    """n, the maximum length in tokens; default: as before."""
    resize_mode: Linear[ResizeMode] = "extend"
    """How position embeddings are resized: repeated or interpolated."""
    layers: Linear[list[int] | None] = None
    """Layers to linearise, from 0; others stay as they are; default: all."""
    projection: Linear[Projection] = "mean_pool"
    projection_initializer: Linear[ProjectionInitializer] = "mean_pooling"
    shorter_input: Linear[ShorterInput | None] = None  # type: ignore[assignment]
    """What inputs shorter than n use: the first columns and windows (`prefix`), or windows that tile the input
    (`stretch`); default: stretch where slots are windows of tokens, else prefix."""
    sliding_window: Linear[Tokens] = 128
    global_tokens: Linear[Tokens | None] = None  # type: ignore[assignment]
    """g, the number of tokens at the start of a text that every query attends to exactly, besides the slots; default: 1
    where slots are windows of tokens, else 0."""


@settings
class ModelSettings(SlotSettings):
    """The architecture: the fields of `LinformerConfig`."""

    vocab_size: Encoder[Count] = 50265
    """Tokens in the vocabulary; `pretrain` trains a tokenizer of this size."""
    max_position_embeddings: Linear[Length] = 512
    """n, the maximum sequence length in tokens."""
    attention: Linear[Attention | list[Attention]] = "linformer"
    """`full`: the Transformer of equal size to compare with; or a list with one of both per layer."""
    bias_order: OfFiles[BiasOrder] = "before_projection"
    """Whether the biases of keys and values are added before E and F, or after them as in fairseq, whose E and F are
    linear and the same for all heads."""
    hidden_size: Encoder[Count] = 768
    """d_m, the width of the model."""
    num_hidden_layers: Encoder[Count] = 12
    """Number of layers."""
    num_attention_heads: Encoder[Count] = 12
    """h, the number of heads per layer; must divide hidden_size."""
    intermediate_size: Encoder[Count] = 3072
    """Width of the feed-forward layer."""
    hidden_act: OfFiles[str] = "gelu"
    """Activation of the feed-forward layer."""
    hidden_dropout_prob: Encoder[BelowOne] = 0.1
    """Dropout after embeddings, attention and feed-forward."""
    attention_probs_dropout_prob: OfFiles[BelowOne] = 0.1
    """Dropout on the attention probabilities."""
    classifier_dropout: OfFiles[BelowOne | None] = None
    """Dropout in classification heads; default: hidden_dropout_prob."""
    classifier_pooling: OfFiles[ClassifierPooling | None] = None
    """Vector that a classifier of texts maps to classes by one linear layer: that of the first token (`cls`) or the
    mean of all (`mean`); default: a dense layer on the first token comes before it, as in RoBERTa."""
    type_vocab_size: OfFiles[CountOrZero] = 0
    """Number of token types; 0: no token types."""
    position_offset: OfFiles[CountOrZero] = 0
    """Unused rows at the start of the position table (RoBERTa: 2)."""
    initializer_range: OfFiles[Positive] = 0.02
    """Standard deviation of initial embeddings and linear layers."""
    linear_initializer: Encoder[LinearInitializer] = "normal"
    """Initialisation of the linear layers except the output layer of a language-model head: `normal` with
    standard deviation initializer_range, as in BERT and RoBERTa, or `lecun_normal` with 1/√inputs, which narrow models
    need (reproduce/LOG.md)."""
    local_convolution: Linear[CountOrZero] = 0
    """Kernel size, an odd number, of a depthwise convolution parallel to each attention, which adds the local order of
    tokens (docs/learning.md); 0: no convolution, as in the paper."""
    causal: Linear[bool] = False
    """Whether tokens see no later ones; slots are then windows of tokens, `sliding_window` is at least as wide, and it
    ends with the query's own token (docs/operator.md)."""
    norm_first: Encoder[bool] = False
    """Apply LayerNorm before attention and feed-forward, and once at the end (pre-norm), instead of after each residual
    connection (post-norm, as in BERT and RoBERTa). Pre-norm learns faster (docs/learning.md)."""
    final_norm: OfFiles[bool] = True
    """Whether a pre-norm model ends with a LayerNorm."""
    embedding_norm: OfFiles[bool] = True
    """Whether a LayerNorm follows the embeddings."""
    head_transform: OfFiles[bool] = True
    """Whether the language-model head has a dense layer and a LayerNorm before its map to logits."""
    layer_norm_eps: OfFiles[Positive] = 1e-5
    """Epsilon of the layer norms."""
    pad_token_id: OfFiles[CountOrZero | None] = 1
    """Id of the padding token."""
    bos_token_id: OfFiles[CountOrZero | None] = 0
    """Id of the token at the start of a sequence."""
    eos_token_id: OfFiles[CountOrZero | None] = 2
    """Id of the token at the end of a document."""
    tie_word_embeddings: OfFiles[bool] = True
    """Tie the language-model head to the word embeddings."""
