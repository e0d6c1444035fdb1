"""Ways to embed a text that is longer than its encoder's longest input."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from linformer_kit.data.encoding import Encoder
from linformer_kit.errors import renamed
from linformer_kit.experiments.experiment import require
from linformer_kit.experiments.quality.encoders import lengthened
from linformer_kit.inference.embedder import Embedder, load_embedder
from linformer_kit.linearized.linearize import linearize
from linformer_kit.linearized.positions import longest_input
from linformer_kit.settings.documents import DocumentsSettings


@dataclass(frozen=True)
class WholeText:
    """Embeds texts in one pass, truncated to the limit.

    Attributes:
        embedder: The encoder.
        limit: Maximum input length in tokens.
    """

    embedder: Embedder
    limit: int

    def reads(self, length: int) -> int:
        """Number of tokens that are read of a text of this length."""
        return min(length, self.limit)

    def __call__(self, texts: Sequence[str], what: str) -> np.ndarray:
        """Embeddings of length 1, `[texts, embed]`; `what` describes them in the progress bar."""
        return self.embedder.embed([(text, None) for text in texts], what, length=self.limit)


@dataclass(frozen=True)
class Pieces:
    """Embeds consecutive pieces of a text and averages their embeddings, weighted by their numbers of tokens.

    Attributes:
        embedder: The encoder.
        length: Maximum length of a piece in tokens, special tokens included.
        overlap: Share of a piece that the next one repeats.
    """

    embedder: Embedder
    length: int
    overlap: float = 0.0

    def reads(self, length: int) -> int:
        """Number of tokens that are read of a text of this length: all."""
        return length

    def __call__(self, texts: Sequence[str], what: str) -> np.ndarray:
        """Embeddings of length 1, `[texts, embed]`; `what` describes them in the progress bar."""
        special = self.embedder.tokenizer.num_special_tokens_to_add(pair=False)
        stride = int((self.length - special) * self.overlap)
        encoded = Encoder(self.embedder.tokenizer, self.length, stride)([(text, None) for text in texts])
        windows = [window for text in encoded for window in text.windows]
        weights = np.array([max(1, len(window["input_ids"]) - special) for window in windows], dtype=np.float32)
        weighted = self.embedder.embed_windows(windows, what) * weights[:, None]
        starts = np.cumsum([0, *(len(text.windows) for text in encoded[:-1])])
        sums = np.add.reduceat(weighted, starts, axis=0)
        return sums / np.linalg.norm(sums, axis=1, keepdims=True)


Method = WholeText | Pieces


def build_methods(
    settings: DocumentsSettings, models: dict[str, str], teacher: Embedder, longest: int
) -> dict[str, Method]:
    """The methods of the settings and the models, by name.

    Args:
        settings: Methods and settings of forward passes.
        models: Folders or hub ids by name.
        teacher: The encoder of the methods.
        longest: Length in tokens that each method must take.

    Raises:
        InputError: for a teacher that cannot be made longer or linear, and a model that does not take the length.
    """
    methods: dict[str, Method] = {name: BUILT[name](teacher, settings, longest) for name in settings.methods}
    for name, model in models.items():
        embedder = load_embedder(model, settings)
        limit = longest_input(embedder.model) or longest
        require(limit >= longest, "lengths", f"at most {limit:,} (the limit of {name})", f"{longest:,}")
        methods[name] = WholeText(embedder, limit)
    return methods


def _cut(teacher: Embedder, settings: DocumentsSettings, longest: int) -> Method:
    return WholeText(teacher, teacher.longest)


def _pieces(teacher: Embedder, settings: DocumentsSettings, longest: int) -> Method:
    return Pieces(teacher, teacher.longest)


def _overlapping(teacher: Embedder, settings: DocumentsSettings, longest: int) -> Method:
    return Pieces(teacher, teacher.longest, overlap=0.5)


def _stretched(teacher: Embedder, settings: DocumentsSettings, longest: int) -> Method:
    model = lengthened(teacher.model, longest, settings.resize_mode)
    return WholeText(Embedder(model, teacher.tokenizer, settings), max(longest, teacher.longest))


def _linearised(teacher: Embedder, settings: DocumentsSettings, longest: int) -> Method:
    length = max(longest, longest_input(teacher.model) or 0)
    with renamed("model", "teacher"):
        model = linearize(copy.deepcopy(teacher.model), max_position_embeddings=length)
    return WholeText(Embedder(model, teacher.tokenizer, settings), length)


BUILT: dict[str, Callable[[Embedder, DocumentsSettings, int], Method]] = {
    "cut": _cut,
    "pieces": _pieces,
    "pieces_overlapping": _overlapping,
    "stretched": _stretched,
    "linearised": _linearised,
}
