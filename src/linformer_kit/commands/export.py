"""`linformer export`."""

from collections.abc import Iterator
from typing import Any

from linformer_cli.settings import ExportSettings
from linformer_kit.export.folder import export


def main(settings: ExportSettings) -> None:
    """Export and print the results."""
    print("\n".join(_lines(export(settings))))
    print(f"Saved in {settings.out}")


def _lines(results: dict[str, Any]) -> Iterator[str]:
    """The results as lines of text."""
    yield f"{results['model']}, inputs {', '.join(results['inputs'])}, at most {results['max_length']:,} tokens"
    found = results["agreement"]
    yield (
        f"Largest difference from PyTorch over {len(found['shapes'])} shapes: {found['largest_difference']:.1e} "
        f"(PyTorch's own from float64: {found['float32_error']:.1e}, allowed: {found['tolerance']:.1e})"
    )
    yield "Size: " + ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in results["bytes"].items())
    if "int8_difference" in results:
        yield f"Largest difference of int8: {results['int8_difference']:.1e}"
    if "quality" in results:
        name, before, after = results["quality"].values()
        yield f"{name.capitalize()}: {before:.4f} in float32, {after:.4f} in int8, a change of {after - before:+.4f}"
    for row in results.get("seconds", ()):
        times = ", ".join(f"{name} {1000 * taken:.1f} ms" for name, taken in row.items() if name != "length")
        yield f"One text of {row['length']:,} tokens: {times}"
