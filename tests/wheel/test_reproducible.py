# SPDX-License-Identifier: Apache-2.0
"""The same sources and SOURCE_DATE_EPOCH give the same bytes."""

import calendar
import os
import shutil
import sys
import zipfile

import pytest
from wheels import CLIENTS, LIMIT, ROOT, TOOLS, VERSION, WHEELS, run


def epoch(wheel):
    """SOURCE_DATE_EPOCH of the wheel: the time of its files."""
    with zipfile.ZipFile(wheel) as z:
        return str(max(calendar.timegm(entry.date_time) for entry in z.infolist()))


@pytest.mark.skipif("DRAY_LONG" not in os.environ, reason="only in make check-long")
def test_a_build_elsewhere_gives_the_same_library(tmp_path):
    """The sources in another folder, with an empty cache of the compiler, give the same wheel."""
    for name in ("Makefile", "LICENSE", "client", "lib", "mk", "packaging", "schema"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tmp_path / name)
    (tmp_path / "build").mkdir()
    (tmp_path / "build/tools").symlink_to(ROOT / "build/tools")
    wheel = WHEELS / CLIENTS["aarch64"]
    env = dict(os.environ, SOURCE_DATE_EPOCH=epoch(wheel))
    for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL"):
        env.pop(name, None)
    library = "build/wheel-aarch64/libdray.so.0"
    run("make", "-j2", "VARIANT=wheel-aarch64", library, cwd=tmp_path, env=env, timeout=3 * LIMIT)
    run(sys.executable, "packaging/wheel/build.py", tmp_path / "out", "client", VERSION, "aarch64", "2.28", library, cwd=tmp_path, env=env)
    assert (tmp_path / "out" / wheel.name).read_bytes() == wheel.read_bytes()


def test_packing_the_agent_again_gives_the_same_bytes(agent_wheel, tmp_path):
    """Compilation is like the client's; here the libraries of the distribution, auditwheel and the archive are repeated."""
    build = ROOT / os.environ.get("DRAY_BUILD", "build")
    files = [build / name for name in ("drayd", "drayctl", "dray-cuda.so", "drayctl.1") if (build / name).exists()]
    env = dict(os.environ, SOURCE_DATE_EPOCH=epoch(agent_wheel))
    run(sys.executable, ROOT / "packaging/wheel/build.py", tmp_path, "agent", VERSION, TOOLS / "auditwheel", *files,
        *(page for n in "857" for page in sorted((ROOT / "agent/man").glob(f"*.{n}"))), cwd=ROOT, env=env, timeout=3 * LIMIT)
    assert (tmp_path / agent_wheel.name).read_bytes() == agent_wheel.read_bytes()
