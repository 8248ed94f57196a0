# SPDX-License-Identifier: Apache-2.0
"""Regions of GPU memory that are used before all of their allocations are open."""

import ctypes
import signal

import dray
import pytest
import wire
from dray import _library as lib
from wire import codec as s
from fake_gpu import FakeGpus, GpuMemory, add, add_ipc, add_vmm, uuid
from harness import LIMIT, MIB, expect, noise, until
from test_gpu import gpu_agent, metric  # noqa: F401: a fixture
from test_owners import tenants

EARLY = {"features": s.FEATURE_REGION_EARLY}


def two(client, first, second, **how):
    """A region of two allocations, in their order."""
    return add(client, [("cuda_ipc", 0, 0, first.size), ("cuda_ipc", 1, 0, second.size)], handles=first.ipc + second.ipc, device=uuid(0), **how)


def host(client, size, fill=None):
    """Host memory, and a remote of it at this agent."""
    memory = dray.Memory(size)
    if fill:
        memory.view[:len(fill)] = fill
    return memory, client.import_token(str(client.region(memory).export()), timeout=LIMIT)


def lost(client, region):
    event = client.next_event(s.RegionLost, LIMIT)
    assert event.region == region.handle
    return event


def copy_of_lost_region(gpus, owner, mover, memory, remote):
    """A copy under way in the first allocation of a region that is lost, because its second one cannot be opened."""
    with gpus.held("hold_import", after=1):
        region = add(owner, [("cuda_ipc", 0, 0, MIB), ("cuda_ipc", 1, 0, MIB)], handles=memory.ipc + bytes(64), device=uuid(0))
        transfer = mover.write(region, remote, [(0, 0, MIB)])
        until(lambda: gpus.status.held, "a copy under way")
    lost(owner, region)
    assert gpus.status.imports == 1 and not transfer.ended
    return region, transfer


def test_answered_before_the_memory_is_open(gpu_agent):  # noqa: F811
    """Transfers and exports wait, and go on when the memory is open."""
    agent, gpus = gpu_agent()
    with agent.wire(**EARLY) as client, GpuMemory(MIB, 0, noise(MIB)) as memory:
        target, remote = host(client, MIB)
        with gpus.held("hold_import"):
            region = add_vmm(client, memory)
            assert "opening" in agent.ctl("regions")
            transfers = [client.write(region, remote, [(at, at, 512)]) for at in range(0, MIB, 512)]
            export = region.export(wait=False)
            # the agent has taken all of them
            client.region(dray.Memory(4096)).remove()
            assert not export.ended and not any(t.ended for t in transfers)
            assert "waiting" in agent.ctl("transfers")
        for transfer in transfers:
            transfer.result(LIMIT)
        assert target.view == memory.view
        client.import_token(str(export.result(LIMIT)), timeout=LIMIT).release()
        region.remove()
    gpus.idle()


@pytest.mark.parametrize("via", ["inline", "arena", "ring"])
def test_transfer_waits_for_its_own_allocation(gpu_agent, via):  # noqa: F811
    agent, gpus = gpu_agent()
    with agent.wire(**EARLY) as client, GpuMemory(MIB, 0, noise(MIB)) as a, GpuMemory(MIB, 0, noise(MIB, 2)) as b:
        target, remote = host(client, 2 * MIB)
        with gpus.held("hold_import", after=1):
            region = two(client, a, b)
            client.write(region, remote, [(0, 0, MIB)], via=via).result(LIMIT)
            assert target.view[:MIB] == a.view
            both = client.write(region, remote, [(MIB - 1, MIB - 1, 2), (MIB, MIB, MIB)], via=via)
            cancelled = client.write(region, remote, [(MIB, MIB, 1)], via=via)
            late = client.write(region, remote, [(MIB, MIB, 1)], deadline=0.001, via=via)
            expect("deadline", late.result, LIMIT)
            cancelled.cancel()
            expect("cancelled", cancelled.result, LIMIT)
            client.write(region, remote, [(0, 0, 1)], via=via).result(LIMIT)
            assert not both.ended
        both.result(LIMIT)
        assert target.view[MIB:] == b.view


@pytest.mark.parametrize("via", ["inline", "arena", "ring"])
def test_waiting_transfers_are_limited(gpu_agent, via):  # noqa: F811
    """Transfers that wait for memory count in limits.waiting_transfers, as those that wait for a word, until they go on."""
    agent, gpus = gpu_agent({"limits.waiting_transfers": 4, "limits.waiting_transfers_per_owner": 3})
    with agent.wire(**EARLY) as client, GpuMemory(MIB, 0, noise(MIB)) as memory:
        target, remote = host(client, MIB)
        with gpus.held("hold_import"):
            region = add_vmm(client, memory)
            waiting = [client.write(region, remote, [(at, at, 512)], via=via) for at in range(0, 3 * 512, 512)]
            expect("busy", client.write(region, remote, [(0, 0, MIB)], via=via).result, LIMIT)
            waiting.pop().cancel()
            waiting.append(client.write(region, remote, [(0, 0, MIB)], via=via))
            expect("busy", client.write(region, remote, [(0, 0, MIB)], via=via).result, LIMIT)
        for transfer in waiting:
            transfer.result(LIMIT)
        assert target.view == memory.view
        for _ in range(4):
            client.write(region, remote, [(0, 0, MIB)], via=via).result(LIMIT)
        rows = [row for row in agent.ctl("quotas", "--json")["quotas"] if row["resource"] == "waiting_transfers"]
        assert [(row["used"], row["refused"]) for row in rows if row["tenant"] == "default"] == [(0, 2)], rows


def test_owners_take_turns(lab, new_agent):
    """The memory of an owner that registers many regions does not hold up another owner's: each has one region opened at a time."""
    gpus = FakeGpus(lab.directory("gpus"))
    agent, _ = tenants(new_agent, "many", "one", env=gpus.env, settings=gpus.settings)
    many, one = (wire.Client(agent.directory / f"{name}.sock", timeout=LIMIT, **EARLY) for name in ("many", "one"))
    with many, one, GpuMemory(MIB, 0, noise(MIB)) as memory:
        target, remote = host(one, MIB)
        with gpus.held("hold_import"):
            for _ in range(4):
                add_ipc(many, memory)
            region = add_ipc(one, memory)
            # the next two handles are opened
            (gpus.directory / "hold_import").write_bytes(bytes(2))
            one.write(region, remote, [(0, 0, MIB)]).result(LIMIT)
            assert target.view == memory.view and gpus.status.imports == 2
    gpus.idle()


def test_wait_word_and_memory(gpu_agent):  # noqa: F811
    """A transfer that waits for a word and for memory starts when it has both, whichever comes first."""
    agent, gpus = gpu_agent()
    with agent.wire(**EARLY) as client, GpuMemory(MIB, 0, noise(MIB)) as memory:
        target, remote = host(client, MIB)
        words = dray.Memory(4096)
        word = client.region(words)
        with gpus.held("hold_import"):
            region = add_vmm(client, memory)
            first, second = (client.write(region, remote, [(at, at, MIB // 2)], wait_word=(word, n * 4, 1)) for n, at in enumerate((0, MIB // 2)))
            words.view[:4] = (1).to_bytes(4, "little")
            client.region(dray.Memory(4096)).remove()
            assert not first.ended
        first.result(LIMIT)
        assert not second.ended
        words.view[4:8] = (1).to_bytes(4, "little")
        second.result(LIMIT)
        assert target.view == memory.view


def test_wait_flag(gpu_agent):  # noqa: F811
    """The answer comes when the memory is open, and is the reason if it cannot be opened. So it is for clients without the feature."""
    agent, gpus = gpu_agent()
    for features, flags in ((s.FEATURE_REGION_EARLY, s.REGION_FLAG_WAIT), (0, 0), (0, s.REGION_FLAG_WAIT)):
        with agent.wire(features=features) as client, GpuMemory(MIB) as memory:
            with gpus.held("hold_import"):
                adding = add_vmm(client, memory, flags=flags, wait=False)
                client.region(dray.Memory(4096)).remove()
                assert not adding.ended
            adding.result(LIMIT).remove()
            expect("gpu_handle", add, client, [("cuda_ipc", 0, 0, 1)], handles=bytes(64), device=uuid(0), flags=flags)
            assert "opening" not in agent.ctl("regions") and "lost" not in agent.ctl("regions")


def test_memory_that_cannot_be_opened(gpu_agent):  # noqa: F811
    """The region is lost with the reason; its transfers and requests end, also those that wait."""
    agent, gpus = gpu_agent()
    with agent.wire(**EARLY) as client, GpuMemory(MIB, 0, noise(MIB)) as a:
        target, remote = host(client, 2 * MIB)
        with gpus.held("hold_import", after=1):
            region = add(client, [("cuda_ipc", 0, 0, MIB), ("cuda_ipc", 1, 0, MIB)], handles=a.ipc + bytes(64), device=uuid(0))
            waiting = client.write(region, remote, [(MIB, 0, 1)])
            export = region.export(wait=False)
            client.write(region, remote, [(0, 0, MIB)]).result(LIMIT)
        event = lost(client, region)
        assert event.code == s.E_GPU_HANDLE and "handle" in event.message
        expect("gpu_handle", waiting.result, LIMIT)
        expect("gpu_handle", export.result, LIMIT)
        expect("gpu_handle", region.export)
        expect("gpu_handle", lambda: client.write(region, remote, [(0, 0, 1)]).result(LIMIT))
        until(lambda: not gpus.status.imports, "the release of the allocation that was open")
        assert agent.ctl("regions").count("lost") == 1 and target.view[:MIB] == a.view
        region.remove()
        assert "lost" not in agent.ctl("regions")
        add_ipc(client, a).remove()


def test_copies_end_before_open_allocations_are_closed(gpu_agent):  # noqa: F811
    """An allocation that cannot be opened ends the region, but not under a copy that uses another one."""
    agent, gpus = gpu_agent()
    with agent.wire(**EARLY) as client, GpuMemory(MIB, 0, noise(MIB)) as a:
        target, remote = host(client, MIB)
        with gpus.held():
            region, transfer = copy_of_lost_region(gpus, client, client, a, remote)
        expect("gpu_handle", transfer.result, LIMIT)
        gpus.idle()
        region.remove()


@pytest.mark.parametrize("how", ["no device", "no plug-in", "device does not start", "too small"])
def test_reasons(gpu_agent, how):  # noqa: F811
    """What is known at once refuses the request; else the event has the reason."""
    settings = {"gpu.plugin": "/nowhere/dray-cuda.so"} if how == "no plug-in" else {}
    agent, gpus = gpu_agent(settings, **({"fail": "start"} if how == "device does not start" else {}))
    kind, word = {"no device": ("gpu_device", "does not see"), "no plug-in": ("unsupported", "nowhere"),
                  "device does not start": ("no_memory", ""), "too small": ("region_too_small", "")}[how]
    with agent.wire(**EARLY) as client, GpuMemory(MIB) as memory:
        for _ in range(2):
            try:
                region = add(client, [("cuda_vmm", 0, 0, MIB + (how == "too small"))], fds=[memory.fd], device=uuid(9 if how == "no device" else 0))
            except wire.Error as error:
                code, text = error.code, str(error)
            else:
                event = lost(client, region)
                code, text = event.code, event.message
                region.remove()
            assert code == getattr(s, f"E_{kind.upper()}") and word in text, text
        assert "lost" not in agent.ctl("regions")


def test_removed_while_it_opens(gpu_agent):  # noqa: F811
    """REGION_REMOVE ends waiting transfers and requests, and is answered when the call of the driver has returned."""
    agent, gpus = gpu_agent()
    with agent.wire(**EARLY) as client, GpuMemory(MIB) as a, GpuMemory(MIB) as b:
        target, remote = host(client, 2 * MIB)
        with gpus.held("hold_import", after=1):
            region = two(client, a, b)
            until(lambda: gpus.status.imports == 1, "the first allocation")
            waiting = client.write(region, remote, [(MIB, 0, 1)])
            export = region.export(wait=False)
            removal = region.remove(wait=False)
            expect("cancelled", waiting.result, LIMIT)
            client.region(dray.Memory(4096)).remove()
            expect("not_found", export.result, LIMIT)
            assert not removal.ended
        removal.result(LIMIT)
        assert not gpus.status.imports and not client.events
        assert metric(agent, "dray_regions") == 1


@pytest.mark.parametrize("how", ["close", "drain", "lose"])
def test_ends_while_it_opens(gpu_agent, how):  # noqa: F811
    agent, gpus = gpu_agent()
    with agent.wire() as other, GpuMemory(MIB) as a, GpuMemory(MIB) as b:
        client = agent.wire(**EARLY)
        target, remote = host(client, 2 * MIB)
        with gpus.held("hold_import", after=1):
            region = two(client, a, b)
            waiting = client.write(region, remote, [(MIB, 0, 1)])
            export = region.export(wait=False)
            if how == "close":
                client.close(timeout=0.2)
                # other sessions are served meanwhile
                other.region(dray.Memory(MIB)).remove()
            elif how == "drain":
                agent.ctl("drain", "--stay")
            else:
                gpus.lose(0)
        if how == "close":
            gpus.idle()
            until(lambda: "opening" not in agent.ctl("regions"), "the end of the opening region")
            return
        if how == "drain":
            waiting.result(LIMIT)
            expect("draining", export.result, LIMIT)
        else:
            assert lost(client, region).code == s.E_GPU_LOST
            expect("gpu_lost", waiting.result, LIMIT)
            expect("gpu_lost", export.result, LIMIT)
            gpus.idle()
            gpus.lose(0, lost=False)
        region.remove()
        client.close()


def test_device_is_lost_while_an_allocation_opens(gpu_agent):  # noqa: F811
    """The region is lost at once, although the driver still opens one of its allocations."""
    agent, gpus = gpu_agent()
    with agent.wire(**EARLY) as client, GpuMemory(MIB) as a, GpuMemory(MIB) as b:
        target, remote = host(client, 2 * MIB)
        with gpus.held("hold_import", after=1):
            region = two(client, a, b)
            client.write(region, remote, [(0, 0, MIB)]).result(LIMIT)
            waiting = client.write(region, remote, [(MIB, 0, 1)])
            export = region.export(wait=False)
            gpus.lose(0)
            expect("gpu_lost", client.write(region, remote, [(0, 0, MIB)]).result, LIMIT)
            assert lost(client, region).code == s.E_GPU_LOST
            expect("gpu_lost", waiting.result, LIMIT)
            expect("gpu_lost", export.result, LIMIT)
            removal = region.remove(wait=False)
            client.region(dray.Memory(4096)).remove()
            assert not removal.ended
        removal.result(LIMIT)
        gpus.idle()
        gpus.lose(0, lost=False)
        add_vmm(client, a).remove()


def test_session_ends_while_a_lost_region_is_used(gpu_agent):  # noqa: F811
    """A transfer of another member goes on when the region is lost, and ends at once when the session that owns the region ends."""
    agent, gpus = gpu_agent()
    with agent.wire(group="g") as member, GpuMemory(MIB) as a:
        target, remote = host(member, MIB)
        owner = agent.wire(group="g", **EARLY)
        with gpus.held():
            _, transfer = copy_of_lost_region(gpus, owner, member, a, remote)
            owner.close(timeout=0.2)
            expect("gpu_handle", transfer.result, LIMIT)
            assert gpus.status.imports == 1
        gpus.idle()


def test_many_requests_wait(gpu_agent):  # noqa: F811
    """A session's requests that wait for regions have a limit of bytes. Each goes on when its own region is open."""
    agent, gpus = gpu_agent()
    ranges = [s.Range(at, 1, 1, 1) for at in range(0, 8192, 2)]

    def lease(region, wait):
        return region.client.request(s.pack_lease, wait=wait, region=region.handle, access=s.ACCESS_READ, holders=1, expiry_ms=60000, ranges=ranges)

    with agent.wire(**EARLY) as client, GpuMemory(MIB) as a, GpuMemory(MIB) as b:
        with gpus.held("hold_import", after=1):
            first, second = add_ipc(client, a), add_ipc(client, b)
            early, late = first.export(wait=False), second.export(wait=False)
            early.result(LIMIT)
            waiting = []
            while not (waiting and waiting[-1].ended):
                waiting.append(lease(second, wait=False))
                client.region(dray.Memory(4096)).remove()
            expect("busy", waiting.pop().result, LIMIT)
            assert waiting and not late.ended and not any(w.ended for w in waiting)
        for request in (late, *waiting):
            request.result(LIMIT)
        lease(second, wait=True)


def test_group_members_wait(gpu_agent):  # noqa: F811
    """Another session of the group exports the region: its request waits, too, and a session that ends meanwhile is no matter."""
    agent, gpus = gpu_agent()
    with agent.wire(group="g", **EARLY) as client, agent.wire(group="g") as member, agent.wire(group="g") as leaver, GpuMemory(MIB) as memory:
        with gpus.held("hold_import"):
            region = add_vmm(client, memory)
            asked = dict(region=region.handle, length=MIB, access=s.ACCESS_READ, wait=False)
            export, left = member.request(s.pack_region_export, **asked), leaver.request(s.pack_region_export, **asked)
            leaver.close(timeout=0.2)
            client.region(dray.Memory(4096)).remove()
            assert not export.ended
        assert export.result(LIMIT).token
        del left


class Described(dray.cuda.Extents):
    """Allocations of the fake driver, as the package describes those of a real one."""

    def __init__(self, *handles):
        self.device, self._records = uuid(0), lambda: [
            lib.Extent(kind=s.KIND_CUDA_IPC, fd=-1, length=MIB, handle=ctypes.cast(ctypes.c_char_p(handle), ctypes.c_void_p)) for handle in handles]
        self.handles = handles


def test_client_library(gpu_agent):  # noqa: F811
    """With wait=False a region is there before its memory is open, and RegionLost has the reason if it cannot be opened."""
    agent, gpus = gpu_agent()
    with dray.Client(agent.socket, timeout=LIMIT) as client, GpuMemory(MIB, 0, noise(MIB)) as memory:
        target = dray.Memory(MIB)
        remote = client.import_token(client.region(target).export())
        with gpus.held("hold_import"):
            region = client.region(Described(memory.ipc), wait=False).result(LIMIT)
            moved = client.write(region, remote, [(0, 0, MIB)])
        moved.result(LIMIT)
        assert target.view == memory.view
        region.remove()
        with pytest.raises(dray.errors.GpuHandle):
            client.region(Described(memory.ipc, b"x" * 64))
        with gpus.held("hold_import", after=1):
            region = client.region(Described(memory.ipc, b"x" * 64), wait=False).result(LIMIT)
            waiting = client.write(region, remote, [(MIB, 0, 1)])
        with pytest.raises(dray.errors.GpuHandle):
            waiting.result(LIMIT)
        event = client.next_event(timeout=LIMIT)
        assert isinstance(event, dray.RegionLost) and event.region is region and isinstance(event.error, dray.errors.GpuHandle)
        region.remove()
    gpus.idle()


def test_agent_ends_while_it_opens(gpu_agent):  # noqa: F811
    """A drain ends the agent when the call of the driver has returned; the fixture checks that nothing is open then."""
    agent, gpus = gpu_agent()
    with agent.wire(**EARLY) as client, GpuMemory(MIB) as memory:
        add_vmm(client, memory).remove()
        with gpus.held("hold_import"):
            region = add_vmm(client, memory)
            export = region.export(wait=False)
            client.region(dray.Memory(4096)).remove()
            agent.signal(signal.SIGTERM)
            # else the call may return before the agent looks at the signal
            until(lambda: "closing: the agent stops" in agent.text(), "the end of the session")
        with pytest.raises(wire.Error):
            export.result(LIMIT)
        assert agent.wait() == 0
