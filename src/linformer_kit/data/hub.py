"""Documents and labelled texts of a data set on the Hugging Face hub, or of a local folder with the same layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from datasets import ClassLabel, Dataset, IterableDataset, load_dataset
from datasets.exceptions import DatasetsError

from linformer_kit.data.read import Row, check_columns
from linformer_kit.errors import InputError, machine_failure
from linformer_kit.settings import CorpusSettings

Documents: TypeAlias = Dataset | IterableDataset


def load_hub(settings: CorpusSettings, *, streaming: bool) -> tuple[Documents, Documents | None]:
    """Load the `train` split and, if there is one, the `validation` split.

    Args:
        settings: `dataset_name`, `dataset_config_name` and `text_column` are used.
        streaming: Read during training; otherwise the data set is downloaded into the hub's cache.

    Returns:
        Documents of the two splits, each with the single column `text`; None if there is no validation split.

    Raises:
        InputError: No such data set, configuration, split or column.
    """
    name = settings.dataset_name
    splits = _load(name, settings.dataset_config_name, streaming=streaming)
    if "train" not in splits:
        raise InputError(f"dataset_name {name}: expected a split 'train', got {', '.join(map(repr, splits))}")
    column = settings.text_column
    train = _text_rows(splits["train"], column, source=f"dataset_name {name}")
    if "validation" not in splits:
        return train, None
    return train, _text_rows(splits["validation"], column, source=f"dataset_name {name} validation")


def labelled_rows(
    name: str, config: str | None, split: str, columns: Mapping[str, str], *, numbered: bool, optional: bool
) -> Iterator[Row]:
    """Rows of one split, each with its source for errors.

    Args:
        name: The data set.
        config: Its configuration.
        split: Split.
        columns: Names of the columns to read, by the names of their settings.
        numbered: Whether to give classes by number, even if the data set has names for them.
        optional: Whether a missing split yields no rows instead of raising an error.

    Raises:
        InputError: No such data set, configuration, split or column.
    """
    splits = _load(name, config, streaming=False)
    if split not in splits:
        if optional:
            return
        raise InputError(f"dataset_name {name}: expected a split {split!r}, got {', '.join(map(repr, splits))}")
    rows = splits[split]
    check_columns(f"dataset_name {name} {split}", columns, rows.column_names)
    rows = rows.select_columns(list(columns.values()))
    # Columns of classes, or of lists of classes, for which the data set has names.
    named = {column: getattr(feature, "feature", feature) for column, feature in rows.features.items()}
    named = {column: feature for column, feature in named.items() if isinstance(feature, ClassLabel)}
    for number, row in enumerate(rows, start=1):
        source = f"{name} {split} row {number}"
        for column, feature in named.items():
            value = row[column]
            if value is None or (isinstance(value, int) and value < 0):  # a test split without published classes
                raise InputError(f"{source}: no class in {column!r}; expected one")
            row[column] = value if numbered else feature.int2str(value)
        yield source, row


def _load(name: str | None, config: str | None, *, streaming: bool) -> dict[str, Documents]:
    try:
        return load_dataset(name, config, streaming=streaming)
    except (OSError, ValueError, DatasetsError) as error:
        if machine_failure(error) is not None:
            raise
        raise InputError(f"dataset_name {name}: {str(error).splitlines()[0]}") from error


def _text_rows(rows: Documents, column: str, *, source: str) -> Documents:
    # A stream without a declared schema has column names only in its rows.
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
