"""`linformer export`."""

from linformer_cli.settings import ExportSettings
from linformer_kit.export.folder import export


def main(settings: ExportSettings) -> None:
    """Export and print the results."""
    results = export(settings)
    agreement = results["agreement"]
    print(f"{results['model']}, inputs {', '.join(results['inputs'])}, at most {results['max_length']:,} tokens")
    print(
        f"Largest difference from PyTorch over {len(agreement['shapes'])} shapes: "
        f"{agreement['largest_difference']:.1e} (PyTorch's own from float64: {agreement['float32_error']:.1e}, "
        f"allowed: {agreement['tolerance']:.1e})"
    )
    print("Size: " + ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in results["bytes"].items()))
    if "int8_difference" in results:
        print(f"Largest difference of int8: {results['int8_difference']:.1e}")
    print(f"Saved in {settings.out}")
