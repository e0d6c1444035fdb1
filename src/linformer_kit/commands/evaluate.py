"""`linformer evaluate`."""

from linformer_cli.settings import EvaluateSettings
from linformer_kit.inference.evaluate import evaluate
from linformer_kit.report.classification import evaluation_lines


def main(settings: EvaluateSettings) -> None:
    """Evaluate and print the results."""
    print("\n".join(evaluation_lines(evaluate(settings))))
