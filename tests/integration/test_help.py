# SPDX-License-Identifier: Apache-2.0
"""Every help text of drayctl against a file that somebody has read. DRAY_GOLDEN=write makes them anew."""

import os
import subprocess

import pytest
from harness import DRAYCTL, LIMIT, ROOT

pytestmark = pytest.mark.skipif(not DRAYCTL.exists(), reason=f"{DRAYCTL} is not there")

GOLDEN = ROOT / "tests/data/golden/help"
WRITE = os.environ.get("DRAY_GOLDEN") == "write"


def texts():
    """Name of the file, and what drayctl says."""
    def said(*argv):
        return subprocess.check_output([DRAYCTL, *argv], text=True, timeout=LIMIT)

    everything = said("help")
    verbs = [line.split()[0] for line in everything.split("Verbs:\n")[1].split("\n\n")[0].splitlines()]
    assert len(verbs) == len(set(verbs)) > 10
    for verb in verbs:
        text = said("help", verb)
        assert said(verb, "--help") == text
        yield f"{verb}.txt", text
    assert said("--help") == said("-h") == everything
    yield "drayctl.txt", everything


def test_help_as_read():
    said = dict(texts())
    if WRITE:
        GOLDEN.mkdir(exist_ok=True)
        for path in GOLDEN.iterdir():
            path.unlink()
        for name, text in said.items():
            (GOLDEN / name).write_text(text)
    # a verb without a file, a file without a verb
    assert sorted(said) == sorted(path.name for path in GOLDEN.iterdir())
    for name, text in said.items():
        assert text == (GOLDEN / name).read_text(), f"{name}: read it, then make it anew with DRAY_GOLDEN=write"
