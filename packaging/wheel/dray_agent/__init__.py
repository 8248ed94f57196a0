# SPDX-License-Identifier: Apache-2.0
"""The programs of dray, with the libraries that they load. The commands drayd and drayctl run them.

The package has no other interface: `dray-client` is for programs.
"""

import os
import sys

BIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin")


def _run(name):
    program = os.path.join(BIN, name)
    os.execv(program, [program, *sys.argv[1:]])


def drayd():
    """Becomes the agent: the process id stays, and signals reach it."""
    _run("drayd")


def drayctl():
    """Becomes drayctl."""
    _run("drayctl")
