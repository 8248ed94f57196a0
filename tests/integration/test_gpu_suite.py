# SPDX-License-Identifier: Apache-2.0
"""Runs the programs and scripts of tests/gpu without a GPU, so that they work on machines with GPUs."""

import os
import re
import subprocess
import sys

import harness
import pytest

RUN = harness.ROOT / "tests/gpu/run"
HAS_GPU = os.path.exists("/proc/driver/nvidia/version") or os.path.exists("/dev/nvidiactl")
# One or two cases of each part.
SOME = ("pairs: cuda_ipc on GPU 0 and cuda_vmm", "pairs: cuda_vmm on GPU 0 and cuda_vmm on GPU 1", "pages: 16 KiB at random, cuda_vmm and memfd",
        "extents: 256 of cuda_vmm and of memfd", "words", "deaths", "namespaces", "refused",
        "mooncake")


def run(*argv, **env):
    done = subprocess.run([sys.executable, *map(str, argv)], env={**os.environ, "DRAY_BUILD": str(harness.BUILD), **env},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240)
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """A folder made by pack. Skipped if a sanitizer's library makes it larger than its limit."""
    folder = tmp_path_factory.mktemp("packed")
    done = subprocess.run([harness.ROOT / "tests/gpu/pack", folder], env={**os.environ, "DRAY_BUILD": str(harness.BUILD)},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0 or "more than" in done.stdout, done.stdout
    return folder


@pytest.mark.skipif(HAS_GPU, reason="there is a GPU")
def test_run_without_gpu_is_skipped(packed):
    """Without a GPU, run prints one line and succeeds."""
    assert run(packed / "tests/gpu/run") == (0, "skip: no GPU\n")
    assert run(RUN) == (0, "skip: no GPU\n")


def test_packed_folder_is_whole(packed):
    """The packed programs run from their folder, with their own libraries."""
    status, text = run(packed / "tests/gpu/run", "--fake", "--only", "described", "refused", DRAY_BUILD="build", LD_LIBRARY_PATH="")
    assert status == 0, text
    assert re.search(r"^# gpu: [1-9]\d* passed, 0 failed", text, re.M), text


def test_suite_with_the_fake_plugin():
    """Every case passes with the fake plug-in, which copies between files; cases that need a GPU are skipped with a reason."""
    status, text = run(RUN, "--fake", "--only", *SOME)
    assert status == 0, text
    cases = re.findall(r"^(ok|not ok) \d+ - (\w+)", text, re.M)
    assert {part for _, part in cases} >= {"pairs", "pages", "extents", "words", "deaths", "refused"}, text


def test_a_wrong_byte_is_found():
    """The engine's comparison detects one byte that was changed after the transfer."""
    code = f"""
import sys
sys.path.insert(0, {str(harness.ROOT / "tests/gpu")!r})
import suite
t = suite.Suite(fake=True)
agent = t.agent()
here, there = (suite.Side(t.engine(agent), "cuda_vmm", 1 << 20) for _ in range(2))
t.move(here, there, here.reach(there)[0], "read", [(3, 5, 70000)])
here.engine.ask("fill", here.region, 1)
here.engine.ask("fill", here.region, 2, 3, 69999)
try:
    here.engine.ask("check", here.region, 1, 2, t.ops([(3, 3, 70000)]), "here")
except suite.EngineError as e:
    print(e)
t.close()
"""
    status, text = run("-c", code)
    assert status == 0 and "byte 70002 is" in text, text
