# SPDX-License-Identifier: Apache-2.0
"""Programs and the libraries that they load, for wheels and images."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile


def stripped(file):
    """The bytes of a program or library without symbols and debugging information, which distributions keep apart."""
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run(["strip", "--strip-unneeded", "-o", out.name, file], check=True)
        return pathlib.Path(out.name).read_bytes()


def libraries(files):
    """The shared libraries that the files load: their paths by the names that programs load them by."""
    found = {}
    for file in files:
        text = subprocess.run(["ldd", file], check=True, stdout=subprocess.PIPE, text=True).stdout
        for path in re.findall(r"(?:=> |^\t)(/\S+)", text, re.M):
            found[os.path.basename(path)] = os.path.realpath(path)
    return found


def packages_of(paths):
    """The Debian packages of libraries. /lib is a link to /usr/lib, and dpkg knows some files by the shorter path."""
    short = [path.removeprefix("/usr") for path in paths]
    text = subprocess.run(["dpkg", "-S", *paths, *short], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    owner = {path: package.split(":")[0] for package, path in re.findall(r"^(\S+): (.*)$", text, re.M)}
    for path, name in zip(paths, short):
        if path not in owner and name not in owner:
            sys.exit(f"{path} belongs to no Debian package, so its licence is not known; install the library as a package")
    return {owner.get(path, owner.get(name)) for path, name in zip(paths, short)}
