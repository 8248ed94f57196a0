# SPDX-License-Identifier: Apache-2.0
"""dray.mooncake: an unmodified program, engines of two agents, and what happens when one of them is wrong, stops or dies."""

import ctypes
import enum
import importlib
import json
import mmap
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import dray
import pytest
from dray import errors
from dray.mooncake import _letters as letters
from dray.mooncake import _handshake, _local, _objects, _peers, _transfer
from dray.mooncake._batch import Batch, Column
from dray.mooncake._carry import Carrier
from dray.mooncake._options import Options
from dray.mooncake._slots import DATA_MAX, HEAD, OPS_MAX, chunks
from dray.mooncake._workers import Workers
from dray.mooncake.engine import TransferEngine, TransferNotify, Write
from dray.mooncake.store import MooncakeDistributedStore, ReplicateConfig
from dray.pending import Pending
from harness import LIMIT, MIB, ROOT, Actor, Host, until
from mooncake_rig import Master, mooncake_python

PROGRAMS = ROOT / "tests/mooncake"
PAGE = 4096


@pytest.fixture
def engine(agent, monkeypatch):
    """Makes engines whose transfers may take `seconds`."""
    def make(at=agent, seconds=LIMIT):
        monkeypatch.setenv("DRAY_SOCKET", str(at.socket))
        monkeypatch.setattr(Options, "of_environment", lambda: Options(seconds=seconds))
        made = TransferEngine()
        assert made.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        engines.append(made)
        return made

    engines = []
    yield make
    for made in engines:
        if made._core is not None:
            made._core.close()


def private(size):
    memory = mmap.mmap(-1, size)
    return ctypes.addressof(ctypes.c_char.from_buffer(memory)), memory


def session(engine):
    return f"127.0.0.1:{engine.get_rpc_port()}"


PEER = """
import ctypes, mmap
from dray.mooncake.engine import TransferEngine
engine = TransferEngine()
assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
memory = mmap.mmap(-1, args["size"])
memory[:] = bytes(range(1, 256)) * (args["size"] // 255) + bytes(args["size"] % 255)
private = ctypes.addressof(ctypes.c_char.from_buffer(memory))
managed = engine.allocate_managed_buffer(args["size"])
assert engine.register_memory(private, args["size"]) == 0
tell(["127.0.0.1:%d" % engine.get_rpc_port(), private, managed])
while True:
    address, length = hear()
    tell(engine.read_bytes_from_buffer(address, length).hex())
"""


def peer(agent, monkeypatch, size=64 << 10):
    monkeypatch.setenv("DRAY_SOCKET", str(agent.socket))
    actor = Actor(PEER, size=size)
    return actor, *actor.hear()


# --- programs -------------------------------------------------------------------------------------

def run(program, agent, command):
    folders = [str(ROOT / "client/python"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {**os.environ, "DRAY_SOCKET": str(agent.socket), "PYTHONPATH": os.pathsep.join(filter(None, folders))}
    done = subprocess.run([*command, program], env=environment, text=True, timeout=LIMIT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    return done.stdout


STORE = {"limits.store_bytes": "64MiB", "limits.store_bytes_per_owner": "64MiB", "store.segment_size": "4MiB"}


@pytest.mark.parametrize("name", ["engine_calls", "store_calls"])
def test_program(new_agent, name):
    """The output is that of Mooncake."""
    agent, program = new_agent(settings=STORE), PROGRAMS / f"{name}.py"
    assert run(program, agent, [sys.executable, "-m", "dray.mooncake"]) == program.with_suffix(".expected").read_text()


@pytest.mark.skipif("DRAY_LONG" not in os.environ, reason="make check-long compares with Mooncake itself")
@pytest.mark.parametrize("name", ["engine_calls", "store_calls"])
def test_mooncake_itself(agent, name, monkeypatch):
    """What the program prints with Mooncake is what the tests of dray expect."""
    program = PROGRAMS / f"{name}.py"
    with Master(Host("here")) as master:
        monkeypatch.setenv("MOONCAKE_MASTER", master.address)
        output = run(program, agent, [mooncake_python()])
    assert output == program.with_suffix(".expected").read_text()


NAMES = """
import importlib, json, sys
module = importlib.import_module(sys.argv[1])
names = {name: getattr(module, name) for name in dir(module) if name[0] != "_"}
print(json.dumps({**{name: None for name in names},
                  **{f"{name}.{part}": None for name, value in names.items() if isinstance(value, type) for part in dir(value) if part[0] != "_"}}))
"""
# docs/mooncake.md names them: what has no counterpart here
NOT_OFFERED = {
    "mooncake.engine": r"InnerTransferEngine|CoroRPCInterface|RpcInterface|Received(Data|Tensor)|create_rpc_\w+|SharedSegment"
                       r"|TransferEngine\.(get_engine|get_engine_ptr|warmup_efa_segment)",
    "mooncake.store": r"\w*Descriptor|(Registered)?Buffer(Pool|Lease|LeaseView)|EngramStore(Config)?|MooncakeDistributedNoFRegister|MooncakeHostMemAllocator|ParallelAxis|ReadTarget"
                      r"|TensorParallelism|QueryTaskResponse|Task(Status|Type)|bind_to_numa_node|get_(alloc|free)_func_addr|ReplicaDescriptor\.get_(disk|memory)_descriptor"
                      r"|MooncakeDistributedStore\.(\w*tensor\w*|batch_(get|put)_session_\w+|\w*_ranges|create_(copy|move)_task|query_task|\w*mount\w*_segment|setup_dummy"
                      r"|get_offload_rpc_read_count)"}


@pytest.mark.skipif("DRAY_LONG" not in os.environ, reason="make check-long compares with Mooncake itself")
@pytest.mark.parametrize("module", NOT_OFFERED)
def test_all_calls_are_known(module):
    """Each name of Mooncake's is offered here, or known not to be. Members of its enumerations are names of the module, too."""
    done = subprocess.run([mooncake_python(), "-c", NAMES, module], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=LIMIT)
    theirs = set(json.loads(done.stdout.splitlines()[-1]))
    here = importlib.import_module(f"dray.{module}")
    members = {name.rpartition(".")[2] for name in theirs if re.match(r"[A-Z]", name.rpartition(".")[2]) and "." in name}
    unknown = {name for name in theirs - members if not re.fullmatch(rf"({NOT_OFFERED[module]})(\.\w+)?", name) and not offered(here, name)}
    assert not unknown


def offered(module, name):
    owner, _, part = name.rpartition(".")
    if not owner:
        return hasattr(module, part)
    kind = getattr(module, owner, None)
    return kind is not None and hasattr(next(iter(kind)) if issubclass(kind, enum.Enum) else kind(), part)


def test_command(agent):
    """A module, a command and its children get dray's mooncake, and an absent program is an error."""
    code = "import mooncake.engine as m; print(m.TransferEngine.__module__)"
    base = [sys.executable, "-m", "dray.mooncake"]
    assert run(code, agent, [*base, "-c"]) == "dray.mooncake.engine\n"
    assert run(f"{sys.executable} -c '{code}'", agent, [*base, "sh", "-c"]) == "dray.mooncake.engine\n"
    done = subprocess.run([*base, "/no/such/program"], capture_output=True, text=True, timeout=LIMIT,
                          env={**os.environ, "PYTHONPATH": str(ROOT / "client/python")})
    assert done.returncode == 127 and "cannot be run" in done.stderr


# --- engines of two agents ------------------------------------------------------------------------

def test_two_agents(pair, engine, monkeypatch):
    """Private and managed memory of both sides, in both directions."""
    a, b = pair
    actor, name, private_there, managed_there = peer(b, monkeypatch)
    with actor:
        here = engine(a)
        address, memory = private(PAGE)
        managed = here.allocate_managed_buffer(PAGE)
        for n, there in enumerate((private_there, managed_there)):
            for m, local in enumerate((address, managed)):
                text = bytes([n, m]) * 100
                assert here.write_bytes_to_buffer(local, text, 200) == 0
                assert here.batch_transfer_sync_write(name, [local, local + 100], [there + 300, there + 1000], [100, 100]) == 0
                for at in (300, 1000):
                    actor.tell([there + at, 100])
                    assert bytes.fromhex(actor.hear()) == text[:100]
                assert here.transfer_sync_read(name, local + 500, there + 1000, 100) == 0
                assert here.read_bytes_from_buffer(local + 500, 100) == text[:100]


def test_dead_peer(pair, engine, monkeypatch, caplog):
    """A stopped peer ends a transfer at its deadline, and a killed one at once; its successor is found at the same port."""
    a, b = pair
    actor, name, there, managed = peer(b, monkeypatch)
    with actor:
        here = engine(a, seconds=1.0)
        address, _ = private(PAGE)
        assert here.transfer_sync_write(name, address, there, PAGE) == 0
        os.kill(actor.pid, signal.SIGSTOP)
        assert here.transfer_sync_write(name, address, there, PAGE) == -1
        assert "deadline" in caplog.text
        caplog.clear()
        object.__setattr__(here._core.options, "seconds", 10 * LIMIT)
        number = here.transfer_submit_write(name, address, there, PAGE)
        os.kill(actor.pid, signal.SIGKILL)
        assert here.get_batch_transfer_status([number]) == -1
        assert "deadline" not in caplog.text
        assert "peer_lost" in caplog.text or "not_found" in caplog.text or "peer_unreachable" in caplog.text
    assert here.transfer_sync_write(name, address, there, 8) == -1
    port = int(name.rpartition(":")[2])
    monkeypatch.setenv("MC_MIN_RPC_PORT", str(port))
    monkeypatch.setenv("MC_MAX_RPC_PORT", str(port))
    actor, again, there, managed = peer(b, monkeypatch)
    with actor:
        assert again == name
        assert here.batch_transfer_sync_write(name, [address, address], [there, managed], [8, 8]) == 0


def test_a_stopped_peer_among_others(agent, engine, monkeypatch):
    """Transfers with a stopped peer, as many as run at once, do not hold up those with another one."""
    here, other = engine(), engine()
    target, memory = private(PAGE)
    source, _ = private(PAGE)
    assert here.write_bytes_to_buffer(source, "hello", 5) == 0 and other.register_memory(target, PAGE) == 0
    actor, name, there, managed = peer(agent, monkeypatch)
    with actor:
        assert here.transfer_sync_write(name, source, there, PAGE) == 0
        os.kill(actor.pid, signal.SIGSTOP)
        stuck = [here.transfer_submit_write(name, source, there, PAGE) for _ in range(40)]
        until(lambda: len(here._core._waits) == 4, "four requests to the stopped peer")
        assert here.transfer_sync_write(session(other), source, target, 5) == 0 and memory[:5] == b"hello"
        assert here.get_batch_transfer_status([here.transfer_submit_write(session(other), source, target, 5)]) == 0
        assert [here.transfer_check_status(number) for number in stuck] == [0] * 40
        os.kill(actor.pid, signal.SIGCONT)
        assert here.get_batch_transfer_status(stuck) == 0


def test_remotes_of_forgotten_peers(agent, engine):
    """A peer that was forgotten while it is used gives its remotes back at the end of that use; threads ask a port once."""
    here, other = engine(), engine()
    managed = other.allocate_managed_buffer(PAGE)
    source, memory = private(PAGE)
    peers, remotes, ends = here._core.peers, here._core.client._remotes, time.monotonic() + LIMIT
    for _ in range(3):
        assert here.transfer_sync_write(session(other), source, managed, 8) == 0 and len(remotes) == 2
        with peers.use(session(other), ends) as peer, peers.use(session(other), ends) as again:
            assert peer is again
            peers.forget(peer)
            with peers.use(session(other), ends) as successor:
                assert successor is not peer and successor.turns is peer.turns and len(remotes) == 2
        assert not remotes
    with peers.use(session(other), ends) as peer:
        peers.forget(peer)
    gate = Gate(_handshake.ask)
    found = []

    def use():
        with peers.use(session(other), ends) as peer:
            found.append(peer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_peers, "ask", gate)
        threads = [threading.Thread(target=use) for _ in range(5)]
        for thread in threads:
            thread.start()
        gate.opened.set()
        for thread in threads:
            thread.join(LIMIT)
    assert len(gate.came) == 1 and len(found) == 5 and len(set(found)) == 1
    assert len(peers._peers) == 1 and not peers._asked


def test_threads_share_an_error(agent, engine, monkeypatch):
    """A port that does not answer is waited for once, by however many threads."""
    def fail(*_):
        raise errors.PeerUnreachable("silent")

    here, gate = engine(), Gate(fail)
    monkeypatch.setattr(_peers, "ask", gate)
    codes = []
    threads = [threading.Thread(target=lambda: codes.append(here.transfer_sync_read("127.0.0.1:1", 4096, 4096, 8))) for _ in range(5)]
    asked = here._core.peers._asked
    for thread in threads:
        thread.start()
    until(lambda: any(len(one.ended._cond._waiters) == 4 for one in list(asked.values())), "four that wait for the fifth")
    gate.opened.set()
    for thread in threads:
        thread.join(LIMIT)
    assert codes == [-1] * 5 and len(gate.came) == 1 and not asked


def test_lines_of_workers():
    """Work of one kind begins in its order, at most some of it at once, and leaves threads to other kinds."""
    workers = Workers("test", 3, 2, of_kind=2)
    begun, go, lock = [], {kind: threading.Semaphore(0) for kind in "ab"}, threading.Lock()

    def work(kind, number):
        with lock:
            begun.append((kind, number))
        assert go[kind].acquire(timeout=LIMIT)

    def start(kind, number):
        return workers.start(lambda: work(kind, number), kind)

    assert start("a", 0) and start("a", 1)
    until(lambda: len(begun) == 2, "two of a kind")
    assert start("a", 2) and start("a", 3) and not start("a", 4)
    assert start("b", 0) and start("b", 1)
    until(lambda: len(begun) == 3, "one of the other kind")
    assert sorted(begun) == [("a", 0), ("a", 1), ("b", 0)]
    go["b"].release(2)
    until(lambda: ("b", 1) in begun, "the other one")
    go["a"].release()
    until(lambda: ("a", 2) in begun, "the next one of the kind")
    go["a"].release(3)
    until(lambda: not workers._lines, "the end")
    assert begun[-2:] == [("a", 2), ("a", 3)]
    workers.close()
    until(lambda: not any(thread.name == "test" for thread in threading.enumerate()), "the threads to end")


def test_memory_that_comes_and_goes(agent, engine):
    """Memory that was unregistered and registered again, shared or private, is found; unregistered memory is not."""
    a, b = engine(), engine()
    address, source = private(4 * PAGE)
    target, memory = private(4 * PAGE)
    for length in (PAGE, 2 * PAGE):
        assert b.register_memory(target, length) == 0
        source[:8] = b"%08d" % length
        assert a.transfer_sync_write(session(b), address, target + length - 8, 8) == 0
        assert memory[length - 8:length] == source[:8]
        source[:8] = b"not-this"
        assert b.unregister_memory(target) == 0
        assert a.transfer_sync_write(session(b), address, target + length - 8, 8) == -1
    for _ in range(2):
        managed = b.allocate_managed_buffer(PAGE)
        assert a.transfer_sync_write(session(b), address, managed, 8) == 0
        assert b.read_bytes_from_buffer(managed, 8) == source[:8]
        assert b.unregister_memory(managed) == -3  # it was not registered by register_memory()
        assert b.free_managed_buffer(managed, PAGE) == 0
        assert a.transfer_sync_write(session(b), address, managed, 8) == -1
    assert b"not-this" not in bytes(memory)


def test_pieces_together_and_apart(agent, engine, monkeypatch):
    """Pieces of one buffer at each side are moved as they are, those of several are sorted first; their bytes arrive either way."""
    a, b = engine(), engine()
    here, there = ([one.allocate_managed_buffer(PAGE) for _ in range(2)] for one in (a, b))
    apart, move = [], _transfer._move
    monkeypatch.setattr(_transfer, "_move", lambda *arguments: apart.append(1) or move(*arguments))
    assert a.batch_transfer_sync_write(session(b), here, there, [1, 1]) == 0  # they are known from here on
    rng = random.Random(30)
    for near, far in ((here[:1], there[:1]), (here, there[:1]), (here[:1], there), (here, there)):
        apart.clear()
        content = {at: rng.randbytes(PAGE) for at in near}
        for at, data in content.items():
            assert a.write_bytes_to_buffer(at, data, PAGE) == 0
        pieces = [(rng.choice(near) + rng.randrange(PAGE - 64), rng.choice(far) + 64 * i, rng.choice((0, 1, 63, 64))) for i in rng.sample(range(PAGE // 64), 40)]
        columns = list(map(list, zip(*pieces)))
        assert a.batch_transfer_sync_write(session(b), *columns) == 0 and len(apart) == (len(near) + len(far) > 2)
        for at, to, n in pieces:
            data = next(data[at - first:at - first + n] for first, data in content.items() if first <= at < first + PAGE)
            assert b.read_bytes_from_buffer(to, n) == data
        back = [[at for at, _, _ in pieces], columns[1], columns[2]]
        assert a.batch_transfer_sync_read(session(b), *map(tuple, back)) == 0
    assert a.batch_transfer_sync_write(session(b), [], [], []) == 0 and a.batch_transfer_sync_write(session(b), here, there, [0, 0]) == 0
    assert a.batch_transfer_sync_write(session(b), here, there, [1]) == -1
    for wrong in (-1, 1 << 64, "x", 1.5):
        with pytest.raises(TypeError):
            a.batch_transfer_sync_write(session(b), [wrong], there[:1], [1])


def test_arguments(agent, engine):
    """A direction that is none is a TypeError, and a notification that does not fit is refused before bytes move."""
    a, b = engine(), engine()
    source, _ = private(PAGE)
    target, memory = private(PAGE)
    assert b.register_memory(target, PAGE) == 0 and a.write_bytes_to_buffer(source, "hello", 5) == 0
    for wrong in (1, "Write", True, None):
        with pytest.raises(TypeError):
            a.transfer_sync(session(b), source, target, 5, wrong)
        with pytest.raises(TypeError):
            a.batch_transfer_async(session(b), [source], [target], [5], wrong)
    assert a.transfer_sync(session(b), source, target, 5, Write, TransferNotify("n", "x" * 4100)) == -1 and memory[:5] == bytes(5)
    text = "\u754c" * 1300 + "\ud800"
    assert a.transfer_sync(session(b), source, target, 5, Write, TransferNotify("n", text)) == 0 and memory[:5] == b"hello"
    got = []
    until(lambda: got.extend(b.get_notifies()) or got, "the notification")
    assert [(n.name, n.msg) for n in got] == [("n", text)]


def test_listener(monkeypatch):
    """A name that stands for the loopback here may stand for another address elsewhere."""
    def resolve(host, *_):
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ({"box": "127.0.1.1"}.get(host, "127.0.0.1"), 0))]

    monkeypatch.setattr(_handshake.socket, "getaddrinfo", resolve)
    for host, wanted in (("box", "0.0.0.0"), ("localhost", "127.0.0.1"), ("127.0.0.1", "127.0.0.1")):
        sock, _ = _handshake._listen(host, Options())
        assert sock.getsockname()[0] == wanted
        sock.close()


class Gate:
    """Lets calls of a function wait until it is opened. passed: those that were let through."""

    def __init__(self, function):
        self.function, self.opened = function, threading.Event()
        self.came, self.passed = [], []

    def __call__(self, *arguments, **how):
        self.came.append(arguments)
        assert self.opened.wait(LIMIT)
        result = self.function(*arguments, **how)
        self.passed.append(arguments)
        return result


def test_unregistered_while_it_is_used(agent, engine, monkeypatch):
    """Local memory is unregistered when its transfers have ended; those that wait for a thread fail."""
    a, b = engine(), engine()
    gate = Gate(_local.copy_out)
    monkeypatch.setattr(_local, "copy_out", gate)
    target, memory = private(PAGE)
    memory[:] = b"x" * PAGE
    here, local = private(8 * PAGE)
    assert b.register_memory(target, PAGE) == 0 and a.batch_register_memory([here, here + 4 * PAGE], [4 * PAGE] * 2) == 0
    running = [a.batch_transfer_async_read(session(b), [here + i * PAGE], [target], [PAGE]) for i in range(4)]
    until(lambda: len(gate.came) == 4, "four transfers that run")
    queued = a.batch_transfer_async_read(session(b), [here + 4 * PAGE], [target], [PAGE])
    found = a._core.registered.find
    passed = []

    def unregister(address):
        assert a.unregister_memory(address) == 0
        passed.append(len(gate.passed))

    threads = [threading.Thread(target=unregister, args=(address,)) for address in (here, here + 4 * PAGE)]
    for thread in threads:
        thread.start()
    until(lambda: found(here, 1) is None and found(here + 4 * PAGE, 1) is None, "both to be taken out")
    gate.opened.set()
    for thread in threads:
        thread.join(LIMIT)
    assert sorted(passed)[-1] == 4 and len(gate.passed) == 4
    assert a.get_batch_transfer_status(running) == 0 and a.get_batch_transfer_status([queued]) == -1
    assert local[:4 * PAGE] == b"x" * (4 * PAGE) and local[4 * PAGE:] == bytes(4 * PAGE)


def test_write_after_its_deadline(agent, engine, monkeypatch):
    """Bytes of a write that was reported as failed are not stored afterwards, over newer ones."""
    a, b = engine(), engine()
    target, memory = private(PAGE)
    source, _ = private(PAGE)
    assert b.register_memory(target, PAGE) == 0 and a.write_bytes_to_buffer(source, "old!", 4) == 0
    assert a.transfer_sync_write(session(b), source, target, 4) == 0  # the next one makes and imports nothing
    object.__setattr__(a._core.options, "seconds", 2.0)
    read, stopped, go, ended = b._core.client.read, threading.Event(), threading.Event(), threading.Event()

    def stop(*arguments, **how):
        transfer = read(*arguments, **how)
        if arguments[2][0][0] == HEAD:  # of the bytes, which have come then
            transfer.result()
            stopped.set()
            assert go.wait(LIMIT)
        return transfer

    def carry(*arguments):
        try:
            Carrier.carry(b._core._carrier, *arguments)
        finally:
            ended.set()

    monkeypatch.setattr(b._core.client, "read", stop)
    monkeypatch.setattr(b._core._carrier, "carry", carry)
    assert a.transfer_sync_write(session(b), source, target, 4) == -1 and stopped.is_set()
    memory[:4] = b"new!"
    go.set()
    assert ended.wait(LIMIT) and memory[:4] == b"new!"


def test_slow_import(agent, engine, monkeypatch):
    """While one slot cannot be reached, those of other engines are used; a failed import is tried again."""
    a, b = engine(), engine()
    target, memory = private(PAGE)
    source, local = private(PAGE)
    assert b.register_memory(target, PAGE) == 0 and a.transfer_sync_write(session(b), source, target, 8) == 0
    carrier, client = b._core._carrier, b._core.client
    started = [Pending(client) for _ in range(2)]
    waiting = iter(started)
    codes = []

    def ask():
        try:
            carrier._remote("of a host that has died", time.monotonic() + LIMIT)
        except errors.PeerUnreachable:
            codes.append(1)

    with monkeypatch.context() as patch:
        patch.setattr(client, "import_token", lambda *_, **__: next(waiting))
        for i, pending in enumerate(started):
            thread = threading.Thread(target=ask)
            thread.start()
            until(lambda: len(carrier._remotes) == 2, "the import")
            assert a.transfer_sync_write(session(b), source, target, 8) == 0
            pending._end(None, errors.PeerUnreachable("x"))
            client._took()
            thread.join(LIMIT)
            assert len(codes) == i + 1


FORK = """
import os, sys
from dray.mooncake.engine import TransferEngine, Write
engine, peer = TransferEngine(), TransferEngine()
for e in (engine, peer):
    assert e.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
session = "127.0.0.1:%d" % peer.get_rpc_port()
here = engine.allocate_managed_buffer(4096)
there = peer.allocate_managed_buffer(4096)
assert engine.get_batch_transfer_status([engine.transfer_submit_write(session, here, there, 8)]) == 0
number = engine.transfer_submit_write(session, here, there, 8)
ended, end = os.pipe()
told, tell = os.pipe()
child = os.fork()
if not child:
    codes = [engine.transfer_submit_write(session, here, there, 8), engine.register_memory(here, 8)]
    engine.get_batch_transfer_status([number])
    os.write(tell, b"%d %d" % tuple(codes))
    os.close(end)
    os.read(ended, 1)  # until the parent has closed its engine
    os._exit(0)
print(os.read(told, 100).decode())
assert engine.get_batch_transfer_status([number]) == 0
port = engine.get_rpc_port()
del engine, e
print(peer.send_probe("127.0.0.1:%d" % port))
os.close(end)
print(os.waitpid(child, 0)[1])
"""


def test_fork(agent):
    """A forked child cannot use the engine, and does not keep it from being closed."""
    assert run(FORK, agent, [sys.executable, "-c"]) == "0 -1\n-102\n0\n"


def test_bad_addresses(agent, engine, caplog):
    """Addresses that are not mapped end with an error at either side, and nothing crashes."""
    a, b = engine(), engine()
    good, _ = private(PAGE)
    assert b.register_memory(good, PAGE) == 0 and b.register_memory(1 << 40, PAGE) == 0
    for local in (16, 1 << 63, (1 << 64) - PAGE):
        assert a.transfer_sync_write(session(b), local, good, 64) == -1
        assert a.transfer_sync_read(session(b), local, good, 64) == -1
        with pytest.raises(errors.Range):
            a.read_bytes_from_buffer(local, 8)
        assert a.write_bytes_to_buffer(local, b"12345678", 8) == -1
    assert a.transfer_sync_write(session(b), good, 1 << 40, 64) == -1
    assert a.transfer_sync_read(session(b), good, 1 << 40, 64) == -1
    assert a.register_memory((1 << 64) - 8, 16) == -1 and a.register_memory(good, 0) == -1
    assert a.batch_register_memory([good, good], [8, 8]) == -7 and a.register_memory(good, 8) == 0  # nothing of the batch stayed
    assert a.free_managed_buffer(good, 8) == -1
    assert "cannot be read" in caplog.text and "cannot be written" in caplog.text
    assert a.transfer_sync_write(session(b), good, good, 64) == 0


def test_not_initialized(agent, monkeypatch):
    """Calls before initialize(), an unknown metadata server and an absent agent are errors, and not crashes."""
    engine = TransferEngine()
    assert engine.get_rpc_port() == 0 and engine.get_notifies() == []
    assert engine.register_memory(4096, 4096) == -1 and engine.allocate_managed_buffer(1) == 0
    assert engine.transfer_sync_write("127.0.0.1:1", 1, 1, 1) == -1
    assert engine.initialize("127.0.0.1", "http://127.0.0.1:8080/metadata", "tcp", "") == -1
    monkeypatch.setenv("DRAY_SOCKET", str(agent.socket) + "-absent")
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == -1


# --- the store ------------------------------------------------------------------------------------

@pytest.fixture
def store(monkeypatch):
    """Makes stores of an agent; setup() must return `code`."""
    def make(agent, code=0, **how):
        monkeypatch.setenv("DRAY_SOCKET", str(agent.socket))
        made = MooncakeDistributedStore()
        assert made.setup({"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", **how}) == code
        stores.append(made)
        return made

    stores = []
    yield make
    for made in stores:
        made.close()


def test_store_refusals(agent, new_agent, store, caplog):
    """An agent without a store, a name space that is not configured, and calls before setup() are errors."""
    absent = store(agent, -1)
    assert "unsupported" in caplog.text
    assert absent.batch_upsert_from(["k"], [16], [4])[0] < 0 and absent.upsert_parts("k", b"x") < 0 and absent.batch_replica_clear(["k"]) == []
    assert absent.init_all("tcp", "", MIB) == -600 and absent.alloc_from_mem_pool(PAGE) == 0
    assert absent.put("k", b"x") < 0 and absent.get("k") == b"" and absent.batch_is_exist(["k"])[0] < 0 and absent.health_check() == 1
    with_store = new_agent("store", settings=STORE)
    store(with_store, -1, tenant_id="team")
    assert "denied" in caplog.text
    good = store(with_store, tenant_id="default")
    assert good.remove_by_regex(".*") < 0 and "no list of keys" in caplog.text
    for config in (None, ReplicateConfig()):
        assert good.put_from("k", 16, 100, config) == -600 and good.is_exist("k") == 0
    assert good.put("k", b"value") == 0 and good.get_into("k", 16, 100) == -600 and good.get("k") == b"value"
    assert good.batch_put_from(["a", "b"], [16, 16], [0, 5]) == [0, -600]
    assert good.put_from_with_metadata("", 16, 16, 5, 5) == -600 and good.put_from_with_metadata("k3", 16, 16, 5, 5) == -600 and good.is_exist("k3") == 0
    for wrong in (lambda: good.put_from("k2", -1, 5), lambda: good.put("k2", 5), lambda: good.batch_get_into(["k"], [1], [-1]),
                  lambda: good.put_from_with_metadata("k2", 16, 16, 5, -5), lambda: good.alloc_from_mem_pool(-1)):
        with pytest.raises(TypeError):
            wrong()


def test_store_keeps_what_is_not_replaced(new_agent, store, monkeypatch):
    """A wrong value does not cost the object that it was to replace, and slots are as large as objects."""
    here = store(new_agent(settings=STORE))
    assert here.put("k", b"value") == 0
    for wrong in (lambda: here.upsert("k", "text"), lambda: here.upsert_from("k", -1, 8), lambda: here.upsert_parts("k", b"new", "text"),
                  lambda: here.batch_upsert_from(["k"], [-1], [8])):
        with pytest.raises(TypeError):
            wrong()
    assert here.upsert_from("k", 16, 8) == -600 and here.batch_upsert_from(["k"], [16], [8]) == [-600] and here.get("k") == b"value"
    assert here.upsert("k", b"other") == 0 and here.get("k") == b"other"
    monkeypatch.setattr(_objects, "Slot", None)  # none of its own is made
    address, memory = private(PAGE)
    assert here.get_into("k", address, 1 << 40) == 5 and memory[:5] == b"other" and here.get_into("absent", address, 1 << 40) == -704
    assert here.put_from("large", address, 1 << 40) == -600


def test_remove_all(new_agent, store):
    """What one client removes is gone for all of them, and does not come back with new objects."""
    agent = new_agent(settings=STORE)
    a, b = store(agent), store(agent)
    assert a.remove_all() == 0 and a.is_exist("k") == 0
    for value in (b"old", b"new"):
        assert a.put("k", value) == 0 and b.put("l", value) == 0 and b.get_batch(["k", "l"]) == [value] * 2
        assert b.remove_all(True) == 0
        for one in (a, b):
            assert one.batch_is_exist(["k", "l"]) == [0, 0] and one.get("k") == b"" and one.remove("l") == -704
    stores = [store(agent) for _ in range(4)]
    threads = [threading.Thread(target=one.put, args=(f"of-{i}", b"x")) for i, one in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert a.batch_is_exist([f"of-{i}" for i in range(4)]) == [1] * 4


def test_full_store(new_agent, store):
    """Objects that do not fit get -200; others are evicted, apart from those with a hard pin."""
    agent = new_agent(settings={**STORE, "limits.store_bytes": "16MiB", "limits.store_bytes_per_owner": "16MiB"})
    here = store(agent)
    config = ReplicateConfig()
    config.with_hard_pin = True
    assert here.put("pinned", bytes(MIB), config) == 0
    for i in range(40):
        assert here.put(f"k{i}", bytes([i]) * MIB) == 0
    assert here.get("pinned") == bytes(MIB) and here.get("k39") == bytes([39]) * MIB and here.is_exist("k0") == 0
    assert here.put("large", bytes(17 * MIB)) == -200


def test_store_of_a_dead_agent(new_agent, store):
    """Calls end with -900 when the agent is gone, and go on with the next one."""
    agent = new_agent(settings=STORE)
    here = store(agent)
    assert here.put("k", b"x") == 0 and here.health_check() == 0
    agent.kill()
    assert here.put("k", b"x") < 0 and here.health_check() == 2
    agent.start()
    until(lambda: here.put("k", b"y") == 0, "the store to return")
    assert here.get("k") == b"y"


# --- strangers ------------------------------------------------------------------------------------

def frame(kind, body=b"{}"):
    return struct.pack("<Q", 1 + len(body)) + bytes([kind]) + body


def exchange(port, data):
    with socket.create_connection(("127.0.0.1", port), LIMIT) as sock:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        answer = b""
        while True:
            try:
                got = sock.recv(65536)
            except ConnectionError:
                return answer
            if not got:
                return answer
            answer += got


def test_port(agent, engine):
    """What strangers send to the port of a session: Mooncake's frames are answered, anything else ends the connection."""
    a, b = engine(), engine()
    port = b.get_rpc_port()
    answer = exchange(port, frame(1))
    assert answer[8] == 1
    descriptor = json.loads(answer[9:])
    assert descriptor["buffers"] == [] and descriptor["dray"]["segment"] and descriptor["name"] == session(b)
    assert json.loads(exchange(port, frame(3))[9:]) == {"status": "success"}
    assert json.loads(exchange(port, frame(2, b'{"name":"x","notify_msg":"y"}'))[9:])["notify_msg"] == ""
    assert exchange(port, frame(1, b"[" * 5000))[8] == 1  # the contents do not matter
    for data in (b"", b"\0", struct.pack("<Q", 0), struct.pack("<Q", 1 << 63) + b"\1", frame(1) + b"x", frame(0), frame(254),
                 frame(1)[:-1], struct.pack("<Q", 2) + b"\1" + bytes(100)):
        assert exchange(port, data) == b""
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
    assert a.send_probe(session(b)) == 0 and b.get_notifies() == []
    for sock in silent:
        sock.close()


def test_other_ports(agent, engine, caplog):
    """What a port may answer to an engine that asks for its contact."""
    a = engine()
    answers = [frame(1, b'{"name":"x","protocol":"tcp","buffers":[]}'), frame(1, b"null"), frame(1, b"[" * 100000), frame(1, b"\xff"), frame(3),
               struct.pack("<Q", 1 << 40), b"", frame(1, b'{"dray":{"version":2,"segment":"x","mailbox":"y"}}'),
               frame(1, b'{"dray":{"version":1,"segment":1,"mailbox":"y"}}'), frame(1, b'{"dray":{"version":1,"segment":"x","mailbox":"y"}}')]
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(LIMIT)
        name = f"127.0.0.1:{server.getsockname()[1]}"
        for answer in answers:
            codes = []
            thread = threading.Thread(target=lambda: codes.append(a.transfer_sync_read(name, 4096, 4096, 8)))
            thread.start()
            sock, _ = server.accept()
            with sock:
                sock.recv(100)
                sock.sendall(answer)
            thread.join(LIMIT)
            assert codes == [-1], answer
    assert "has Mooncake linked in" in caplog.text
    for wrong in ("", "host", "127.0.0.1:", "127.0.0.1:70000", ":5", "\ud800:5", "a" * 100 + ":5"):
        assert a.transfer_sync_read(wrong, 4096, 4096, 8) == -1


def test_letters(agent, engine, caplog):
    """Letters of strangers: those that are not of the protocol are dropped, and wrong requests are refused."""
    a, b = engine(), engine()
    address, memory = private(PAGE)
    assert b.register_memory(address, PAGE) == 0
    core = b._core
    with agent.client() as stranger:
        region = stranger.region(dray.Memory(PAGE))
        stranger.open_mailbox("stranger")
        token = str(region.export())

        def ask(letter):
            stranger.post("", core.mailbox, letter if isinstance(letter, bytes) else letters.write(letter))
            return letters.read(stranger.next_event(dray.Letter, LIMIT).payload)

        for junk in (b"", b"{}", b"[" * 4000, b"\xff", b'{"version":1,"kind":[]}', b'{"version":1,"kind":"Find","id":true}',
                     b'{"version":1,"kind":"Found","id":7,"life":"x","buffers":[]}', b'{"version":1,"kind":"Carried","id":7,"code":0,"message":""}'):
            stranger.post("", core.mailbox, junk)
        found = ask(letters.Find(1, "", "stranger", [[address, 8], [5, 5], [0, 0], [(1 << 64) - 1, (1 << 64) - 1]] * 20))
        assert found.id == 1 and found.buffers == [[address, PAGE, ""]]
        for count, wanted in ((0, "invalid"), (-1, "invalid"), (1 << 40, "invalid"), (1, "invalid"), (OPS_MAX, "range")):
            answer = ask(letters.Carry(2, "", "stranger", token, count, True, 10.0))
            assert errors.BY_CODE[answer.code].name == wanted, (count, answer)
        assert errors.BY_CODE[ask(letters.Carry(3, "", "stranger", "dray1:xxxx", 1, True, 10.0)).code] is errors.TokenInvalid
        whole = dray.Memory(HEAD + DATA_MAX)
        whole.view[HEAD:HEAD + PAGE] = b"\xff" * PAGE
        region = stranger.region(whole)
        token = str(region.export())
        for op, wanted in (((address, HEAD, 0), "invalid"), ((address, HEAD, 1 << 63), "invalid"), ((address, 0, 8), "invalid"),
                           ((address + PAGE - 4, HEAD, 8), "range"), ((1 << 40, HEAD, 8), "range")):
            struct.pack_into("<QQQ", whole.view, 0, *op)
            answer = ask(letters.Carry(4, "", "stranger", token, 1, True, 10.0))
            assert errors.BY_CODE[answer.code].name == wanted, (op, answer)
        assert bytes(memory) == bytes(PAGE)
    assert a.transfer_sync_write(session(b), address, address, 8) == 0 and caplog.text.count("was dropped") == 6


def test_other_uids(agent, engine, caplog):
    """A process of another uid at the same agent is refused at once, unless the engine allows it."""
    a, b = engine(), engine()
    address, memory = private(PAGE)
    source, _ = private(PAGE)
    assert a.write_bytes_to_buffer(source, "hello", 5) == 0 and b.register_memory(address, PAGE) == 0
    assert b._core._owner == os.getuid()
    b._core._owner += 1
    assert a.transfer_sync_write(session(b), source, address, 5) == -1 and a.get_first_buffer_address(session(b)) == 0
    assert "denied: uid" in caplog.text and memory[:5] == bytes(5)
    object.__setattr__(b._core.options, "any_uid", True)
    assert a.transfer_sync_write(session(b), source, address, 5) == 0 and memory[:5] == b"hello"


def test_failed_answers(agent, engine, caplog):
    """A question whose answer fails ends with that error, and a managed buffer without a token is reached by its engine."""
    a, b, c = engine(), engine(), engine()
    source, _ = private(PAGE)
    managed = b.allocate_managed_buffer(PAGE)

    def fail():
        raise errors.Quota("no tokens")

    assert a.write_bytes_to_buffer(source, "hello", 5) == 0
    b._core.registered.find(managed, 1)._exported.token = fail
    assert a.transfer_sync_write(session(b), source, managed, 5) == 0 and b.read_bytes_from_buffer(managed, 5) == b"hello"
    for error, wanted in ((errors.Quota("no tokens"), "quota"), (OSError("no memory"), "internal")):
        def fail(error=error):
            raise error

        b._core._life_exported.token = fail
        assert c.transfer_sync_write(session(b), source, managed, 5) == -1 and f"refused: {wanted}" in caplog.text
    assert "deadline" not in caplog.text


def test_letters_of_any_text():
    """Whatever is changed in a letter, it is read, or refused with ValueError."""
    rng = random.Random(30)
    for letter in (letters.Find(1, "s", "m", [[1, 2]]), letters.Found(1, "t", [[1, 2, "t"]]), letters.Carried(1, 2, "m"),
                   letters.Carry(1, "s", "m", "t", 3, True, 1.5), letters.Notify("n", "m")):
        data = letters.write(letter)
        assert letters.read(data) == letter
        for _ in range(300):
            changed = bytearray(data)
            for _ in range(rng.randint(1, 3)):
                changed[rng.randrange(len(changed))] = rng.choice(b'0123456789-[]{}",:.eEtrufalsn\x00\xff')
            try:
                letters.read(bytes(changed))
            except ValueError:
                pass


def test_chunks():
    """Operations are cut so that each part fits a slot, and nothing is lost."""
    ops = [(0, 1 << 40, DATA_MAX * 2 + 5), (1 << 20, 7, 10)] + [(i, i, 1) for i in range(OPS_MAX + 3)]
    parts = list(chunks(ops))
    assert all(len(part) <= OPS_MAX and sum(n for _, _, n in part) <= DATA_MAX for part in parts)
    assert [op for part in parts for op in part][:4] == [(0, 1 << 40, DATA_MAX), (DATA_MAX, (1 << 40) + DATA_MAX, DATA_MAX),
                                                         (2 * DATA_MAX, (1 << 40) + 2 * DATA_MAX, 5), (1 << 20, 7, 10)]
    assert sum(n for part in parts for _, _, n in part) == sum(n for _, _, n in ops)


class Number:
    """Neither an int nor comparable."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


@pytest.mark.parametrize("kind", [list, tuple, iter, lambda values: [Number(n) for n in values], lambda values: [values[0], *map(Number, values[1:])]], ids=range(5))
@pytest.mark.parametrize("lengths", [[4096], [1, 4096, 70000]], ids=["same", "different"])
def test_columns(kind, lengths):
    """Pieces as columns are the same as one by one, at any addresses."""
    rng = random.Random(7)
    for count in 1, 2, 3, 1000:
        for start in 0, 1, 1 << 32, (1 << 47) - 5, (1 << 63) + 12345:
            here, there = ([start + rng.choice([0, 1, rng.randrange(1 << 40)]) for _ in range(count)] for _ in range(2))
            sizes = [rng.choice(lengths) for _ in range(count)]
            batch = Batch(*(Column(kind(values)) for values in (here, there, sizes)))
            assert len(batch) == count and batch.ops() == list(zip(here, there, sizes)) and batch.local() == list(zip(here, sizes))
            for values, span in (here, batch.span), (there, batch.peer_span):
                assert span == (min(values), max(map(sum, zip(values, sizes))) - min(values))
            low = min(here), min(there)
            assert batch.placed(*low).tolist() == [word for h, t, n in zip(here, there, sizes) for word in (h - low[0], t - low[1], n)]
            assert batch.placed(0, 0).tolist() == [word for op in zip(here, there, sizes) for word in op]


def test_columns_without_bytes():
    """Pieces of no bytes are left out; a list that changes afterwards, or numbers that do not fit, make no difference to those that are moved."""
    rows = [(9, 8, 0), (1, 2, 3), (4, 5, 0), (7, 7, 7)]
    columns = [list(column) for column in zip(*rows)]
    made = [Column(column) for column in columns]
    for column in columns:
        column[:] = [0]
    assert Batch(*made).ops() == [(1, 2, 3), (7, 7, 7)] and Batch(*made).span == (1, 13)
    assert not len(Batch(Column([1, 2]), Column([3, 4]), Column([0, 0]))) and not len(Batch(Column(()), Column(()), Column(())))
    with pytest.raises(errors.Invalid):
        Batch(Column([1]), Column([1]), Column([]))
    for before in ([1, 8], [8, 1]):
        with pytest.raises(errors.Invalid, match="0x1 lies before 0x2"):
            Column(before).behind(2)
    assert not Column(()).behind(2)
    for wrong in [-1], [1 << 64], ["a"], [1.5], [None], 5:
        with pytest.raises(TypeError):
            Column(wrong)
