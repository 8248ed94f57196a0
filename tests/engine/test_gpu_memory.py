# SPDX-License-Identifier: Apache-2.0
"""KV caches on GPUs, over a driver without a GPU (tests/gpu/fake_libcuda.h): what can be shared, in which form, and what is refused.

tests/gpu/check_client.py does the same on a GPU.
"""

import ctypes
from types import SimpleNamespace

import pytest
import torch
from dray import cuda, errors
from dray.vllm import gpu, memory
from harness import BUILD, MIB
from wire import codec as s

FAKE = BUILD / "tests/gpu/libcuda.so.1"
BASE, CHUNK = 0x7f1200000000, 20 * MIB
MALLOC, VMM, POOL, MANAGED = range(4)


class Driver:
    def __init__(self):
        self.library = ctypes.CDLL(str(FAKE))
        self.library.fake_cuda_get.restype = ctypes.c_int64
        self.library.fake_cuda_reset()

    def map(self, kind, base, size, handles=1):
        self.library.fake_cuda_range(kind, ctypes.c_uint64(base), ctypes.c_uint64(size), 0, handles)

    def get(self, name):
        return self.library.fake_cuda_get(name.encode())


@pytest.fixture
def driver():
    assert FAKE.exists(), f"{FAKE} does not exist: build it first (make tools)"
    yield Driver()
    Driver()


def layers(base, count=4, size=2 * MIB):
    """Tensors of a cache in one piece, as far as their memory is concerned."""
    return {f"layers.{i}": SimpleNamespace(
        device=torch.device("cuda:0"), shape=(size // 4096, 2048), stride=lambda: (2048, 1), element_size=lambda: 2,
        data_ptr=lambda at=base + i * size: at) for i in range(count)}


class Client:
    """Takes a region, and keeps what the agent would get."""

    def region(self, extents, name):
        self.extents, self.fds, self.handles = extents.extents, list(extents.fds), extents.handles
        return name


def test_pool(driver, monkeypatch):
    """PyTorch is given libdray's allocator, whose memory is shared as one descriptor."""
    given = []
    made = SimpleNamespace(allocator=lambda: "allocator")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda.memory, "CUDAPluggableAllocator", lambda *names: given.append(names) or made)
    monkeypatch.setattr(torch.cuda.memory, "MemPool", lambda allocator: given.append(allocator) or "pool")
    entered = []

    class Use:
        def __init__(self, pool):
            entered.append(pool)

        def __enter__(self):
            entered.append("in")

        def __exit__(self, *how):
            entered.append("out")

    monkeypatch.setattr(torch.cuda, "use_mem_pool", Use)
    with memory.make_pool("cuda"):
        at = cuda.allocate(8 * MIB)
    assert given == [cuda.torch_allocator(), "allocator"] and entered == ["pool", "in", "out"]
    shared, client = memory.share(layers(at), None), Client()
    assert shared.length == 8 * MIB and list(shared.offsets.values()) == [i * 2 * MIB for i in range(4)]
    shared.add(client)
    assert client.extents == [(s.KIND_CUDA_VMM, 0, 0, 8 * MIB)] and len(client.fds) == 1
    cuda.free(at, 8 * MIB)


def test_pool_on_a_gpu_that_cannot(driver, monkeypatch):
    """The reason is the driver's, not "out of memory"."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    for n in range(1, 12):  # whichever of its calls fails
        driver.library.fake_cuda_set(b"error", ctypes.c_int64(801))
        driver.library.fake_cuda_set(b"fail_at", ctypes.c_int64(n))
        try:
            gpu.Pool()
        except errors.Unsupported as e:
            assert "cannot share virtual memory by descriptors" in str(e)
            return
        except (errors.Error, RuntimeError):
            pass
    raise AssertionError("no call led to a refusal")


def test_memory_of_another_allocator(driver):
    """cudaMalloc(), as PyTorch uses it by default: an IPC handle."""
    driver.map(MALLOC, BASE, 64 * MIB)
    shared, client = memory.share(layers(BASE + 4 * MIB), None), Client()
    shared.add(client)
    assert client.extents == [(s.KIND_CUDA_IPC, 0, 4 * MIB, 8 * MIB)] and len(client.handles) == 1


def test_expandable_segments(driver):
    """Adjacent pieces of PyTorch: a descriptor for each."""
    for i in range(3):
        driver.map(VMM, BASE + i * CHUNK, CHUNK)
    shared, client = memory.share(layers(BASE, size=12 * MIB), None), Client()
    assert shared.length == 48 * MIB
    shared.add(client)
    assert [extent[3] for extent in client.extents] == [CHUNK, CHUNK, 8 * MIB] and len(client.fds) == 3


@pytest.mark.parametrize(("kind", "handles", "words"), [
    (VMM, 0, "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC=1"), (MANAGED, 1, "managed memory"), (POOL, 1, "stream-ordered")])
def test_refused(driver, kind, handles, words):
    """The second layer cannot be shared: it is named, with the reason and two remedies."""
    driver.map(VMM, BASE, 4 * MIB)
    driver.map(kind, BASE + 4 * MIB, 64 * MIB, handles)
    with pytest.raises(errors.Unsupported) as e:
        memory.share(layers(BASE, size=4 * MIB), None)
    assert all(word in str(e.value) for word in ("layer layers.1 ", words, "option 'pool'", "bounce")), str(e.value)
    assert not driver.get("retained")


def test_no_memory_of_a_gpu(driver):
    with pytest.raises(errors.Unsupported, match="there is no memory of a GPU"):
        memory.share(layers(BASE), None)
