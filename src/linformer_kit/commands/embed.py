"""`linformer embed`."""

import sys

from linformer_cli.settings import EmbedSettings
from linformer_kit.inference.embed import embed


def main(settings: EmbedSettings) -> None:
    """Write the embeddings, and print their number to stderr."""
    texts, rows, embedder = embed(settings)
    pieces = "" if settings.chunk_tokens is None else f"{rows:,} pieces, "
    print(f"{texts:,} texts, {pieces}{embedder.width} numbers each, in {settings.output}", file=sys.stderr)
    if embedder.cut:
        print(f"{embedder.cut:,} texts of more than {embedder.limit:,} tokens were truncated", file=sys.stderr)
