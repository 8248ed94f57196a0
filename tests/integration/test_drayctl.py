# SPDX-License-Identifier: Apache-2.0
"""drayctl and the control socket against live agents."""

import os
import shutil
import subprocess

import dray
import pytest
from harness import DRAYCTL, LIMIT, MIB, Side, noise, until

pytestmark = pytest.mark.skipif(not DRAYCTL.exists(), reason=f"{DRAYCTL} is not there")


@pytest.fixture(autouse=True)
def checked(monkeypatch):
    """Each command of drayctl with the sanitizer, also a repeated one."""
    monkeypatch.setattr("harness.PLAIN_DRAYCTL", DRAYCTL)


def test_lists(pair):
    """Lists show the current state, in text and JSON."""
    a, b = pair
    with Side(a, MIB, wire=True, group="engine", name="reader") as here, Side(b, MIB, noise(MIB), name="owner") as there:
        remote = here.reach(there)
        here.client.read(here.region, remote, [(0, 0, MIB)]).result(LIMIT)
        waiting = here.client.read(here.region, remote, [(0, 0, 4096)], wait_word=(here.region, 0, 0xfeedface))
        status = a.ctl("status", "--json")
        assert str(a.pid) in str(status) and here.client.agent_id.hex() in str(status)
        sessions = str(a.ctl("sessions", "--json"))
        assert "reader" in sessions and "engine" in sessions
        assert str(here.region.handle) in str(a.ctl("regions", "--json"))
        assert "owner" in str(b.ctl("sessions", "--json"))
        assert there.client.agent_id.hex() in str(a.ctl("peers", "--json"))
        assert str(waiting.request_id) in str(a.ctl("transfers", "--json"))
        for verb in ("status", "sessions", "regions", "peers", "transfers"):
            assert a.ctl(verb).strip()
        waiting.cancel()


def test_exit_codes(agent, lab):
    def status(*argv, control=agent.control):
        return subprocess.run([DRAYCTL, "--control", control, *argv], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              text=True, timeout=LIMIT)

    assert status("status").returncode == 0
    done = status("status", control=lab.tmp / "nobody")
    assert done.returncode == 3 and "nobody" in done.stderr
    for argv in (["teapot"], ["status", "too", "many"], ["--teapot"]):
        done = status(*argv)
        assert done.returncode == 2 and len(done.stderr.splitlines()) <= 2, done.stderr


def test_drain(new_agent):
    agent = new_agent()
    with agent.client() as client:
        agent.ctl("drain")
        assert client.next_event(dray.Draining, LIMIT)
    assert agent.wait() == 0


@pytest.mark.skipif(not shutil.which("busctl"), reason="busctl is not there")
def test_busctl(agent):
    """Any D-Bus client can use the control socket."""
    def busctl(*argv):
        return subprocess.run(["busctl", f"--address=unix:path={agent.control}", "--json=short", *argv], text=True,
                              check=True, stdout=subprocess.PIPE, timeout=LIMIT).stdout

    name = ["dev.dray.Agent1", "/dev/dray/Agent"]
    assert "running" in busctl("get-property", *name, "dev.dray.Agent1", "State")
    assert "ListSessions" in busctl("introspect", *name)
    with agent.client(name="seen by busctl"):
        until(lambda: "seen by busctl" in busctl("call", *name, "dev.dray.Agent1", "ListSessions"), "the session")


def test_control_socket_survives_garbage(agent):
    import socket
    for data in (b"", b"\0", b"AUTH\r\n", b"\0AUTH EXTERNAL zz\r\n", os.urandom(3000), b"\0" + b"A" * 100000):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(LIMIT)
            sock.connect(str(agent.control))
            try:
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(65536):
                    pass
            except (BrokenPipeError, ConnectionResetError):
                pass
    assert agent.ctl("status")
