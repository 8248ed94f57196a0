# SPDX-License-Identifier: Apache-2.0
"""Every help text of drayctl against a reviewed file."""

import subprocess

import pytest
from harness import DRAYCTL, GOLDEN, LIMIT, golden

pytestmark = pytest.mark.skipif(not DRAYCTL.exists(), reason=f"{DRAYCTL} is not there")


def output(*argv):
    return subprocess.check_output([DRAYCTL, *argv], text=True, timeout=LIMIT)


def test_help_matches_golden():
    everything = output("help")
    assert output("--help") == output("-h") == everything
    golden("help/drayctl.txt", everything)
    verbs = [line.split()[0] for line in everything.split("Verbs:\n")[1].split("\n\n")[0].splitlines()]
    assert len(verbs) == len(set(verbs)) > 10
    for verb in verbs:
        text = output("help", verb)
        assert output(verb, "--help") == text
        golden(f"help/{verb}.txt", text)
    # Each file belongs to a verb.
    assert {path.stem for path in (GOLDEN / "help").iterdir()} == {"drayctl", *verbs}
