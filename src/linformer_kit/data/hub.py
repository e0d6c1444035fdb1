"""Documents of a data set on the Hugging Face hub, or of a folder that is laid out like one."""

from __future__ import annotations

from typing import TypeAlias

from datasets import Dataset, IterableDataset, load_dataset
from datasets.exceptions import DatasetsError

from linformer_kit.data.validate import check_columns
from linformer_kit.errors import InputError
from linformer_kit.settings import CorpusSettings

Documents: TypeAlias = Dataset | IterableDataset


def load_hub(settings: CorpusSettings, *, streaming: bool) -> tuple[Documents, Documents | None]:
    """Load the `train` and, where there is one, the `validation` split.

    Args:
        settings: `dataset_name`, `dataset_config_name` and `text_column` are used.
        streaming: Read while training; otherwise the data set is downloaded into the hub's own cache.

    Returns:
        Documents of the two splits, each with the one column `text`; None where there is no validation split.

    Raises:
        InputError: No such data set, configuration, split or column.
    """
    name = settings.dataset_name
    try:
        splits = load_dataset(name, settings.dataset_config_name, streaming=streaming)
    except (OSError, ValueError, DatasetsError) as error:
        raise InputError(f"dataset_name {name}: {str(error).splitlines()[0]}") from error
    if "train" not in splits:
        raise InputError(f"dataset_name {name}: expected a split 'train', got {', '.join(map(repr, splits))}")
    column = settings.text_column
    train = _text_rows(splits["train"], column, source=f"dataset_name {name}")
    if "validation" not in splits:
        return train, None
    return train, _text_rows(splits["validation"], column, source=f"dataset_name {name} validation")


def _text_rows(rows: Documents, column: str, *, source: str) -> Documents:
    # A stream without a declared schema shows its columns only in its rows.
    columns = rows.column_names or list(next(iter(rows), {}))
    check_columns(source, {"text_column": column}, columns)
    declared = rows.features[column] if rows.features else None
    if declared is not None and getattr(declared, "dtype", None) not in ("string", "large_string"):
        raise InputError(f"{source}: column {column!r} is {declared}; expected strings")
    rows = rows.select_columns([column])
    if column != "text":
        rows = rows.rename_column(column, "text")
    return rows.filter(_is_not_blank, input_columns="text")


def _is_not_blank(text: str | None) -> bool:
    return bool(text and text.strip())
