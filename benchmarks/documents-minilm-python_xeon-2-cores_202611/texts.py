"""The sections of Python's language reference with more than 3,000 characters: python texts.py OUTPUT.jsonl"""

import json
import sys
from pathlib import Path
from pydoc_data.topics import topics

rows = [{"title": name, "text": text} for name, text in topics.items() if len(text) > 3000]
Path(sys.argv[1]).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
print(f"{len(rows)} sections, {sum(len(row['text']) for row in rows):,} characters")
