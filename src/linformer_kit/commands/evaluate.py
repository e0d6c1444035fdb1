"""`linformer evaluate`."""

from linformer_cli.settings import EvaluateSettings
from linformer_kit.inference.evaluate import evaluate
from linformer_kit.report.classification import evaluation_markdown


def main(settings: EvaluateSettings) -> None:
    """Evaluate and print the results."""
    print(evaluation_markdown(evaluate(settings)))
