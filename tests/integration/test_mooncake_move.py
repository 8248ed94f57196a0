# SPDX-License-Identifier: Apache-2.0
"""Engines of a cluster move from Mooncake to dray one after the other, while requests go on: docs/mooncake.md, "Moving over"."""

import contextlib
import itertools
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import threading
import time

import dray
import mooncake_rig as rig
import pytest
from harness import LIMIT, ROOT, until
from mooncake_rig import EngineProgram, Initiator, counter, mooncake_python, segment

HOST, SIZE, PIECE = "127.0.0.1", 1 << 20, 4096
SETTINGS = {"mooncake.listen": f"{HOST}:0", "mooncake.allow": "127.0.0.0/8"}


class Pod(EngineProgram):
    """A process of tests/mooncake/move.py. kind: "mooncake" or "dray"."""

    def __init__(self, agent, kind, memory, served=True):
        self.kind, self.lock = kind, threading.Lock()
        env = {**os.environ, "MC_TRANSFER_TIMEOUT": f"{LIMIT:.0f}"}
        if kind == "dray":
            command = [sys.executable, "-m", "dray.mooncake"]
            env |= {"DRAY_SOCKET": str(agent.socket), "PYTHONPATH": str(ROOT / "client/python")}
            env |= {"DRAY_MOONCAKE_SEGMENT": segment(agent)[0]} if served else {}
        else:
            command = [mooncake_python()]
        self.start(agent, *command, ROOT / "tests/mooncake/move.py", HOST, str(SIZE), memory, env=env)
        first = self.hear()
        self.session, self.address = first["session"], first["address"]

    def hear(self):
        return json.loads(self.line())

    def __call__(self, *what):
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        return self.hear()


class Cluster:
    """Pods for prefill and decode, and a router that sends requests to pairs of them all the time.

    mixed: of different kinds, too. pull: decode engines read, instead of prefill engines that write.
    """

    def __init__(self, agent, memory, mixed, pull=False):
        self.agent, self.memory, self.mixed, self.pull = agent, memory, mixed, pull
        self.prefill, self.decode = [self.pod("mooncake") for _ in range(2)], [self.pod("mooncake") for _ in range(2)]
        self.lock, self.done, self.failed, self.end = threading.Lock(), {}, [], False
        self.threads = [threading.Thread(target=self.route, args=(seed,)) for seed in range(2)]
        for thread in self.threads:
            thread.start()

    def pod(self, kind):
        return Pod(self.agent, kind, self.memory)

    def route(self, seed):
        rng = random.Random(seed)
        while not self.end:
            with self.lock:  # a request holds its pods, so that none is ended meanwhile
                pairs = [(p, d) for p, d in itertools.product(self.prefill, self.decode)
                         if (self.mixed or p.kind == d.kind) and not p.lock.locked() and not d.lock.locked()]
                if pairs:
                    p, d = rng.choice(pairs)
                    p.lock.acquire()
                    d.lock.acquire()
            if not pairs:
                time.sleep(0.001)
                continue
            try:
                error = self.request(rng, p, d)
            except Exception as e:
                error = repr(e)
            finally:
                p.lock.release()
                d.lock.release()
            with self.lock:
                self.done[p.kind, d.kind] = self.done.get((p.kind, d.kind), 0) + 1
                if error:
                    self.failed.append((p.kind, d.kind, error))

    def request(self, rng, p, d):
        """Blocks go to random places of the decode engine, which must have their bytes then. Returns the error."""
        places = [rng.sample(range(SIZE // PIECE), 16) for _ in range(2)]
        p("fill", rng.randrange(1 << 30))
        if self.pull:
            code = d("pull", p.session, [[b * PIECE, p.address + a * PIECE, PIECE] for a, b in zip(*places)])
        else:
            code = p("push", d.session, [[a * PIECE, d.address + b * PIECE, PIECE] for a, b in zip(*places)])
        sums = [pod("digest", [[at * PIECE, PIECE] for at in of]) for pod, of in zip((p, d), places)]
        return "" if code == 0 and sums[0] == sums[1] else f"code {code}, {(d if self.pull else p).last_lines()}"

    def progress(self, *kinds):
        """Waits for further requests of these pairs of kinds."""
        before = dict(self.done)
        until(lambda: self.failed or all(self.done.get(pair, 0) >= before.get(pair, 0) + 5 for pair in kinds), f"requests from and to {kinds}")
        assert not self.failed, self.failed[:3]

    def add(self, pods, kind):
        new = self.pod(kind)
        with self.lock:
            pods.append(new)

    def remove(self, pods, kind):
        """As a pod ends: it gets no more requests, and ends when its last one is over."""
        with self.lock:
            old = next(pod for pod in pods if pod.kind == kind)
            pods.remove(old)
        with old.lock:
            old.close()

    def close(self):
        self.end = True
        for thread in self.threads:
            thread.join()
        for pod in self.prefill + self.decode:
            pod.close()


@pytest.fixture
def cluster(new_agent):
    with contextlib.ExitStack() as stack:
        def make(memory, mixed, pull=False):
            agent = new_agent("node", settings=SETTINGS)
            made = Cluster(agent, memory, mixed, pull)
            stack.callback(made.close)
            return made

        yield make


M, D = "mooncake", "dray"


@pytest.mark.parametrize("pull", [False, True], ids=["prefill writes", "decode reads"])
def test_targets_first(cluster, pull):
    """Shared memory: the engines whose memory is accessed move first, and serve those with Mooncake linked in, too; then the others."""
    c = cluster("managed", mixed=True, pull=pull)
    targets, others = (c.prefill, c.decode) if pull else (c.decode, c.prefill)
    between = (D, M) if pull else (M, D)
    c.progress((M, M))
    for _ in range(2):
        c.add(targets, D)
        c.progress(between)
        c.remove(targets, M)
    c.progress(between)
    for _ in range(2):
        c.add(others, D)
        c.progress((D, D))
        c.remove(others, M)
    name = "sent_bytes_total" if pull else "received_bytes_total"
    moved = counter(c.agent, name)
    assert moved >= 15 * 16 * PIECE
    c.progress((D, D))
    assert counter(c.agent, name) == moved and set(c.done) == {(M, M), between, (D, D)}


def test_groups(cluster):
    """Private memory: engines of dray are a group beside those of Mooncake, which grows while the other one shrinks."""
    c = cluster("private", mixed=False)
    c.progress((M, M))
    for _ in range(2):
        c.add(c.decode, D)
        c.add(c.prefill, D)
        c.progress((D, D), *([(M, M)] if any(pod.kind == M for pod in c.prefill) else []))
        c.remove(c.decode, M)
        c.remove(c.prefill, M)
    c.progress((D, D))
    assert set(c.done) == {(M, M), (D, D)}


# --- serving --------------------------------------------------------------------------------------

def test_served(new_agent):
    """Managed buffers are in the descriptor of the session's port, for reads and writes, until they are freed; private memory is not."""
    agent = new_agent("node", settings=SETTINGS)
    with contextlib.closing(Pod(agent, D, "managed")) as pod, contextlib.closing(Pod(agent, D, "private")) as private, \
            Initiator(agent, SIZE) as initiator:
        found = rig.ask_at(agent, pod.session)
        assert found["buffers"] == [{"addr": pod.address, "length": SIZE, "name": segment(agent)[0]}] and found["dray"]
        assert found["tcp_data_port"] == segment(agent)[1] and found["name"] == segment(agent)[0]
        pod("fill", 1)
        assert initiator("read", pod.session, pod.address, [[0, 0, SIZE]]) == 0
        assert initiator("digest", 0, SIZE) == pod("digest", [[0, SIZE]])
        assert rig.ask_at(agent, private.session)["buffers"] == []
        assert initiator("read", private.session, private.address, [[0, 0, 1]]) != 0
        assert counter(agent, "buffers") == 1
    until(lambda: counter(agent, "buffers") == 0, "the end of the engine")


def test_only_if_wanted(new_agent):
    """Without DRAY_MOONCAKE_SEGMENT nothing is served; a wrong one, or an agent without room, is an error."""
    agent = new_agent("node", settings={**SETTINGS, "mooncake.buffers": 1})
    with contextlib.closing(Pod(agent, D, "managed", served=False)) as pod:
        found = rig.ask_at(agent, pod.session)
        assert found["buffers"] == [] and found["tcp_data_port"] == 0 and counter(agent, "buffers") == 0
    code = "from dray.mooncake.engine import TransferEngine as T; e = T(); print(e.initialize('127.0.0.1', 'P2PHANDSHAKE', 'tcp', ''))"
    more = "; print(bool(e.allocate_managed_buffer(4096)), bool(e.allocate_managed_buffer(4096)))"

    def run(code, wanted):
        done = subprocess.run(agent.host.command(sys.executable, "-c", code), text=True, timeout=LIMIT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env={**os.environ, "DRAY_SOCKET": str(agent.socket), "PYTHONPATH": str(ROOT / "client/python"), "DRAY_MOONCAKE_SEGMENT": wanted})
        return done.stdout.split(), done.stderr

    assert run(code + more, segment(agent)[0])[0] == ["0", "True", "False"]
    for wrong, why in ("127.0.0.1:1", "mooncake.allow"), ("nonsense", "HOST:PORT"), (agent.listen[0], "does not answer"):
        codes, text = run(code, wrong)
        assert codes == ["-1"] and why in text, text
    agent = new_agent("rdma", settings={**SETTINGS, "mooncake.protocol": "rdma"})
    codes, text = run(code, segment(agent)[0])
    assert codes == ["-1"] and "over RDMA" in text and "mooncake.protocol" in text, text


def test_addresses_collide(new_agent):
    """A buffer whose addresses another engine of the agent has gets others."""
    agent = new_agent("node", settings=SETTINGS)
    code = ("import sys, secrets; from dray.mooncake import _placed; from dray.mooncake.engine import TransferEngine as T; "
            "places = [0, 0]; _placed.secrets.randbelow = lambda n, old=secrets.randbelow: places.pop() if places else old(n); "
            "e = T(); assert e.initialize('127.0.0.1', 'P2PHANDSHAKE', 'tcp', '') == 0; "
            "print(e.allocate_managed_buffer(65536), flush=True); sys.stdin.read()")
    with contextlib.ExitStack() as stack:
        addresses = []
        for _ in range(3):
            engine = stack.enter_context(subprocess.Popen(
                agent.host.command(sys.executable, "-c", code), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                env={**os.environ, "DRAY_SOCKET": str(agent.socket), "PYTHONPATH": str(ROOT / "client/python"),
                     "DRAY_MOONCAKE_SEGMENT": segment(agent)[0]}))
            stack.callback(engine.stdin.close)
            addresses.append(int(engine.stdout.readline()))
        assert addresses[0] == 1 << 42 and len(set(addresses)) == 3 and 0 not in addresses


def test_agent_restarts(new_agent):
    """Buffers are served again by the next agent, perhaps at another data port."""
    agent = new_agent("node", settings={**SETTINGS, "mooncake.listen": f"{HOST}:15099"})
    with contextlib.closing(Pod(agent, D, "managed")) as pod:
        agent.kill()
        agent.start()
        until(lambda: rig.ask_at(agent, pod.session)["buffers"] and rig.ask_at(agent, pod.session)["tcp_data_port"] == segment(agent)[1],
              "the buffer to be served again")
        with Initiator(agent, SIZE) as initiator:
            pod("fill", 3)
            assert initiator("read", pod.session, pod.address, [[0, 0, SIZE]]) == 0
            assert initiator("digest", 0, SIZE) == pod("digest", [[0, SIZE]])


def test_agent_restarts_without_room(new_agent):
    """Buffers are served again as soon as they can be: first the agent refuses the engine, then another client has addresses of one of them."""
    agent = new_agent("node", settings=SETTINGS)
    code = ("import sys; from dray.mooncake.engine import TransferEngine as T; e = T(); assert e.initialize('127.0.0.1', 'P2PHANDSHAKE', 'tcp', '') == 0; "
            "print(e.get_rpc_port(), *(e.allocate_managed_buffer(4096) for _ in range(2)), flush=True); sys.stdin.read()")
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(subprocess.Popen(
            agent.host.command(sys.executable, "-c", code), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, "DRAY_SOCKET": str(agent.socket), "PYTHONPATH": str(ROOT / "client/python"),
                 "DRAY_MOONCAKE_SEGMENT": segment(agent)[0]}))
        stack.callback(engine.stdin.close)
        port, *addresses = map(int, engine.stdout.readline().split())

        def served():
            return [b["addr"] for b in rig.ask_at(agent, f"{HOST}:{port}")["buffers"]]

        assert served() == addresses
        agent.settings["mooncake.listen"] = segment(agent)[0]
        agent.kill()
        until(lambda: not served(), "the loss of the session")
        config = agent.lab.write("drayd.conf", 'mooncake: { allow = ["192.0.2.1"]; };\n')
        agent.args += ["--config", config]
        del agent.settings["mooncake.allow"]
        agent.start()
        until(lambda: counter(agent, "connections_refused_total"), "the engine to be refused")
        assert served() == []
        client = stack.enter_context(agent.client())
        memory = dray.Memory(4096)
        region = client.region(memory)
        region.export(mooncake=addresses[0])
        config.write_text('mooncake: { allow = ["127.0.0.0/8"]; };\n')
        agent.ctl("reload")
        until(lambda: served() == addresses[1:], "the second buffer to be served again")
        region.remove()
        until(lambda: served() == addresses, "both buffers to be served again")


def test_deleted_engine(new_agent):
    """An engine that is deleted keeps no memory of buffers that were not freed."""
    agent = new_agent("node", settings=SETTINGS)
    code = ("import gc, sys, time; from dray.mooncake.engine import TransferEngine as T; e = T(); assert e.initialize('127.0.0.1', 'P2PHANDSHAKE', 'tcp', '') == 0; "
            "at = e.allocate_managed_buffer(1 << 20); mapped = lambda: f'{at:x}-' in open('/proc/self/maps').read(); assert at and mapped(); "
            "e.write_bytes_to_buffer(at, b'x', 1); del e; ends = time.monotonic() + float(sys.argv[1])\n"
            "while mapped() and time.monotonic() < ends: gc.collect(); time.sleep(0.01)\n"
            "print(mapped())")
    done = subprocess.run(agent.host.command(sys.executable, "-c", code, f"{LIMIT / 2}"), text=True, timeout=LIMIT, stdout=subprocess.PIPE, check=True, env={
        **os.environ, "DRAY_SOCKET": str(agent.socket), "PYTHONPATH": str(ROOT / "client/python"), "DRAY_MOONCAKE_SEGMENT": segment(agent)[0]})
    assert done.stdout.split() == ["False"]


def test_many_buffers(new_agent):
    """A descriptor that is longer than what a socket takes at once arrives whole."""
    agent = new_agent("node", settings={**SETTINGS, "mooncake.buffers": 8192})
    code = ("import sys; from dray.mooncake.engine import TransferEngine as T; e = T(); assert e.initialize('127.0.0.1', 'P2PHANDSHAKE', 'tcp', '') == 0; "
            "assert all(e.allocate_managed_buffer(4096) for _ in range(900)); print(e.get_rpc_port(), flush=True); sys.stdin.read()")
    with subprocess.Popen(agent.host.command(sys.executable, "-c", code), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={
            **os.environ, "DRAY_SOCKET": str(agent.socket), "PYTHONPATH": str(ROOT / "client/python"), "DRAY_MOONCAKE_SEGMENT": segment(agent)[0]}) as engine:
        try:
            port = int(engine.stdout.readline())
            with agent.host.socket() as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                sock.connect((HOST, port))
                sock.sendall(rig.frame(rig.METADATA))
                until(lambda: select.select([sock], [], [], 0)[0], "the beginning of the answer")
                assert rig.ask_at(agent, f"{HOST}:{port}", rig.PROBE) == {"status": "success"}  # although the other one is not read
                n, _ = struct.unpack("<QB", rig.exactly(sock, 9))
                assert len(json.loads(rig.exactly(sock, n - 1))["buffers"]) == 900
        finally:
            engine.stdin.close()
            engine.wait(LIMIT)
