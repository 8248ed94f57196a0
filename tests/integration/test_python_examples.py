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


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_usage(arguments):
    done = subprocess.run([sys.executable, ROOT / "examples/python/relay.py", *arguments], env=ENVIRONMENT, text=True, timeout=LIMIT, stderr=subprocess.PIPE)
    assert done.returncode == 1 and "    relay.py SOCKET" in done.stderr, done.stderr


def test_a_consumer_that_fails(agent):
    """The relay does not say that all is copied."""
    failing = "import relay, sys\ndef fail(*_): sys.exit('no memory')\nrelay.consume = fail\nrelay.main(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", failing, agent.socket], env=ENVIRONMENT, cwd=ROOT / "examples/python", text=True, timeout=LIMIT,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == 1 and not done.stdout and "no memory" in done.stderr, done.stderr


def test_example_over_the_network(new_pair):
    run(ROOT / "examples/python/copy_blocks.py", *(agent.socket for agent in new_pair()))
