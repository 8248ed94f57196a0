# SPDX-License-Identifier: Apache-2.0
"""GPU memory without a GPU: files that the fake plug-in (tests/gpu/fake.c) of an agent treats as GPU memory."""

import contextlib
import mmap
import os
import struct
import tempfile
from collections import namedtuple

import wire
from harness import BUILD, until
from wire import codec as s

PLUGIN = BUILD / "tests/gpu/dray-fake-gpu.so"
Status = namedtuple("Status", "plugins started imports queues pins host_allocs blocks held ending copies pieces bytes engine_copies "
                              "imported flushes lost illegal")


def uuid(device):
    return f"GPU-00000000-0000-4000-8000-{device:012x}"


class FakeGpus:
    """Fake GPUs: the settings and environment for an agent, the status of the plug-in, and faults. watched: copies follow
    the load, which busy() sets. measured: with the rates of the fake, which differ from run to run."""

    def __init__(self, directory, watched=False, measured=False, **env):
        self.directory = directory
        self.settings = {"gpu.plugin": PLUGIN, "gpu.measure": "true" if measured else "false"}
        self.env = {"FAKE_GPU_STATUS": str(directory / "status"), "FAKE_GPU_LOSE": str(directory / "lose"),
                    "FAKE_GPU_HOLD": str(directory / "hold"), "FAKE_GPU_HOLD_IMPORT": str(directory / "hold_import"),
                    "FAKE_GPU_HOLD_FREE": str(directory / "hold_free"), "FAKE_GPU_REFUSE": str(directory / "refuse"),
                    "FAKE_GPU_REFUSE_PIN": str(directory / "refuse_pin"),
                    **({"FAKE_GPU_BUSY": str(directory / "busy")} if watched else {}),
                    **{f"FAKE_GPU_{k.upper()}": str(v) for k, v in env.items()}}

    @property
    def status(self):
        path = self.directory / "status"
        data = path.read_bytes() if path.exists() else b""
        size = 8 * len(Status._fields)
        return Status(*struct.unpack(f"<{len(Status._fields)}Q", data[:size].ljust(size, b"\0")))

    def lose(self, device, lost=True):
        """Makes a device lost until lose(device, False)."""
        path = self.directory / f"lose{device}"
        path.touch() if lost else path.unlink()

    def busy(self, device, busy=True):
        """Another process computes on the device until busy(device, False)."""
        path = self.directory / f"busy{device}"
        path.touch() if busy else path.unlink()

    @contextlib.contextmanager
    def held(self, what="hold", after=0):
        """Inside the block copies (hold), the opening of handles (hold_import, once `after` are open) or the end of the agent's own memory
        (hold_free) do not finish, copies are refused (refuse), or nothing can be pinned (refuse_pin)."""
        path = self.directory / what
        path.write_bytes(bytes(after))
        try:
            yield
        finally:
            path.unlink(missing_ok=True)

    def over(self):
        """After the agent's end: checks that it released everything and made no illegal access."""
        left = self.status
        assert left.plugins + left.started + left.imports + left.queues + left.pins + left.host_allocs + left.blocks == 0, left
        assert not left.illegal

    def idle(self):
        """Waits until no memory of a client is open."""
        until(lambda: not self.status.imports, "the release of GPU memory")


class GpuMemory:
    """An allocation on a device."""

    def __init__(self, size, device=0, fill=None):
        self.device, self.size = device, size
        # a file with a name and a mode that let the agent open it under any user id
        self.fd, self.path = tempfile.mkstemp(prefix=f"fake-gpu-{device}-", dir="/dev/shm")
        os.fchmod(self.fd, 0o666)
        os.ftruncate(self.fd, size)
        self.view = memoryview(mmap.mmap(self.fd, size))
        if fill is not None:
            self.view[:len(fill)] = fill

    @property
    def ipc(self):
        """The legacy CUDA IPC handle of the allocation."""
        return b"FAKE" + self.path.encode().ljust(60, b"\0")

    def close(self):
        self.view.release()
        os.close(self.fd)
        os.unlink(self.path)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


KINDS = {name: kind for kind, name in s.KIND_NAMES.items()}


def add(client, extents, *, fds=(), handles=b"", allocations=(), device="", access="rw", flags=0, wait=True):
    """Adds a region to a session of tests/wire; extents are (kind, index, offset, length)."""
    return client.request(s.pack_region_add, fds=fds, wait=wait, access=wire.ACCESS[access], flags=flags, device=device,
                          convert=lambda m, _: wire.Region(client, m.region, m.length, access),
                          extents=[(KINDS[kind], index, 0, offset, length) for kind, index, offset, length in extents],
                          handles=handles, allocations=[(size,) for size in allocations])


def add_vmm(client, memory, device=None, **how):
    return add(client, [("cuda_vmm", 0, 0, memory.size)], fds=[memory.fd], device=device or uuid(memory.device), **how)


def add_ipc(client, memory, device=None, **how):
    return add(client, [("cuda_ipc", 0, 0, memory.size)], handles=memory.ipc, device=device or uuid(memory.device), **how)
