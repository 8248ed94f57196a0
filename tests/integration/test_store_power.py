# SPDX-License-Identifier: Apache-2.0
"""The disk tier after power cuts: a virtual machine is killed while its agent writes, and its disk is what remains.

kill -9 of the agent would keep the page cache; here, what the agent has not flushed is gone.
"""

import os
import pathlib
import random
import shutil
import signal
import subprocess

import pytest
from harness import BUILD, ROOT

CUTS = 8
MACHINE = ROOT / "tests/vm/run"
pytestmark = pytest.mark.skipif("DRAY_LONG" not in os.environ, reason="takes minutes; DRAY_LONG=1 runs it")


class Boot:
    """The machine, until its power is cut."""

    def __init__(self, disk, certain):
        self.errors = disk.with_suffix(".errors")
        env = [f"--env={name}={value}" for name, value in (("DRAY_BUILD", BUILD.relative_to(ROOT)), ("HOME", pathlib.Path.home()))]
        command = [MACHINE, "--timeout=280", f"--disk={disk}", *env, "--", "/usr/bin/python3", ROOT / "tests/integration/power_machine.py", str(certain)]
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True)

    def word(self, name):
        """The number that follows the word."""
        for line in self.process.stdout:
            word, _, number = line.strip().partition(" ")
            if word == name:
                return int(number)
        raise AssertionError(f"the machine ended before it printed {name}: {self.process.wait()}\n{self.errors.read_text()}")

    def cut(self):
        """The last number of objects that were certainly on disk."""
        os.killpg(self.process.pid, signal.SIGTERM)
        rest = [line.split() for line in self.process.stdout]
        self.process.wait()
        return max([int(words[1]) for words in rest if len(words) == 2 and words[0] == "certain"], default=0)


def test_power_cuts(lab):
    """What was on disk is there after each of them, and nothing that is there is torn."""
    why = subprocess.run([MACHINE, "--check"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    if why or not shutil.which("mkfs.ext4"):
        pytest.skip(why or "mkfs.ext4 is not installed")
    disk, rng, certain = lab.tmp / "power.disk", random.Random(4), 0
    with disk.open("wb") as file:
        file.truncate(512 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", disk], check=True)
    for n in range(CUTS + 1):
        boot = Boot(disk, certain)
        try:
            found = boot.word("found")
            assert found >= certain
            print(f"boot {n}: {certain} objects were on disk for certain, {found} are there")
            for _ in range(rng.randrange(1, 6)):
                certain = boot.word("certain")
        finally:
            certain = max(certain, boot.cut())
    assert certain
