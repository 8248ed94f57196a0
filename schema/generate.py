#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes all files that are generated from the schema: C, Python, reference pages.

generate.py [--check] [--out ROOT] [--schema DIR]
"""

import argparse
import pathlib
import sys

sys.dont_write_bytecode = True

from generator import c_protocol, c_tables, docs, drayctl, kubernetes_c, kubernetes_yaml, manuals, monitoring, python, python_errors, state, vectors  # noqa: E402
from generator.model import Schema, SchemaError  # noqa: E402
from generator.text import fit  # noqa: E402


def outputs(schema):
    files = {"schema/gen/check.h": c_protocol.CHECK_H}
    files.update(c_tables.write(schema))
    files.update(state.write(schema.state))
    files.update(drayctl.write(schema.drayctl))
    files.update(kubernetes_c.write(schema.kubernetes))
    for protocol in (schema.data, schema.peer):
        files.update(c_protocol.write(protocol))
    files = {path: fit(text) if path.endswith((".c", ".h")) else text for path, text in files.items()}
    files.update(python.write(schema))
    files.update(python_errors.write(schema))
    files.update(docs.write(schema))
    files.update(manuals.write(schema))
    files.update(kubernetes_yaml.write(schema.kubernetes, schema.version))
    files.update(monitoring.write(schema.monitoring))
    files.update(vectors.write(schema, files["tests/wire/codec.py"]))
    return files


def stale(root, files):
    for path, text in sorted(files.items()):
        target = root / path
        if not target.is_file() or target.read_text(encoding="utf-8") != text:
            yield path
    for found in sorted((root / "schema/gen").glob("*")):
        path = found.relative_to(root).as_posix()
        if path not in files:
            yield f"{path} (nothing makes it)"


def main():
    here = pathlib.Path(__file__).resolve().parent
    args = argparse.ArgumentParser(description="Generates code and documents from the schema.")
    args.add_argument("--check", action="store_true", help="compare only; exit 1 if anything is stale")
    args.add_argument("--out", type=pathlib.Path, default=here.parent, help="root of the tree to write to")
    args.add_argument("--schema", type=pathlib.Path, default=here, help="folder of the schema files")
    args = args.parse_args()
    try:
        files = outputs(Schema(args.schema))
    except (SchemaError, OSError) as e:
        print(f"generate.py: {e}", file=sys.stderr)
        return 1
    if args.check:
        old = list(stale(args.out, files))
        for path in old:
            print(f"generate.py: stale: {path}", file=sys.stderr)
        return 1 if old else 0
    for path, text in files.items():
        target = args.out / path
        if target.is_file() and target.read_text(encoding="utf-8") == text:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
