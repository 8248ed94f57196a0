# SPDX-License-Identifier: Apache-2.0
"""GPU memory of the owner over Soft-RoCE: no device registers it, so the importer reaches it through a window of the owner."""

import contextlib

import dray
import pytest
from conftest import listed, up
from fake_gpu import GpuMemory, add_vmm
from gpu_pair import SIZE, GpuPair, engine_killed, scattered_both_ways
from harness import LIMIT, MIB, Actor, noise, same, transport, until
from wire import codec as s


@pytest.fixture(scope="module")
def window_pair(rdma_lab):
    made = GpuPair(rdma_lab, agent__workers=2)
    yield made
    made.stop()


def counters(agent):
    return agent.ctl("status", "--json")["counters"]


def gpu_region(client, stack, size=SIZE, seed=1):
    memory = stack.enter_context(GpuMemory(size, 0, noise(size, seed)))
    return memory, add_vmm(client, memory)


def host_region(client, stack, size=SIZE, seed=3):
    memory = stack.enter_context(dray.Memory(size))
    memory.view[:] = noise(size, seed)
    return memory, client.region(memory)


class Ends:
    """Memory of both sides, the owner's on a GPU, and a remote. Transfers use rdma."""

    def __init__(self, pair, stack, local="gpu"):
        here, there = pair.agents
        self.client, self.owner = stack.enter_context(here.wire()), stack.enter_context(there.wire(notifications=True))
        self.far, self.exported = gpu_region(self.owner, stack, seed=2)
        self.near, self.region = (gpu_region if local == "gpu" else host_region)(self.client, stack)
        self.remote = self.client.import_token(str(self.exported.export()), timeout=LIMIT)
        until(lambda: transport(self.move("write", (SIZE - 64, SIZE - 64, 64))) == "rdma", "the window")

    def move(self, direction, *ops):
        return self.client.transfer(direction, self.region, self.remote, list(ops)).result(LIMIT)


@pytest.fixture
def ends(window_pair):
    with contextlib.ExitStack() as stack:
        yield lambda local="gpu", pair=window_pair: Ends(pair, stack, local)


@pytest.mark.parametrize("local", ["host", "gpu"])
@pytest.mark.parametrize("direction", ["write", "read"])
def test_one_operation(window_pair, ends, direction, local):
    e = ends(local)
    assert not any(": registered" in r["rdma"] for r in listed(window_pair.agents[1], "regions"))
    src, dst = (e.near, e.far) if direction == "write" else (e.far, e.near)
    size = SIZE - 12345
    op = (1, 3, size) if direction == "write" else (3, 1, size)
    before = [counters(a) for a in window_pair.agents]
    done = e.move(direction, op)
    after = [counters(a) for a in window_pair.agents]
    assert transport(done) == "rdma"
    assert same(dst.view[3:3 + size], src.view[1:1 + size])
    rows = window_pair.agents[0].ctl("transfers", "--recent", "--json")["ended_transfers"]
    assert [(r["transport"], r["gpu_path"]) for r in rows if r["bytes"] == size][-1:] == [("rdma", "staged")], rows
    moved = [{k: b[k] - a[k] for k in a} for a, b in zip(before, after)]
    name = "dray_rdma_sent_bytes_total" if direction == "write" else "dray_rdma_received_bytes_total"
    assert moved[0][name] == size
    assert [m["dray_gpu_staged_bytes_total"] for m in moved] == [size if local == "gpu" else 0, size]
    assert after[1]["dray_gpu_window_bytes"] == 16 * MIB and not after[0]["dray_gpu_window_bytes"]


@pytest.mark.parametrize("local", ["host", "gpu"])
def test_scattered_both_ways(ends, local):
    e = ends(local)
    scattered_both_ways(e.client, e.region, e.near, e.remote, e.far, back_class="latency")


def test_notified(ends):
    """When a notification comes, the bytes are in GPU memory."""
    e = ends("host")
    for i in range(8):
        at = i * 65536
        done = e.client.write(e.region, e.remote, [(at, at, 65536)], notify=(i, b"")).result(LIMIT)
        assert transport(done) == "rdma"
        assert e.owner.next_event(s.Notification, LIMIT).tag == i
        assert e.far.view[at:at + 65536] == e.near.view[at:at + 65536]


def test_host_memory_does_not_use_the_window(ends):
    """Host memory that no device can register does not use the window but the next transport."""
    e = ends("host")
    with dray.Memory(SIZE) as far:
        far.view[:] = noise(SIZE, 7)
        exported = e.owner.region(far, access="r")
        remote = e.client.import_token(str(exported.export()), timeout=LIMIT)
        for _ in range(2):
            done = e.client.read(e.region, remote, [(0, 0, SIZE)]).result(LIMIT)
            assert transport(done) == "tcp"
            assert same(e.near.view, far.view)
            e.near.view[:] = bytes(SIZE)
        exported.remove()
    assert transport(e.move("write", (0, 0, SIZE))) == "rdma"


# --- ends -------------------------------------------------------------------------------------------------------

def balanced(agent):
    """True if each accepted transfer has ended exactly once."""
    c = counters(agent)
    ended = sum(c[f"dray_transfers_{how}_total"] for how in ("done", "failed", "cancelled"))
    return c["dray_transfers_accepted_total"] == ended and not c["dray_transfers_in_flight"]


def names(transfers):
    return {t.exception(LIMIT).name if t.exception(LIMIT) else "ok" for t in transfers}


@pytest.mark.parametrize("direction", ["write", "read"])
def test_revoked_during_transfers(window_pair, ends, direction):
    """REVOKE is answered when no copy is in flight; no byte arrives after the answer."""
    e = ends("host")
    here, there = window_pair.agents
    with window_pair.gpus[1].held():
        moved = [e.client.transfer(direction, e.region, e.remote, [(0, 0, SIZE)]) for _ in range(4)]
        until(lambda: window_pair.gpus[1].status.held, "a copy at the owner")
        answer = e.exported.revoke(wait=False)
        assert not answer.done()
    answer.result(LIMIT)
    e.far.view[:] = bytes(SIZE)
    assert names(moved) <= {"revoked", "not_found"}
    until(lambda: balanced(here), "the end of the transfers")
    assert not any(e.far.view), "bytes landed after the revocation was answered"


def test_cancelled_during_transfers(window_pair, ends):
    e = ends("gpu")
    with window_pair.gpus[1].held():
        moved = [e.client.write(e.region, e.remote, [(0, 0, SIZE)]) for _ in range(2)]
        until(lambda: window_pair.gpus[1].status.held, "a copy at the owner")
        answers = [t.cancel(wait=False) for t in moved]
    for a in answers:
        a.result(LIMIT)
    assert names(moved) <= {"cancelled"}
    until(lambda: balanced(window_pair.agents[0]), "the end of the transfers")
    assert transport(e.move("write", (0, 0, SIZE))) == "rdma"


OWNER = """
import wire
from fake_gpu import GpuMemory, add_vmm
client = wire.Client(args["socket"])
with GpuMemory(args["size"]) as memory:
    tell(str(add_vmm(client, memory).export()))
    hear()
"""


@pytest.mark.parametrize("direction", ["write", "read"])
def test_owners_session_killed(window_pair, ends, direction):
    """When the owner's client is killed, each transfer ends exactly once, its memory is closed, and other transfers use the window."""
    here, there = window_pair.agents
    e = ends("host")
    with Actor(OWNER, socket=str(there.socket), size=SIZE) as owner:
        remote = e.client.import_token(owner.hear(), timeout=LIMIT)
        moved = [e.client.transfer(direction, e.region, remote, [(0, 0, SIZE)]) for _ in range(8)]
        moved[0].result(LIMIT)
        owner.kill()
        assert names(moved[1:]) <= {"ok", "revoked", "not_found"}
    until(lambda: balanced(here), "the end of the transfers")
    until(lambda: window_pair.gpus[1].status.imports == 1, "the release of GPU memory")
    assert transport(e.move(direction, (0, 0, SIZE))) == "rdma"
    assert same(e.near.view, e.far.view)


def test_importers_session_killed(window_pair, ends):
    """When the importer's client is killed, its transfers end at the owner too, and other transfers use its buffers."""
    here, there = window_pair.agents
    e = ends("host")
    for _ in range(2):
        engine_killed(window_pair, str(e.exported.export()))
    until(lambda: balanced(here), "the end of the transfers")
    e.exported.revoke()


def test_rail_lost(window_pair, ends):
    """Transfers continue over TCP without a wrong byte, and use the window again when the rail is back."""
    e = ends("host")
    moved = [e.client.write(e.region, e.remote, [(0, 0, SIZE)], deadline=120) for _ in range(6)]
    moved[0].result(LIMIT)
    window_pair.rail.link(False)
    try:
        assert names(moved) == {"ok"}
        assert same(e.near.view, e.far.view)
        assert transport(e.move("read", (0, 0, SIZE))) == "tcp"
    finally:
        window_pair.rail.link(True)
    until(lambda: transport(e.move("write", (0, 0, 64))) == "rdma", "the rail's return")


def test_owners_agent_killed(rdma_lab):
    """Each transfer ends exactly once, and the restarted agent gives another window."""
    pair = GpuPair(rdma_lab, agent__workers=2)
    here, there = pair.agents
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(here.wire())
        near, region = gpu_region(client, stack)
        for again in range(2):
            with contextlib.ExitStack() as far_stack:
                owner = there.wire()
                far, exported = gpu_region(owner, far_stack, seed=2)
                remote = client.import_token(str(exported.export()), timeout=LIMIT)
                move = lambda *op: client.write(region, remote, [op]).result(LIMIT)  # noqa: E731
                until(lambda: transport(move(0, 0, 64)) == "rdma", "the window")
                if again:
                    assert transport(move(0, 0, SIZE)) == "rdma"
                    assert same(near.view, far.view)
                    owner.close()
                    break
                moved = [client.transfer(d, region, remote, [(0, 0, SIZE)], deadline=120)
                         for _ in range(8) for d in ("write", "read")]
                moved[0].result(LIMIT)
                there.kill()
                assert names(moved) <= {"ok", "peer_lost", "peer_unreachable", "incarnation"}
                until(lambda: balanced(here), "the end of the transfers")
                (pair.gpus[1].directory / "status").unlink()
                there.start()
                until(lambda: len(up(there)) == 1, "the rail")
    pair.stop()
