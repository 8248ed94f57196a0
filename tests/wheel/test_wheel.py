# SPDX-License-Identifier: Apache-2.0
"""The wheels that `make wheel` has written: their tags, their contents, and what they do in a clean virtual environment."""

import base64
import csv
import hashlib
import pathlib
import re
import subprocess
import zipfile

import pytest
from wheels import CLIENTS, LIMIT, LOAD, ROOT, TOOLS, TRANSFER, VERSION, WHEELS, agent, run


def glibc(tag):
    return tuple(map(int, re.search(r"manylinux_(\d+)_(\d+)_", tag).groups()))


def has_cuda():
    return bool(run("make", "--silent", "--no-print-directory", "-f", "mk/cuda.mk", "cuda-home", cwd=ROOT).strip())


@pytest.fixture(params=["dray_agent", *CLIENTS])
def wheel(request, agent_wheel):
    return WHEELS / CLIENTS[request.param] if request.param in CLIENTS else agent_wheel


def test_there_are_three():
    names = {f.name for f in WHEELS.glob("*.whl")}
    assert set(CLIENTS.values()) < names and len(names) == 3


def test_auditwheel_agrees_with_the_tag(wheel):
    """What auditwheel finds is the oldest release of glibc that suffices; the client promises one that is a bit newer."""
    text = run(TOOLS / "auditwheel", "show", wheel).replace("\n", " ")
    found = re.search(r'platform tag: "([^"]+)"', text)[1]
    assert found.split("_", 3)[3] == wheel.stem.rsplit("-", 1)[1].split("_", 3)[3], "the same machine"
    if wheel.name.startswith("dray_agent"):
        assert glibc(found) == glibc(wheel.name)
    else:
        assert glibc(found) <= glibc(wheel.name) == (2, 28)


def test_record_lists_every_file(wheel):
    with zipfile.ZipFile(wheel) as z:
        files = {name: z.read(name) for name in z.namelist() if not name.endswith("/")}
    (record,) = [name for name in files if name.endswith(".dist-info/RECORD")]
    rows = {path: (digest, size) for path, digest, size in csv.reader(files[record].decode().splitlines())}
    assert rows.pop(record) == ("", "")
    del files[record]
    assert rows == {path: ("sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("="), str(len(data)))
                    for path, data in files.items()}


@pytest.mark.parametrize("machine", CLIENTS)
def test_library(machine_folder, machine):
    """It needs nothing but glibc, exports the interface, and does not allow a writable and executable stack."""
    library = machine_folder[machine] / "dray/libdray.so.0"
    text = run("readelf", "--wide", "--dynamic", "--program-headers", "--file-header", library)
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", text))
    assert "libc.so.6" in needed
    assert needed <= {"libc.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
    assert re.search(r"SONAME.*\[libdray.so.0\]", text)
    assert "BIND_NOW" in text and "GNU_RELRO" in text and re.search(r"GNU_STACK.* RW +0", text)
    assert ("AArch64" if machine == "aarch64" else "X86-64") in text
    run(ROOT / "scripts/check-exports", library, cwd=ROOT)


def test_agent_has_the_programs_and_their_licences(agent_wheel):
    with zipfile.ZipFile(agent_wheel) as z:
        names = z.namelist()
    programs = {name.rpartition("/")[2] for name in names if name.startswith("dray_agent/bin/") and not name.endswith("/")}
    assert {"drayd", "drayctl"} <= programs <= {"drayd", "drayctl", "dray-cuda.so"}
    assert ("dray-cuda.so" in programs) == has_cuda()
    libraries = [name for name in names if name.startswith("dray_agent.libs/") and ".so" in name]
    assert any("libsystemd" in name for name in libraries)
    # these belong to the host, like the drivers in them
    assert not [name for name in libraries if re.search("libibverbs|libcuda|libc[.-]so", name)]
    assert any(name.endswith("/licenses/libsystemd0/copyright") for name in names)


# --- installed -------------------------------------------------------------------------------------

def test_installed_version(environment):
    text = environment.python("import dray, importlib.metadata as m; print(dray.__version__, *map(m.version, ['dray-client', 'dray-agent']))")
    assert text.split() == [VERSION] * 3
    assert environment.run("drayd", "--version") == f"drayd {VERSION}\n"
    assert environment.run("drayctl", "--version") == f"drayctl {VERSION}\n"


def test_nothing_else_is_needed(environment):
    """Neither wheel requires another package, so neither numpy nor torch is there when dray is imported."""
    names = environment.run("pip", "list", "--format=freeze", "--disable-pip-version-check")
    assert {line.partition("==")[0] for line in names.split()} <= {"dray-agent", "dray-client", "pip", "setuptools", "wheel"}
    where = environment.python("import dray, pathlib; print(pathlib.Path(dray.__file__).parent)").strip()
    assert pathlib.Path(where).is_relative_to(environment.bin.parent)


def test_package_loads_its_own_library(environment):
    package = environment.python("import dray, os; print(os.path.dirname(dray.__file__))").strip()
    assert environment.python(LOAD).split() == [f"{package}/libdray.so.0", VERSION]


def test_transfer(environment, tmp_path):
    """Two clients on one agent, all from the wheels. The agent loads no library of the host but glibc."""
    with agent(environment, tmp_path) as process:
        maps = pathlib.Path(f"/proc/{process.pid}/maps").read_text()
        outside = {path for path in re.findall(r" (/\S+\.so\S*)$", maps, re.M) if not path.startswith(str(environment.bin.parent))}
        assert {re.sub(r"[-.].*", "", pathlib.Path(path).name) for path in outside} <= {"ld", "libc", "libm", "libdl", "libpthread"}
        assert environment.python(TRANSFER, tmp_path / "dray.sock") == "hello\n"
        assert "moved" in environment.run("drayctl", "--control", tmp_path / "control.sock", "status")


def test_plugin_loads(environment):
    """As the agent loads it; it needs no CUDA driver before it is used."""
    text = environment.python("""
import ctypes, pathlib, dray_agent
plugin = pathlib.Path(dray_agent.BIN, "dray-cuda.so")
print(ctypes.c_void_p.in_dll(ctypes.CDLL(plugin), "gpu_plugin_ops").value is not None if plugin.exists() else "none")
""")
    assert text == ("True\n" if has_cuda() else "none\n")


def test_commands_report_the_status(environment, tmp_path):
    done = subprocess.run([environment.bin / "drayctl", "--control", tmp_path / "none", "status"], env=environment.env,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=LIMIT)
    assert done.returncode == 3 and "no agent" in done.stderr
    assert "uverbs" in environment.run("drayctl", "doctor", check=False)
    assert (environment.bin.parent / "share/man/man1/drayctl.1").exists()
