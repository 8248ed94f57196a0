# SPDX-License-Identifier: Apache-2.0
"""drayctl store --trace: what clients ask of the store, recorded, and replayed by the simulation of policies."""

import collections
import json
import os
import re
import signal
import subprocess
import sys

import pytest
from dray import Status
from harness import BUILD, DRAYCTL, LIMIT, ROOT, until
from test_store import User, tenants

STORE = {"limits.store_bytes": "8MiB", "limits.store_bytes_per_owner": "8MiB", "store.segment_size": "2MiB"}
SIM = ROOT / "tests/bench/store_sim.py"
Line = collections.namedtuple("Line", "time space operation key bytes cost result tier")


class Recording:
    """drayctl store --trace, until stop()."""

    def __init__(self, agent, path, *argv):
        self.path = path
        path.unlink(missing_ok=True)
        self.process = subprocess.Popen([DRAYCTL, "--control", agent.control, "store", "--trace", path, "--json", *argv],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        until(lambda: path.exists() and path.read_text(), "the beginning of the recording")

    def lines(self):
        """Of requests."""
        *whole, _ = self.path.read_text().split("\n")
        return [Line(*line.split()) for line in whole if not line.startswith("#")]

    def wait_for(self, n):
        until(lambda: len(self.lines()) >= n, "the requests in the file")

    def stop(self):
        """What it says at its end, when nothing new has come for a while: a signal between two looks ends it in order."""
        self.process.send_signal(signal.SIGINT)
        out, err = self.process.communicate(timeout=LIMIT)
        assert self.process.returncode == 0, (self.process.returncode, err)
        return json.loads(out)


def test_what_is_recorded(new_agent, lab):
    agent, (left, right) = tenants(new_agent, "left", "right", **STORE, **{"store.spaces": "kv=left:*,kv=right:*"})
    path = lab.tmp / "store.trace"
    with User(left, space="kv") as a, User(right, space="kv") as b, User(right) as c:
        assert a.put(b"before", b"x") == Status.OK
        run = Recording(agent, path)
        assert a.put(b"secret key", bytes(3000), cost=0.002) == Status.OK
        assert b.put(b"secret key", bytes(10)) == Status.EXISTS
        assert b.get(b"secret key") == bytes(3000)
        assert c.get(b"secret key") == Status.NOT_FOUND
        assert a.get(b"before") == b"x"
        a.store.exists([b"secret key", b"none"])
        a.store.pin([b"secret key"])
        a.store.read([b"secret key"])[0].release()
        a.store.remove([b"secret key"])
        run.wait_for(10)
        assert run.stop() == {"requests": 10, "keys": 4, "lost": 0}
        got = run.lines()
        assert path.read_text().startswith("# dray store trace 1\n# time_us space operation key bytes cost_us result tier\n")
    kv, own = got[0].space, got[3].space
    assert kv != own
    assert [line[1:] for line in got] == [
        (kv, "put", "1", "3000", "2000", "ok", "none"),
        (kv, "put", "1", "10", "0", "exists", "none"),
        (kv, "get", "1", "3000", "2000", "ok", "memory"),
        (own, "get", "2", "0", "0", "not_found", "none"),
        (kv, "get", "3", "1", "1", "ok", "memory"),  # which is what the policy takes for unknown
        (kv, "exists", "1", "3000", "2000", "ok", "memory"),
        (kv, "exists", "4", "0", "0", "not_found", "none"),
        (kv, "pin", "1", "3000", "0", "ok", "memory"),
        (kv, "read", "1", "3000", "2000", "ok", "memory"),
        (kv, "remove", "1", "3000", "2000", "ok", "memory"),
    ]
    times = [int(line.time) for line in got]
    assert times == sorted(times)


def test_ends_and_errors(new_agent, lab):
    """By time; one at a time; a file that cannot be written; none of the agent's memory is used afterwards."""
    agent = new_agent(settings=STORE)
    path = lab.tmp / "store.trace"
    assert agent.ctl("store", "--trace", path, "--duration", "1ms") == "0 requests for 0 keys recorded, 0 lost\n"
    assert agent.ctl("store", "--trace", "-", "--duration", "1ms").startswith("# dray store trace 1\n")
    done = agent.ctl("store", "--trace", lab.tmp / "none" / "file", check=False)
    assert done.returncode and "No such file" in done.stderr
    done = agent.ctl("store", "--trace", "/dev/full", "--duration", "1ms", check=False)
    assert done.returncode and "No space left" in done.stderr
    # the agent notes the end of a connection a moment later
    until(lambda: agent.ctl("store", "--trace", path, "--duration", "1ms", check=False).returncode == 0, "the end of the last one")
    run = Recording(agent, path)
    with User(agent) as user:
        user.has(b"key")
    run.wait_for(1)
    for argv, why in ((["--trace", path], "another trace"), (["--trace", "-", "--json"], "give a file"), (["--duration", "1s"], "--trace"),
                      (["--trace", path, "--space", "kv"], "all name spaces"), (["--trace", path, "--verify"], "give one of them")):
        done = agent.ctl("store", *argv, check=False)
        assert done.returncode and why in done.stderr, (argv, done)
    # what is recorded stays when another one cannot begin
    assert len(run.lines()) == 1
    # the agent notes the end of a connection whose drayctl is killed
    run.process.kill()
    run.process.communicate(timeout=LIMIT)
    until(lambda: agent.ctl("store", "--trace", path, "--duration", "1ms", check=False).returncode == 0, "the end of the killed one")
    agent.restart()
    run = Recording(agent, path)
    agent.kill()
    out, err = run.process.communicate(timeout=LIMIT)
    assert run.process.returncode == 3 and "closed the connection" in err and not out
    path.write_text("earlier")
    assert agent.ctl("store", "--trace", path, check=False).returncode == 3
    assert path.read_text() == "earlier"
    agent.start()


def test_lost_records(new_agent, lab):
    """A reader that does not keep up loses records, which are counted; the store goes on."""
    agent = new_agent(settings=STORE)
    path = lab.tmp / "store.trace"
    with User(agent) as user:
        run = Recording(agent, path)
        run.process.send_signal(signal.SIGSTOP)
        keys = [b"%d" % i for i in range(1000)]
        for _ in range(70):
            user.store.exists(keys)
        run.process.send_signal(signal.SIGCONT)
        run.wait_for(1)
        until(lambda: "# lost" in path.read_text(), "the note about lost requests")
        got = run.stop()
    assert got["requests"] + got["lost"] == 70_000 and got["lost"] and got["requests"] >= 65_536 and got["keys"] == 1000
    assert sum(map(int, re.findall(r"^# lost (\d+)$", path.read_text(), re.MULTILINE))) == got["lost"]


@pytest.mark.skipif(not (BUILD / "tests/bench/store_sim").exists(), reason="store_sim is not built: make tools")
def test_replay(new_agent, lab):
    """make store-sim TRACES=FILE: what was found, and what was computed and put because it was not there, are the requests."""
    agent = new_agent(settings=STORE)
    path, plain = lab.tmp / "store.trace", lab.tmp / "plain.trace"
    wanted = [0, 1, 0, 2, 0, 1, 3, 0, 4, 2, 0]
    with User(agent) as user:
        run = Recording(agent, path)
        for n in wanted:
            key, value = b"object %d" % n, bytes(1000 * (n + 1))
            if not user.has(key)[0]:
                assert user.put(key, value, cost=(n + 1) / 1000) == Status.OK
            else:
                assert user.get(key) == value
        user.get(b"none")
        run.wait_for(2 * len(wanted) + 1)
        run.stop()
    plain.write_text("".join(f"{n} {1000 * (n + 1)} {1000 * (n + 1)}\n" for n in wanted))
    env = os.environ | {"DRAY_BUILD": str(BUILD)}

    def table(file):
        done = subprocess.run([sys.executable, SIM, lab.tmp / "out", "--share", "0.3", file], env=env, text=True, stdout=subprocess.PIPE, check=True)
        return [line.replace(str(file), "FILE") for line in done.stdout.splitlines() if line.startswith("|")]

    found = table(path)
    assert found == table(plain) and len(found) == 4 and "| FILE |" in found[-2] and "| FILE, two tiers |" in found[-1]
    with path.open("a") as file:
        file.write("123 1 ge")  # a recording that was killed
    assert table(path) == found
