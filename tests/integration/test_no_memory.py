# SPDX-License-Identifier: Apache-2.0
"""Allocations and mappings of the agent fail, one after the other, while a client uses it: the client's request ends, the agent goes on."""

import contextlib
import struct

import dray
import harness
import pytest
from conftest import serves
from harness import BUILD, DRAYD, LIMIT, MIB, ROOT, fault_words, nothing_leaked, sanitized, until
from test_store import User
from test_store_replicas import STORE, connected

# A sanitizer has its own allocator.
PLAIN = ROOT / "build/gcc" if DRAYD.exists() and sanitized(DRAYD) else BUILD
PRELOAD = PLAIN / "tests/faults/no_memory.so"
pytestmark = pytest.mark.skipif(not PRELOAD.exists(), reason=f"{PRELOAD} is not built")


class Failure:
    """The counter of tests/faults/no_memory.c."""

    def __init__(self, path):
        self.words = fault_words(path)
        self.environment = {"LD_PRELOAD": str(PRELOAD), "NO_MEMORY_FILE": str(path)}

    def arm(self, at, row):
        self.words[:8] = struct.pack("=ii", at, row)

    def disarm(self):
        """Returns the calls that were left until the failure."""
        left, = struct.unpack("=i", self.words[:4])
        self.words[:8] = bytes(8)
        return left


def session(agent):
    """Every kind of request of a client, each of which may fail."""
    errors = dray.Error, OSError, TimeoutError
    with contextlib.suppress(*errors), dray.Memory(MIB) as memory, agent.client(group="g", notifications=True, timeout=LIMIT) as client, \
            agent.client(group="g", timeout=LIMIT) as mate:
        region = client.region([(memory, 0, MIB // 2), (memory, MIB // 2, MIB // 2)])
        steps = [
            lambda: client.pool(65536).memory.close(),
            lambda: region.revoke(region.export()),
            lambda: client.read(region, client.import_token(region.export()), [(0, MIB // 2, 100000)]).result(LIMIT),
            lambda: client.write(region, client.import_token(region.export()), [(i * 64, MIB // 2 + i * 128, 64) for i in range(5000)],
                                 notify=(7, b"x" * 100)).result(LIMIT),
            lambda: client.acquire(str(region.lease([(0, 4096, 8192, 3), (65536, 4096, 4096, 1)], expiry=60).token), timeout=LIMIT).release(),
            lambda: client.import_token(region.export()).notify(5, b"y" * 1000),
            lambda: client.put_hint("scope", "10.0.0.1:50053"),
            lambda: client.hint("scope"),
            lambda: client.preferred_segment("scope"),
            lambda: client.environment("dray"),
            lambda: client.open_mailbox("box"),
            lambda: mate.post("", "box", b"z" * 2000),
            lambda: client.cancel(client.read(region, client.import_token(region.export()), [(4096, 8192, 64)], wait_word=(region, 0, 7))),
            lambda: region.remove(),
        ]
        for step in steps:
            with contextlib.suppress(*errors, AttributeError):
                step()


@pytest.mark.parametrize("row", [1, 3])
def test_each_allocation_of_a_session(lab, new_agent, monkeypatch, row):
    monkeypatch.setattr(harness, "DRAYD", PLAIN / "drayd")
    failure = Failure(lab.directory("fault") / "control")
    agent = new_agent(env=failure.environment)
    session(agent)
    serves(agent)
    with nothing_leaked(agent):
        n, left = 0, 0
        while left <= 0:
            n += 1
            failure.arm(n, row)
            session(agent)
            left = failure.disarm()
            assert agent.running, f"the agent ended when allocation {n} failed:\n{agent.tail()}"
            if not n % 50:
                serves(agent)
        assert n > 100
        until(lambda: not agent.ctl("sessions", "--json")["sessions"], "the end of the sessions")
        serves(agent)


def test_each_allocation_of_a_put_at_another_agent(lab, new_agent, monkeypatch):
    """It ends at once with a status or an error that says so, and not with the deadline."""
    monkeypatch.setattr(harness, "DRAYD", PLAIN / "drayd")
    failure = Failure(lab.directory("fault") / "control")
    other = new_agent("other", settings=STORE, args=["--allow-insecure"])
    agent = new_agent("agent", settings=STORE | {"store.peers": other.listen[0]}, env=failure.environment, args=["--allow-insecure"])
    connected(agent, 1)
    with User(agent, space="kv") as user:
        n, left = 0, 0
        while left <= 0:
            n += 1
            failure.arm(n, 1)
            try:
                user.store.put(user.region, [(b"%d" % n, [(0, 100)])], at=other.listen[0])
            except dray.errors.Deadline as e:
                pytest.fail(f"allocation {n}: {e}")
            except dray.Error:
                pass
            left = failure.disarm()
        assert n > 5
        connected(agent, 1)
        until(lambda: user.store.put(user.region, [(b"last", [(0, 100)])], at=other.listen[0])[0].status == dray.Status.OK, "an agent that goes on")
