# SPDX-License-Identifier: Apache-2.0
"""Pools of encoder outputs in memory of GPUs. The tests with real agents are those of ec_gpu_cases.py."""

import os
import pathlib
import subprocess
import sys

import ec_gpu
import pytest

CASES = pathlib.Path(__file__).with_name("ec_gpu_cases.py")


@pytest.mark.skipif(not ec_gpu.DRIVER.exists(), reason=f"{ec_gpu.DRIVER} does not exist: build it first (make tools)")
def test_with_agents():
    """In a process of their own, because tests of other files load another driver."""
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(CASES)], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.returncode == 0, done.stdout[-20000:]
