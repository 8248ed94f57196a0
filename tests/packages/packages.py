# SPDX-License-Identifier: Apache-2.0
"""What the tests of packages and images share: what `make deb` and `make image` have written, and how programs are run."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEBS = ROOT / "build/deb"
IMAGES = ROOT / "build/image"
VERSION = re.search(r'^__version__ = "(\S+)"$', (ROOT / "client/python/dray/__init__.py").read_text(), re.M)[1]
LIMIT = 120

# Two clients of the agent whose socket is the argument: one reads from the other. Prints the digests of the bytes that were sent and that
# have arrived, and which libdray the package has loaded.
TRANSFER = """
import hashlib, os, sys
import dray
SIZE = 8 << 20
with dray.Client(socket=sys.argv[1]) as owner, dray.Client(socket=sys.argv[1]) as engine:
    theirs, ours = dray.Memory(SIZE), dray.Memory(SIZE)
    theirs.view[:] = os.urandom(SIZE)
    ours.view[:] = bytes(SIZE)
    remote = engine.import_token(str(owner.region(theirs).export()))
    engine.read(engine.region(ours), remote, [(at, at, 65536) for at in range(0, SIZE, 65536)]).result()
    print(hashlib.sha256(theirs.view).hexdigest(), hashlib.sha256(ours.view).hexdigest())
    print(*{line.split()[-1] for line in open("/proc/self/maps") if "libdray" in line})
"""


def run(*argv, check=True, **how):
    """Returns the output."""
    done = subprocess.run([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=how.pop("timeout", LIMIT), **how)
    assert not check or done.returncode == 0, f"{' '.join(map(str, argv))}: status {done.returncode}:\n{done.stdout}"
    return done.stdout


def has_cuda():
    return bool(run("make", "--silent", "--no-print-directory", "-f", "mk/cuda.mk", "cuda-home", cwd=ROOT).strip())


def transferred(output):
    """The path of libdray, if what has arrived is what was sent."""
    sent, arrived, library = output.split()
    assert sent == arrived
    return library


def unpack_image(file, folder):
    """Puts the layers' files into the folder, and returns the image's configuration."""
    with tarfile.open(file) as archive:
        def blob(descriptor):
            return archive.extractfile("blobs/" + descriptor["digest"].replace(":", "/"))

        (manifest,) = json.load(archive.extractfile("index.json"))["manifests"]
        manifest = json.load(blob(manifest))
        for layer in manifest["layers"]:
            with tarfile.open(fileobj=blob(layer)) as files:
                files.extractall(folder, numeric_owner=True)
        return json.load(blob(manifest["config"]))


@contextlib.contextmanager
def folder_for_all():
    """A temporary folder in which programs of any user find files; pytest's own are closed to others."""
    folder = pathlib.Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def agent(argv, ready, log, **how):
    """The agent that argv becomes; ready() returns when it is ready."""
    with log.open("w") as out:
        process = subprocess.Popen([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=out, stderr=out, **how)
    try:
        ready()
        yield process
    except BaseException:
        print(log.read_text())
        raise
    finally:
        pid = first_child(process.pid)
        if pid:
            os.kill(pid, signal.SIGTERM)
        assert process.wait(LIMIT) == 0, f"the signal ends the agent in order:\n{log.read_text()}"


def first_child(pid):
    """The process under bwrap."""
    with contextlib.suppress(OSError, ValueError):
        return int(pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def client(socket, *prefix):
    """Runs TRANSFER with the package and the library of these sources."""
    return run(*prefix, sys.executable, "-c", TRANSFER, socket, env=dict(os.environ, PYTHONPATH=str(ROOT / "client/python")))
