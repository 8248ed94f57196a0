# SPDX-License-Identifier: Apache-2.0
"""The processes of an engine end with the process that has started it, however that ends."""

import os
import signal
import subprocess
import sys

import pytest
import rig
from harness import LIMIT

# A program with a child of its own that does not end by itself, both of which have the output open.
PROGRAM = "import subprocess, sys; child = subprocess.Popen(['sleep', 'infinity']); print(child.pid, flush=True); child.wait()"
STARTER = "import subprocess, sys; subprocess.Popen(sys.argv[1:], process_group=0).wait()"


@pytest.fixture
def started():
    """(the process that has started the program, the program's child)"""
    starter = subprocess.Popen([sys.executable, "-c", STARTER, *rig.guarded("-c", PROGRAM)], stdout=subprocess.PIPE, text=True)
    child = int(starter.stdout.readline())
    yield starter, child
    starter.kill()
    starter.wait()
    starter.stdout.close()


@pytest.mark.parametrize("stopped", [False, True])
def test_the_starter_is_killed(started, stopped):
    starter, child = started
    if stopped:
        os.killpg(os.getpgid(child), signal.SIGSTOP)
    starter.kill()
    assert starter.communicate(timeout=LIMIT) == ("", None)  # at the end of all that have the output open


def test_the_program_is_killed(started):
    starter, child = started
    os.kill(os.getpgid(child), signal.SIGKILL)
    assert starter.communicate(timeout=LIMIT) == ("", None)
    assert starter.returncode == 0
