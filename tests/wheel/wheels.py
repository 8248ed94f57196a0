# SPDX-License-Identifier: Apache-2.0
"""What the tests of the wheels share: where `make wheel` has put them, and how programs are run."""

import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
WHEELS = ROOT / "build/wheel"
TOOLS = ROOT / "build/tools/bin"
VERSION = re.search(r"^VERSION := (\S+)$", (ROOT / "Makefile").read_text(), re.M)[1]
CLIENTS = {machine: f"dray_client-{VERSION}-py3-none-manylinux_2_28_{machine}.whl" for machine in ("x86_64", "aarch64")}
LIMIT = 60

# Loads the library of the installed package and prints the version last.
LOAD = """
import ctypes, pathlib, dray
library = ctypes.CDLL(pathlib.Path(dray.__file__).parent / "libdray.so.0")
library.dray_strerror.restype = ctypes.c_char_p
print(library.dray_strerror(0).decode(), dray.__version__)
"""


def run(*argv, check=True, **how):
    """Returns the output."""
    done = subprocess.run([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=how.pop("timeout", LIMIT), **how)
    assert not check or done.returncode == 0, f"{' '.join(map(str, argv))}: status {done.returncode}:\n{done.stdout}"
    return done.stdout
