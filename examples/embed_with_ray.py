"""Embed many documents with several processes, on one machine or many, by Ray Data.

    pip install "ray[data]"
    python examples/embed_with_ray.py my-embedder articles.jsonl vectors --workers 2

Each worker loads the model and embeds batches of rows, on a GPU of its own if there are any. The output is a folder of
Parquet files with the columns of the input and `embedding`. Rows are in another order than in the input.

On a cluster, start it with `ray job submit`; all machines need the packages, and must see the model and the folders.
In one process, `linformer embed` does the same, keeps the order, and has `--resume`.
"""

import argparse

import numpy as np
import ray
from ray.data import SaveMode
from sentence_transformers import SentenceTransformer


class Embedder:
    """What a worker holds: the model."""

    def __init__(self, model: str, text_column: str) -> None:
        import linformer_kit  # noqa: F401 - registers the linear models in this process

        self.model = SentenceTransformer(model)
        self.text_column = text_column

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        texts = batch[self.text_column].tolist()
        return batch | {"embedding": self.model.encode(texts, show_progress_bar=False)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Embed many documents by Ray Data.")
    parser.add_argument("model", help="folder or hub id of the embedder")
    parser.add_argument("documents", help="a .jsonl or .parquet file, or a folder of .jsonl files")
    parser.add_argument("output", help="new folder, for the Parquet files")
    parser.add_argument("--text_column", default="text")
    parser.add_argument("--workers", type=int, default=1, help="at most the number of GPUs or of CPU cores")
    parser.add_argument("--batch_size", type=int, default=256, help="rows that a worker gets at a time")
    given = parser.parse_args()

    ray.init()
    is_parquet = given.documents.endswith(".parquet")
    rows = ray.data.read_parquet(given.documents) if is_parquet else ray.data.read_json(given.documents, lines=True)
    embedded = rows.map_batches(
        Embedder,
        fn_constructor_args=(given.model, given.text_column),
        batch_size=given.batch_size,
        concurrency=given.workers,
        num_cpus=0.5,  # the rest is for reading and writing, without which workers would wait for ever
        num_gpus=1 if ray.cluster_resources().get("GPU") else 0,
    )
    embedded.write_parquet(given.output, mode=SaveMode.ERROR)


if __name__ == "__main__":
    main()
