# SPDX-License-Identifier: Apache-2.0
"""Outputs that an engine reads in the encoder's pool, because both are on one host."""

import fcntl
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
from dray.memory import Memory
from dray.vllm.ec import consumer, mapped, worker
from dray.vllm.ec.door import Door, Doors
from dray.vllm.ec.header import MAGIC
from dray.vllm.ec.inplace import Opened, PoolFile, Vacate, open_named
from dray.vllm.ec.pool import Item, Shape
from dray.vllm.ec.protocol import PoolName
from ec_bare import ENCODER, NO_PIXELS, encode, images, making, offered
from harness import until
from rig import transfers

# An engine in another PID namespace. For each request: why it ended, its process id there, and the outputs that were pulled until then.
ELSEWHERE = """import json, os, sys
from ec_bare import NO_PIXELS, Bare
from harness import until
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
pd = Bare("pd-elsewhere", sys.argv[1], "ec_consumer")
print("ready", file=answers, flush=True)
for line in sys.stdin:
    name, wanted, params = json.loads(line)
    reason, _ = pd.run(pd.add(name, wanted, params, NO_PIXELS))
    pd.idle()
    until(lambda: pd.side._doors.find(json.loads(params["dray"]["offers"][0].splitlines()[0])["pool"][2]), "the pool")
    print(json.dumps([reason, os.getpid(), len(pd.side._pool._items)]), file=answers, flush=True)"""
ANOTHER_NAMESPACE = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--pid", "--fork", "--kill-child", "--mount-proc"]
ONE = 256 * 512 + 4096  # bytes of a pool for one output of the largest size
# An engine as a process of its own. For each request it opens the outputs, and copies them when it is told to go on.
READER = """import json, os, sys
from ec_bare import NO_PIXELS, Bare
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
pd = Bare("pd-process", sys.argv[1], "ec_consumer")
print("ready", file=answers, flush=True)
for line in sys.stdin:
    name, wanted, params = json.loads(line)
    pd.add(name, wanted, params, NO_PIXELS)
    step = pd._schedule()
    assert step[0].num_scheduled_tokens, "the outputs are there at once"
    print("read", file=answers, flush=True)
    sys.stdin.readline()
    pd._work(*step)
    assert pd.run(name)[0] == "LENGTH"
    pd.idle()
    print("done", file=answers, flush=True)"""


@pytest.fixture
def engine(agents):
    """Makes an engine of a test's own."""
    with making(agents) as make:
        yield make


@pytest.mark.parametrize("at", [0, 1], ids=["one-agent", "two-agents"])
def test_outputs_are_there_in_the_first_step(agents, engine, at):
    e, pd = engine("e", "ec_producer"), engine("pd", "ec_consumer", at)
    wanted, moved = images(3, 1), transfers(agents[at])
    params = encode(e, "a", wanted)
    pd.add("a", wanted, params, NO_PIXELS)
    pd.step()
    assert pd.answers["a"][0] == "LENGTH" and not pd.encoded
    pd.step()
    assert not pd.side.stats._minute["blocks"] and pd.side.busy, "the engine may be sending the tokens in the next step"
    pd.step()
    assert pd.side.stats._minute["blocks"] == [3], "it is counted after that"
    pd.idle()
    e.idle()
    assert not e.side._grants._given, "the right was used, and has not expired"
    assert transfers(agents[at]) == moved
    assert not pd.side._pool._items, "nothing was copied to the reading engine's pool"


def test_agents_that_do_not_answer_are_not_needed(agents, engine):
    e, pd = engine("e", "ec_producer"), engine("pd", "ec_consumer", 1)
    wanted = images(2, 2)
    params = encode(e, "b", wanted)
    for agent in agents:
        agent.signal(signal.SIGSTOP)
    try:
        assert pd.run(pd.add("b", wanted, params, NO_PIXELS))[0] == "LENGTH" and not pd.encoded
    finally:
        for agent in agents:
            agent.signal(signal.SIGCONT)
    pd.idle()
    e.idle()


def test_a_preempted_request_opens_its_outputs_again(engine):
    e, pd = engine("e", "ec_producer"), engine("pd", "ec_consumer", budget=96)
    wanted = [("c-first", 60), ("c-second", 90)]
    pd.add("c", wanted, encode(e, "c", wanted), NO_PIXELS, tokens=3)
    pd.step()
    pd.preempt()
    assert pd.run("c")[0] == "LENGTH" and not pd.encoded
    pd.idle()
    e.idle()


def test_an_aborted_request_gives_the_place_back(engine):
    e, pd = engine("e", "ec_producer", size=ONE), engine("pd", "ec_consumer", budget=96)
    for name in ("d1", "d2"):
        wanted = [(name, 240)]
        pd.add(name, wanted, encode(e, name, wanted), NO_PIXELS)
        pd.step()
        pd.abort(name)
    pd.idle()
    e.idle()


def test_a_place_is_kept_as_long_as_it_is_read(engine):
    """Even if its right has ended. The encoder's next request waits for it."""
    e, pd = engine("e", "ec_producer", size=ONE, lease=0.3), engine("pd", "ec_consumer", budget=96)
    wanted = [("f1", 240)]
    pd.add("f1", wanted, encode(e, "f1", wanted), NO_PIXELS)
    pd.step()  # a part of the prompt
    until(lambda: e.step() or not e.side._by_grant, "the right has expired")
    e.add("f2", [("f2", 240)])
    for _ in range(5):
        e.step()
    assert e.side._pool.used and not e.side._sends["f2"].items, "the place of an output that is being read was used again"
    assert pd.run("f1")[0] == "LENGTH" and not pd.encoded
    assert e.run("f2")[0] == "STOP"
    pd.idle()


def test_a_reader_that_stands_still(agents, engine):
    """Its place is kept while it is stopped, whatever becomes of the right, and is free when its request or its process has ended."""
    e = engine("e", "ec_producer", size=ONE, lease=0.5)
    process = subprocess.Popen([sys.executable, "-c", READER, str(agents[1].socket)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                               env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})

    def tell(line):
        process.stdin.write(line + "\n")
        process.stdin.flush()

    try:
        assert process.stdout.readline() == "ready\n"
        for how in ("ends", "killed"):
            wanted, following = [(f"g-{how}", 240)], [(f"g2-{how}", 240)]
            tell(json.dumps([how, wanted, encode(e, how, wanted)]))
            assert process.stdout.readline() == "read\n"
            process.send_signal(signal.SIGSTOP)
            until(lambda: e.step() or not e.side._by_grant, "the right has expired")
            e.add(f"after-{how}", following)
            for _ in range(5):
                e.step()
            assert not e.side._sends[f"after-{how}"].items
            if how == "killed":
                process.kill()
                process.wait()
            else:
                process.send_signal(signal.SIGCONT)
                tell("")
                assert process.stdout.readline() == "done\n", "it has computed with its own embeddings"
            assert e.run(f"after-{how}")[0] == "STOP"
    finally:
        process.kill()
        process.communicate()
    e.idle()


@pytest.fixture
def met(engine, monkeypatch):
    """An encoder, and a consumer whose worker maps outputs in its pool, and copies them in its next step."""
    monkeypatch.setattr(worker, "_COPIED", 0)
    monkeypatch.setattr(mapped, "_MOMENT", mapped._NOW.__class__(0, 0, 600, 0))
    e, pd = engine("e", "ec_producer"), engine("pd", "ec_consumer")
    side, numbers = pd.worker._worker, itertools.count()
    until(lambda: side._doors.find(e.side._door.name) or one_output(e, pd, f"met-{next(numbers)}") and False, "the worker has the pool")
    pd.idle()
    return e, pd, side


def one_output(e, pd, name, **how):
    return pd.run(pd.add(name, [(name, 240)], encode(e, name, [(name, 240)]), NO_PIXELS, **how))


def is_mapped(pd, name):
    pool, = (pool for pool in pd.worker._worker._doors._pools.values() if pool)
    return 0 <= pd.cache[name].data_ptr() - pool.checksums.address < len(pool._map)


def test_the_first_token_waits_for_no_copy(met):
    """The model reads the encoder's pool, and a copy from the next step on."""
    e, pd, worker = met
    pd.add("m", [("m", 240)], encode(e, "m", [("m", 240)]), NO_PIXELS, tokens=3)
    pd.step()
    assert is_mapped(pd, "m") and not worker.idle
    pd.step()
    assert not is_mapped(pd, "m") and worker.idle
    assert pd.run("m")[0] == "LENGTH"
    assert one_output(e, pd, "m2")[0] == "LENGTH" and is_mapped(pd, "m2") and not pd.encoded
    del pd.cache["m2"]
    pd.run(pd.add("text", []))
    assert worker.idle and "m2" not in pd.cache
    pd.idle()
    e.idle()


def test_an_idle_engine_gives_the_place_back(met, monkeypatch):
    """No step of its worker follows."""
    e, pd, worker = met
    assert one_output(e, pd, "i1")[0] == "LENGTH" and is_mapped(pd, "i1")
    pd.idle()
    e.idle()
    e.side._pool.clear()
    e.side._pool.look()
    assert not worker.idle and e.side._pool._read, "the place of an output that the model may read is free"
    release, idle = mapped.PoolFile.release, []
    monkeypatch.setattr(mapped.PoolFile, "release", lambda *how: (idle.append(worker.idle), release(*how)))
    worker._mapped._start(mapped._NOW)
    until(lambda: worker.idle, "it was copied")
    assert idle == [False], "the worker is idle only after it has released the place"
    e.side._pool.look()
    assert not e.side._pool._read and is_mapped(pd, "i1")
    pd.run(pd.add("i3", [("i1", 240)]))
    assert not is_mapped(pd, "i1") and not pd.encoded


def test_an_encoder_ends_while_its_output_is_mapped(met):
    e, pd, worker = met
    assert one_output(e, pd, "x")[0] == "LENGTH" and is_mapped(pd, "x")
    pool = worker._doors.find(e.side._door.name)
    e.side._door.close()
    until(lambda: not pools(worker._doors), "the pool is given up")
    assert pool.fd >= 0 and pd.run(pd.add("y", [("x", 240)]))[0] == "LENGTH" and not pd.encoded
    assert pool.fd == -1 and worker.idle


def test_a_system_without_timers(met, monkeypatch):
    e, pd, worker = met
    worker._mapped._timer = -1
    monkeypatch.setattr(mapped, "_libc", SimpleNamespace(timerfd_create=lambda *how: -1))
    assert one_output(e, pd, "t")[0] == "LENGTH" and not is_mapped(pd, "t") and worker.idle
    pd.idle()
    e.idle()


def test_the_encoder_is_killed_while_its_output_is_read(agents, engine):
    pd, wanted = engine("pd", "ec_consumer"), images(1, "killed in place")
    process = subprocess.Popen([sys.executable, "-c", ENCODER, str(agents[0].socket), json.dumps(wanted)], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    try:
        pd.add("k", wanted, json.loads(process.stdout.readline()), NO_PIXELS)
        step = pd._schedule()
        process.kill()
        process.wait()
    finally:
        process.kill()
        process.communicate()
    pd._work(*step)
    assert pd.run("k")[0] == "LENGTH" and not pd.encoded
    pd.idle()


def test_bytes_are_checked_in_place_too(engine):
    e, pd = engine("e", "ec_producer"), engine("pd", "ec_consumer")
    wanted = images(1, 3)
    params = encode(e, "h", wanted, params={"consumers": 2})
    with offered(params) as offer:
        at, = offer["items"].values()
    e.scheduler.ec_connector._memory.memory.view[at[0] + 300] ^= 1
    assert pd.run(pd.add("h", wanted, params))[0] == "LENGTH" and pd.encoded == [wanted[0][0]]
    assert pd.run(pd.add("h-without", wanted, params, NO_PIXELS))[0] == "ERROR"
    pd.idle()
    e.idle()


@pytest.mark.parametrize("what", ["no process", "no descriptor", "another pool", "another file", "a file that is short"])
def test_a_pool_that_is_not_here(engine, tmp_path, what):
    """As on another host, where the numbers stand for something else: the output is pulled."""
    e, pd = engine("e", "ec_producer"), engine("pd", "ec_consumer")
    wanted = images(1, "not here " + what)
    params = encode(e, "i", wanted)
    fd = os.memfd_create("dray-ec") if what == "a file that is short" else os.open(tmp_path, os.O_RDONLY)
    with offered(params) as offer:
        process, number, _ = offer["pool"]
        offer["pool"] = {"no process": [(1 << 22) + 1, number], "no descriptor": [process, 1 << 20],
                         "another pool": [os.getpid(), pd.side._memory.memory.fd]}.get(what, [os.getpid(), fd])
    assert pd.run(pd.add("i", wanted, params, NO_PIXELS))[0] == "LENGTH" and not pd.encoded
    assert pd.side._pool._items, "it was pulled"
    os.close(fd)
    pd.idle()
    e.idle()


def test_reader_and_owner_see_each_other():
    """Whoever comes first excludes the other; several readers exclude nobody but the owner."""
    memory = Memory(1 << 16, name="dray-ec")
    pool, vacate = PoolName(os.getpid(), memory.fd), Vacate(memory)
    item, beside = (Item(Shape(bytes(32), 1, 1, 768), at, bytes(16)) for at in (1024, 2048))
    for one in (item, beside):
        memory.view[one.offset:one.offset + 8] = MAGIC
    first, second = (Opened.open(open_named(pool), 1024, 768) for _ in range(2))
    assert not vacate(item) and vacate(beside) and memory.view[2048:2056] == bytes(8)
    ended = []
    first.on_close(lambda: ended.append(1))
    first.close()
    first.close()
    assert ended == [1] and not vacate(item) and memory.view[1024:1032] == MAGIC
    second.close()
    assert vacate(item) and memory.view[1024:1032] == bytes(8)
    assert Opened.open(open_named(pool), 1 << 16, 768) is None
    memory.close()
    assert open_named(pool) is None


def test_outputs_in_a_pool_that_is_kept():
    """They share one open file, so that the lock of one must not end with another one's."""
    memory = Memory(1 << 16, name="dray-ec")
    file, vacate = open_named(PoolName(os.getpid(), memory.fd)), Vacate(memory)
    item, beside = (Item(Shape(bytes(32), 1, 1, 768), at, bytes(16)) for at in (1024, 2048))
    first, again, other = (Opened.open(file, at, 768) for at in (1024, 1024, 2048))
    assert all(Opened.open(file, at, size) is None for at, size in ((1024, 100), (1280, 768), (512, 1024)))
    first.close()
    assert not vacate(item) and not vacate(beside)
    again.close()
    assert vacate(item) and not vacate(beside)
    file.give_up()
    assert Opened.open(file, 1024, 768) is None and file.fd >= 0, "an output in it is still read"
    other.close()
    assert vacate(beside) and file.fd == -1 and file._map.closed
    memory.close()


@pytest.mark.parametrize("what", ["a folder", "a file", "a memfd that may shrink", "an empty one"])
def test_files_that_are_no_pools(tmp_path, what):
    fd = os.open(tmp_path, os.O_RDONLY) if what == "a folder" else os.memfd_create("dray-ec", os.MFD_ALLOW_SEALING)
    if what == "a file":
        fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    elif what == "an empty one":
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    with pytest.raises(OSError):
        PoolFile(fd)
    with pytest.raises(OSError):
        os.fstat(fd)


# --- by a door ------------------------------------------------------------------------------------

def test_an_engine_in_another_pid_namespace(agents, engine):
    """Its first request is pulled; meanwhile it gets the pool."""
    if subprocess.run([*ANOTHER_NAMESPACE, "true"], stdin=subprocess.DEVNULL, capture_output=True).returncode:
        pytest.skip("PID namespaces cannot be made here")
    e = engine("e", "ec_producer", lease=60)
    process = subprocess.Popen([*ANOTHER_NAMESPACE, sys.executable, "-c", ELSEWHERE, str(agents[0].socket)], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    try:
        assert process.stdout.readline() == "ready\n"
        for name in ("n1", "n2", "n3"):
            wanted = images(1, f"elsewhere {name}")
            process.stdin.write(json.dumps([name, wanted, encode(e, name, wanted)]) + "\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline()) == ["LENGTH", 1, 1]
    finally:
        process.kill()
        process.communicate()
    e.idle()


def pools(doors):
    """Doors from which an engine has a pool."""
    return [door for door, pool in doors._pools.items() if pool is not None]


def test_a_pool_is_kept_until_its_encoder_ends(engine, monkeypatch):
    """By the scheduler's process and by the worker's. What is being read then is read to its end."""
    e, pd = engine("e", "ec_producer"), engine("pd", "ec_consumer")
    doors, door = (pd.side._doors, pd.worker._worker._doors), e.side._door.name

    def asks(name):
        wanted = images(2, "kept " + name)
        return pd.add(name, wanted, encode(e, name, wanted), NO_PIXELS)

    first = itertools.count()
    until(lambda: all(pools(each) == [door] for each in doors) or pd.run(asks(f"k1-{next(first)}")) and False, "both have the pool")
    with monkeypatch.context() as patch:
        patch.setattr(consumer, "open_named", None)
        patch.setattr(worker, "read", None)
        assert pd.run(asks("k2"))[0] == "LENGTH"
    asks("k3")
    step, kept = pd._schedule(), doors[0].find(door)
    e.side._door.close()
    until(lambda: not any(map(pools, doors)), "both have given it up")
    assert kept.fd >= 0
    pd._work(*step)
    assert pd.answers["k3"][0] == "LENGTH"
    until(lambda: pd.step() or kept.fd == -1, "it is closed")
    assert pd.run(asks("k4"))[0] == "LENGTH" and not pd.encoded
    pd.idle()
    e.idle()


@pytest.mark.parametrize("what", ["no process", "another pool"])
def test_a_pool_that_proc_does_not_show(engine, what):
    e, pd = engine("e", "ec_producer"), engine("pd", "ec_consumer")
    for name in ("o1", "o2"):
        wanted = images(1, what + name)
        params = encode(e, name, wanted)
        with offered(params) as offer:
            offer["pool"][:2] = [(1 << 22) + 1, 5] if what == "no process" else [os.getpid(), pd.side._memory.memory.fd]
        assert pd.run(pd.add(name, wanted, params, NO_PIXELS))[0] == "LENGTH" and not pd.encoded
        until(lambda: pools(pd.side._doors), "the pool has come")
        pd.idle()
        e.idle()
    assert len(pd.side._pool._items) == 1, "the second output was read in place"
    e.side._door.close()
    until(lambda: not pools(pd.side._doors), "the pool is given up, because the encoder has ended")


def test_a_door_opens_to_its_key_alone():
    memory = Memory(1 << 16, name="dray-ec")
    door, doors = Door(memory), Doors()
    wrong, nowhere = door.name[:32] + "0" * 32, "0" * 64
    doors.knock(door.name)
    until(lambda: pools(doors) == [door.name], "the pool")
    for one in ("", wrong, nowhere):
        doors.knock(one)
    pool = doors.find(door.name)
    assert os.fstat(pool.fd).st_ino == os.fstat(memory.fd).st_ino
    with pytest.raises(OSError):
        os.write(pool.fd, b"x")
    until(lambda: len(doors._connections) == 1, "the other doors have said no")
    assert [doors.find(one) for one in (wrong, nowhere, "")] == [None] * 3
    opened = Opened.open(pool, 1024, 768)
    doors.close()
    until(lambda: not pools(doors), "the pool is given up")
    assert os.fstat(pool.fd).st_size == 1 << 16, "what was opened stays"
    opened.close()
    until(lambda: pool.fd == -1, "the pool is closed")
    door.close()
    memory.close()


def test_a_door_that_gives_something_else(tmp_path):
    name, doors = "12" * 32, Doors()
    with socket.socket(socket.AF_UNIX) as listener, open(tmp_path / "file", "w+b") as file:
        listener.bind("\0dray-ec-" + name[:32])
        listener.listen()
        doors.knock(name)
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(32, socket.MSG_WAITALL) == name[32:].encode()
            socket.send_fds(connection, [b"!"], [file.fileno()])
            assert connection.recv(1) == b"", "it has hung up"
    assert doors.find(name) is None
