"""Choose the checkpoint to resume from, the same in all processes."""

from __future__ import annotations

import logging
from pathlib import Path

from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from linformer_kit.files.manifest import recover
from linformer_kit.files.runs import CHECKPOINT, find_checkpoint

logger = logging.getLogger(__name__)


def checkpoint_to_resume(folder: Path) -> Path | None:
    """The newest intact checkpoint, or None; the log names it, and the damage of each newer one.

    The main process looks for it and sends the path to the others. Incomplete files of a killed process are removed.
    """
    found: list[Path | None] = [None]
    if PartialState().is_main_process:
        recover(folder, CHECKPOINT)
        found[0], wrong = find_checkpoint(folder)
        for what in wrong:
            logger.warning("resume: skipped a damaged checkpoint: %s", what)
        logger.info("resuming from %s", found[0] or "the beginning: no intact checkpoint")
    broadcast_object_list(found)
    return found[0]
