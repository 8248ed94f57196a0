# SPDX-License-Identifier: Apache-2.0
"""Variables that Mooncake's engines honour, and those of dray.mooncake: the same program with both."""

import contextlib
import ctypes
import mmap
import os
import select
import sys

import pytest
from dray.mooncake._options import Options
from dray.mooncake.engine import TransferEngine
from harness import PORTS, ROOT, until
from mooncake_rig import LOOPBACK, EngineProgram, mooncake_environment, mooncake_python
from test_hostile import OTHER, uid
from test_mooncake_metadata import Server

KINDS = pytest.mark.parametrize("kind", ["dray", "mooncake"])


class Engine(EngineProgram):
    """A process of environment_calls.py on the agent's host."""

    def __init__(self, kind, agent, name=LOOPBACK, metadata="P2PHANDSHAKE", **variables):
        package = os.pathsep.join(filter(None, [str(ROOT / "client/python"), os.environ.get("PYTHONPATH")]))
        command, more = ([sys.executable, "-m", "dray.mooncake"], {"PYTHONPATH": package, "DRAY_SOCKET": str(agent.socket)}) if kind == "dray" else ([mooncake_python()], {})
        self.start(agent, *command, ROOT / "tests/mooncake/environment_calls.py", name, metadata, env=mooncake_environment(**more, **variables))
        self.port = self.hear()

    def hear(self):
        return int(self.line())

    def tell(self, session):
        self.process.stdin.write(session + "\n")
        self.process.stdin.flush()

    def probe(self, session):
        self.tell(session)
        return self.hear()


def test_last_lines_of_a_program_that_ends(agent):
    """The tests with programs of Mooncake say why one of them has ended."""
    with EngineProgram() as program:
        program.start(agent, sys.executable, "-c", "import sys; sys.exit('the reason')", env=os.environ)
        with pytest.raises(AssertionError, match="ended with 1; its last lines:\nthe reason"):
            program.line()


@KINDS
@pytest.mark.parametrize("spelled", ["RPC", "PRC", "both"])
def test_ports(agent, kind, spelled):
    """MC_MIN_RPC_PORT and MC_MAX_RPC_PORT limit the port, as does the spelling PRC of older releases, unless the newer one is there, too."""
    first = next(PORTS)
    words = {"RPC": {"RPC": first}, "PRC": {"PRC": first}, "both": {"RPC": first, "PRC": first + 10}}[spelled]
    variables = {f"MC_{end}_{word}_PORT": str(port + (end == "MAX")) for word, port in words.items() for end in ("MIN", "MAX")}
    with Engine(kind, agent, **variables) as engine:
        assert engine.port in (first, first + 1) and engine.probe(f"{LOOPBACK}:{engine.port}") == 0


@contextlib.contextmanager
def unanswering(host):
    """The port of a listener whose queue is full: the kernel drops what wants to connect."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(host.socket())
        listener.bind((LOOPBACK, 0))
        listener.listen(0)

        def full():
            sock = stack.enter_context(host.socket())
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                sock.connect(listener.getsockname())
            return not select.select([], [sock], [], 0.1)[1]

        until(full, "a full queue")
        yield listener.getsockname()[1]


@KINDS
def test_connect_timeout(agent, kind):
    """MC_HANDSHAKE_CONNECT_TIMEOUT ends the attempt to reach a port: one engine gives up while another one that began before still tries."""
    with unanswering(agent.host) as port, Engine(kind, agent, MC_HANDSHAKE_CONNECT_TIMEOUT="600") as patient, \
            Engine(kind, agent, MC_HANDSHAKE_CONNECT_TIMEOUT="1") as hasty:
        patient.tell(f"{LOOPBACK}:{port}")
        assert hasty.probe(f"{LOOPBACK}:{port}") == -102
        assert not patient.said()


@pytest.mark.parametrize("value, seconds", [("7", 7), ("3599", 3599), ("0", 5), ("-1", 5), ("3600", 5), ("x", 5), ("", 5), (None, 5)])
def test_connect_timeouts(monkeypatch, value, seconds):
    """A value that is no number of seconds below an hour counts as none."""
    monkeypatch.delenv("MC_HANDSHAKE_CONNECT_TIMEOUT", raising=False)
    if value is not None:
        monkeypatch.setenv("MC_HANDSHAKE_CONNECT_TIMEOUT", value)
    assert Options.of_environment().connect_seconds == seconds


@pytest.mark.parametrize("other", ["dray", "mooncake"])
@KINDS
def test_cluster(lab, agent, kind, other):
    """MC_METADATA_CLUSTER_ID is part of all keys: engines of a cluster find each other at a metadata server, also of both kinds, and no others."""
    keys = Server(lab.hosts[0])
    try:
        with Engine(kind, agent, "a-worker", keys.url, MC_METADATA_CLUSTER_ID="blue", MC_TCP_BIND_ADDRESS=LOOPBACK) as a:
            assert keys["mooncake/blue/rpc_meta/a-worker"]["rpc_port"] == a.port
            assert keys["mooncake/rpc_meta/a-worker"] is None
            with Engine(other, agent, "b-worker", keys.url, MC_METADATA_CLUSTER_ID="blue", MC_TCP_BIND_ADDRESS=LOOPBACK) as b:
                assert a.probe("b-worker") == b.probe("a-worker") == 0
            for cluster in {"MC_METADATA_CLUSTER_ID": "green"}, {}:
                with Engine(other, agent, "c-worker", keys.url, MC_TCP_BIND_ADDRESS=LOOPBACK, **cluster) as c:
                    assert a.probe("c-worker") == c.probe("a-worker") == -200
    finally:
        keys.close()


@pytest.mark.parametrize("value, allowed", [(None, False), ("0", False), ("true", False), ("1", True)])
def test_any_uid(agent, monkeypatch, caplog, value, allowed):
    """DRAY_MOONCAKE_ANY_UID lets engines of other uids at the same agent use the memory of this one, but not the other way round."""
    monkeypatch.setenv("DRAY_SOCKET", str(agent.socket))
    monkeypatch.delenv("DRAY_MOONCAKE_ANY_UID", raising=False)
    memory = mmap.mmap(-1, 8192)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    own, foreign = TransferEngine(), TransferEngine()
    with uid(OTHER):
        assert foreign.initialize(LOOPBACK, "P2PHANDSHAKE", "tcp", "") == 0
    if value is not None:
        monkeypatch.setenv("DRAY_MOONCAKE_ANY_UID", value)
    assert own.initialize(LOOPBACK, "P2PHANDSHAKE", "tcp", "") == 0
    try:
        assert (own._core._owner, foreign._core._owner) == (os.getuid(), OTHER)
        for engine in own, foreign:
            assert engine.register_memory(address, 4096) == 0
        memory[4096:4101] = b"hello"
        done = foreign.transfer_sync_write(f"{LOOPBACK}:{own.get_rpc_port()}", address + 4096, address, 5)
        assert (done == 0) == allowed and memory[:5] == (b"hello" if allowed else bytes(5))
        assert ("denied: uid" in caplog.text) == (not allowed)
        assert own.transfer_sync_write(f"{LOOPBACK}:{foreign.get_rpc_port()}", address + 4096, address, 5) == -1
    finally:
        for engine in own, foreign:
            engine._core.close()
