"""Make authorship.md from the JSON files beside it: `python tables.py`.

authorship.json has the metrics of `linformer finetune` and `linformer evaluate` of two encoders, authorship-window.json
those of `linformer finetune` of encoders with neighbours and dynamic slots, embeddings.json the accuracy of a logistic
regression on embeddings of MiniLM; the texts are made by texts.py.
"""

import json
from pathlib import Path

import pandas

from reproduce.common import NAMES, markdown, mean_and_deviation

HERE = Path(__file__).parent


def read(name: str) -> dict:
    return json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))


def fine_tuned() -> pandas.DataFrame:
    rows = []
    for name, model in read("authorship")["models"].items():
        accuracy = {part: f"{100 * model[part]['metrics']['accuracy']:.1f}" for part in ("chapters", "books")}
        seconds, memory = model["chapters"]["seconds"], model["peak_bytes_training"] / 1e9
        rows.append({"encoder": name, **accuracy, "training": f"{seconds:.0f} s", "memory": f"{memory:.1f} GB"})
    return pandas.DataFrame(rows)


def with_neighbours() -> pandas.DataFrame:
    models = read("authorship-window")["models"]
    return pandas.DataFrame(
        [
            {
                "encoder": name,
                "chapters": f"{100 * model['metrics']['accuracy']:.1f}",
                "training": f"{model['seconds']:.0f} s",
            }
            for name, model in models.items()
        ]
    )


def on_embeddings() -> pandas.DataFrame:
    found: dict[str, list[float]] = {}
    for record in read("embeddings")["records"]:
        found.setdefault(record["method"], []).append(100 * record["accuracy"])
    rows = [{"method": NAMES.get(name, name), "accuracy": mean_and_deviation(each, 1)} for name, each in found.items()]
    return pandas.DataFrame(rows)


PARTS = (
    "# Authorship of texts of 3,000 words",
    "12 authors, n 4,096; accuracy in percent on 282 texts of other chapters of the same books, and on 316 of other "
    "books. `linformer finetune` of encoders without neighbours, 800 texts; time and memory of training:",
    fine_tuned,
    "The same of encoders with neighbours and dynamic slots, 400 texts (learning rate of W_P a tenth, the full one, "
    "and the full one with repeated positions); times are not valid, since other work ran on the same cores:",
    with_neighbours,
    "Logistic regression on embeddings of MiniLM, 600 texts, 282 texts of other chapters, mean of three draws of the "
    "600 ± standard deviation:",
    on_embeddings,
)

if __name__ == "__main__":
    text = "\n\n".join(part if isinstance(part, str) else markdown(part()) for part in PARTS)
    (HERE / "authorship.md").write_text(text + "\n", encoding="utf-8")
