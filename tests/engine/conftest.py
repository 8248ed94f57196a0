# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "integration")]

from harness import Lab  # noqa: E402


@pytest.fixture(scope="module")
def lab():
    made = Lab(alone=True)
    yield made
    made.close("DRAY_KEEP" in os.environ)
