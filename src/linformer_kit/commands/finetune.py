"""`linformer finetune`."""

from accelerate import PartialState

from linformer_cli.settings import FinetuneSettings
from linformer_kit.training.finetune import finetune
from linformer_kit.training.process import keep_freed_memory


def main(settings: FinetuneSettings) -> None:
    """Fine-tune and print the results."""
    keep_freed_memory()
    _, folder = finetune(settings)
    if PartialState().is_main_process:
        print((folder / "metrics.md").read_text(encoding="utf-8"))
        print(f"Saved in {folder}. Use it:\n  linformer predict {folder} FILE")
