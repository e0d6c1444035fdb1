"""All changes that the tests of the documentation make to the pages, and all steps they skip."""

from __future__ import annotations

_INSTALLS = "installs; `.ci/run` and `.ci/package` do it"
_MACHINES = "several machines"
_RAY = "installs; test_guides runs it"

SCRIPT = "python -m reproduce."  # commands that are parsed alone, since tests/reproduce runs the scripts

# What is not run, and why: by page and first line.
NOT_RUN = {
    "README.md": {
        "python -m venv .venv": _INSTALLS,
        ". .venv/bin/activate": _INSTALLS,
        "pip install -r requirements.txt": _INSTALLS,
        "pip install -e '.[commands]'": _INSTALLS,
        "pip install -r requirements-dev.txt": _INSTALLS,
        "pytest -n 2": "it is running",
    },
    "export.md": {
        "pip install -e '.[export]'": _INSTALLS,
    },
    "linearize.md": {
        "pip install 'ray[data]'": _RAY,
        "python examples/embed_with_ray.py my-embedder articles.jsonl vectors --workers 2": _RAY,
    },
    "quickstart.md": {
        "pip install -e '.[export]'": _INSTALLS,
    },
    "paper.md": {"pytest tests/operator/test_reference.py": "it is running"},
    "speed.md": {
        "linformer bench --device cuda --num_hidden_layers 12": "a GPU",
    },
    "training.md": {
        "torchrun --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint node0:29500 -m linformer_kit pretrain "
        "--output_dir /shared/run": _MACHINES,
    },
}

# What the reader of a page is supposed to have: encoders of the hub, and files of their own.
GIVEN = {
    "README.md": ("answerdotai/ModernBERT-base",),
    "export.md": ("my-classifier", "sentence-transformers/all-MiniLM-L6-v2"),
    "finetuning.md": (
        "sentence-transformers/all-MiniLM-L6-v2", "distilbert/distilroberta-base", "my-model", "docstrings.csv", "reviews.csv", "more-reviews.csv", "new-reviews.csv",
    ),
    "linearize.md": (
        "sentence-transformers/all-MiniLM-L6-v2", "FacebookAI/roberta-base", "articles", "articles.jsonl", "books",
        "examples/images.py",
    ),
    "pretraining.md": (
        "FacebookAI/roberta-base", "notes", "articles", "corpus.parquet", "book.txt", "linformer_roberta_base.pt",
    ),
    "quickstart.md": ("sentence-transformers/all-MiniLM-L6-v2",),
    "training.md": ("notes",),
}  # fmt: skip

# Options that are added to commands, by how they begin: few updates, few texts, short measurements, no network.
_PRETRAIN = (
    "--max_steps 4 --eval_steps 2 --save_steps 2 --warmup_steps 1 --logging_steps 1 --per_device_train_batch_size 2"
)
OPTIONS = {
    "linformer pretrain": _PRETRAIN,
    "torchrun --standalone --nproc-per-node 8 -m linformer_kit pretrain": f"{_PRETRAIN} --train_file notes",
    "linformer finetune": "--num_train_epochs 1 --max_train_samples 8",
    "linformer distill": (
        "--max_steps 4 --eval_steps 2 --save_steps 2 --warmup_steps 1 --logging_steps 1 --max_eval_samples 4 "
        "--per_device_train_batch_size 2"
    ),
    "linformer bench": (
        "--hidden_size 24 --num_attention_heads 2 --intermediate_size 96 --lengths 32 --projected_dims 8 "
        "--tokens 64 --num_hidden_layers 1"
    ),
}

# Numbers that are replaced in blocks of Python, by page.
IN_PYTHON = {
    "README.md": {
        "projected_dim=256))": "projected_dim=256, num_hidden_layers=2, hidden_size=24, vocab_size=1009))",
    },
    # The encoder of the tests has other weights than the adapter's base model.
    "linearize.md": {'adapter="all-MiniLM-L6-v2-4096"': "max_position_embeddings=4096"},
    "python.md": {
        "num_hidden_layers=2)": "num_hidden_layers=2, hidden_size=24, vocab_size=1009)",
        "max_new_tokens=256": "max_new_tokens=31",
        "range(60)": "range(1)",  # test_guides trains it
    },
}
