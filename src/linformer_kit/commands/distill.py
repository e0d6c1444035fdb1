"""`linformer distill`."""

from accelerate import PartialState

from linformer_cli.settings import DistillSettings
from linformer_kit.training.distill import distill
from linformer_kit.training.process import keep_freed_memory


def main(settings: DistillSettings) -> None:
    """Distil and print the results."""
    keep_freed_memory()
    _, folder = distill(settings)
    if PartialState().is_main_process:
        print((folder / "metrics.md").read_text(encoding="utf-8"))
        print(f"Saved in {folder}; AutoModel loads it after `import linformer_kit`.")
