# SPDX-License-Identifier: Apache-2.0
"""Real DMA-BUFs, of the kernel's udmabuf, and devices that do not take them: what the client is told, and what stays."""

import contextlib
import fcntl
import os
import struct

from fake_gpu import add
from harness import MIB, Actor, expect, until

UDMABUF_CREATE = 0x40187542
SIZE = 4 * MIB


@contextlib.contextmanager
def dmabuf(size=SIZE):
    """A DMA-BUF of pages of a memfd."""
    memfd = os.memfd_create("pages", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(memfd, size)
    fcntl.fcntl(memfd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    device = os.open("/dev/udmabuf", os.O_RDWR)
    fd = fcntl.ioctl(device, UDMABUF_CREATE, struct.pack("=IIQQ", memfd, 1, 0, size))
    os.close(device)
    os.close(memfd)
    try:
        yield fd
    finally:
        os.close(fd)


def held(agent):
    """DMA-BUFs that the agent has open."""
    folder = f"/proc/{agent.pid}/fd"
    n = 0
    for fd in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            n += os.readlink(f"{folder}/{fd}").startswith("/dmabuf:")
    return n


def test_devices_that_lack_it(pair):
    agent = pair.agents[0]
    with agent.client() as client, dmabuf() as fd:
        until(lambda: "up" in agent.ctl("rails"), "the rails")
        for access in ("rw", "r"):
            error = expect("unsupported", add, client, [("dmabuf", 0, 4096, 100), ("dmabuf", 0, 5000, MIB)], fds=[fd],
                           access=access)
            assert "no RDMA device takes this DMA-BUF" in str(error) and "lack DMA-BUF" in str(error), error
            assert not held(agent)
        assert "dmabuf" not in agent.ctl("regions")


def test_refusals(pair):
    agent = pair.agents[0]
    with agent.client() as client, dmabuf() as fd, dmabuf() as other:
        for kind, extents, words in [
                ("region_too_small", [("dmabuf", 0, 1, SIZE)], f"has {SIZE} bytes"),
                ("invalid", [("dmabuf", 0, 0, 100), ("dmabuf", 0, 99, 100)], "overlap"),
                ("fd_count", [("dmabuf", 1, 0, 100)], "fd_index")]:
            assert words in str(expect(kind, add, client, extents, fds=[fd]))
        # the same buffer under two descriptors
        again = os.dup(fd)
        error = expect("invalid", add, client, [("dmabuf", 0, 0, 100), ("dmabuf", 1, 50, 100)], fds=[fd, again])
        assert "overlap" in str(error)
        os.close(again)
        expect("unsupported", add, client, [("dmabuf", 0, 0, 100), ("dmabuf", 1, 50, 100)], fds=[fd, other])
        expect("region_kind", add, client, [("memfd", 0, 0, 100)], fds=[fd])
        until(lambda: not held(agent), "the descriptors")


ENGINE = """
from fake_gpu import add
from test_dmabuf import dmabuf
client = dray.Client(args["socket"])
with dmabuf() as fd:
    add(client, [("dmabuf", 0, 0, 100)], fds=[fd], wait=False)
    tell()
    hear()
"""


def test_killed_while_it_is_registered(pair):
    agent = pair.agents[0]
    for _ in range(5):
        actor = Actor(ENGINE, socket=str(agent.socket))
        actor.hear()
        actor.kill()
    until(lambda: not held(agent), "the descriptors")
    assert agent.running
