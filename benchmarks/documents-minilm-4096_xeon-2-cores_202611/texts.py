"""Documents that no update of a distillation has read: python texts.py RUN FILE.jsonl OUTPUT.jsonl.

RUN is the folder of a finished `linformer distill`, FILE one of the files that it trained on. The passages of all
updates follow from the seed, so they are drawn again here.
"""

import json
import sys
from pathlib import Path

import yaml
from transformers import AutoTokenizer

from linformer_kit.data.encoding import Encoder
from linformer_kit.data.passages import passage_keys
from linformer_kit.data.unlabelled import load_inputs
from linformer_kit.settings import DistillSettings


def main(run: Path, file: Path, output: Path) -> None:
    settings = DistillSettings(**yaml.safe_load((run / "settings.yaml").read_text(encoding="utf-8")))
    longest, batch = settings.max_position_embeddings, settings.per_device_train_batch_size
    passages = load_inputs(
        settings, Encoder(AutoTokenizer.from_pretrained(run), longest), packing=True, masked=False
    ).train
    keys = passage_keys(len(passages), longest=longest, together=batch, seed=settings.seed, epoch=0)
    drawn = keys[: settings.max_steps * batch * settings.gradient_accumulation_steps]
    assert len(drawn) < len(keys), "more than an epoch"
    read = {passages._documents[passages._starts[index][0]]["text"] for _, index, _ in drawn}
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    unread = [row for row in rows if row["text"] not in read]
    output.write_text("".join(json.dumps(row) + "\n" for row in unread), encoding="utf-8")
    print(f"{len(read):,} documents read in training; of {len(rows):,} in {file.name} {len(unread):,} were not")


main(*map(Path, sys.argv[1:]))
