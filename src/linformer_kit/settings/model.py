"""The architecture: the fields of `LinformerConfig`, and the words that they take."""

from dataclasses import dataclass
from typing import Literal

Sharing = Literal["none", "headwise", "key_value", "layerwise"]
Projection = Literal["linear", "mean_pool", "max_pool", "conv", "dense_conv", "random"]
Attention = Literal["linformer", "full"]
BiasOrder = Literal["before_projection", "after_projection"]
ShorterInput = Literal["prefix", "stretch"]
ResizeMode = Literal["extend", "interpolate"]
LinearInitializer = Literal["normal", "lecun_normal"]
ProjectionInitializer = Literal[
    "pooling",
    "mean_pooling",
    "pooling_noise",
    "shifted_pooling",
    "selection",
    "normal",
    "lecun_normal",
    "xavier_uniform",
]


IGNORED_LABEL = -100  # a position without a target, in data and models alike; what losses of torch skip


@dataclass(kw_only=True)
class ModelSettings:
    """The architecture: the fields of `LinformerConfig`.

    Attributes:
        vocab_size: Number of tokens in the vocabulary; `pretrain` trains a tokenizer of this size.
        max_position_embeddings: n, the longest sequence in tokens.
        projected_dim: k, the length of the projected keys and values; or a list of one for each layer, or of a list
            of one for each head for each layer.
        sharing: Which matrices E and F are one and the same (section 4 of the paper).
        projection: The map of n positions to k slots.
        projection_initializer: Start of E and F where `projection` is `linear` (`projection.starts`, docs/learning.md).
        shorter_input: What texts shorter than n use: the first columns of E and the first windows (`prefix`), or E and
            windows resampled to their length (`stretch`).
        attention: `full` is the Transformer of equal size, the baseline of every comparison.
        bias_order: Whether the biases of keys and values are added before E and F or, as fairseq does, after.
        hidden_size: d_m, the width of the model.
        num_hidden_layers: Number of layers.
        num_attention_heads: h, heads in a layer; divides hidden_size.
        intermediate_size: Width of the feed-forward layer.
        hidden_act: Activation of the feed-forward layer.
        hidden_dropout_prob: Dropout after embeddings, attention and feed-forward.
        attention_probs_dropout_prob: Dropout on the context mapping.
        classifier_dropout: Dropout in the classification heads; hidden_dropout_prob if not given.
        type_vocab_size: Number of token types; 0 means that there are none.
        position_offset: Unused rows at the start of the position table (2 in RoBERTa and fairseq checkpoints).
        initializer_range: Standard deviation of the start of embeddings and linear maps, but not of E and F.
        linear_initializer: Start of the linear maps: `normal` with initializer_range, as in BERT and RoBERTa, or
            `lecun_normal` with 1/√inputs, without which narrow models hardly learn (docs/log.md). Never of the decoder.
        local_convolution: Tokens that a depthwise convolution beside each attention sees, an odd number; 0: there is
            none, as in the paper. Slots mix their tokens, so this is how a token tells its neighbours apart, at little
            cost (docs/learning.md).
        norm_first: Whether LayerNorm stands before attention and feed-forward (pre-norm) and once more at the end,
            instead of after each residual (post-norm, as in BERT and RoBERTa); learns earlier (docs/learning.md).
        layer_norm_eps: Epsilon of the layer norms.
        pad_token_id: Token that fills up short sequences.
        bos_token_id: Token at the start of a sequence.
        eos_token_id: Token at the end of a document.
        tie_word_embeddings: Whether the masked-language-model head uses the word embeddings.
    """

    vocab_size: int = 50265
    max_position_embeddings: int = 512
    projected_dim: int | list[int] | list[list[int]] = 128
    sharing: Sharing = "headwise"
    projection: Projection = "linear"
    projection_initializer: ProjectionInitializer = "shifted_pooling"
    shorter_input: ShorterInput = "prefix"
    attention: Attention = "linformer"
    bias_order: BiasOrder = "before_projection"
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    classifier_dropout: float | None = None
    type_vocab_size: int = 0
    position_offset: int = 0
    initializer_range: float = 0.02
    linear_initializer: LinearInitializer = "normal"
    local_convolution: int = 0
    norm_first: bool = False
    layer_norm_eps: float = 1e-5
    pad_token_id: int | None = 1
    bos_token_id: int | None = 0
    eos_token_id: int | None = 2
    tie_word_embeddings: bool = True
