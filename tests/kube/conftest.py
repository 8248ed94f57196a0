# SPDX-License-Identifier: Apache-2.0
"""The tools of scripts/kube-tools. Without them the tests are skipped, and fail where CI is set."""

import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from claims import pytest_collection, pytest_runtestloop  # noqa: E402, F401

MISSING = 3  # exit status of scripts/kube-tools without the packages


@pytest.fixture(scope="session", autouse=True)
def tools():
    done = subprocess.run([HERE.parents[1] / "scripts/kube-tools"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode == MISSING:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    folder = pathlib.Path(done.stdout.strip())
    sys.path.insert(0, str(folder / "python"))
    os.environ["PATH"] = f"{folder / 'bin'}:{os.environ['PATH']}"
