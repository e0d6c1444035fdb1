"""Documents that no update of a distillation has read: python texts.py RUN TOKENIZER OUTPUT.jsonl FILE.jsonl...

RUN is the folder of a `linformer distill`, FILE one of the files that it trained on, or another. The passages of all
updates follow from the seed, so they are drawn again here. Run it in the folder in which the distillation ran.
"""

import json
import sys
from pathlib import Path

import yaml
from transformers import AutoTokenizer

from linformer_cli.settings import DistillSettings
from linformer_kit.data.passages import load_inputs, passage_keys
from linformer_kit.data.tokenizer import Encoder


def main(run: str, tokenizer: str, output: str, *files: str) -> None:
    settings = DistillSettings(**yaml.safe_load((Path(run) / "settings.yaml").read_text(encoding="utf-8")))
    longest, batch = settings.max_position_embeddings, settings.per_device_train_batch_size
    passages = load_inputs(
        settings, Encoder(AutoTokenizer.from_pretrained(tokenizer), longest), packing=True, masked=False
    ).train
    keys = passage_keys(len(passages), longest=longest, together=batch, seed=settings.seed, epoch=0)
    drawn = keys[: settings.max_steps * batch * settings.gradient_accumulation_steps]
    assert len(drawn) < len(keys), "more than an epoch"
    read = {passages.document(index) for _, index, _ in drawn}
    lines = [line for file in files for line in Path(file).read_text(encoding="utf-8").split("\n") if line]
    rows = [json.loads(line) for line in lines]
    unread = [row for row in rows if row["text"] not in read]
    Path(output).write_text("".join(json.dumps(row) + "\n" for row in unread), encoding="utf-8")
    print(f"{len(read):,} documents read in training; of {len(rows):,} {len(unread):,} were not")


main(*sys.argv[1:])
