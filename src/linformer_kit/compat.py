"""The classes of the package `linformer` 0.2.3 (github.com/lucidrains/linformer) over this library's attention.

Arguments, names of weights, start and outputs are the same; masks are added. `from_linformer` converts the weights to
this library's own classes. Axes as in `slots`; k may be larger than the longest sequence, as in the package.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from linformer_cli.errors import InputError, check_input, input_errors, renamed
from linformer_kit.interop.loading import renamed_weights
from linformer_kit.models.configuration import LinformerConfig
from linformer_kit.models.heads import LinformerForMaskedLM
from linformer_kit.models.modeling import LinformerEncoder, check_ids
from linformer_kit.operator.conditions import check_tensors, check_vectors, described, values_are_cheap
from linformer_kit.operator.drop_in import LinformerAttention
from linformer_kit.operator.projections import MatrixProjection
from linformer_kit.operator.projections.sizes import check_positive, is_integer, slots_by_head

_CONVERTED = "a LinformerSelfAttention, a Linformer or a LinformerLM, not reversible"
# The attention of the first layer: alone, in a stack, and in a language model.
_FIRST = ("", "net.layers.0.0.fn.", "linformer.net.layers.0.0.fn.")
# Parts of names there, and in `LinformerEncoder` and `LinformerForMaskedLM`.
_NAMES = (
    ("net.layers.", "encoder.layers."),
    (".0.fn.", ".self_attn."),
    (".0.norm.", ".self_attn_layer_norm."),
    (".1.fn.w1.", ".fc1."),
    (".1.fn.w2.", ".fc2."),
    (".1.norm.", ".final_layer_norm."),
    ("token_emb.", "linformer.embeddings.word_embeddings."),
    ("pos_emb.", "linformer.embeddings.position_embeddings."),
    ("to_logits.", "lm_head.decoder."),
)


class _Matrices(MatrixProjection):
    """E and F are `proj_k` and `proj_v` of the attention that owns this, `[seq_len, k]` there."""

    learned = True

    def __init__(self, owner: nn.Module, seq_len: int, k: int, *, num_heads: int, sharing: str) -> None:
        super().__init__(seq_len, 1, num_heads=num_heads, sharing=sharing)
        self.head_dims = slots_by_head(k, num_heads)
        self.bind(owner)

    def bind(self, owner: nn.Module) -> None:
        """Use the parameters of this attention; in a replica of `nn.DataParallel` those of the original were known."""
        self.owner = (owner,)  # in a tuple, so that it is no child

    def matrices(self, source: Tensor, lengths: Tensor | None, slots: int) -> tuple[Tensor, Tensor]:
        owner: Any = self.owner[0]
        key = owner.proj_k.T[:slots]
        return key, key if self.tied else owner.proj_v.T[:slots]


class _OneHead(nn.Linear):
    """A map to one head, which all heads use."""

    heads = 1

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).repeat(1, 1, self.heads)


class LinformerSelfAttention(LinformerAttention):
    """`linformer.LinformerSelfAttention`.

    Args:
        dim: Width.
        seq_len: n, the longest sequence.
        k: Slots.
        heads: Heads; must divide dim.
        dim_head: Width of a head; None: dim / heads.
        one_kv_head: Whether all heads of queries use one head of keys and values.
        share_kv: Whether W_V = W_K and F = E; in the paper, key-value sharing is E = F alone.
        dropout: Dropout on the context mapping during training.

    Raises (all classes):
        InputError: a ValueError with the name of the argument, the expected and the given value.
    """

    # Our names of the maps; read at every call, so that replaced ones are used.
    q_proj = property(lambda self: self.to_q)  # type: ignore[assignment]
    k_proj = property(lambda self: self.to_k)  # type: ignore[assignment]
    v_proj = property(lambda self: self.to_k if self.share_kv else self.to_v)  # type: ignore[assignment]
    out_proj = property(lambda self: self.to_out)  # type: ignore[assignment]

    def __init__(
        self,
        dim: int,
        seq_len: int,
        k: int = 256,
        heads: int = 8,
        dim_head: int | None = None,
        one_kv_head: bool = False,
        share_kv: bool = False,
        dropout: float = 0.0,
    ) -> None:
        check_positive("dim", dim)
        fits = is_integer(heads) and heads > 0 and dim % heads == 0
        check_input(fits, "heads", f"a divisor of dim {dim}", heads)
        with renamed("embed_dim", "dim"), renamed("projected_dim", "k"):
            sharing = "key_value" if share_kv else "headwise"
            projection = _Matrices(self, seq_len, k, num_heads=heads, sharing=sharing)
            with torch.device("meta"):
                super().__init__(dim, heads, projection=projection, dropout=dropout)
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            delattr(self, name)
        width = dim // heads if dim_head is None else dim_head
        check_positive("dim_head", width)
        self.seq_len, self.k, self.heads, self.dim_head, self.share_kv = seq_len, k, heads, width, share_kv
        self.to_q = nn.Linear(dim, heads * width, bias=False)
        for kind in "k" if share_kv else "kv":
            linear = _OneHead(dim, width, bias=False) if one_kv_head else nn.Linear(dim, heads * width, bias=False)
            linear.heads = heads  # type: ignore[assignment]
            setattr(self, f"to_{kind}", linear)
            setattr(self, f"proj_{kind}", nn.Parameter(torch.empty(seq_len, k).uniform_(-(k**-0.5), k**-0.5)))
        self.to_out = nn.Linear(heads * width, dim)

    def forward(  # type: ignore[override]
        self,
        x: Float[Tensor, "batch query_len embed"],
        context: Float[Tensor, "batch seq_len embed"] | None = None,
        mask: Bool[Tensor, "batch keys"] | None = None,
        **ignored: Any,
    ) -> Float[Tensor, "batch query_len embed"]:
        """Attention of x to itself, or to context, which may have another length.

        Other arguments are ignored with a warning; the package ignores all of them, `mask` too, without one.

        Args:
            x: Input of the queries.
            context: Input of keys and values; None: x.
            mask: True at real tokens of the keys, False at padding, which has no effect wherever it is.
        """
        check_tensors(x=x, context=context)
        if ignored:
            names = ", ".join(ignored)
            warnings.warn(f"LinformerSelfAttention ignores {names}, as the package linformer does", stacklevel=2)
        if isinstance(self.projection, _Matrices):
            self.projection.bind(self)
        keys = x if context is None else context
        return super().forward(x, keys, keys, _padding(mask, keys))[0]


class Linformer(nn.Module):
    """`linformer.Linformer`: layers with LayerNorm before attention and feed-forward, and none at the end.

    Arguments as of `LinformerSelfAttention`, a depth in layers, and `reversible`, which must be False. Dropout acts on
    context mappings and within the feed-forward part.
    """

    def __init__(
        self,
        dim: int,
        seq_len: int,
        depth: int,
        k: int = 256,
        heads: int = 8,
        dim_head: int | None = None,
        one_kv_head: bool = False,
        share_kv: bool = False,
        reversible: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive("depth", depth)
        check_input(not reversible, "reversible", "False (torch.utils.checkpoint saves memory too)", reversible)

        layers = nn.ModuleList()
        for _ in range(depth):
            attention = LinformerSelfAttention(dim, seq_len, k, heads, dim_head, one_kv_head, share_kv, dropout)
            first, second = nn.Linear(dim, dim * 4), nn.Linear(dim * 4, dim)
            parts = OrderedDict(w1=first, act=nn.GELU(), dropout=nn.Dropout(dropout), w2=second)
            functions = attention, nn.Sequential(parts)
            layers.append(nn.ModuleList(nn.ModuleDict({"fn": fn, "norm": nn.LayerNorm(dim)}) for fn in functions))
        self.net = nn.ModuleDict({"layers": layers})

    def forward(
        self, x: Float[Tensor, "batch seq_len embed"], mask: Bool[Tensor, "batch keys"] | None = None
    ) -> Float[Tensor, "batch seq_len embed"]:
        """Encode sequences; the mask is that of `LinformerSelfAttention`, and outputs at padding are undefined."""
        layers: Any = self.net["layers"]
        weights = layers[0][0]["norm"].weight
        check_vectors("x", x, len(weights), weights)
        if (padding := _padding(mask, x)) is not None:
            x = x.masked_fill(padding[..., None], 0.0)  # a NaN would reach the gradients of shared weights
        for attention, feed_forward in layers:
            x = x + attention["fn"](attention["norm"](x), mask=mask)
            x = x + feed_forward["fn"](feed_forward["norm"](x))
        return x


class LinformerLM(nn.Module):
    """`linformer.LinformerLM`: embeddings of tokens and positions, `Linformer`, and a linear map to logits.

    Every token sees every other: for masked language models, not to generate text. Other arguments as of `Linformer`.
    """

    def __init__(self, num_tokens: int, dim: int, seq_len: int, depth: int, *args: Any, **options: Any) -> None:
        super().__init__()
        for name, size in {"num_tokens": num_tokens, "dim": dim, "seq_len": seq_len}.items():
            check_positive(name, size)
        self.token_emb = nn.Embedding(num_tokens, dim)
        self.pos_emb = nn.Embedding(seq_len, dim)
        self.linformer = Linformer(dim, seq_len, depth, *args, **options)
        self.to_logits = nn.Linear(dim, num_tokens)

    def forward(
        self, x: Int[Tensor, "batch seq_len"], mask: Bool[Tensor, "batch keys"] | None = None
    ) -> Float[Tensor, "batch seq_len vocab"]:
        """Logits of each token; positions count the real tokens."""
        check_ids("x", x, None, self.token_emb.num_embeddings, isinstance(x, Tensor) and values_are_cheap(x))
        longest = self.pos_emb.num_embeddings
        check_input(x.shape[1] <= longest, "sequence length", f"at most {longest}", x.shape[1])
        positions = torch.arange(x.shape[1], device=x.device)
        if (padding := _padding(mask, x)) is not None:
            positions = ((~padding).cumsum(dim=1) - 1).clamp(min=0)
        return self.to_logits(self.linformer(self.token_emb(x) + self.pos_emb(positions), mask))


def _padding(mask: Tensor | None, keys: Tensor) -> Tensor | None:
    """True at padding, from a mask that is True at real tokens."""
    if mask is None:
        return None
    shape = list(keys.shape[:2])
    if isinstance(mask, Tensor) and mask.dtype == torch.bool and list(mask.shape) == shape:
        return ~mask
    raise InputError(f"mask: expected bool {shape}, True at real tokens, got {described(mask)!r}")


def from_linformer(
    source: nn.Module | Mapping[str, Tensor], heads: int | None = None
) -> LinformerAttention | LinformerEncoder | LinformerForMaskedLM:
    """Convert an attention, a stack or a language model of the package `linformer`, or of `compat`, to own classes.

    Outputs are the same. One head of keys and values becomes one for each head, and tied keys and values two copies,
    which training may separate. If k is larger than n, columns of E and F, and positions, are repeated up to n = k.

    Args:
        source: A `LinformerSelfAttention`, a `Linformer` or a `LinformerLM`, or its state dict.
        heads: Number of heads; a state dict needs it, except with `one_kv_head`.

    Returns:
        A `LinformerAttention` for an attention, a `LinformerEncoder` for a stack, a `LinformerForMaskedLM` for a
        language model, in evaluation mode. Dropout of a module is kept on weights of attention; in an encoder it
        follows attention and feed-forward too, and embeddings.

    Raises:
        InputError: for other modules and weights, and if dim_head is not dim / heads.
    """
    dropout, given = 0.0, heads
    if isinstance(source, nn.Module):
        for module in source.modules():
            if hasattr(module, "proj_k"):
                heads, dropout = module.heads, getattr(module.dropout, "p", module.dropout)  # type: ignore
        source = source.state_dict()
    given_weights = source if isinstance(source, Mapping) else {}
    weights = {name.removeprefix("module."): tensor for name, tensor in given_weights.items()}  # of DataParallel
    are_tensors = all(isinstance(tensor, Tensor) for tensor in weights.values())
    check_input(are_tensors, "source", "tensors by name", {type(each).__name__ for each in weights.values()})
    prefixes = [name.removesuffix("to_q.weight") for name in weights if name.endswith("to_q.weight")]
    prefix: Any = next((each for each in _FIRST if each in prefixes), None)
    check_input(prefix is not None, "source", _CONVERTED, list(weights)[:3])
    query = weights[f"{prefix}to_q.weight"]
    width, key_width = query.shape[1], len(weights.get(f"{prefix}to_k.weight", query))
    check_input(len(query) == width, "dim_head", "dim / heads", f"dim {width} and heads × dim_head {len(query)}")
    heads = width // key_width if key_width < width else heads
    fits = is_integer(heads) and heads > 0 and width % heads == 0 and given in (None, heads)  # type: ignore[operator]
    check_input(fits, "heads", f"those of the source, a divisor of dim {width}", given)
    with input_errors(f"source: expected {_CONVERTED}"), torch.no_grad():
        ours: dict[str, Tensor] = {}
        for each in prefixes:
            ours |= {each + name: tensor for name, tensor in _attention_weights(weights, each).items()}
        sharing = "headwise" if f"{prefix}projection.value_projection" in ours else "key_value"
        k, n = ours[f"{prefix}projection.key_projection"].shape
        ours = renamed_weights(ours | weights, _NAMES)
        model: Any
        fields: dict[str, Any]
        base = prefix.removesuffix(_FIRST[1])
        if not prefix:
            model = LinformerAttention(width, heads, n, k, sharing=sharing, dropout=dropout)  # type: ignore[arg-type]
        else:
            fields = {"hidden_size": width, "num_attention_heads": heads, "num_hidden_layers": len(prefixes)}
            fields |= {"intermediate_size": len(ours[f"{base}encoder.layers.0.fc1.weight"])}
            fields |= {"max_position_embeddings": n}
            fields |= {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout, "projected_dim": k}
            fields |= {"sharing": sharing, "norm_first": True, "final_norm": False}
            if base:
                positions = f"{base}embeddings.position_embeddings.weight"
                ours[positions] = ours[positions][torch.arange(n) % len(ours[positions])]
                fields |= {"vocab_size": len(ours["lm_head.decoder.weight"]), "embedding_norm": False}
                fields |= {"head_transform": False, "tie_word_embeddings": False}
                fields |= dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
            model = (LinformerForMaskedLM if base else LinformerEncoder)(LinformerConfig(**fields))
        model.to(query).load_state_dict(ours)
    return model.eval()


def _attention_weights(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The weights of one attention under our names; they are taken out of `weights`."""
    query, key = (weights.pop(f"{prefix}to_{name}.weight") for name in "qk")
    maps = {"q": query, "k": key, "v": weights.pop(f"{prefix}to_v.weight", key)}
    found = {f"{name}_proj.weight": each.repeat(len(query) // len(each), 1) for name, each in maps.items()}
    found |= {f"{name}_proj.bias": query.new_zeros(len(query)) for name in maps}
    found |= {f"out_proj.{name}": weights.pop(f"{prefix}to_out.{name}") for name in ("weight", "bias")}
    for name in ("key", "value"):
        if (matrix := weights.pop(f"{prefix}proj_{name[0]}", None)) is not None:
            n, k = matrix.shape
            found[f"projection.{name}_projection"] = matrix.T[:, torch.arange(max(n, k)) % n]
    return found
