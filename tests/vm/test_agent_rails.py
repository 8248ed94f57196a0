# SPDX-License-Identifier: Apache-2.0
"""An agent with Soft-RoCE: rails appear and disappear with their devices, and the agent never blocks the removal of a device."""

import contextlib
import errno
import json
import os
import pathlib
import subprocess
import tempfile
import time

import pytest

BUILD = pathlib.Path(os.environ.get("DRAY_BUILD", "build")).resolve()
LIMIT = 30


def run(*argv):
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True, timeout=LIMIT).stdout


# Runs a command that cannot load libibverbs, because an empty file hides it.
WITHOUT_LIBRARY = ("unshare", "--mount", "sh", "-ec", """
file=$(ldconfig -p | sed -n 's/.*libibverbs.so.1 .*=> //p' | head -n 1)
mount --bind /dev/null "$(readlink -f "$file")"
exec "$@" """, "sh")


class Agent:
    def __init__(self, directory, prefix=()):
        self.control, self.log = directory / "control.sock", directory / "log"
        self.process = subprocess.Popen([*prefix, BUILD / "drayd", "--state-dir", directory / "state", "--socket", directory / "dray.sock",
                                         "--control", self.control, "--listen", "127.0.0.1:0", "--set", "http.listen=none"], stderr=self.log.open("w"))

    def rails(self):
        return {r["device"]: r for r in json.loads(run(BUILD / "drayctl", "--control", self.control, "rails", "--json"))["rails"]}

    def until(self, holds):
        end = time.monotonic() + LIMIT
        while True:
            with contextlib.suppress(subprocess.CalledProcessError):  # not ready yet
                rails = self.rails()
                if holds(rails):
                    return rails
            assert time.monotonic() < end, f"the condition did not hold within {LIMIT} s:\n{self.log.read_text()}"
            time.sleep(0.05)


@pytest.fixture
def prefix():
    return ()


@pytest.fixture
def agent(prefix):
    run("ip", "link", "add", "d7", "type", "dummy")
    run("ip", "addr", "add", "10.97.0.1/24", "dev", "d7")
    run("ip", "link", "set", "d7", "up")
    with tempfile.TemporaryDirectory() as directory:
        one = Agent(pathlib.Path(directory), prefix)
        try:
            yield one
        finally:
            one.process.terminate()
            assert one.process.wait(LIMIT) == 0
            subprocess.run(["rdma", "link", "delete", "rxe7"], stderr=subprocess.DEVNULL, timeout=LIMIT)
            subprocess.run(["ip", "link", "delete", "d7"], stderr=subprocess.DEVNULL, timeout=LIMIT)


def usable(rails, address):
    return "rxe7" in rails and rails["rxe7"]["usable"] and rails["rxe7"]["gid"] == address


def test_rails_follow(agent):
    agent.until(lambda rails: "rxe7" not in rails)
    run("rdma", "link", "add", "rxe7", "type", "rxe", "netdev", "d7")
    rail = agent.until(lambda rails: usable(rails, "10.97.0.1"))["rxe7"]
    assert rail["netdev"] == "d7" and rail["state"] == "ACTIVE" and "RoCE v2" in rail["reason"]
    run("ip", "link", "set", "d7", "down")
    agent.until(lambda rails: not rails["rxe7"]["usable"])
    run("ip", "link", "set", "d7", "up")
    agent.until(lambda rails: usable(rails, "10.97.0.1"))
    run("ip", "addr", "add", "10.98.0.1/24", "dev", "d7")
    run("ip", "addr", "del", "10.97.0.1/24", "dev", "d7")
    agent.until(lambda rails: usable(rails, "10.98.0.1"))
    assert "GID" in agent.log.read_text()


def test_removed_device_is_released(agent):
    """The removal of a device waits until all users have closed it: the agent must close it, and survive."""
    for _ in range(3):
        run("rdma", "link", "add", "rxe7", "type", "rxe", "netdev", "d7")
        agent.until(lambda rails: usable(rails, "10.97.0.1"))
        run("rdma", "link", "delete", "rxe7")
        agent.until(lambda rails: "rxe7" not in rails)
    run("rdma", "link", "add", "rxe7", "type", "rxe", "netdev", "d7")
    agent.until(lambda rails: usable(rails, "10.97.0.1"))
    run("ip", "link", "delete", "d7")
    agent.until(lambda rails: "rxe7" not in rails)
    assert agent.process.poll() is None


class TestGidTable:
    @pytest.fixture
    def prefix(self, verbs_faults):
        return ("env", *(f"{name}={value}" for name, value in verbs_faults.environment.items()))

    def test_known_gids_are_kept(self, agent, verbs_faults):
        """A failed read says nothing about the GIDs: the rail stays up, the reason is named, and the next read comes without an event."""
        run("rdma", "link", "add", "rxe7", "type", "rxe", "netdev", "d7")
        agent.until(lambda rails: usable(rails, "10.97.0.1") and rails["rxe7"]["rail_state"] == "up")
        verbs_faults.gid_table_fails(errno.EIO)
        run("ip", "addr", "add", "10.98.0.1/24", "dev", "d7")
        rail = agent.until(lambda rails: "cannot be read" in rails["rxe7"]["reason"])["rxe7"]
        assert "Input/output error" in rail["reason"] and rail["rail_state"] == "up" and usable({"rxe7": rail}, "10.97.0.1")
        assert "rxe7/1 cannot be read now: Input/output error" in agent.log.read_text()
        verbs_faults.gid_table_fails(0)
        agent.until(lambda rails: "cannot be read" not in rails["rxe7"]["reason"])
        assert "up -> down" not in agent.log.read_text()

    def test_unknown_gids_are_an_error(self, agent, verbs_faults):
        """The rail says why it is unusable, and comes up as soon as its GIDs can be read."""
        verbs_faults.gid_table_fails(errno.EIO)
        run("rdma", "link", "add", "rxe7", "type", "rxe", "netdev", "d7")
        agent.until(lambda rails: "rxe7" in rails and "cannot be read now: Input/output error" in rails["rxe7"]["rail_reason"])
        verbs_faults.gid_table_fails(0)
        agent.until(lambda rails: usable(rails, "10.97.0.1") and rails["rxe7"]["rail_state"] == "up")


@pytest.mark.parametrize("prefix", [WITHOUT_LIBRARY], ids=["without_library"])
def test_missing_library_is_reported(agent):
    """Without libibverbs the agent runs, and every view of the device has the same reason."""
    run("rdma", "link", "add", "rxe7", "type", "rxe", "netdev", "d7")
    reason = "/libibverbs.so.1: file too short"
    rail = agent.until(lambda rails: "rxe7" in rails and rails["rxe7"]["rail_reason"])["rxe7"]
    assert rail["rail_state"] == "absent" and reason in rail["rail_reason"]
    assert agent.process.poll() is None and f"{reason} device=rxe7" in agent.log.read_text()
    (device,) = [d for d in json.loads(run(*WITHOUT_LIBRARY, BUILD / "drayctl", "detect", "--json"))["devices"] if d["device"] == "rxe7"]
    assert reason in device["opens"]
    assert device["ports"][0]["gids"], "the tables come from sysfs"
    assert reason in run(*WITHOUT_LIBRARY, BUILD / "drayctl", "detect", "--explain", "rxe7")
    doctor = subprocess.run([*WITHOUT_LIBRARY, BUILD / "drayctl", "doctor", "--json"], stdout=subprocess.PIPE, text=True, timeout=LIMIT)
    # one for each device: other tests may have left some
    findings = [f for f in json.loads(doctor.stdout)["findings"] if f["check"] == "uverbs"]
    assert findings
    for finding in findings:
        assert finding["text"].startswith("RDMA is not available: ") and reason in finding["text"] and "libibverbs1" in finding["fix"]
