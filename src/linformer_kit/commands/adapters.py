"""`linformer adapters`."""

from linformer_cli.settings import AdaptersSettings
from linformer_kit.files.manifest import read_json
from linformer_kit.linearized.adapter import ABOUT, adapter_folder, shipped_adapters
from linformer_kit.models.card import CARD
from linformer_kit.report.base import table

_COLUMNS = ["adapter", "base model", "licence", "n", "k", "cosine", "MB"]


def main(settings: AdaptersSettings) -> None:
    """Print the adapters as a table, or the card of one."""
    if settings.card is not None:
        print((adapter_folder(settings.card) / CARD).read_text(encoding="utf-8"), end="")
        return
    rows = []
    for name, folder in shipped_adapters().items():
        about = read_json(folder / ABOUT)
        base, student = about["base_model"], about["distillation"]["student"]
        cosine = about["distillation"]["curve"]["cosine"][-1][1]
        sizes = f"{student['seq_len']:,}", str(student["projected_dim"])
        megabytes = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
        rows.append([name, base["name"], base["license"], *sizes, f"{cosine:.3f}", f"{megabytes:.1f}"])
    print("\n".join(table(_COLUMNS, rows)))
    compared = "similarity of the embeddings of the adapted model to those of the base model, mean over held-out texts"
    print(f"\nCosine: {compared}.\nIn Python:")
    print(f'  model = lk.linearize(SentenceTransformer("{rows[0][1]}"), adapter="{rows[0][0]}")')
