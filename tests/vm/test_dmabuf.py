# SPDX-License-Identifier: Apache-2.0
"""Real DMA-BUFs, and devices that cannot register them: the client's error, and released descriptors."""

import contextlib
import fcntl
import os
import pathlib
import struct
import subprocess

from fake_gpu import add
from harness import MIB, Actor, expect, until

SIZE = 4 * MIB
CREATE_DUMB, PRIME_HANDLE_TO_FD = 0xc02064b2, 0xc00c642d


@contextlib.contextmanager
def dmabuf(flags=os.O_RDWR):
    """A DMA-BUF of SIZE bytes, from the kernel's virtual graphics device (vgem)."""
    subprocess.run(["modprobe", "vgem"], check=True)
    device = until(lambda: next((p for p in pathlib.Path("/dev/dri").glob("card*")), None), "the device")
    card = os.open(device, os.O_RDWR)
    # in: height, width, bits and flags; out: handle, pitch and size
    made = bytearray(struct.pack("=IIIIIIQ", 1, SIZE // 4, 32, 0, 0, 0, 0))
    fcntl.ioctl(card, CREATE_DUMB, made)
    handle, _, size = struct.unpack_from("=IIQ", made, 16)
    assert size == SIZE
    asked = bytearray(struct.pack("=IIi", handle, os.O_CLOEXEC | flags, -1))
    fcntl.ioctl(card, PRIME_HANDLE_TO_FD, asked)
    os.close(card)
    fd, = struct.unpack_from("=i", asked, 8)
    try:
        yield fd
    finally:
        os.close(fd)


def held(agent):
    """Number of DMA-BUFs that the agent has open."""
    folder = f"/proc/{agent.pid}/fd"
    n = 0
    for fd in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            n += os.readlink(f"{folder}/{fd}").startswith("/dmabuf:")
    return n


def test_devices_without_dmabuf(pair):
    agent = pair.agents[0]
    with agent.wire() as client, dmabuf() as fd:
        until(lambda: "up" in agent.ctl("rails"), "the rails")
        for access in ("rw", "r"):
            error = expect("unsupported", add, client, [("dmabuf", 0, 4096, 100), ("dmabuf", 0, 5000, MIB)], fds=[fd],
                           access=access)
            assert "no RDMA device can register this DMA-BUF" in str(error) and "lack DMA-BUF" in str(error), error
            until(lambda: not held(agent), "the descriptors")
        assert "dmabuf" not in agent.ctl("regions")


def test_refusals(pair):
    agent = pair.agents[0]
    with agent.wire() as client, dmabuf() as fd, dmabuf() as other:
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
        with dmabuf(os.O_RDONLY) as only:
            expect("region_read_only", add, client, [("dmabuf", 0, 0, 100)], fds=[only])
            expect("unsupported", add, client, [("dmabuf", 0, 0, 100)], fds=[only], access="r")
        until(lambda: not held(agent), "the descriptors")


ENGINE = """
from fake_gpu import add
from test_dmabuf import dmabuf
import wire
client = wire.Client(args["socket"])
with dmabuf() as fd:
    add(client, [("dmabuf", 0, 0, 100)], fds=[fd], wait=False)
    tell()
    hear()
"""


def test_client_killed_during_registration(pair):
    agent = pair.agents[0]
    for _ in range(5 if "DRAY_LONG" in os.environ else 2):
        actor = Actor(ENGINE, socket=str(agent.socket))
        actor.hear()
        actor.kill()
    until(lambda: not held(agent), "the descriptors")
    assert agent.running
