# SPDX-License-Identifier: Apache-2.0
"""Agents, clients and drayctl of this tree beside those of the previous release, in both directions, and upgrades in both directions."""

import json
import random
import subprocess
import threading

import dray
import pytest
from harness import DRAYCTL, LIMIT, MIB, Side, until

WAYS = [("old", "new"), ("new", "old")]


@pytest.mark.parametrize(("owner", "reader"), WAYS)
def test_two_agents(new_agent, new_engine, owner, reader):
    """Each agent with a client of its own release: bytes, revocation, lease and letter."""
    a, b = new_agent(owner), new_agent(reader, host=1)
    here, there = new_engine(owner, a), new_engine(reader, b)
    digest = here("fill", 1)
    there("take", here("export"))
    assert there("read") == digest
    digest = there("fill", 2)
    there("write")
    assert here("digest") == digest
    here("revoke")
    assert there("fails") in ("revoked", "token_invalid", "not_found")
    there("borrow", here("lend"))
    here("open", "box")
    there("post", a.listen[0], "box", "hello")
    assert here("letter") == "hello"


@pytest.mark.parametrize(("client", "agent"), WAYS)
def test_client_and_agent(new_agent, new_engine, client, agent):
    """Both clients of one agent are of the other release."""
    one = new_agent(agent)
    here, there = new_engine(client, one), new_engine(client, one)
    digest = here("fill", 3)
    there("take", here("export"))
    assert there("read") == digest
    there("borrow", here("lend"))
    here("open", "box")
    there("post", one.listen[0], "box", "hello")
    assert here("letter") == "hello"


def test_drayctl(new_agent, releases):
    """drayctl of this tree shows an agent of the previous release. The opposite waits for the first release (docs/versions.md)."""
    old = new_agent("old")
    for verb in ("status", "sessions", "regions", "peers", "rails", "transfers", "config", "segments", "events"):
        done = subprocess.run([DRAYCTL, "--control", old.control, "--json", verb], stdout=subprocess.PIPE, text=True, timeout=LIMIT)
        assert done.returncode == 0 and json.loads(done.stdout), verb


def test_doctor(new_agent):
    """The previous release cannot check the way back, and the finding says so."""
    new, old = new_agent("new"), new_agent("old", host=1)
    done = subprocess.run([DRAYCTL, "--control", new.control, "--json", "doctor", "--peer", old.listen[0]], stdout=subprocess.PIPE, text=True,
                          timeout=LIMIT)
    *found, last = json.loads(done.stdout)["findings"]
    assert done.returncode == 1 and {f["severity"] for f in found} == {"ok"} and found[-1]["check"] == "features"
    assert last["severity"] == "warning" and "cannot check the opposite way" in last["text"]


class Retrying(threading.Thread):
    """A client that reads blocks of a remote all the time, and tries a request again after an error."""

    def __init__(self, agent, token, expected):
        super().__init__()
        self.agent, self.token, self.expected = agent, token, expected
        self.ended, self.errors, self.failure = 0, [], None
        self.quit = threading.Event()

    def request(self, client, region, memory):
        at = random.randrange(0, MIB, 4096)
        remote = client.import_token(self.token, timeout=LIMIT)
        try:
            client.read(region, remote, [(at, at, 4096)]).result(LIMIT)
        finally:
            remote.release(wait=False)
        assert bytes(memory.view[at:at + 4096]) == self.expected[at:at + 4096]

    def run(self):
        try:
            with dray.Client(self.agent.socket, timeout=LIMIT, patience=LIMIT) as client, dray.Memory(MIB) as memory:
                region = client.region(memory)
                while not self.quit.is_set():
                    self.once(client, region, memory)
        except BaseException as e:
            self.failure = e

    def once(self, client, region, memory):
        for _ in range(100):
            try:
                self.request(client, region, memory)
                self.ended += 1
                return
            except dray.Error as e:
                self.errors.append(e.name)
                self.quit.wait(0.05)
        raise AssertionError(f"a request has failed 100 times: {self.errors[-3:]}")


@pytest.mark.parametrize(("before", "after"), WAYS)
def test_upgrade(new_agent, releases, before, after):
    """drain --wait, and the other release starts with the same state and sockets: a client that retries loses nothing."""
    agent, owner = new_agent(before), new_agent("new", host=1)
    fill = random.Random(4).randbytes(MIB)
    with Side(owner, MIB, fill) as there:
        client = Retrying(agent, there.export(), fill)
        client.start()
        until(lambda: client.ended > 20 or client.failure, "the first requests")
        subprocess.run([releases[after].drayctl, "--control", agent.control, "drain", "--wait"], check=True, timeout=LIMIT)
        assert agent.wait() == 0
        agent.program = releases[after].drayd
        agent.start()
        ended = client.ended
        until(lambda: client.ended > ended + 20 or client.failure, "requests after the upgrade")
        client.quit.set()
        client.join(LIMIT)
    assert client.failure is None, client.failure
    # what was accepted has ended well: the drain has only refused; a remote of the session before is refused at once (agent_restarted),
    # and a transfer that the client had put into its ring when the agent had stopped to take any ends with the session (unconfirmed)
    assert set(client.errors) <= {"draining", "disconnected", "peer_unreachable", "session_closed", "peer_lost", "remote_lost",
                                  "agent_restarted", "unconfirmed"}, client.errors
