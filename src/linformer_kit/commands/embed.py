"""`linformer embed`."""

from __future__ import annotations

import sys

from linformer_kit.inference.embed import embed
from linformer_kit.settings import EmbedSettings


def main(settings: EmbedSettings) -> None:
    """Write the embeddings, and print their number to stderr."""
    found = embed(settings)
    rows, width = found.shape
    pieces = "" if settings.chunk_tokens is None else f"{rows:,} pieces, "
    print(f"{found.texts:,} texts, {pieces}{width} numbers each, in {settings.output}", file=sys.stderr)
    if found.cut:
        print(f"{found.cut:,} texts of more than {found.longest:,} tokens were truncated", file=sys.stderr)
