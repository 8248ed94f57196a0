#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Instructions for each operation, transport local: one_thread under callgrind. Counts, so nothing is interleaved."""

import pathlib
import re
import subprocess
import tempfile

import common as c

# shape of one_thread, name, target for the sum
SHAPES = (
    ("single", "one transfer of one operation", None),
    ("transfers", "256 transfers of one operation, submitted together", None),
    ("256", "a transfer of 256 operations", 350),
    ("4096", "a transfer of 4,096 operations", 120),
)
PHASES = ("submit", "progress", "reap")


def counts(folder):
    """{shape: {phase: instructions for each operation}} from the dumps of one_thread."""
    found = {}
    for dump in folder.glob("out.*"):
        text = dump.read_text()
        trigger = re.search(r"^desc: Trigger: Client Request: (\S+) (\S+) (\d+)$", text, re.M)
        total = re.search(r"^(?:summary|totals): (\d+)", text, re.M)
        if trigger and total:
            found.setdefault(trigger[1], {})[trigger[2]] = int(total[1]) / int(trigger[3])
    return found


with c.bench("instructions") as (_, records):
    if not c.which("valgrind"):
        raise c.CannotRun("valgrind is not installed: scripts/deps bench")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        done = subprocess.run(["valgrind", "-q", "--tool=callgrind", "--collect-atstart=no", f"--callgrind-out-file={folder}/out",
                               str(c.TOOLS / "one_thread")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
        if done.returncode:
            raise c.CannotRun(f"one_thread: {done.stdout[-2000:]}")
        found = counts(folder)
    for shape, name, target in SHAPES:
        if sorted(found.get(shape, ())) != sorted(PHASES):
            raise c.CannotRun(f"one_thread dumped {sorted(found.get(shape, ()))} of {shape}")
        for phase in PHASES:
            records.add(f"{name}: {phase}", found[shape][phase], "an op")
        records.add(name, sum(found[shape].values()), "an op", target=("<=", target) if target else None)
