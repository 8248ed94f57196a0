#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a state database of this version as a file: tests/data/state/vN.db.

Every later release migrates it. A file that exists is never written again. Run this when the last migration of a
release is settled, before it.
"""

import pathlib
import sqlite3
import sys

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]

ROWS = [
    ("INSERT INTO hint VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
     ("model-a", 4, 1000, "10.0.0.1:50053", "default", 7, 1700000000000, 1700086400000)),
    ("INSERT INTO hint VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
     ("", 1, 0, "[fd00::1]:50053", "", 0, 1700000000001, 1700086400001)),
    ("INSERT INTO segment VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
     ("10.0.0.1:50053", "mooncake", "10.0.0.1:12345", "config,listener", 2, 1700000000002, 1700000000003,
      "it answers", 1 << 40, 1 << 30, 1700000000004)),
    ("INSERT INTO segment_event (segment, at_ms, old, new, reason) VALUES (?, ?, ?, ?, ?)",
     ("10.0.0.1:50053", 1700000000002, 1, 2, "it answers")),
    ("INSERT INTO preferred VALUES (1, ?, ?, ?)", ("10.0.0.1:50053", 4, 1700000000005)),
]


def main():
    schema = yaml.safe_load((ROOT / "schema/state.yaml").read_text(encoding="utf-8"))
    version = len(schema["migrations"])
    path = ROOT / f"tests/data/state/v{version}.db"
    if path.exists():
        print(f"{path.name} is there", file=sys.stderr)
        return 1
    db = sqlite3.connect(path)
    db.execute("PRAGMA page_size = 4096")
    db.execute("PRAGMA journal_mode = WAL")
    for m in schema["migrations"]:
        db.executescript(m["text"])
    db.execute(f"PRAGMA application_id = {schema['application_id']}")
    db.execute(f"PRAGMA user_version = {version}")
    with db:
        for text, values in ROWS:
            db.execute(text, values)
    db.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
