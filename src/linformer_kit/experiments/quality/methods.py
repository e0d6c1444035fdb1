"""Ways to embed a text that is longer than its encoder's longest input."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from linformer_kit.errors import renamed
from linformer_kit.experiments.experiment import require
from linformer_kit.experiments.quality.encoders import lengthened, load_unit_embedder
from linformer_kit.inference.chunks import embed_pieces
from linformer_kit.inference.embedder import Embedder
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
        self.embedder.truncate(self.limit)
        return self.embedder.embed(texts, what)


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
        self.embedder.truncate(self.length)
        return embed_pieces(self.embedder, texts, what, overlap=self.overlap)


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
        embedder = load_unit_embedder(model, settings)
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
    sentences = copy.deepcopy(teacher.sentences)
    sentences[0].model = lengthened(teacher.model, longest, settings.resize_mode)
    return WholeText(Embedder(sentences, settings), max(longest, teacher.longest))


def _linearised(teacher: Embedder, settings: DocumentsSettings, longest: int) -> Method:
    length = max(longest, longest_input(teacher.model) or 0)
    with renamed("model", "teacher"):
        sentences = linearize(copy.deepcopy(teacher.sentences), max_position_embeddings=length)
    return WholeText(Embedder(sentences, settings), length)


BUILT: dict[str, Callable[[Embedder, DocumentsSettings, int], Method]] = {
    "cut": _cut,
    "pieces": _pieces,
    "pieces_overlapping": _overlapping,
    "stretched": _stretched,
    "linearised": _linearised,
}
