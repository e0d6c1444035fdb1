"""`linformer pretrain`."""

from accelerate import PartialState
from transformers import AutoTokenizer

from linformer_cli.errors import DivergedError
from linformer_cli.settings import PretrainSettings
from linformer_kit.training.pretrain import pretrain
from linformer_kit.training.process import keep_freed_memory


def main(settings: PretrainSettings) -> None:
    """Pretrain and print the results."""
    keep_freed_memory()
    results, folder = pretrain(settings)
    if results["diverged"] is not None:
        raise DivergedError(results["diverged"])
    if PartialState().is_main_process:
        print((folder / "metrics.md").read_text(encoding="utf-8"))
        mask = AutoTokenizer.from_pretrained(folder, trust_remote_code=False).mask_token
        print(f"Saved in {folder}. Try it:\n  linformer fill-mask {folder} 'import {mask}'")
