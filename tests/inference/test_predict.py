"""`linformer predict` on the original files of a model's task."""

from __future__ import annotations

import json

import pytest

from linformer_kit.errors import InputError
from linformer_kit.inference.predict import predict
from linformer_kit.settings import PredictSettings
from tests.export.conftest import linformer

ROWS = [
    "question1\tquestion2\tid",
    "what ?\twhy ?\t0",
    "ragged\trow",
    "ragged",
    "who ?\thow ?\t3",
    "where ?\twhen ?\t4",
]


@pytest.fixture
def asked(tmp_path):
    model = linformer("LinformerForSequenceClassification", tmp_path / "model", num_labels=2)
    (model / "settings.yaml").write_text("task: qqp\ndata_dir: elsewhere\n")
    (tmp_path / "dev.tsv").write_text("\n".join(ROWS) + "\n")
    return {"model": str(model), "file": str(tmp_path / "dev.tsv"), "output": str(tmp_path / "out.jsonl")}


def test_ragged_rows_of_a_task_known_for_them_are_left_out_and_counted(asked, tmp_path, caplog):
    assert predict(PredictSettings(**asked))[None] == 3
    lines = (tmp_path / "out.jsonl").read_text().splitlines(keepends=True)
    assert [json.loads(line)["row"] for line in lines] == [1, 4, 5]
    told = "skipped rows with another number of fields than the header: 2; the first: "
    assert f"{told}{tmp_path / 'dev.tsv'} line 3" in caplog.text
    (tmp_path / "out.jsonl").write_text(lines[0])
    predict(PredictSettings(**asked, resume=True))
    assert (tmp_path / "out.jsonl").read_text() == "".join(lines)


def test_they_are_refused_where_other_columns_are_named(asked):
    with pytest.raises(InputError, match=r"dev.tsv line 3: expected 3 fields as in the header, got 2$"):
        predict(PredictSettings(**asked, text_column="id"))
