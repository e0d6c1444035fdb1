"""`linformer predict`."""

import sys

from linformer_cli.settings import PredictSettings
from linformer_kit.inference.predict import predict


def main(settings: PredictSettings) -> None:
    """Write the predictions, and print the number of texts of each class to stderr."""
    counts = predict(settings)
    shown = ", ".join(f"{count:,} {name}" for name, count in counts.items() if name is not None)
    print(f"{counts.pop(None):,} texts: {shown}", file=sys.stderr)
