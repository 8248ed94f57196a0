# SPDX-License-Identifier: Apache-2.0
"""Older releases of Mooncake than the one of the other tests, in both directions over TCP."""

import os

import pytest
from dray import errors
from harness import LIMIT, MIB, noise, until
from mooncake_rig import LOOPBACK, Engine, Initiator, Local, Owner, ask_at, counter, digest, settings

# the oldest one that the registry has, the last one whose servers take one request on a connection, those before and after the status
RELEASES = ["0.3.7.post1", "0.3.9", "0.3.10.post2", "0.3.11.post1", "0.3.12.post1"]

pytestmark = pytest.mark.skipif("DRAY_LONG" not in os.environ, reason="make check-long installs older releases of Mooncake")


@pytest.fixture(params=RELEASES)
def release(request, monkeypatch):
    monkeypatch.setenv("DRAY_MOONCAKE_VERSION", request.param)
    return request.param


def has_status(release):
    return tuple(int(n) for n in release.split(".")[:3]) >= (0, 3, 12)


@pytest.mark.parametrize("pool", ["0", "1"])
def test_initiator(new_agent, release, pool):
    """The release writes and reads an agent's buffer, single and scattered pieces; a range that has ended is refused."""
    agent = new_agent(settings=settings(LOOPBACK))
    size = 8 * MIB
    with Owner(agent, size, bytes(size)) as owner, Initiator(agent, size, LOOPBACK, MC_TCP_ENABLE_CONNECTION_POOL=pool) as engine:
        content = noise(size, 1)
        for at in range(0, size, MIB):
            engine("fill", at, content[at:at + MIB].hex())
        for n in 1, 65536, 65537, size:
            assert engine("write_one", engine.target, owner.address + size - n, 0, n) == 0
            until(lambda n=n: digest(owner.view[size - n:]) == digest(content[:n]), "the bytes")  # without a status a write has no answer
        pieces = [(i * 4096, size - (i + 1) * 8192, 4096) for i in range(200)]
        assert engine("read", engine.target, owner.address, pieces) == 0
        for mine, theirs, n in pieces[::20]:
            assert engine("digest", mine, n) == digest(content[theirs:theirs + n])
        owner.region.revoke(owner.token)
        before = digest(owner.view)
        if has_status(release):
            assert engine("write_one", engine.target, owner.address, 0, 4096) != 0
        assert engine("read_one", engine.target, owner.address, 0, 4096) != 0
        assert digest(owner.view) == before


def test_target(new_agent, release):
    """A client writes and reads memory of the release; memory that it has not registered is refused; it is killed."""
    agent = new_agent(settings={"mooncake.import": "true", "mooncake.allow": "127.0.0.0/8", "peer.connect_timeout": "500ms"})
    size = 8 * MIB
    with Engine(agent, size) as engine, Local(agent, engine.endpoint, size, noise(size, 2)) as local:
        shown = ask_at(agent, engine.endpoint)
        assert ("tcp_proto_version" in shown) == has_status(release), shown
        want = bytes(local.view)
        local.write([(0, engine.base, size)]).result(LIMIT)
        assert engine("digest", 0, size) == digest(want)
        local.view[:] = bytes(size)
        local.read([(0, engine.base, size)]).result(LIMIT)
        assert digest(local.view) == digest(want)
        pages = [(i * 4096, engine.base + size - (i + 1) * 8192, 4096) for i in range(200)]
        local.read(pages, klass="latency").result(LIMIT)
        for mine, theirs, n in pages[::20]:
            assert local.view[mine:mine + n] == want[theirs - engine.base:][:n]
        with pytest.raises(errors.Range):
            local.read([(0, engine.base + size, 1)]).result(LIMIT)
        engine.process.kill()
        with pytest.raises(errors.PeerLost):
            local.read([(0, engine.base, size)], deadline=LIMIT).result(2 * LIMIT)
        until(lambda: not counter(agent, "engines"), "the end of the engine")
