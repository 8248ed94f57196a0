# SPDX-License-Identifier: Apache-2.0
"""How a request for encoder outputs ends when something fails: with its image, and without.

Each test offers an output, breaks something, and asks for the output twice. The engines are those of ec_bare.py, the agents are
real ones on two hosts. The table in docs/vllm.md has a row for each test, which is compared with what has happened, apart from
the time. The times are printed at the end (pytest -s).
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from dray.vllm.ec.pool import Shape
from dray.vllm.ec.secret import Secret
from ec_bare import ENCODER, NO_PIXELS, Bare, images, offered
from harness import LIMIT, ROOT, Lab, until

DEADLINE, SHORT, LEASE = 12.0, 3.0, 4.0  # the first is longer than an agent tries to connect to another one


def documented():
    """{what: (with its image, without, error, after)} of the table in docs/vllm.md."""
    lines = (ROOT / "docs/vllm.md").read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("| what fails | with its image "))
    rows = {}
    for line in lines[at + 2:]:
        if not line.startswith("|"):
            break
        what, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        rows[what] = tuple(cells)
    return rows


ROWS = documented()


@pytest.fixture(scope="module")
def lab():
    """Two hosts, if namespaces are allowed."""
    made = Lab()
    yield made
    made.close("DRAY_KEEP" in os.environ)


@pytest.fixture(scope="module")
def table():
    """{what: (the errors that were seen, seconds)}"""
    seen = {}
    yield seen
    for what, (errors, seconds) in seen.items():
        print(f"\n| {what} | {' | '.join(ROWS[what][:2])} | {' or '.join(sorted(errors))} | {seconds:.2f} s |", end="")


def test_each_row_of_the_table_has_a_test():
    source = pathlib.Path(__file__).read_text()
    assert ROWS and not [what for what in ROWS if f'"{what}"' not in source]


class Rig:
    """E and PD, whose agents are on two hosts. Requests are asked for when something is broken."""

    def __init__(self, lab, table, **how):
        self.lab, self.table = lab, table
        self.agents = [lab.agent(f"agent-ec-fails-{name}", host, key=lab.key, listen=(host.v4,)).start() for name, host in zip(("e", "pd"), lab.hosts)]
        self.made = []
        self.e = self.engine("e", "ec_producer", **{"lease": 2 * DEADLINE, **how.pop("e", {})})
        self.pd = self.engine("pd", "ec_consumer", 1, **{"deadline": DEADLINE, "transport": "tcp", **how.pop("pd", {})})

    def engine(self, name, role, at=0, **how):
        self.made.append(Bare(name, self.agents[at].socket, role, **how))
        return self.made[-1]

    def offer(self, name="image", salt=None, engine=None, rows=None):
        """(images, ec_transfer_params) of a request whose output two engines may read."""
        engine = engine or self.e
        wanted = images(1, name) if rows is None else [(name, rows)]
        reason, params = engine.run(engine.add(name, wanted, params={"consumers": 2}, salt=salt))
        assert reason == "STOP" and params, (reason, params)
        return wanted, params

    def ask(self, wanted, params, salt=None):
        self.began, self.failures = time.monotonic(), []
        self.pd.encoded.clear()  # of outputs that came too late before
        failed = self.pd.side.stats.failed
        self.pd.side.stats.failed = lambda name: (self.failures.append(name), failed(name))
        self.pd.add("with", wanted, params, salt=salt)
        self.pd.add("without", wanted, params, NO_PIXELS, salt=salt)
        self.wanted = wanted

    def ends(self, what):
        """Both requests end as the table says."""
        reasons, seconds = {}, 0.0

        def both():
            nonlocal seconds
            self.pd.step()
            for name in ("with", "without"):
                if name in self.pd.answers and name not in reasons:
                    reasons[name], seconds = self.pd.answers[name][0], time.monotonic() - self.began
            return len(reasons) == 2

        until(both, f"the ends of both requests: {what}", 3 * LIMIT)
        assert reasons["with"] == "LENGTH", reasons
        encoded = [name for name, _ in self.wanted] == self.pd.encoded
        assert encoded or not self.pd.encoded
        found = ("encoded" if encoded else "loaded", "fails" if reasons["without"] == "ERROR" else "loaded")
        errors = {f"`{name}`" for name in self.failures}
        self.table[what] = errors, seconds
        *wanted, expected, _ = ROWS[what]
        assert found == tuple(wanted), (what, found, errors)
        assert errors <= set(expected.split(" or ")) - {""} and bool(errors) == bool(expected), (what, errors)
        self.still_serves()

    def still_serves(self):
        """The engine goes on with requests of text."""
        assert self.pd.run(self.pd.add("text", [], tokens=2))[0] == "LENGTH"

    def serves_again(self):
        """Nothing is left, and outputs are loaded again, when what was broken works."""
        self.pd.idle()
        self.e.idle()
        self.pd.encoded.clear()

        def loaded():
            name = f"again-{self.pd.steps}"
            wanted = images(1, name)
            _, params = self.e.run(self.e.add(name, wanted))
            before = len(self.pd.encoded)
            assert self.pd.run(self.pd.add(name, wanted, params))[0] == "LENGTH"
            return len(self.pd.encoded) == before

        until(loaded, "an output is loaded again", 4 * LIMIT)
        self.pd.idle()
        self.e.idle()

    def meets(self):
        """E's pool is exported to PD's agent, so that PD does not wait for rights."""
        def met():
            self.serves_again()
            return any(pool.done() for pool in self.pd.side._pools._known.values())
        until(met, "E's pool at PD")

    def close(self):
        for engine in self.made:
            engine.close()
        for agent in self.agents:
            agent.kill()


@pytest.fixture
def rig(lab, table, request):
    """request.param: options of both engines, if a test has them."""
    made = Rig(lab, table, **getattr(request, "param", {}))
    yield made
    made.close()


@pytest.fixture(params=[False, True], ids=["stranger", "known"])
def known(request, rig):
    """E exports its pool to PD's agent, or does not."""
    if request.param:
        rig.meets()


def test_nothing_fails(rig, known):
    rig.ask(*rig.offer())
    rig.ends("nothing")
    rig.serves_again()


def test_e_is_killed(rig):
    wanted = images(1, "killed")
    process = subprocess.Popen([sys.executable, "-c", ENCODER, str(rig.agents[0].socket), json.dumps(wanted)], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    try:
        params = json.loads(process.stdout.readline())
        process.kill()
        process.wait()
        rig.ask(wanted, params)
        rig.ends("E is killed")
    finally:
        process.kill()
        process.communicate()
    rig.serves_again()


def test_the_agent_of_e_is_killed(rig, known):
    asked = rig.offer()
    rig.agents[0].signal(signal.SIGKILL)
    rig.ask(*asked)
    rig.ends("E's agent is killed")
    rig.agents[0].restart()
    rig.serves_again()


def test_the_agent_of_e_is_killed_while_a_request_waits(rig, known):
    asked = rig.offer()
    rig.agents[0].signal(signal.SIGSTOP)
    rig.ask(*asked)
    for _ in range(20):
        rig.pd.step()
    rig.agents[0].signal(signal.SIGKILL)
    rig.ends("E's agent is killed while PD waits for it")
    rig.agents[0].restart()
    rig.serves_again()


@pytest.mark.parametrize("connected", ["known", "connected", ""], ids=["known", "connected", "not-connected"])
def test_the_agent_of_e_is_stopped(rig, connected):
    if connected == "known":
        rig.meets()
    elif connected:
        rig.serves_again()
    asked = rig.offer()
    rig.agents[0].signal(signal.SIGSTOP)
    try:
        rig.ask(*asked)
        rig.ends("E's agent is stopped" if connected else "E's agent is stopped, and PD's is not connected to it yet")
    finally:
        rig.agents[0].signal(signal.SIGCONT)
    rig.serves_again()


@pytest.mark.parametrize("rig", [{"pd": {"deadline": 1.0}}], indirect=True)
def test_the_agent_of_e_is_stopped_and_the_deadline_is_short(rig, known):
    asked = rig.offer()
    rig.agents[0].signal(signal.SIGSTOP)
    try:
        rig.ask(*asked)
        rig.ends("E's agent is stopped, and `deadline` is 1 s")
    finally:
        rig.agents[0].signal(signal.SIGCONT)
    rig.serves_again()


def test_the_network_is_cut(lab, rig, known):
    lab.need_namespaces()
    rig.serves_again()  # the agents are connected
    asked = rig.offer()
    lab.hosts[0].link(False)
    try:
        rig.ask(*asked)
        rig.ends("the network is cut")
    finally:
        lab.hosts[0].link(True)
    rig.serves_again()


def test_the_agent_of_pd_is_killed(rig, known):
    asked = rig.offer()
    rig.agents[1].signal(signal.SIGKILL)
    rig.ask(*asked)
    rig.ends("PD's agent is killed")
    rig.agents[1].restart()
    rig.serves_again()


@pytest.mark.parametrize("rig", [{"pd": {"deadline": SHORT}}], indirect=True)
def test_the_agent_of_pd_is_stopped(rig, known):
    asked = rig.offer()
    rig.agents[1].signal(signal.SIGSTOP)
    try:
        rig.ask(*asked)
        rig.ends("PD's agent is stopped, and `deadline` is 3 s")
    finally:
        rig.agents[1].signal(signal.SIGCONT)
    rig.serves_again()


@pytest.mark.parametrize("rig", [{"e": {"lease": LEASE}}], indirect=True)
def test_the_lease_has_expired(rig):
    asked = rig.offer()
    rig.e.idle()
    rig.ask(*asked)
    rig.ends("the lease has expired")
    rig.serves_again()


SMALL = 256 * 512 + 4096  # bytes of a pool for one output of the largest size


@pytest.mark.parametrize("rig", [{"pd": {"size": SMALL, "deadline": SHORT}}], indirect=True)
def test_the_pool_of_pd_is_full(rig):
    """Of an output that a request uses which does not end."""
    other, = rig.pd.side._pool.enter([Shape(b"of another request".ljust(32), 240, 256, 240 * 512)], "another request", [bytes(16)])
    rig.ask(*rig.offer(rows=60))
    rig.ends("PD's pool stays full, and `deadline` is 3 s")
    rig.pd.side._pool.forget(other)
    rig.pd.side._pool.leave(other, "another request")
    rig.serves_again()


@pytest.mark.parametrize("rig", [{"pd": {"size": SMALL}}], indirect=True)
def test_the_pool_of_pd_is_too_small(rig):
    """For all outputs of a request."""
    wanted = [("first", 200), ("second", 200)]
    _, params = rig.e.run(rig.e.add("both", wanted, params={"consumers": 2}))
    rig.ask(wanted, params)
    rig.wanted = wanted[1:]  # the first one is loaded
    rig.ends("PD's pool is too small for the request")
    rig.serves_again()


@pytest.mark.parametrize("rig", [{"e": {"size": SMALL, "lease": LEASE}}], indirect=True)
def test_the_pool_of_e_is_full(rig):
    """Of an output that nobody claims: the next request waits until its right has expired."""
    rig.offer("unclaimed", rows=240)
    rig.began_e = time.monotonic()
    asked = rig.offer("next", rows=240)
    rig.ask(*asked)
    rig.began = rig.began_e
    rig.ends("E's pool is full of outputs that nobody claims, and `lease` is 4 s")
    rig.serves_again()


def test_wrong_bytes(rig, known):
    wanted, params = rig.offer()
    with offered(params) as offer:
        at, = offer["items"].values()
    rig.e.scheduler.ec_connector._memory.memory.view[at[0] + 300] ^= 1
    rig.ask(wanted, params)
    rig.ends("wrong bytes in E's pool")
    rig.serves_again()


@pytest.mark.parametrize("what", ["model", "dtype", "width", "number"])
def test_engines_differ(rig, what):
    """The offer is what an encoder with another configuration would send."""
    wanted, params = rig.offer()
    with offered(params) as offer:
        (name, values), = offer["items"].items()
        if what == "model":
            offer["model"]["model configuration"] = "another"
        elif what == "dtype":
            offer["model"]["dtype"] = "float16"
        else:
            values[2 if what == "width" else 1] *= 2
    rig.ask(wanted, params)
    rig.ends({"model": "the models differ", "dtype": "the dtypes differ", "width": "the widths differ",
              "number": "the numbers of embeddings differ"}[what])
    rig.serves_again()


def test_the_output_of_another_tenant(rig):
    """The request has another cache_salt than the one that was encoded."""
    rig.ask(*rig.offer(salt="one"), salt="two")
    rig.ends("the output is another tenant's")
    rig.serves_again()


@pytest.mark.parametrize("rig", [{"e": {"lease": LEASE}}], indirect=True)
@pytest.mark.parametrize("what", ["no proof", "tenant"])
def test_offers_without_proof(rig, what):
    rig.pd.side._secret = Secret(b"of these two engines")
    rig.e.side._secret = None if what == "no proof" else rig.pd.side._secret
    rig.ask(*rig.offer(salt="one"), salt="one" if what == "no proof" else "two")
    rig.ends("the offer has no proof" if what == "no proof" else "the proof is of another tenant's request")
    rig.e.side._secret = rig.pd.side._secret
    rig.serves_again()
