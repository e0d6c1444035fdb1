"""The machine in results made by hand."""

from __future__ import annotations

ENVIRONMENT = {
    "date": "2020-06-08",
    "device": "a machine",
    "threads": 2,
    "cpu_capability": "AVX512",
    "python": "3.11.0",
    "torch": "2.13.0",
    "transformers": "5.23.0",
    "linformer_kit": "0.1.0",
    "commit": None,
}
