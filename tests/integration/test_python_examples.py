# SPDX-License-Identifier: Apache-2.0
"""The programs of examples/python run, with the agent of one node and with those of two."""

import os
import pathlib
import subprocess
import sys

import dray
import pytest
from harness import LIMIT, ROOT

EXAMPLES = sorted((ROOT / "examples/python").glob("*.py"))
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(pathlib.Path(dray.__file__).parents[1])}


def run(example, *sockets):
    done = subprocess.run([sys.executable, example, *map(str, sockets)], env=ENVIRONMENT, text=True, timeout=LIMIT,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0 and done.stdout.endswith("copied\n"), done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example(agent, example):
    if example.stem == "arrays":
        pytest.importorskip("numpy")
    run(example, agent.socket)


def test_without_a_socket():
    done = subprocess.run([sys.executable, ROOT / "examples/python/relay.py"], env=ENVIRONMENT, text=True, timeout=LIMIT, stderr=subprocess.PIPE)
    assert done.returncode == 1 and "    relay.py SOCKET" in done.stderr, done.stderr


def test_example_over_the_network(new_pair):
    run(ROOT / "examples/python/copy_blocks.py", *(agent.socket for agent in new_pair()))
