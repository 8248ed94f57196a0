# SPDX-License-Identifier: Apache-2.0
"""Every help text of drayctl against a file that somebody has read."""

import subprocess

import pytest
from harness import DRAYCTL, GOLDEN, LIMIT, golden

pytestmark = pytest.mark.skipif(not DRAYCTL.exists(), reason=f"{DRAYCTL} is not there")


def said(*argv):
    return subprocess.check_output([DRAYCTL, *argv], text=True, timeout=LIMIT)


def test_help_as_read():
    everything = said("help")
    assert said("--help") == said("-h") == everything
    golden("help/drayctl.txt", everything)
    verbs = [line.split()[0] for line in everything.split("Verbs:\n")[1].split("\n\n")[0].splitlines()]
    assert len(verbs) == len(set(verbs)) > 10
    for verb in verbs:
        text = said("help", verb)
        assert said(verb, "--help") == text
        golden(f"help/{verb}.txt", text)
    # no file without a verb
    assert {path.stem for path in (GOLDEN / "help").iterdir()} == {"drayctl", *verbs}
