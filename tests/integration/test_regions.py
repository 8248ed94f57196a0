# SPDX-License-Identifier: Apache-2.0
"""Memory that the agent must refuse, or must not trust."""

import ctypes
import fcntl
import os
import socket
import struct
import tempfile

import dray
import pytest
from wire import codec as s
from harness import BUILD, LIMIT, MIB, Side, expect, noise, same, transport, until

FALLOC_FL_PUNCH_HOLE, FALLOC_FL_KEEP_SIZE = 2, 1
libc = ctypes.CDLL(None, use_errno=True)


def punch(fd, offset, length):
    result = libc.fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, ctypes.c_long(offset), ctypes.c_long(length))
    assert result == 0, os.strerror(ctypes.get_errno())


def can_guard():
    """True if this kernel supports user-mode userfaultfd, which makes accesses to missing pages fail instead of allocating them."""
    fd = libc.syscall(323, os.O_CLOEXEC | 1)
    if fd < 0:
        return False
    # UFFDIO_API with SIGBUS, MISSING_SHMEM, MISSING_HUGETLBFS
    api = bytearray(struct.pack("=QQQ", 0xaa, 1 << 7 | 1 << 5 | 1 << 4, 0))
    try:
        fcntl.ioctl(fd, 0xc018aa3f, api)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def memfd(size=MIB, seals=fcntl.F_SEAL_SHRINK, fill=True):
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    if fill:
        os.pwrite(fd, bytes(size), 0)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def add(client, fd, size=MIB, offset=0, **how):
    try:
        return client.region([(fd, offset, size)], **how)
    finally:
        os.close(fd)


def read_only():
    fd = memfd()
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    os.close(fd)
    return again


def write_sealed():
    return memfd(seals=fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE)


@pytest.fixture
def client(agent):
    with agent.wire() as client:
        yield client
        with dray.Memory(4096) as memory:
            client.region(memory).remove()  # the session still works


def test_unsealed(client):
    expect("region_unsealed", add, client, memfd(seals=0))
    expect("region_unsealed", add, client, memfd(seals=fcntl.F_SEAL_GROW))


@pytest.mark.parametrize("offset, size", [(0, MIB + 1), (1, MIB), (MIB, 1), (2 * MIB, 4096), (0, 1 << 40)])
def test_too_small(client, offset, size):
    expect("region_too_small", add, client, memfd(), size, offset)


@pytest.mark.parametrize("offset, size", [((1 << 64) - 1, 2), ((1 << 64) - 4096, 8192), (1 << 63, 1 << 63), (4096, (1 << 64) - 1)])
def test_extent_overflows(client, offset, size):
    expect({"range", "region_too_small"}, add, client, memfd(), size, offset)


def test_extents_overflow_together(client):
    """Each extent is valid, but their sum overflows."""
    fd = memfd()
    for n in (2, 4):
        expect({"range", "region_too_small", "quota"}, client.region, [(fd, 0, (1 << 64) // n)] * n)
    os.close(fd)


def test_holes(client):
    fd = memfd(fill=False)
    expect("region_not_resident", add, client, fd)
    fd = memfd()
    punch(fd, 8192, 4096)
    region = client.region([(fd, 0, 8192), (fd, 12288, MIB - 12288)])  # beside the hole
    region.remove()
    expect("region_not_resident", client.region, [(fd, 0, MIB)])
    expect("region_not_resident", client.region, [(fd, 8191, 2)])
    os.close(fd)


def test_read_only(client, agent):
    expect("region_read_only", add, client, read_only(), access="rw")
    expect("region_read_only", add, client, read_only(), access="w")
    expect("region_read_only", add, client, write_sealed(), access="rw")
    with Side(agent, MIB) as here:
        fd = memfd()
        os.pwrite(fd, b"hello", 0)
        again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
        region = add(client, again, access="r")
        os.close(fd)
        remote = here.client.import_token(str(region.export()))
        here.client.read(here.region, remote, [(0, 0, MIB)]).result(LIMIT)
        assert here.view[:5] == b"hello"
        expect("denied", here.client.write(here.region, remote, [(0, 0, 1)]).result, LIMIT)
        expect("denied", region.export, access="rw")
        back = client.import_token(here.export())
        expect("denied", client.read(region, back, [(0, 0, 1)]).result, LIMIT)


def test_write_only(client, agent):
    with Side(agent, MIB) as here:
        region = add(client, memfd(), access="w")
        remote = here.client.import_token(str(region.export()))
        here.client.write(here.region, remote, [(0, 0, 1)]).result(LIMIT)
        expect("denied", here.client.read(here.region, remote, [(0, 0, 1)]).result, LIMIT)
        expect("denied", region.export, access="r")


def others():
    def file():
        # the temporary folder may be in memory, where a file differs from a memfd only by its seals
        with tempfile.TemporaryFile(dir=BUILD) as f:
            f.write(bytes(MIB))
            f.flush()
            return os.dup(f.fileno())

    def sock():
        with socket.socket() as x:
            return os.dup(x.fileno())

    return {"pipe": lambda: os.pipe()[0], "file": file, "socket": sock, "eventfd": lambda: os.eventfd(0),
            "zero": lambda: os.open("/dev/zero", os.O_RDWR), "directory": lambda: os.open("/", os.O_RDONLY),
            "path": lambda: os.open("/", os.O_PATH), "pidfd": lambda: os.pidfd_open(os.getpid()),
            "procfs": lambda: os.open("/proc/self/mem", os.O_RDWR)}


@pytest.mark.parametrize("name", others())
def test_not_a_memfd(client, name):
    expect("region_kind", add, client, others()[name]())


@pytest.mark.parametrize("kind, error", [(s.KIND_DMABUF, "region_kind"), (s.KIND_CUDA_IPC, "gpu_device"),
                                         (s.KIND_CUDA_VMM, "gpu_device")])
def test_other_kinds(client, kind, error):
    """A memfd is refused for every other kind; test_gpu.py tests more."""
    fd = memfd()
    expect(error, client.request, s.pack_region_add, fds=[fd], access=3, extents=[(kind, 0, 0, 0, MIB)])
    os.close(fd)


@pytest.mark.parametrize("extents, n_fds, error", [
    ([], 0, "invalid"), ([], 1, {"invalid", "fd_count"}), ([(1, 0, 0, 0, 0)], 1, {"invalid", "range"}),
    ([(1, 0, 0, 0, 4096)], 0, "fd_count"), ([(1, 0, 0, 0, 4096)], 2, "fd_count"),
    ([(1, 1, 0, 0, 4096)], 1, "fd_count"), ([(1, 65535, 0, 0, 4096)], 1, {"fd_count", "invalid"}),
    ([(5, 0, 0, 0, 4096)], 1, {"fd_count", "invalid"}), ([(5, 65535, 0, 0, 0)], 0, {"invalid", "range"}),
    ([(5, 65535, 0, 0, 4096)] * 2, 0, {"invalid", "unsupported"}),
    ([(1, 0, 0, 0, 4096), (5, 65535, 0, 0, 4096)], 1, {"invalid", "unsupported"}),
    ([(1, 0, 1, 0, 4096)], 1, "unsupported"), ([(9, 0, 0, 0, 4096)], 1, "invalid")])
def test_bad_extents(client, extents, n_fds, error):
    fds = [memfd() for _ in range(n_fds)]
    expect(error, client.request, s.pack_region_add, fds=fds, access=3, extents=extents)
    for fd in fds:
        os.close(fd)


def test_no_access(client):
    fd = memfd()
    expect("invalid", client.request, s.pack_region_add, fds=[fd], access=0, extents=[(1, 0, 0, 0, MIB)])
    expect("unsupported", client.request, s.pack_region_add, fds=[fd], access=4, extents=[(1, 0, 0, 0, MIB)])
    expect("unsupported", client.request, s.pack_region_add, fds=[fd], access=3, flags=4, extents=[(1, 0, 0, 0, MIB)])
    os.close(fd)


def test_many_extents(client):
    """The largest number of extents, from the largest number of descriptors in a message."""
    fds = [memfd(4096) for _ in range(s.FDS_MAX)]
    extents = [(fds[i % len(fds)], i // len(fds) * 100 + 3, 17) for i in range(s.EXTENTS_MAX)]
    region = client.region(extents)
    assert region.length == 17 * s.EXTENTS_MAX
    region.remove()
    for fd in fds:
        os.close(fd)


@pytest.mark.parametrize("where", ["source", "destination", "wait word", "set word"])
def test_hole_punched_later(sides, where):
    """If a client punches a hole after REGION_ADD, transfers end with region_fault, and only that session ends.

    Without userfaultfd the kernel allocates a missing page, which reads as zeros; then transfers must succeed.
    """
    here, there = sides(MIB, noise(MIB), noise(MIB, 2), wire=True)
    remote = here.reach(there)
    punch((there if where == "source" else here).memory.fd, 65536, 65536)
    how = {}
    if where == "wait word":
        how["wait_word"] = (here.region, 65536 + 4096, 1)
    if where == "set word":
        how["set_word"] = (here.region, 65536 + 4096, 1)
    at = 0 if "word" in where else 60000
    transfer = here.client.read(here.region, remote, [(at, at, 50000)], **how, deadline=LIMIT if can_guard() else 0.2)
    error = transfer.exception(LIMIT)
    if can_guard():
        assert error is not None and error.name == "region_fault", error
    elif error:
        assert error.name in ("region_fault", "deadline")
    victim = there if where == "source" else here
    if can_guard():
        until(lambda: victim.client.process() or not victim.client.connected, "the end of the faulty session")


def test_hole_in_the_source(sides):
    """A hole in the source gives region_fault, over every transport that touches the pages when it moves them.

    RDMA devices read the pages that they have pinned at the registration, so the transfer succeeds with the former bytes.
    """
    if not can_guard():
        pytest.skip("without userfaultfd, missing pages read as zeros")
    for _ in range(20):
        here, there = sides(MIB, noise(MIB, 2), wire=True)
        remote = here.reach(there)
        if sides.transport == "rdma":
            assert transport(here.client.read(here.region, remote, [(0, 0, 1)]).result(LIMIT)) == "rdma"
        punch(there.memory.fd, 65536, 65536)
        if sides.transport == "rdma":
            here.client.read(here.region, remote, [(65536, 65536, 65536)]).result(LIMIT)
            assert same(here.view[65536:131072], noise(MIB, 2)[65536:131072])
            continue
        flying = [here.client.read(here.region, remote, [(65536, 65536, 1 << shift)]) for shift in (0, 8, 16)]
        assert {t.exception(LIMIT).name for t in flying} == {"region_fault"}
        # the end of the owner's session follows
        later = until(lambda: here.client.read(here.region, remote, [(0, 0, 1)]).exception(LIMIT), "the end of the remote")
        assert later.name == "region_fault", later


def test_overlapping_extents(client):
    """Overlapping extents are accepted only in read-only regions."""
    fd = memfd()
    for extents in ([(fd, 0, 4096), (fd, 4095, 10)], [(fd, 100, 5), (fd, 0, MIB)], [(fd, 0, MIB)] * 2):
        expect("invalid", client.region, extents, access="rw")
        client.region(extents, access="r").remove()
    client.region([(fd, 4096, 4096), (fd, 0, 4096)]).remove()
    os.close(fd)


def test_file_grown_or_truncated(client):
    """The seal prevents shrinking; growing does no harm."""
    fd = memfd()
    region = client.region([(fd, 0, MIB)])
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)
    os.ftruncate(fd, 2 * MIB)
    region.remove()
    os.close(fd)


def test_same_memory_twice(client, agent):
    """Two regions and two sessions share a memfd with different access; the removal of one does not affect the others."""
    memory = dray.Memory(MIB)
    one, two = client.region(memory, access="r"), client.region(memory, access="rw")
    with agent.client() as other, Side(agent, MIB, noise(MIB)) as there:
        three = other.region(memory, access="w")
        one.remove()
        remote = client.import_token(there.export())
        client.read(two, remote, [(0, 0, 1000)]).result(LIMIT)
        two.remove()
        other.read(three, other.import_token(there.export()), [(1000, 1000, 1000)]).result(LIMIT)
        assert memory.view[:2000] == there.view[:2000]
    memory.close()


def test_region_removed_twice(client):
    memory = dray.Memory(4096)
    region = client.region(memory)
    handle = region.handle
    region.remove()
    expect("not_found", region.remove)
    expect("not_found", client.request, s.pack_region_remove, region=handle)
    memory.close()


def test_other_sessions_region(client, agent):
    """A session can remove and export only its own regions."""
    with Side(agent, MIB) as other:
        expect("not_found", client.request, s.pack_region_remove, region=other.region.handle)
        expect("not_found", client.request, s.pack_region_export, region=other.region.handle, length=1, access=1)
        expect("not_found", client.request, s.pack_region_revoke, region=other.region.handle)
        other.client.region(other.memory)
