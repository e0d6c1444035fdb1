"""The architecture: the settings of slots, and the fields of `LinformerConfig`."""

from typing import Literal

from linformer_kit.settings.declare import (
    BelowOne,
    Count,
    CountOrZero,
    Encoder,
    Length,
    Linear,
    Positive,
    Tokens,
    settings,
)

Sharing = Literal["none", "headwise", "key_value", "layerwise"]
Projection = Literal["linear", "mean_pool", "max_pool", "conv", "random", "dynamic"]
Attention = Literal["linformer", "full"]
BiasOrder = Literal["before_projection", "after_projection"]
ShorterInput = Literal["prefix", "stretch"]
ResizeMode = Literal["extend", "interpolate"]
LinearInitializer = Literal["normal", "lecun_normal"]
ProjectionInitializer = Literal["pooling", "mean_pooling", "shifted_pooling", "normal", "lecun_normal"]
Dims = int | list[int] | list[list[int]]  # k of all layers, of each layer, or of each head of each layer

IGNORED_LABEL = -100  # a position without a target, in data and models; torch's losses ignore it


@settings
class SlotSettings:
    """What queries attend to instead of n tokens. None: the default, which is another in a pretrained encoder.

    Attributes:
        projected_dim: k, the number of slots (projected keys and values); or a list with one k per layer, or for each
            layer a list of one k per head; default: 128, at most n.
        sharing: Sharing of E and F (section 4 of the paper): `none`; `headwise`, one E and one F for all heads of a
            layer; `key_value`, one E = F for each layer; `layerwise`, one E = F for all layers; default: headwise.
        projection: How n positions are projected to k slots; `dynamic` computes E = F from the tokens
            (docs/operator.md); default: linear, in place mean_pool.
        projection_initializer: Initialisation of E and F where `projection` is `linear` (docs/learning.md); default:
            shifted_pooling, in place mean_pooling.
        shorter_input: How inputs shorter than n use E and the pooling windows: the first columns and windows
            (`prefix`), or all, resampled to the length of the input (`stretch`); default: prefix, in place stretch.
        sliding_window: w, the number of neighbouring tokens that each query attends to exactly, its own included, in
            one softmax with the slots; 0: none, as in the paper (docs/operator.md); default: 0, in place 128.
        global_tokens: g, the number of tokens at the start of a text that every query attends to exactly, besides the
            slots; 0: none, as in the paper; default: 0, in place 1 where slots are windows of tokens.
    """

    projected_dim: Linear[Dims | None] = None
    sharing: Linear[Sharing | None] = None
    projection: Linear[Projection | None] = None
    projection_initializer: Linear[ProjectionInitializer | None] = None
    shorter_input: Linear[ShorterInput | None] = None
    sliding_window: Linear[Tokens | None] = None
    global_tokens: Linear[Tokens | None] = None


@settings
class PretrainedSlotSettings(SlotSettings):
    """Slots for a pretrained encoder.

    Attributes:
        layers: With in_place: layers to linearise, numbered from 0; the others keep full attention; default: all.
        max_position_embeddings: n, the maximum sequence length of the result in tokens; default: as before.
        resize_mode: How position embeddings are resized to n: repeated (`extend`) or interpolated (`interpolate`).
    """

    layers: Linear[list[int] | None] = None
    max_position_embeddings: Linear[Length | None] = None
    resize_mode: Linear[ResizeMode] = "extend"


@settings
class LinearizeSettings(PretrainedSlotSettings):
    """Slots in place: they start such that the outputs of the pretrained encoder hardly change.

    Attributes:
        layers: Layers to linearise, numbered from 0; the others keep full attention; default: all.
    """

    sharing: Linear[Sharing] = "headwise"
    projection: Linear[Projection] = "mean_pool"
    projection_initializer: Linear[ProjectionInitializer] = "mean_pooling"
    shorter_input: Linear[ShorterInput] = "stretch"
    sliding_window: Linear[Tokens] = 128


@settings
class ModelSettings(SlotSettings):
    """The architecture: the fields of `LinformerConfig`.

    Attributes:
        vocab_size: Number of tokens in the vocabulary; `pretrain` trains a tokenizer of this size.
        max_position_embeddings: n, the maximum sequence length in tokens.
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
        norm_first: Apply LayerNorm before attention and feed-forward, and once at the end (pre-norm), instead of after
            each residual connection (post-norm, as in BERT and RoBERTa). Pre-norm learns faster (docs/learning.md).
        layer_norm_eps: Epsilon of the layer norms.
        pad_token_id: Id of the padding token.
        bos_token_id: Id of the token at the start of a sequence.
        eos_token_id: Id of the token at the end of a document.
        tie_word_embeddings: Tie the weights of the masked-language-model head to the word embeddings.
    """

    vocab_size: Encoder[Count] = 50265
    max_position_embeddings: Linear[Length] = 512
    projected_dim: Linear[Dims] = 128
    sharing: Linear[Sharing] = "headwise"
    projection: Linear[Projection] = "linear"
    projection_initializer: Linear[ProjectionInitializer] = "shifted_pooling"
    shorter_input: Linear[ShorterInput] = "prefix"
    sliding_window: Linear[Tokens] = 0
    global_tokens: Linear[Tokens] = 0
    attention: Linear[Attention] = "linformer"
    bias_order: Linear[BiasOrder] = "before_projection"
    hidden_size: Encoder[Count] = 768
    num_hidden_layers: Encoder[Count] = 12
    num_attention_heads: Encoder[Count] = 12
    intermediate_size: Encoder[Count] = 3072
    hidden_act: Encoder[str] = "gelu"
    hidden_dropout_prob: Encoder[BelowOne] = 0.1
    attention_probs_dropout_prob: Encoder[BelowOne] = 0.1
    classifier_dropout: Encoder[BelowOne | None] = None
    type_vocab_size: Encoder[CountOrZero] = 0
    position_offset: Encoder[CountOrZero] = 0
    initializer_range: Encoder[Positive] = 0.02
    linear_initializer: Encoder[LinearInitializer] = "normal"
    local_convolution: Linear[CountOrZero] = 0
    norm_first: Encoder[bool] = False
    layer_norm_eps: Encoder[Positive] = 1e-5
    pad_token_id: Encoder[CountOrZero | None] = 1
    bos_token_id: Encoder[CountOrZero | None] = 0
    eos_token_id: Encoder[CountOrZero | None] = 2
    tie_word_embeddings: Encoder[bool] = True
