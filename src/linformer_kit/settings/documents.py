"""The typed settings of `linformer bench documents`. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from linformer_kit.settings import ResizeMode, TaskName

LongMethod = Literal["cut", "pieces", "pieces_overlapping", "stretched", "linearised"]
DocumentTask = Literal["agreement", "late_sentence", "passkey", "needle", "same_document", "classification"]


@dataclass(kw_only=True)
class DocumentsSettings:
    """Methods to embed texts that are longer than an encoder's longest input, compared on tasks.

    Attributes:
        teacher: Folder or hub id of an encoder whose mean hidden state is the embedding; its tokenizer, which must be
            a fast one, measures lengths.
        models: Folders or hub ids of long encoders to compare with it, such as distilled students.
        names: Names of these models in the results; default: the names of their folders.
        methods: The teacher with texts truncated at its longest input (`cut`); its mean over consecutive pieces
            (`pieces`) and over pieces that overlap by half (`pieces_overlapping`); with resized positions and full
            attention (`stretched`); linearised without training (`linearised`).
        tasks: Cosine to the embeddings of `pieces` (`agreement`); find the text of a sentence (`late_sentence`), the
            document in which a number (`passkey`) or a fact (`needle`) is hidden, the other half of a text
            (`same_document`); logistic regression (`classification`); default: all whose texts are given.
        text_file: Files, folders or globs of texts for all tasks but passkey and classification.
        text_column: Text column of .jsonl, .csv, .tsv and .parquet files.
        lengths: Values of n in tokens, special ones included: each method reads the first n tokens of a text.
        fact_lengths: Lengths in tokens of the documents of passkey and needle.
        articles: Number of texts that are searched for late_sentence; all are longer than the teacher's longest input.
        queries: Number of texts to draw queries from, which have at least the largest n tokens: one sentence at each
            position for late_sentence, two halves for same_document, the whole text for agreement.
        candidates: Number of documents at each length of passkey and needle; each is the answer to one query.
        labelled_task: Task of section 5.2 of the paper with single texts, for classification.
        data_dir: Folder with the original files of labelled_task; default: the hub.
        train_file: Labelled training files for classification, instead of a task.
        validation_file: Labelled validation files; default: a part of the training texts is held out.
        labelled_text_column: Text column of the labelled files; default: text.
        label_column: Class column of the labelled files; default: label.
        min_tokens: Use only labelled texts of more than this number of tokens.
        max_train_samples: Maximum number of labelled training texts, drawn at random.
        max_eval_samples: Maximum number of labelled validation texts, drawn at random.
        resize_mode: How the positions of `stretched` are resized: interpolated (`interpolate`) or repeated (`extend`).
        repetitions: Number of timed runs of each method at each n; the methods alternate.
        memory: Measure memory too, each method in a separate process.
        batch_size: Texts or pieces per forward pass.
        dtype: Data type of the weights, as saved with `auto`; `bfloat16` computes everything in it, faster than mixed
            precision and less exact.
        bf16: Mixed precision of float32 weights; `auto` where the processor has bf16 instructions.
        seed: Seed of the choice of texts, queries and facts.
        output_dir: New folder for the results; default: a new folder below runs/.
        resume: Resume in output_dir; completed measurements are kept.
    """

    teacher: str
    models: list[str] = field(default_factory=list)
    names: list[str] | None = None
    methods: list[LongMethod] = field(
        default_factory=lambda: ["cut", "pieces", "pieces_overlapping", "stretched", "linearised"]
    )
    tasks: list[DocumentTask] | None = None
    text_file: list[str] | None = None
    text_column: str = "text"
    lengths: list[int] = field(default_factory=lambda: [512, 1024, 2048, 4096])
    fact_lengths: list[int] = field(default_factory=lambda: [256, 512, 1024, 2048, 4096])
    articles: int = 2000
    queries: int = 400
    candidates: int = 100
    labelled_task: TaskName | None = None
    data_dir: str | None = None
    train_file: list[str] | None = None
    validation_file: list[str] | None = None
    labelled_text_column: str | None = None
    label_column: str | None = None
    min_tokens: int | None = None
    max_train_samples: int = 5000
    max_eval_samples: int = 5000
    resize_mode: ResizeMode = "interpolate"
    repetitions: int = 5
    memory: bool = True
    batch_size: int = 8
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    bf16: Literal["auto", "true", "false"] = "auto"
    seed: int = 0
    output_dir: str | None = None
    resume: bool = False
