"""What results record of the settings."""

from __future__ import annotations

import dataclasses

from linformer_cli.settings import ModelSettings, without_local_paths


@dataclasses.dataclass
class _Settings:
    model: str
    models: list[str]
    train_file: list[str]
    validation_file: str | None
    output_dir: str
    base: ModelSettings
    seed: int = 3


def test_results_record_no_path_of_this_machine(tmp_path):
    here = str(tmp_path)
    base = ModelSettings(sharing="none")
    settings = _Settings(here, [here, "hub/id"], [f"{here}/*.txt"], None, here, base)
    assert without_local_paths(settings) == {
        "model": tmp_path.name,
        "models": [tmp_path.name, "hub/id"],
        "train_file": ["*.txt"],
        "validation_file": None,
        "base": dataclasses.asdict(base),
        "seed": 3,
    }
