# SPDX-License-Identifier: Apache-2.0
"""What the tests of the wheels share: where `make wheel` has put them, and how programs are run."""

import contextlib
import pathlib
import re
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
WHEELS = ROOT / "build/wheel"
TOOLS = ROOT / "build/tools/bin"
VERSION = re.search(r'^__version__ = "(\S+)"$', (ROOT / "client/python/dray/__init__.py").read_text(), re.M)[1]
CLIENTS = {machine: f"dray_client-{VERSION}-py3-none-manylinux_2_28_{machine}.whl" for machine in ("x86_64", "aarch64")}
LIMIT = 60

# Prints which libdray the package has loaded, and its version.
LOAD = """
import dray
dray.Memory(4096)
print(*{line.split()[-1] for line in open("/proc/self/maps") if "libdray" in line}, dray.__version__)
"""

# One client reads from another by the agent whose socket is the argument.
TRANSFER = """
import sys
import dray
with dray.Client(socket=sys.argv[1]) as owner, dray.Client(socket=sys.argv[1]) as engine:
    theirs, ours = dray.Memory(1 << 20), dray.Memory(1 << 20)
    theirs.view[:] = b"hello..." * (1 << 17)  # all of it: under qemu-user only writing populates pages
    ours.view[:] = bytes(1 << 20)
    token = str(owner.region(theirs).export())
    remote = engine.import_token(token)
    engine.read(engine.region(ours), remote, [(4096, 0, 5)]).result()
    print(bytes(ours.view[4096:4101]).decode())
"""


def run(*argv, check=True, **how):
    """Returns the output."""
    done = subprocess.run([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=how.pop("timeout", LIMIT), **how)
    assert not check or done.returncode == 0, f"{' '.join(map(str, argv))}: status {done.returncode}:\n{done.stdout}"
    return done.stdout


class Environment:
    """A clean virtual environment with both wheels, installed by path, without an index to take other packages from."""

    def __init__(self, folder, *wheels):
        self.bin = folder / "bin"
        self.env = {"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(folder)}
        run(sys.executable, "-m", "venv", folder)
        self.run("pip", "install", "--quiet", "--no-index", "--disable-pip-version-check", *wheels)

    def run(self, program, *argv, **how):
        return run(self.bin / program, *argv, env=self.env, **how)

    def python(self, text, *argv):
        return self.run("python", "-I", "-c", text, *argv)


@contextlib.contextmanager
def agent(environment, folder):
    """The agent that the command `drayd` becomes."""
    log = folder / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [environment.bin / "drayd", "--state-dir", folder / "state", "--socket", folder / "dray.sock", "--control", folder / "control.sock",
             "--listen", "127.0.0.1:0", "--set", "http.listen=none"], env=environment.env, stdin=subprocess.DEVNULL, stderr=out)
    try:
        # waits on the control socket, also until it exists
        environment.run("drayctl", "--control", folder / "control.sock", "wait", "--timeout", f"{LIMIT}s", timeout=2 * LIMIT)
        yield process
    except BaseException:
        print(log.read_text())
        raise
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 0, "the signal reaches the agent, which ends in order"
