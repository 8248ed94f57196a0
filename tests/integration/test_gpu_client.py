# SPDX-License-Identifier: Apache-2.0
"""dray.cuda, and the requests that the client makes from it, over a driver without a GPU (tests/gpu/fake_libcuda.h)."""

import ctypes
import gc
import fcntl
import os
import pickle

import dray
import pytest
from dray import cuda
from wire import codec as s
from fake_agent import FakeAgent
from harness import BUILD, LIMIT, MIB, Side, expect, until

FAKE = BUILD / "tests/gpu/libcuda.so.1"
BASE, CHUNK = 0x7f1200000000, 20 * MIB
UUID = "GPU-000102a{}-0405-0607-0809-0a0b0c0d0e0f"
MALLOC, VMM, POOL, MANAGED, HOST = range(5)

pytestmark = pytest.mark.skipif(not FAKE.exists(), reason=f"{FAKE} does not exist: build it first (make tools)")


class Driver:
    """The fake driver. After it is loaded, loading libcuda.so.1 by name gives it, too."""

    def __init__(self):
        self.library = ctypes.CDLL(str(FAKE))
        self.library.fake_cuda_get.restype = ctypes.c_int64

    def reset(self):
        self.library.fake_cuda_reset()

    def map(self, kind, base, size, device=0, handles=1):
        self.library.fake_cuda_range(kind, ctypes.c_uint64(base), ctypes.c_uint64(size), device, handles)

    def set(self, **settings):
        for name, value in settings.items():
            self.library.fake_cuda_set(name.encode(), ctypes.c_int64(value))

    def get(self, name):
        return self.library.fake_cuda_get(name.encode())

    def chunks(self):
        """Makes three adjacent mappings, as PyTorch does."""
        for i in range(3):
            self.map(VMM, BASE + i * CHUNK, CHUNK)


def descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def driver():
    """The fake driver. After the test it must hold nothing, and the caller's context must be current."""
    driver = Driver()
    driver.reset()
    gc.collect()  # objects of earlier tests close their descriptors now, not between the two counts
    before = descriptors()
    yield driver
    assert {name: driver.get(name) for name in ("retained", "depth", "primaries", "registered", "mapped", "reserved")} == dict(
        retained=0, depth=0, primaries=0, registered=0, mapped=0, reserved=0)
    assert descriptors() == before


class Tensor:
    """The part of a PyTorch tensor that dray.cuda uses."""

    is_cuda, device = True, "cuda:0"

    def __init__(self, pointer, shape, stride, itemsize=2):
        self.pointer, self.shape, self.strides, self.itemsize = pointer, shape, stride, itemsize

    def data_ptr(self):
        return self.pointer

    def stride(self):
        return self.strides

    def element_size(self):
        return self.itemsize

    def numel(self):
        n = 1
        for size in self.shape:
            n *= size
        return n


# --- describing ---------------------------------------------------------------------------------------

def test_tensors_of_one_allocation(driver):
    driver.map(MALLOC, BASE, 10 * MIB, device=1)
    # a view at an odd offset, and one of every second row, which is described from its first element to its last
    tensors = [Tensor(BASE + 1235, (10, 5), (5, 1), 1), Tensor(BASE + 4096, (3, 8), (16, 1))]
    with cuda.describe_tensors(tensors) as e:
        assert e.device == UUID.format(1)
        assert e.extents == [(s.KIND_CUDA_IPC, 0, 1235, 50), (s.KIND_CUDA_IPC, 0, 4096, 2 * (2 * 16 + 8))]
        assert [len(handle) for handle in e.handles] == [64] and not e.fds
        assert e.handles[0][:8] == BASE.to_bytes(8, "little")
        assert e.length == 130
    on_host = Tensor(BASE, (1,), (1,))
    on_host.is_cuda, on_host.device = False, "cpu"
    assert "cpu" in expect("invalid", cuda.describe_tensor, on_host).message
    expect("invalid", cuda.describe_tensor, Tensor(BASE, (0, 5), (5, 1)))


@pytest.mark.parametrize("settings", [{}, {"joined": 2, "primary": 1}, {"mapping": 0, "primary": 1}])
def test_expandable_segments(driver, settings):
    """Adjacent mappings become one extent each, however the driver answers queries about them."""
    driver.chunks()
    driver.set(**settings)
    before = descriptors()
    e = cuda.describe_tensor(Tensor(BASE + CHUNK - 4, (CHUNK // 2 + 4,), (1,)))
    assert e.device == UUID.format(0)
    assert e.extents == [(s.KIND_CUDA_VMM, 0, CHUNK - 4, 4), (s.KIND_CUDA_VMM, 1, 0, CHUNK), (s.KIND_CUDA_VMM, 2, 0, 4)]
    assert len(set(e.fds)) == 3 and descriptors() == before + 3
    assert e.allocations == [CHUNK] * 3
    assert all(fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC for fd in e.fds)
    e.close()
    e.close()


def test_mappings_without_reported_bounds(driver):
    driver.chunks()
    driver.set(joined=1, primary=1)
    assert "does not report the bounds" in expect("unsupported", cuda.describe, BASE, 10).message


@pytest.mark.parametrize("handles, words", [
    (0, ("TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC=1", "PYTORCH_CUDA_ALLOC_CONF")), (8, ("fabric", "PYTORCH_CUDA_ALLOC_CONF"))])
def test_not_exportable(driver, handles, words):
    driver.map(VMM, BASE, CHUNK, handles=handles)
    message = expect("unsupported", cuda.describe, BASE, 10).message
    assert all(word in message for word in words), message
    driver.set(primary=1)
    with cuda.describe(BASE, 10, (cuda.VMM, cuda.DMABUF)) as e:
        assert e.extents == [(s.KIND_DMABUF, 0, 0, 10)] and not e.allocations
    driver.set(dmabuf=0)
    assert words[1] in expect("unsupported", cuda.describe, BASE, 10, (cuda.VMM, cuda.DMABUF)).message


@pytest.mark.parametrize("settings", [{}, {"joined": 2, "primary": 1}, {"mapping": 0, "primary": 1}, {"ids": 0}])
def test_find_allocation(driver, settings):
    """The allocation around an address, without handles for export; memory that CPUs reach is none of a GPU."""
    driver.chunks()
    driver.map(MALLOC, BASE + 4 * CHUNK, 5 * MIB, device=1)
    for i, kind in enumerate((MANAGED, HOST)):
        driver.map(kind, BASE + (5 + i) * CHUNK, MIB)
    driver.set(**settings)
    found = [cuda.find_allocation(BASE + at) for at in (0, CHUNK - 1, CHUNK, 3 * CHUNK - 1, 4 * CHUNK + 77)]
    assert [(a.address - BASE, a.length) for a in found] == [(0, CHUNK), (0, CHUNK), (CHUNK, CHUNK), (2 * CHUNK, CHUNK), (4 * CHUNK, 5 * MIB)]
    assert len({a.id for a in found}) == (1 if settings.get("ids") == 0 else 4) and all(a.id for a in found) == (settings.get("ids") != 0)
    assert [cuda.find_allocation(at) for at in (BASE + 3 * CHUNK, BASE + 5 * CHUNK, BASE + 6 * CHUNK, 0, (1 << 64) - 1)] == [None] * 5
    assert not driver.get("exports")
    expect("invalid", cuda.find_allocation, -1)


def test_find_allocation_without_bounds(driver):
    driver.chunks()
    driver.set(joined=1, primary=1)
    assert "does not report the bounds" in expect("unsupported", cuda.find_allocation, BASE).message


def test_other_memory(driver):
    for i, kind in enumerate((POOL, MANAGED, HOST, MALLOC, VMM)):
        driver.map(kind, BASE + 2 * i * MIB, MIB)
    driver.map(MALLOC, BASE + 9 * MIB, MIB)
    for at, length, name, word in (
            (0, 10, "unsupported", "cudaMallocAsync"), (2, 10, "unsupported", "managed"), (4, 10, "invalid", "no memory of a GPU"),
            (5, 10, "invalid", "0x7f1200500000"), (6, MIB + 1, "invalid", "ends at 0x7f1200700000"),
            (8, MIB + 1, "invalid", "end at 0x7f1200900000"), (6, 0, "invalid", "empty or too long"),
            (6, 1 << 64, "invalid", "empty or too long")):
        assert word in expect(name, cuda.describe, BASE + at * MIB, length).message
    assert "use kind cuda_ipc" in expect("unsupported", cuda.describe, BASE + 6 * MIB, 1, cuda.VMM).message
    assert "use kind cuda_vmm" in expect("unsupported", cuda.describe, BASE + 8 * MIB, 1, cuda.IPC).message
    expect("invalid", cuda.describe, BASE + 6 * MIB, 1, "memfd")
    expect("invalid", cuda.describe_ranges, [])


def test_dmabuf(driver):
    small = BASE + CHUNK + 512
    driver.map(MALLOC, small, 1000)
    with cuda.describe_ranges([(small + 16, 100), (small, 1000)], cuda.DMABUF) as e:
        assert e.extents == [(s.KIND_DMABUF, 0, 512 + 16, 100), (s.KIND_DMABUF, 0, 512, 1000)]
    driver.reset()
    driver.chunks()
    driver.set(current=1)
    with cuda.describe(BASE + 5000, 2 * CHUNK, cuda.DMABUF) as e:
        assert e.extents == [(s.KIND_DMABUF, 0, 5000 - 4096, 2 * CHUNK)]


def test_region_has_one_device_and_does_not_mix_dmabuf(driver):
    ranges = [(BASE, 10), (BASE + CHUNK, 10)]
    driver.map(VMM, BASE, CHUNK)
    driver.map(VMM, BASE + CHUNK, CHUNK, device=1)
    expect("gpu_device", cuda.describe_ranges, ranges)
    driver.reset()
    driver.map(VMM, BASE, CHUNK)
    driver.map(MALLOC, BASE + CHUNK, CHUNK)
    assert "does not mix" in expect("unsupported", cuda.describe_ranges, ranges, (cuda.VMM, cuda.DMABUF)).message
    with cuda.describe_ranges(ranges) as e:
        assert [extent[0] for extent in e.extents] == [s.KIND_CUDA_VMM, s.KIND_CUDA_IPC]


def test_limits_of_a_region(driver):
    for i in range(251):
        driver.map(VMM, BASE + i * 2 * MIB, 2 * MIB)
    expect("fd_limit", cuda.describe, BASE, 251 * 2 * MIB)
    with cuda.describe(BASE, 250 * 2 * MIB) as e:
        assert len(e.extents) == 250
    expect("too_large", cuda.describe_ranges, [(BASE, 1)] * 1025)
    cuda.describe_ranges([(BASE, 1)] * 1024).close()
    driver.reset()
    for i in range(257):
        driver.map(MALLOC, BASE + i * 2 * MIB, MIB)
    expect("too_large", cuda.describe_ranges, [(BASE + i * 2 * MIB, 1) for i in range(257)])


@pytest.mark.parametrize("kinds", [cuda.KINDS, (cuda.DMABUF,)])
def test_any_call_may_fail(driver, kinds):
    driver.chunks()
    driver.map(MALLOC, BASE + 4 * CHUNK, MIB)
    driver.set(primary=1)
    before, at, failed = descriptors(), 0, True
    while failed:
        at += 1
        driver.set(fail_at=at)
        try:
            e = cuda.describe_ranges([(BASE + 5, CHUNK), (BASE + 4 * CHUNK, 5)], kinds)
            e.close()
            failed = not driver.get("fail_at")
        except dray.Error:
            assert not driver.get("fail_at")
        assert [driver.get(name) for name in ("retained", "depth", "primaries", "current")] == [0, 0, 0, 0]
        assert descriptors() == before
    driver.set(fail_at=0)


@pytest.mark.parametrize("error, name", [(719, "gpu_lost"), (2, "no_memory"), (801, "io")])
def test_errors_of_the_driver(driver, error, name):
    driver.map(VMM, BASE, CHUNK)
    before = driver.get("calls")
    cuda.describe(BASE, 10).close()
    driver.set(error=error, fail_at=driver.get("calls") - before)  # the last one
    assert expect(name, cuda.describe, BASE, 10).message.startswith("cuDeviceGetUuid: CUDA_ERROR_")


# --- regions --------------------------------------------------------------------------------------------

class Agent(FakeAgent):
    """Accepts regions, and keeps the requests."""

    def __init__(self, path, **how):
        self.seen = []
        super().__init__(path, self._answer, **how)

    def _answer(self, request_id, type_, m):
        if type_ == s.MSG_REGION_ADD:
            self.seen.append((m, self.n_fds))
            yield s.pack_region_add_reply(request_id, region=len(self.seen), length=sum(e[4] for e in m.extents))
        else:
            yield s.pack_region_remove_reply(request_id)


def test_region_survives_a_restart(driver, tmp_path):
    driver.chunks()
    driver.map(MALLOC, BASE + 4 * CHUNK, MIB)
    with Agent(tmp_path / "sock") as agent, agent.client() as client:
        before = descriptors()
        with cuda.describe_ranges([(BASE + 4 * CHUNK + 100, 10), (BASE + CHUNK - 1, 10)]) as extents:
            region = client.region(extents, access="r", name="kv")
        assert region.length == 20 and descriptors() == before + 2
        agent.restart()
        until(lambda: client.process() or not client.connected, "the loss of the session")
        client.reconnect()
        assert len(agent.seen) == 2 and agent.seen[0] == agent.seen[1]
        m, fds = agent.seen[1]
        assert (m.access, m.name, m.device, fds) == (s.ACCESS_READ, "kv", UUID.format(0), 2)
        assert [tuple(e) for e in m.extents] == [
            (s.KIND_CUDA_IPC, 0, 0, 100, 10), (s.KIND_CUDA_VMM, 0, 0, CHUNK - 1, 1), (s.KIND_CUDA_VMM, 1, 0, 0, 9)]
        assert len(m.handles) == 64
        region.remove()
        assert descriptors() == before


def test_older_agent(driver, tmp_path):
    driver.chunks()
    with Agent(tmp_path / "sock", minor=1) as agent, agent.client() as client:
        before = descriptors()
        with cuda.describe(BASE, 10) as extents:
            assert "too old for GPU memory" in expect("unsupported", client.region, extents).message
        assert descriptors() == before and not agent.seen
        with dray.Memory(4096) as memory:
            client.region(memory).remove()


# --- words ----------------------------------------------------------------------------------------------

def test_words_start_and_end_transfers(agent, driver):
    """The CPU acts as a stream: it sets the wait word, and the agent sets the other word."""
    driver.set(current=1)
    with Side(agent, MIB) as here, Side(agent, MIB, fill=b"\x5a" * MIB) as there:
        with cuda.StreamWords(here.client, 2) as words:
            ready, sent = words
            remote = here.reach(there)
            transfer = here.client.read(here.region, remote, [(0, 0, MIB)], wait_word=ready.at(7), set_word=sent.at(9))
            # answered after the transfer was accepted
            here.client.read(here.region, remote, [(0, 0, 8)]).result(LIMIT)
            assert not transfer.done() and sent.value == 0
            ready.value = 7
            transfer.result(LIMIT)
            assert sent.value == 9 and bytes(here.view[:16]) == b"\x5a" * 16


def test_words_of_streams(driver, tmp_path):
    class Stream:
        """Like torch.cuda.Stream; a stream of the fake driver is the address of its device's number."""

        def __init__(self, device):
            self.number = ctypes.c_int(device)
            self.cuda_stream = ctypes.addressof(self.number)

    with Agent(tmp_path / "sock") as agent, agent.client() as client:
        assert "no CUDA context" in expect("invalid", cuda.StreamWords, client).message
        driver.set(current=1)
        words = cuda.StreamWords(client, 3)
        assert len(words) == 3 and driver.get("registered") == 1
        assert agent.seen[0][0].extents[0][0] == s.KIND_MEMFD
        assert words[2].at(5) == (words.region, 8, 5)
        stream = Stream(1)
        words[2].write(stream, 7)
        assert [driver.get(name) for name in ("writes", "stream", "value", "flags", "current")] == [
            1, stream.cuda_stream, 7, 0, 1]
        address = driver.get("address")
        words[0].wait(0, 8, equal=True)
        assert [driver.get(name) for name in ("waits", "stream", "value", "flags")] == [1, 0, 8, 1]
        assert driver.get("address") == address - 8
        words[0].wait(stream.cuda_stream, 8)
        assert driver.get("flags") == 0
        with pytest.raises(IndexError):
            words[3]
        driver.set(fail_at=1)
        expect("gpu_lost", words[0].write, None, 1)
        words.close()
        words.close()
        # everything is released whichever call fails, and also after the end of the session
        for at in (1, 2, 3):
            driver.set(fail_at=at)
            expect("gpu_lost", cuda.StreamWords, client)
            assert driver.get("registered") == 0
        driver.set(fail_at=0)
        words = cuda.StreamWords(client)
    words.close()


def test_closed_words(driver, tmp_path):
    """Arrays and slices of the view keep the memory of closed words, and nothing else does."""
    with Agent(tmp_path / "sock") as agent, agent.client() as client:
        driver.set(current=1)
        words = cuda.StreamWords(client, 3)
        word = words[1]
        word.value = 7
        part, array = words.view[1:], pickle.PickleBuffer(words.view)  # an array of numpy holds its buffer in this way
        words.close()
        assert part[0] == array.raw()[4] == 7 and driver.get("registered") == 1
        assert not words.region.handle and len(words) == 3
        expect("invalid", lambda: word.value)
        expect("invalid", setattr, word, "value", 8)
        expect("invalid", word.write, None, 8)
        part.release()
        assert array.raw()[4] == 7
        array.release()
        words = word = None
        gc.collect()
        assert driver.get("registered") == 0


# --- allocating ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("rdma", [0, 1])
def test_allocate(driver, rdma):
    """Memory that can be described at once as virtual memory, and is gone after free()."""
    driver.set(rdma=rdma, primary=2)
    at = cuda.allocate(3 * MIB, 1)
    assert driver.get("created_flags") == rdma and driver.get("mapped") == 1
    with cuda.describe(at, 4 * MIB) as e:  # rounded up to the granularity
        assert e.device == UUID.format(1) and e.extents == [(s.KIND_CUDA_VMM, 0, 0, 4 * MIB)] and e.allocations == [4 * MIB]
    ctypes.memset(at, 1, 4 * MIB)
    cuda.free(at, 3 * MIB, 1)
    assert not driver.get("mapped") and not driver.get("reserved") and driver.get("synchronized") == 1
    cuda.free(0, 3 * MIB, 1)


def test_allocate_for_pytorch(driver):
    """The functions that PyTorch calls by name."""
    path, alloc, free = cuda.torch_allocator()
    library = ctypes.CDLL(path)
    alloc, free = getattr(library, alloc), getattr(library, free)
    alloc.restype, alloc.argtypes = ctypes.c_void_p, (ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
    free.restype, free.argtypes = None, (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
    at = alloc(5 * MIB, 0, None)
    assert at and driver.get("mapped") == 1
    free(at, 5 * MIB, 0, None)
    assert not driver.get("mapped") and not driver.get("reserved")
    assert alloc(0, 0, None) is None and alloc(-1, 0, None) is None


@pytest.mark.parametrize(("error", "name"), [(2, "no_memory"), (801, "unsupported"), (719, "gpu_lost")])
def test_allocate_fails(driver, error, name):
    """Every call of the driver fails in turn; nothing is left, and the error is named."""
    seen = set()
    for n in range(1, 20):
        driver.set(fail_at=n, error=error)
        try:
            at = cuda.allocate(MIB)
        except dray.Error as e:
            seen.add(e.name)
            assert not driver.get("mapped") and not driver.get("reserved")
        else:
            driver.set(fail_at=0)
            cuda.free(at, MIB)
    assert name in seen
    expect("invalid", cuda.allocate, 0)
