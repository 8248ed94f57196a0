# SPDX-License-Identifier: Apache-2.0
"""dray.mooncake with memory of GPUs: a driver and a plug-in without a GPU (tests/gpu), whose memory no CPU can access by its addresses."""

import contextlib
import functools
import itertools

import pytest
from conftest import _stopped, peer_settings
from fake_gpu import FakeGpus
from harness import BUILD, LIMIT, MIB, Actor, noise, until

DRIVER = BUILD / "tests/gpu/simulated/libcuda.so.1"
KIB, GRANULE = 1 << 10, 2 * MIB
STORE = {"limits.store_bytes": "64MiB", "limits.store_bytes_per_owner": "64MiB", "store.segment_size": "4MiB"}

pytestmark = pytest.mark.skipif(not DRIVER.exists(), reason=f"{DRIVER} does not exist: build it first (make tools)")

NODE = """
import ctypes, io, logging, mmap, os, threading
os.environ["DRAY_SOCKET"] = args["socket"]
u64, size_t = ctypes.c_uint64, ctypes.c_size_t
cuda = ctypes.CDLL(args["driver"])
log = io.StringIO()
logging.getLogger("dray.mooncake").addHandler(logging.StreamHandler(log))
from dray.mooncake.engine import TransferEngine
from dray.mooncake.store import MooncakeDistributedStore
engine, store = TransferEngine(), MooncakeDistributedStore()
if args["what"] == "engine":
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0, log.getvalue()
else:
    assert store.setup("127.0.0.1") == 0, log.getvalue()

class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]

class Allocation(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", Location), ("more", ctypes.c_char * 16)]

class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]

def ok(error):
    assert not error, error

kept = []

def host(n):
    memory = mmap.mmap(-1, n)
    kept.append(memory)
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))

def malloc(n, device=0):
    context, at = ctypes.c_void_p(), u64()
    ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    ok(cuda.cuCtxSetCurrent(context))
    ok(cuda.cuMemAlloc_v2(ctypes.byref(at), size_t(n)))
    return at.value

def reserve(n):
    at = u64()
    ok(cuda.cuMemAddressReserve(ctypes.byref(at), size_t(n), size_t(0), u64(0), u64(0)))
    return at.value

def chunk(at, n, device=0):
    "Memory of cuMemCreate() at a reserved address."
    handle, what = u64(), Allocation(1, 1, Location(1, device))
    ok(cuda.cuMemCreate(ctypes.byref(handle), size_t(n), ctypes.byref(what), u64(0)))
    ok(cuda.cuMemMap(u64(at), size_t(n), size_t(0), handle, u64(0)))
    ok(cuda.cuMemSetAccess(u64(at), size_t(n), ctypes.byref(Access(Location(1, device), 3)), size_t(1)))
    ok(cuda.cuMemRelease(handle))
    return at

def unmap(at, n):
    ok(cuda.cuMemUnmap(u64(at), size_t(n)))

def free(at):
    ok(cuda.cuMemFree_v2(u64(at)))

def managed(n):
    return engine.allocate_managed_buffer(n)

def poke(at, data):
    data = bytes.fromhex(data)
    ok(cuda.cuMemcpyHtoD_v2(u64(at), data, size_t(len(data))))

def peek(at, n):
    data = ctypes.create_string_buffer(n)
    ok(cuda.cuMemcpyDtoH_v2(data, u64(at), size_t(n)))
    return data.raw.hex()

def said():
    text = log.getvalue()
    log.seek(0)
    log.truncate()
    return text

waits = []

def begin(name, *arguments):
    "Calls NAME in a thread."
    results = []
    thread = threading.Thread(target=lambda: results.append(getattr(engine if args["what"] == "engine" else store, name)(*arguments)), daemon=True)
    thread.start()
    waits.append((thread, results))

def ended():
    "The result of the call that began first."
    thread, results = waits.pop(0)
    thread.join()
    return results[0]

functions = dict(host=host, malloc=malloc, reserve=reserve, chunk=chunk, unmap=unmap, free=free, managed=managed, poke=poke, peek=peek, said=said,
                 begin=begin, ended=ended)
tell("127.0.0.1:%d" % engine.get_rpc_port())
while True:
    name, arguments = hear()
    function = functions.get(name) or getattr(engine if args["what"] == "engine" else store, name)
    tell(function(*arguments))
"""


class Node(Actor):
    """A process with an engine, or a store, and memory of every kind. node.NAME(...) calls NAME there, as node.call(NAME, ...) does."""

    def __init__(self, agent, what="engine", code=NODE):
        super().__init__(code, driver=DRIVER, socket=agent.socket, what=what)
        self.session = self.hear()

    def call(self, name, *arguments):
        self.tell([name, arguments])
        return self.hear()

    def __getattr__(self, name):
        return functools.partial(self.call, name)

    def fill(self, at, data):
        self.poke(at, data.hex())

    def bytes(self, at, n):
        return bytes.fromhex(self.peek(at, n))

    def memory(self, kind, n):
        """Registered memory of a kind."""
        if kind == "managed":
            return self.managed(n)
        if kind == "chunks":  # two allocations, of GPU 1
            at = self.reserve(2 * GRANULE)
            for i in range(2):
                self.chunk(at + i * GRANULE, GRANULE, 1)
            at += GRANULE - n // 2 // KIB * KIB
        else:
            at = self.malloc(n) if kind == "malloc" else self.host(n)
        assert self.register_memory(at, n) == 0, self.said()
        return at


@pytest.fixture(autouse=True)
def folder(lab, monkeypatch):
    """Of the files that simulated memory is in."""
    monkeypatch.setenv("FAKE_GPU_FOLDER", str(lab.tmp))


@pytest.fixture
def gpus(lab):
    return FakeGpus(lab.directory("gpus"))


@pytest.fixture
def gpu_agent(new_agent, gpus):
    """An agent with fake GPUs, which must hold nothing at its end."""
    agent = new_agent(env=gpus.env, settings={**gpus.settings, **STORE})
    yield agent
    gpus.idle()
    agent.stop()
    gpus.over()


@pytest.fixture
def nodes():
    """Makes nodes, which end with the test."""
    made = []

    def make(*arguments, **how):
        made.append(Node(*arguments, **how))
        return made[-1]

    yield make
    for node in made:
        node.close()


@pytest.fixture(params=["one agent", "two agents"])
def ends(request, lab):
    """Two engines."""
    if request.param == "one agent":
        agent = request.getfixturevalue("gpu_agent")
        with Node(agent) as here, Node(agent) as there:
            yield here, there
        return
    fakes = [FakeGpus(lab.directory(f"gpus {name}")) for name in "ab"]
    agents = []
    for n, (name, fake) in enumerate(zip("ab", fakes)):
        how = peer_settings(lab, n)
        how["settings"] = {**how["settings"], **fake.settings}
        agents.append(lab.agent(name, env=fake.env, **how).start())
    with contextlib.ExitStack() as stack:
        here, there = (stack.enter_context(Node(agent)) for agent in agents)
        yield here, there
    for fake in fakes:
        fake.idle()
    _stopped(agents)
    for fake in fakes:
        fake.over()


# --- transfers ------------------------------------------------------------------------------------------

KINDS = ("malloc", "chunks", "private", "managed")
SIZE = 300 * KIB
# of both sides: offset here, offset there, length
PIECES = ((0, 1, 4096), (4099, 70001, 100_000), (200_003, 5000, 3), (210_000, 200_000, 64 * KIB))


def test_every_pair(ends):
    """Memory of GPUs of both kinds of allocations, private and managed memory, in both directions, one by one and in batches."""
    here, there = ends
    at_here, at_there = ({kind: node.memory(kind, SIZE) for kind in KINDS} for node in ends)
    for n, (near, far) in enumerate(itertools.product(KINDS, KINDS)):
        if {near, far} <= {"private", "managed"}:
            continue  # without a GPU
        a, b = at_here[near], at_there[far]
        lists = [a + p[0] for p in PIECES], [b + p[1] for p in PIECES], [p[2] for p in PIECES]
        for write in (True, False):
            source, target = noise(SIZE, 2 * n), noise(SIZE, 2 * n + 1)
            here.fill(a, source if write else target)
            there.fill(b, target if write else source)
            if near == "malloc":
                call = here.batch_transfer_async_write if write else here.batch_transfer_async_read
                assert here.get_batch_transfer_status([call(there.session, *lists)]) == 0, here.said()
            elif near == "chunks":
                call = here.transfer_sync_write if write else here.transfer_sync_read
                assert [call(there.session, *piece) for piece in zip(*lists)] == [0] * len(PIECES), here.said()
            else:
                call = here.batch_transfer_sync_write if write else here.batch_transfer_sync_read
                assert call(there.session, *lists) == 0, here.said()
            for p, q, length in PIECES:
                if not write:
                    p, q = q, p
                target = target[:q] + source[p:p + length] + target[q + length:]
            got = there.bytes(b, SIZE) if write else here.bytes(a, SIZE)
            assert got == target, (near, far, write)


def test_pieces_of_many_kinds(ends):
    """One call with pieces of all kinds of memory at either side."""
    here, there = ends
    at_here, at_there = ([node.memory(kind, SIZE) for kind in KINDS] for node in ends)
    pairs = list(itertools.product(range(4), range(4)))
    data = [noise(SIZE, i) for i in range(4)]
    for at, content in zip(at_here, data):
        here.fill(at, content)
    lists = [[], [], []]
    for i, (near, far) in enumerate(pairs):
        lists[0].append(at_here[near] + 1000 * i)
        lists[1].append(at_there[far] + 1000 * i + 7)
        lists[2].append(990)
    assert here.batch_transfer_sync_write(there.session, *lists) == 0, here.said()
    for i, (near, far) in enumerate(pairs):
        assert there.bytes(at_there[far] + 1000 * i + 7, 990) == data[near][1000 * i:1000 * i + 990]


# --- registrations --------------------------------------------------------------------------------------

def regions(agent):
    return [r for r in agent.ctl("regions", "--json")["regions"] if r["name"] == "mooncake gpu"]


def test_registrations_share_a_region(gpu_agent, gpus, nodes):
    """Those in one allocation do, and each of them ends for itself: peers cannot reach what was unregistered."""
    a, b = nodes(gpu_agent), nodes(gpu_agent)
    base, own = b.malloc(8 * MIB), a.memory("private", MIB)
    parts = [base + i * MIB for i in (1, 2, 5)]
    assert b.batch_register_memory(parts, [MIB, MIB, 2 * MIB]) == 0, b.said()
    region, = regions(gpu_agent)
    assert region["length"] == 8 * MIB and gpus.status.imports == 1
    assert b.register_memory(parts[0] + 5, 100) == -7 and b.register_memory(base, 2 * MIB) == -7
    assert a.transfer_sync_write(b.session, own, parts[0], 100) == 0 and a.transfer_sync_write(b.session, own, parts[2], 100) == 0
    for outside in (base, parts[1] + MIB, parts[0] - 1):
        assert a.transfer_sync_read(b.session, own, outside, 100) == -1
    assert b.unregister_memory(parts[0]) == 0 and b.unregister_memory(parts[0]) == -3 and b.unregister_memory(parts[1] + 1) == -3
    assert a.transfer_sync_write(b.session, own, parts[0], 100) == -1
    assert a.transfer_sync_write(b.session, own, parts[2], 100) == 0 and gpus.status.imports == 1
    assert b.batch_unregister_memory(parts[1:]) == 0 and not regions(gpu_agent)
    gpus.idle()
    assert a.transfer_sync_write(b.session, own, parts[2], 100) == -1
    assert b.register_memory(base, 8 * MIB) == 0 and a.transfer_sync_write(b.session, own, parts[0], 100) == 0, a.said()


def test_a_failed_batch_keeps_nothing(gpu_agent, gpus, nodes):
    """A range that passes the end of its memory, or overlaps, undoes the registrations before it."""
    node = nodes(gpu_agent)
    at, host = node.malloc(MIB), node.host(MIB)
    assert node.batch_register_memory([host, at, node.malloc(MIB)], [MIB, MIB, MIB + 1]) == -1
    assert "ends after 1048576 of 1048577 bytes" in node.said()
    assert node.batch_register_memory([host, at, at + 10], [MIB, MIB, 5]) == -7
    assert not regions(gpu_agent)
    gpus.idle()
    assert node.batch_register_memory([host, at], [MIB, MIB]) == 0


def test_memory_freed_before_it_is_unregistered(gpu_agent, gpus, nodes):
    """Its registration stays one of the memory that was freed; a new one beside it is of the memory that is at the address now."""
    a, b = nodes(gpu_agent), nodes(gpu_agent)
    own = a.memory("private", KIB)
    a.fill(own, b"x" * KIB)
    base = b.chunk(b.reserve(GRANULE), GRANULE)
    assert b.register_memory(base, KIB) == 0
    b.unmap(base, GRANULE)
    assert b.chunk(base, GRANULE) == base
    assert b.register_memory(base, KIB) == -7 and b.register_memory(base + MIB, KIB) == 0
    assert len(regions(gpu_agent)) == 2
    assert a.transfer_sync_write(b.session, own, base, KIB) == 0 and a.transfer_sync_write(b.session, own, base + MIB, KIB) == 0
    assert b.bytes(base, KIB) == bytes(KIB) and b.bytes(base + MIB, KIB) == b"x" * KIB
    assert b.unregister_memory(base) == 0 and b.register_memory(base, KIB) == 0 and len(regions(gpu_agent)) == 1
    assert a.transfer_sync_write(b.session, own, base, KIB) == 0, a.said()
    assert b.bytes(base, KIB) == b"x" * KIB
    b.unmap(base, GRANULE)
    assert b.batch_unregister_memory([base, base + MIB]) == 0, b.said()
    gone = b.malloc(MIB)
    b.free(gone)
    assert b.register_memory(gone, MIB) == 0 and not regions(gpu_agent)  # as other addresses that are not mapped


def test_unregistered_gpu_memory(gpu_agent, nodes):
    """It cannot be used, and the error says what to do."""
    a, b = nodes(gpu_agent), nodes(gpu_agent)
    at, there, private = a.malloc(KIB), b.memory("malloc", KIB), b.memory("private", KIB)
    for target in (there, private):
        assert a.transfer_sync_write(b.session, at, target, KIB) == -1 and a.transfer_sync_read(b.session, at, target, KIB) == -1
        assert "register the memory if it is on a GPU" in a.said()


@pytest.mark.parametrize("write", (True, False), ids=("write", "read"))
def test_unregistered_while_it_is_used(gpu_agent, gpus, nodes, write):
    """The call waits for a transfer of its own engine that goes by shared buffers, all parts of which use the memory still."""
    a, b = nodes(gpu_agent), nodes(gpu_agent)
    size = 9 * MIB  # three buffers
    own, there = a.memory("malloc", size), b.memory("private", size)
    data = noise(size, 1)
    (a if write else b).fill(own if write else there, data)
    with gpus.held():
        a.begin("transfer_sync_write" if write else "transfer_sync_read", b.session, own, there, size)
        until(lambda: gpus.status.held, "a copy that does not end")
        a.begin("unregister_memory", own)
        until(lambda: a.register_memory(own, KIB) == 0, "the end of the registration")
        assert len(regions(gpu_agent)) == 1
    assert a.ended() == 0, a.said()
    assert a.ended() == 0, a.said()
    assert (b.bytes(there, size) if write else a.bytes(own, size)) == data
    assert a.unregister_memory(own) == 0


def test_lost_gpu(gpu_agent, gpus, nodes):
    """Transfers fail, other memory and registrations go on, and the memory can be registered again when the GPU is back."""
    a, b = nodes(gpu_agent), nodes(gpu_agent)
    own, at, other = a.memory("private", KIB), b.malloc(MIB), b.memory("private", KIB)
    beside = at + 64 * KIB
    assert b.register_memory(at, KIB) == 0 and a.transfer_sync_write(b.session, own, at, KIB) == 0
    gpus.lose(0)
    assert a.transfer_sync_write(b.session, own, at, KIB) == -1
    assert a.transfer_sync_write(b.session, own, other, KIB) == 0
    assert a.transfer_sync_write(b.session, own, at, KIB) == -1
    gpus.lose(0, False)
    assert b.register_memory(beside, KIB) == 0, b.said()  # in the same allocation
    assert a.transfer_sync_write(b.session, own, beside, KIB) == 0, a.said()
    assert b.unregister_memory(at) == 0 and b.register_memory(at, KIB) == 0, b.said()
    assert a.transfer_sync_write(b.session, own, at, KIB) == 0, a.said()


def test_agent_without_the_plugin(new_agent, nodes):
    """A registration fails with what is missing; host memory is not affected."""
    agent = new_agent(settings={"gpu.plugin": "/nowhere/dray-cuda.so"})
    a, b = nodes(agent), nodes(agent)
    assert b.register_memory(b.malloc(MIB), MIB) == -1
    assert "/nowhere/dray-cuda.so is not there" in b.said()
    assert a.transfer_sync_write(b.session, a.host(KIB), b.memory("private", KIB), KIB) == 0


def test_restarted_agent(new_agent, gpus, nodes):
    """Registrations are there again with the next agent."""
    agent = new_agent(env=gpus.env, settings=gpus.settings)
    a, b = nodes(agent), nodes(agent)
    own, at = a.memory("chunks", KIB), b.memory("malloc", KIB)
    assert a.transfer_sync_write(b.session, own, at, KIB) == 0
    agent.kill()
    agent.start()
    a.fill(own, b"y" * KIB)
    until(lambda: a.transfer_sync_write(b.session, own, at, KIB) == 0, "the sessions")
    assert b.bytes(at, KIB) == b"y" * KIB
    assert b.unregister_memory(at) == 0 and b.register_memory(at, KIB) == 0, b.said()


# --- the store ------------------------------------------------------------------------------------------

def test_store(gpu_agent, gpus, nodes):
    """Objects from and to memory of GPUs, of the host, and of both in one object."""
    store = nodes(gpu_agent, "store")
    gpu, host, far = store.malloc(8 * MIB), store.host(MIB), store.chunk(store.reserve(GRANULE), GRANULE, 1)
    assert store.put_from("a", gpu, KIB) == -600 and "register the memory if it is on a GPU" in store.said()
    assert [store.register_buffer(at, n) for at, n in ((gpu, 8 * MIB), (host, MIB), (far, GRANULE))] == [0, 0, 0], store.said()
    assert store.register_buffer(gpu, 1) == -600 and gpus.status.imports == 2
    data, more = noise(6 * MIB, 1), noise(100_000, 2)
    store.fill(gpu, data)
    store.fill(host, more)
    assert store.put_from("large", gpu, 6 * MIB) == 0 and store.put_from("small", gpu + 5, 4097) == 0, store.said()
    mixed = [[gpu + 3, host + 1, gpu + MIB, host + 1000], [gpu, gpu + 70_000]]
    sizes = [[1000, 999, 5000, 1], [333, 444]]
    assert store.batch_put_from_multi_buffers(["mixed", "pieces"], mixed, sizes) == [0, 0], store.said()
    expected = {"small": data[5:4102], "mixed": data[3:1003] + more[1:1000] + data[MIB:MIB + 5000] + more[1000:1001],
                "pieces": data[:333] + data[70_000:70_444]}
    for at in (gpu + 7 * MIB, far + 7, host + 200_000):
        for key, content in expected.items():
            assert store.get_into(key, at, MIB // 4) == len(content), store.said()
            assert store.bytes(at, len(content)) == content
    assert store.get_into("large", gpu, 6 * MIB - 1) == -600 and store.get_into("absent", gpu, KIB) == -704
    store.fill(gpu, bytes(6 * MIB))
    assert store.get_into("large", gpu, 6 * MIB) == 6 * MIB and store.bytes(gpu, 6 * MIB) == data
    # to the host, a GPU and another one
    there = [far + 10, host + 300_000, gpu + 7 * MIB]
    assert store.batch_get_into_multi_buffers(["mixed"], [there], [[2001, 3000, 1999]]) == [7000], store.said()
    assert b"".join(store.bytes(at, n) for at, n in zip(there, (2001, 3000, 1999))) == expected["mixed"]
    # more pieces than a batch takes: in one object, and in several
    for keys, n in ((["p"], 5000), (["q", "r", "s"], 2000)):
        size = 8 * n
        store.fill(gpu, data)
        froms = [[gpu + k * size + 8 * i for i in reversed(range(n))] for k in range(len(keys))]
        intos = [[gpu + 2 * MIB + at - gpu for at in some] for some in froms]
        lengths = [[8] * n] * len(keys)
        assert store.batch_put_from_multi_buffers(keys, froms, lengths) == [0] * len(keys), store.said()
        assert store.batch_get_into_multi_buffers(keys, intos, lengths) == [size] * len(keys), store.said()
        assert store.bytes(gpu + 2 * MIB, size * len(keys)) == data[:size * len(keys)]
    store.fill(gpu, b"new")
    assert store.upsert_from("small", gpu, 3) == 0 and store.get_into("small", far, 10) == 3 and store.bytes(far, 3) == b"new"
    assert [store.unregister_buffer(at) for at in (gpu, far, host)] == [0, 0, 0] and store.unregister_buffer(gpu) == -600
    gpus.idle()
    assert store.get_into("small", gpu, 10) == -600


def test_store_unregistered_while_it_is_used(gpu_agent, gpus, nodes):
    """The call waits for batches, of which some objects go straight to the store and others by shared buffers."""
    store = nodes(gpu_agent, "store")
    gpu, host = store.malloc(8 * MIB), store.host(MIB)
    data, more = noise(8 * MIB, 1), noise(MIB, 2)
    store.fill(gpu, data)
    store.fill(host, more)
    keys, sizes = ["first", "mixed"], [[MIB], [1000, KIB, 5 * MIB]]
    froms = [[gpu], [host, gpu + MIB, gpu + 2 * MIB]]
    expected = [data[:MIB], more[:1000] + data[MIB:MIB + KIB] + data[2 * MIB:7 * MIB]]
    for call in ("batch_put_from_multi_buffers", "batch_get_into_multi_buffers"):
        assert store.register_buffer(gpu, 8 * MIB) == 0, store.said()
        with gpus.held():
            store.begin(call, keys, froms, sizes)
            until(lambda: gpus.status.held, "a copy that does not end")
            store.begin("unregister_buffer", gpu)
            until(lambda: store.register_buffer(gpu + 7 * MIB, KIB) == 0, "the end of the registration")
        assert store.ended() == ([0, 0] if call.startswith("batch_put") else [MIB, 1000 + KIB + 5 * MIB]), store.said()
        assert store.ended() == 0, store.said()
        assert store.unregister_buffer(gpu + 7 * MIB) == 0
        got = [b"".join(store.bytes(at, n) for at, n in zip(places, some)) for places, some in zip(froms, sizes)]
        assert got == expected
        store.fill(gpu, bytes(8 * MIB))
        store.fill(host, bytes(MIB))


def test_store_registered_before_setup(gpu_agent, gpus, nodes):
    """Memory of a GPU that was registered before, or with an earlier session, can be used after setup()."""
    store = nodes(gpu_agent, "store")
    at = store.malloc(MIB)
    assert store.call("close") == 0 and store.register_buffer(at, MIB) == 0 and not gpus.status.imports
    assert store.setup("127.0.0.1") == 0 and gpus.status.imports == 1
    assert store.call("close") == 0
    gpus.idle()
    assert store.setup("127.0.0.1") == 0
    store.fill(at, b"abc")
    assert store.put_from("k", at, 3) == 0 and store.get_into("k", at + 100, 3) == 3 and store.bytes(at + 100, 3) == b"abc"
