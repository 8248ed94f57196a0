# SPDX-License-Identifier: Apache-2.0
"""GPU memory where there is no GPU: files that the agent's plug-in, tests/gpu/fake.c, takes for it."""

import contextlib
import mmap
import os
import struct
import tempfile
from collections import namedtuple

from dray import _schema as s
from dray.handles import Region
from harness import BUILD, until

PLUGIN = BUILD / "tests/gpu/dray-fake-gpu.so"
Status = namedtuple("Status", "plugins started imports queues pins host_allocs held ending copies pieces bytes engine_copies "
                              "imported flushes lost illegal")


def uuid(device):
    return f"GPU-00000000-0000-4000-8000-{device:012x}"


class FakeGpus:
    """What an agent is started with to have GPUs, what it makes of them, and what happens to them."""

    def __init__(self, directory, **env):
        self.directory = directory
        self.settings = {"gpu.plugin": PLUGIN}
        self.env = {"FAKE_GPU_STATUS": str(directory / "status"), "FAKE_GPU_LOSE": str(directory / "lose"),
                    "FAKE_GPU_HOLD": str(directory / "hold"), "FAKE_GPU_HOLD_IMPORT": str(directory / "hold_import"),
                    **{f"FAKE_GPU_{k.upper()}": str(v) for k, v in env.items()}}

    @property
    def status(self):
        path = self.directory / "status"
        data = path.read_bytes() if path.exists() else b""
        size = 8 * len(Status._fields)
        return Status(*struct.unpack(f"<{len(Status._fields)}Q", data[:size].ljust(size, b"\0")))

    def lose(self, device, lost=True):
        """The device is lost, and stays so until it is told otherwise."""
        path = self.directory / f"lose{device}"
        path.touch() if lost else path.unlink()

    @contextlib.contextmanager
    def held(self, what="hold"):
        """Copies (hold) or the opening of handles (hold_import) do not come to an end meanwhile."""
        path = self.directory / what
        path.touch()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)

    def over(self):
        """The agent has ended: it gave everything back, and did nothing that a driver would not allow."""
        left = self.status
        assert left.plugins + left.started + left.imports + left.queues + left.pins + left.host_allocs == 0, left
        assert not left.illegal

    def idle(self):
        """No memory of a client is open."""
        until(lambda: not self.status.imports, "the release of GPU memory")


class GpuMemory:
    """An allocation on a device."""

    def __init__(self, size, device=0, fill=None):
        self.device, self.size = device, size
        # a file with a name, which the agent may open whoever it is
        self.fd, self.path = tempfile.mkstemp(prefix=f"fake-gpu-{device}-", dir="/dev/shm")
        os.fchmod(self.fd, 0o666)
        os.ftruncate(self.fd, size)
        self.view = memoryview(mmap.mmap(self.fd, size))
        if fill is not None:
            self.view[:len(fill)] = fill

    @property
    def ipc(self):
        """Its legacy CUDA IPC handle."""
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


def add(client, extents, *, fds=(), handles=b"", allocations=(), device="", access="rw", wait=True):
    """A region of (kind, index, offset, length)."""
    made = Region(client, access, "")
    return client.request(s.pack_region_add, fds=list(fds), convert=lambda message, _: client._adopt(made, message),
                          wait=wait, access=made.access, device=device,
                          extents=[(KINDS[kind], index, 0, offset, length) for kind, index, offset, length in extents],
                          handles=handles, allocations=[(size,) for size in allocations])


def add_vmm(client, memory, device=None, **how):
    return add(client, [("cuda_vmm", 0, 0, memory.size)], fds=[memory.fd], device=device or uuid(memory.device), **how)


def add_ipc(client, memory, device=None, **how):
    return add(client, [("cuda_ipc", 0, 0, memory.size)], handles=memory.ipc, device=device or uuid(memory.device), **how)
