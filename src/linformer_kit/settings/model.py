"""The architecture: the fields of `LinformerConfig` and their allowed values."""

from dataclasses import dataclass
from typing import Literal

Sharing = Literal["none", "headwise", "key_value", "layerwise"]
Projection = Literal["linear", "mean_pool", "max_pool", "conv", "random", "dynamic"]
Attention = Literal["linformer", "full"]
BiasOrder = Literal["before_projection", "after_projection"]
ShorterInput = Literal["prefix", "stretch"]
ResizeMode = Literal["extend", "interpolate"]
LinearInitializer = Literal["normal", "lecun_normal"]
ProjectionInitializer = Literal[
    "pooling",
    "mean_pooling",
    "shifted_pooling",
    "normal",
    "lecun_normal",
]


IGNORED_LABEL = -100  # a position without a target, in data and models; torch's losses ignore it


@dataclass(kw_only=True)
class ModelSettings:
    """The architecture: the fields of `LinformerConfig`.

    Attributes:
        vocab_size: Number of tokens in the vocabulary; `pretrain` trains a tokenizer of this size.
        max_position_embeddings: n, the maximum sequence length in tokens.
        projected_dim: k, the number of slots (projected keys and values); or a list with one k per layer, or for each
            layer a list of one k per head.
        sharing: Sharing of E and F (section 4 of the paper): `none`; `headwise`, one E and one F for all heads of a
            layer; `key_value`, one E = F for each layer; `layerwise`, one E = F for all layers.
        projection: How n positions are projected to k slots; `dynamic` computes E = F from the tokens
            (docs/operator.md).
        projection_initializer: Initialisation of E and F where `projection` is `linear` (docs/learning.md).
        shorter_input: How inputs shorter than n use E and the pooling windows: the first columns and windows
            (`prefix`), or all, resampled to the length of the input (`stretch`).
        attention: Kind of attention: `linformer`, or `full`, the Transformer of equal size to compare with.
        bias_order: Whether the biases of keys and values are added before E and F, or after them as in fairseq.
        hidden_size: d_m, the width of the model.
        num_hidden_layers: Number of layers.
        num_attention_heads: h, the number of heads per layer; must divide hidden_size.
        intermediate_size: Width of the feed-forward layer.
        hidden_act: Activation of the feed-forward layer.
        hidden_dropout_prob: Dropout after embeddings, attention and feed-forward.
        attention_probs_dropout_prob: Dropout on the attention probabilities.
        classifier_dropout: Dropout in the classification heads; default: hidden_dropout_prob.
        type_vocab_size: Number of token types; 0: no token types.
        position_offset: Unused rows at the start of the position table (2 in RoBERTa and fairseq checkpoints).
        initializer_range: Standard deviation of the initial embeddings and linear layers, except E and F.
        linear_initializer: Initialisation of the linear layers except the output layer of the masked-language-model
            head: `normal` with standard deviation initializer_range, as in BERT and RoBERTa, or `lecun_normal` with
            1/√inputs, which narrow models need (reproduce/LOG.md).
        local_convolution: Kernel size, an odd number, of a depthwise convolution parallel to each attention, which adds
            the local order of tokens (docs/learning.md); 0: no convolution, as in the paper.
        sliding_window: w, the number of neighbouring tokens that each query attends to exactly, its own included, in
            one softmax with the slots; 0: none, as in the paper. No effect with full attention (docs/operator.md).
        global_tokens: g, the number of tokens at the start of a text that every query attends to exactly, besides the
            slots of the other tokens; 0: none, as in the paper (docs/operator.md).
        norm_first: Apply LayerNorm before attention and feed-forward, and once at the end (pre-norm), instead of after
            each residual connection (post-norm, as in BERT and RoBERTa). Pre-norm learns faster (docs/learning.md).
        layer_norm_eps: Epsilon of the layer norms.
        pad_token_id: Id of the padding token.
        bos_token_id: Id of the token at the start of a sequence.
        eos_token_id: Id of the token at the end of a document.
        tie_word_embeddings: Tie the weights of the masked-language-model head to the word embeddings.
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
    sliding_window: int = 0
    global_tokens: int = 0
    norm_first: bool = False
    layer_norm_eps: float = 1e-5
    pad_token_id: int | None = 1
    bos_token_id: int | None = 0
    eos_token_id: int | None = 2
    tie_word_embeddings: bool = True
