"""Check that texts are those that the results were measured with: python -m reproduce.corpora FOLDER [--write].

`benchmarks/corpora.json` has the source, the licence as stated there, and the SHA-256 of each file, by the name of the
set. FOLDER has a subfolder for each set. `--write` records the files of FOLDER instead, for those who add a set.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from linformer_kit.files.manifest import file_fingerprint

RECORD = Path(__file__).parents[1] / "benchmarks" / "corpora.json"


def main(folder: Path, *, write: bool) -> int:
    corpora = json.loads(RECORD.read_text(encoding="utf-8"))
    wrong = 0
    for name, corpus in corpora.items():
        found = {path.name: file_fingerprint(path) for path in sorted((folder / name).glob("*")) if path.is_file()}
        if write:
            corpus["files"] = found or corpus["files"]
            continue
        for file, expected in corpus["files"].items():
            if found.get(file) != expected:
                wrong += 1
                print(f"{name}/{file}: expected SHA-256 {expected}, got {found.get(file, 'no file')}")
    if write:
        RECORD.write_text(json.dumps(corpora, indent=2) + "\n", encoding="utf-8")
    print(f"{sum(len(corpus['files']) for corpus in corpora.values())} files, {wrong} of them missing or different")
    return 2 if wrong else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m reproduce.corpora", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder with a subfolder for each set")
    parser.add_argument("--write", action="store_true", help="record the files instead of checking them")
    raise SystemExit(main(**vars(parser.parse_args())))
