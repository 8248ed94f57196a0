# SPDX-License-Identifier: Apache-2.0
"""The client's wheel for arm64, and unit tests of its library, under qemu-user with Debian's C library and Python (tests/wheel/arm64)."""

import os
import re

import pytest
from wheels import LIMIT, LOAD, ROOT, TRANSFER, VERSION, agent, run

ARM64 = ROOT / "build/arm64"
pytestmark = pytest.mark.skipif(not (ARM64 / "complete").exists(), reason="Debian's packages for arm64 were not fetched")
LONG = pytest.mark.skipif("DRAY_LONG" not in os.environ, reason="only in make check-long")
UNIT = sorted(f for f in (ROOT / "build/wheel-aarch64/tests/unit").glob("test_*") if os.access(f, os.X_OK))

# qemu-user answers every madvise() with success and does nothing, so pages are not populated (MADV_POPULATE_WRITE), and
# a forked child does not see that it is one (MADV_WIPEONFORK). These test cases need one of the two.
WITHOUT_MADVISE = {"memory_is_ready_to_register", "populating_touches_only_the_extent", "populate_fills_pages_and_keeps_bytes",
                   "populate_reports_errors", "a_child_cannot_use_the_session"}


def emulated(program, *argv, **env):
    how = [word for item in env.items() for word in ("-E", "=".join(map(str, item)))]
    return ["qemu-aarch64", "-L", ARM64, *how, program, *argv]


def test_arm64_package_loads_its_own_library(machine_folder):
    argv = emulated(ARM64 / "usr/bin/python3.11", "-c", LOAD + "import platform; print(platform.machine())", PYTHONPATH=machine_folder["aarch64"])
    assert run(*argv, timeout=3 * LIMIT).split() == [str(machine_folder["aarch64"] / "dray/libdray.so.0"), VERSION, "aarch64"]


@LONG
def test_arm64_transfer(machine_folder, environment, tmp_path):
    """Two arm64 clients on an agent of this machine, which shares memory with them."""
    with agent(environment, tmp_path):
        argv = emulated(ARM64 / "usr/bin/python3.11", "-c", TRANSFER, tmp_path / "dray.sock", PYTHONPATH=machine_folder["aarch64"])
        assert run(*argv, timeout=3 * LIMIT) == "hello\n"


@LONG
def test_arm64_units_are_there():
    names = {f.name for f in UNIT}
    assert {"test_client_session", "test_client_transfer", "test_client_parts", "test_lib_wake", "test_lib_memfd"} <= names


@LONG
@pytest.mark.parametrize("program", UNIT, ids=lambda f: f.name)
def test_arm64_unit(machine_folder, program):
    library = machine_folder["aarch64"] / "dray"
    argv = emulated(program, LD_LIBRARY_PATH=library, CMOCKA_MESSAGE_OUTPUT="TAP")
    text = run(*argv, check=False, timeout=3 * LIMIT)
    planned = re.search(r"^1\.\.(\d+)$", text, re.M)
    results = re.findall(r"^(not )?ok \d+ - (\S+)", text, re.M)
    assert planned and len(results) == int(planned[1]) > 0, text
    failed = {name for bad, name in results if bad}
    assert failed == WITHOUT_MADVISE & {name for _, name in results}, text
