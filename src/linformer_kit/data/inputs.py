"""Labelled texts as inputs of a model, with what they lost by its longest."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from linformer_kit.data.encoding import Encoder
from linformer_kit.data.examples import Columns, Example, Labels

logger = logging.getLogger(__name__)

Item = dict[str, Any]  # a window, and its `labels`


@dataclass(frozen=True)
class LabelledInputs:
    """Inputs with their classes.

    Attributes:
        items: What a trainer takes, in the order of the texts.
        cut: `texts` that were longer than an input, the `tokens` that they lost, `of_tokens` of all texts.
    """

    items: list[Item]
    cut: dict[str, int]


def labelled_inputs(
    examples: Sequence[Example], labels: Labels, columns: Columns, encoder: Encoder, *, name: str
) -> LabelledInputs:
    """Tokens and classes of texts; what is cut is logged.

    Args:
        examples: The texts.
        labels: Their classes.
        columns: Where the classes stand, for errors.
        encoder: Makes one window of each.
        name: What the texts are, for the log.
    """
    encoded = encoder([(example.text, example.text_pair) for example in examples])
    lost = [text.lost for text in encoded if text.lost]
    cut = {"texts": len(lost), "tokens": sum(lost), "of_tokens": sum(text.tokens for text in encoded)}
    if lost:
        logger.info(
            "%s: %s of %s texts are longer than %s tokens and lose %s of all %s tokens",
            name,
            f"{cut['texts']:,}",
            f"{len(encoded):,}",
            encoder.max_length,
            f"{cut['tokens']:,}",
            f"{cut['of_tokens']:,}",
        )
    targets = [labels.target(example, column=columns.label) for example in examples]
    items = [{**text.windows[0], "labels": target} for text, target in zip(encoded, targets, strict=True)]
    return LabelledInputs(items, cut)
