# SPDX-License-Identifier: Apache-2.0
"""Regions of GPU memory: registration, refusals, and release at the end of a session or device."""

import contextlib
import os
from functools import partial

import dray
import pytest
import wire
from wire import codec as s
from conftest import PAIR_SETTINGS
from fake_gpu import FakeGpus, GpuMemory, add, add_ipc, add_vmm, uuid
from harness import LIMIT, MIB, WORKERS, Actor, counters, expect, noise, transport, until
from test_http import ask, with_http


@pytest.fixture
def gpu_agent(lab, new_agent):
    """Makes agents with fake GPUs for one test; after an agent's end the fake driver must hold nothing of it."""
    made = []

    def make(settings=(), **env):
        gpus = FakeGpus(lab.directory("gpus"), **env)
        agent = with_http(new_agent, lab, env=gpus.env, settings={**gpus.settings, **dict(settings)})
        made.append((agent, gpus))
        return agent, gpus

    yield make
    for agent, gpus in made:
        agent.stop()
        gpus.over()


def metric(agent, name):
    return next(int(line.split()[1]) for line in ask(agent, "/metrics")[2].splitlines() if line.startswith(name + " "))


def log_has(agent, *texts):
    return until(lambda: next((line for line in agent.text().splitlines() if all(t in line for t in texts)), None),
                 f"a log line with {texts}")


def copies(client, here, there, size, seed=3):
    """A transfer between two regions that a GPU must carry out; the caller compares the bytes."""
    remote = client.import_token(str(there.export()), timeout=LIMIT)
    done = client.read(here, remote, [(1, 0, size - 1)]).result(LIMIT)
    assert transport(done) == "gpu"
    return done


# --- registration and release -----------------------------------------------------------------------


@pytest.mark.parametrize("named", [uuid(1), uuid(1).upper().replace("GPU", "gpu"), "0000:f1:00.0", "00000000:F1:00.0", "f1:00.0"])
def test_device_names(gpu_agent, named):
    agent, gpus = gpu_agent()
    with agent.wire() as client, GpuMemory(MIB, 1) as memory:
        region = add_vmm(client, memory, device=named)
        assert region.length == MIB
        assert gpus.status.imports == 1 and gpus.status.started == 1
        region.remove()
        assert not gpus.status.imports


def test_both_kinds_in_one_region(gpu_agent):
    """Extents of different kinds of handles form one region, in their order."""
    agent, gpus = gpu_agent()
    with agent.wire() as client, GpuMemory(MIB, 0, noise(MIB)) as a, GpuMemory(MIB, 0, noise(MIB, 2)) as b, \
            GpuMemory(MIB) as to:
        mixed = add(client, [("cuda_ipc", 0, 4096, 10001), ("cuda_vmm", 0, 77, 20002), ("cuda_ipc", 0, 50000, 3)],
                    fds=[b.fd], handles=a.ipc, device=uuid(0))
        assert mixed.length == 30006 and gpus.status.imports == 2
        copies(client, add_vmm(client, to), mixed, 30006)
        assert to.view[1:30006] == (a.view[4096:14097].tobytes() + b.view[77:20079].tobytes() + a.view[50000:50003].tobytes())[:30005]


def test_plugin_and_device_start_on_first_use(gpu_agent):
    agent, gpus = gpu_agent()
    with agent.wire() as client:
        client.region(dray.Memory(MIB))
        assert not gpus.status.plugins and metric(agent, "dray_gpu_contexts") == 0
        with GpuMemory(MIB) as memory:
            add_vmm(client, memory)
            assert gpus.status.plugins == 1 and gpus.status.started == 1
            assert metric(agent, "dray_gpu_contexts") == 1
            assert "500 MiB of GPU memory" in log_has(agent, "started", uuid(0))
            # host regions that existed before are pinned now
            until(lambda: gpus.status.pins == 1, "the pin")
            until(lambda: metric(agent, "dray_gpu_pinned_bytes") == MIB, "the metric")
    until(lambda: not gpus.status.pins, "the end of the pin")
    gpus.idle()


def state(agent, device=0):
    """Of a GPU; None before the plug-in is loaded."""
    gpus = agent.ctl("gpus", "--json")["gpus"]
    return gpus[device]["state"] if gpus else None


def test_announced_device_starts_with_the_session(gpu_agent):
    """It is kept for the session, and given up when nothing uses it any more; another session can start it again."""
    agent, gpus = gpu_agent({"gpu.idle_time": "0s"})
    with agent.wire(device=uuid(9)) as stranger, GpuMemory(MIB, 0, noise(MIB)) as a, GpuMemory(MIB) as b:
        log_has(agent, "announced", uuid(9), "gpu_device")
        for _ in range(2):
            with dray.Client(agent.socket, gpu=uuid(0), timeout=LIMIT):
                until(lambda: state(agent) == "ready", "the start of the GPU")
                assert gpus.status.started == 1 and not gpus.status.imported
            until(lambda: state(agent) == "unused", "the end of the GPU")
            assert not gpus.status.started and metric(agent, "dray_gpu_contexts") == 0
        for _ in range(2):
            here, there = add_vmm(stranger, a), add_vmm(stranger, b)
            copies(stranger, there, here, MIB)
            assert b.view[1:] == a.view[:-1]
            here.remove()
            assert state(agent) == "ready"
            there.remove()
            until(lambda: state(agent) == "unused", "the end of the GPU")
        assert metric(agent, "dray_gpu_lost_total") == 0


def test_agent_that_ends_while_it_loads_the_plug_in(gpu_agent):
    agent, gpus = gpu_agent({"gpu.keep": "true"}, slow_open=1)
    agent.stop()


def test_device_that_is_wanted_again_while_it_stops(gpu_agent):
    """A region that comes while the unused GPU stops is opened after the next start, and host memory is pinned again."""
    agent, gpus = gpu_agent({"gpu.idle_time": "0s"})
    with agent.wire() as client, GpuMemory(MIB) as memory:
        client.region(dray.Memory(MIB))
        for _ in range(20):
            add_vmm(client, memory).remove()
        with agent.wire(device=uuid(0)):
            add_vmm(client, memory).remove()
            until(lambda: state(agent) == "ready", "the start of the GPU")
            until(lambda: gpus.status.pins == 1, "the pin")
    until(lambda: state(agent) == "unused", "the end of the GPU")


def test_kept_devices_start_with_the_agent(gpu_agent):
    agent, gpus = gpu_agent({"gpu.keep": "true", "gpu.idle_time": "0s", "gpu.devices": uuid(1)})
    until(lambda: state(agent, 1) == "ready", "the start of the GPU")
    with agent.wire(device=uuid(1)) as client, GpuMemory(MIB, 1) as memory:
        add_vmm(client, memory).remove()
    gpus.idle()
    assert (state(agent, 0), state(agent, 1)) == ("excluded", "ready") and gpus.status.started == 1


def test_kept_devices_without_a_plugin(gpu_agent):
    """The agent works, and says why."""
    agent, gpus = gpu_agent({"gpu.keep": "true", "gpu.plugin": "/nowhere/dray-cuda.so"})
    log_has(agent, "GPU memory cannot be used", "/nowhere/dray-cuda.so")
    with agent.wire(device=uuid(0)) as client:
        client.region(dray.Memory(MIB)).remove()


def test_pins(gpu_agent):
    """Regions in the same pages share a pin, which ends with the last of them; partly pinned regions are staged."""
    agent, gpus = gpu_agent()
    with agent.wire() as client, agent.wire() as other, GpuMemory(MIB) as memory, dray.Memory(MIB) as host:
        add_vmm(client, memory)
        all_of_it = client.region(host)
        part = other.region([(host, 5000, 100)])
        until(lambda: gpus.status.pins == 1, "one pin")
        all_of_it.remove()
        assert gpus.status.pins == 1
        part.remove()
        assert gpus.status.pins == 0
        part = other.region([(host, 5000, 100), (host, 5200, 100), (host, 20000, 5000)])
        until(lambda: gpus.status.pins == 2, "a pin for each stretch of pages")
        all_of_it = client.region(host)
        part.remove()
        assert not gpus.status.pins
        all_of_it.remove()


def test_pins_end_with_the_last_gpu(gpu_agent):
    """While no GPU is started nothing is pinned; each start pins the regions anew, or stages their bytes if that fails."""
    agent, gpus = gpu_agent({"gpu.idle_time": "0s"})
    with agent.wire() as client, GpuMemory(MIB) as memory, dray.Memory(MIB) as first, dray.Memory(MIB) as second:
        here = client.region(first)
        for i, pins in enumerate((1, 0, 2)):
            with contextlib.nullcontext() if pins else gpus.held("refuse_pin"):
                memory.view[:] = noise(MIB, i)
                there = add_vmm(client, memory)
                until(lambda n=pins: gpus.status.pins == n, "the pins")
                if not pins:
                    log_has(agent, "not pinned", f"region={here.handle:x}")
                copies(client, here, there, MIB)
                assert first.view[1:] == memory.view[:-1]
                there.remove()
                until(lambda: state(agent) == "unused", "the end of the GPU")
            until(lambda: not gpus.status.pins and not metric(agent, "dray_gpu_pinned_bytes"), "the end of the pins")
            if not i:
                client.region(second)
                assert not gpus.status.pins


def test_no_pins(gpu_agent):
    agent, gpus = gpu_agent(settings={"gpu.pin_host": "false"})
    with agent.wire() as client, GpuMemory(MIB) as memory:
        add_vmm(client, memory)
        client.region(dray.Memory(MIB)).remove()
        assert not gpus.status.pins


@pytest.mark.parametrize("what", ["pin", "host_alloc"])
def test_without_pinned_memory(gpu_agent, what):
    agent, gpus = gpu_agent(fail=what)
    with agent.wire() as client, GpuMemory(MIB) as memory:
        host = client.region(dray.Memory(MIB))
        if what == "host_alloc":  # a queue needs pinned memory for its lists
            expect("no_memory", add_vmm, client, memory)
            assert not gpus.status.started
        else:
            add_vmm(client, memory)
            log_has(agent, "not pinned")
        host.remove()


# --- refusals ------------------------------------------------------------------------------------------


def test_refusals(gpu_agent):
    agent, gpus = gpu_agent(settings={"gpu.devices": f"{uuid(0)},0000:f2:00.0"}, devices=3)
    fds = len(os.listdir(f"/proc/{agent.pid}/fd"))
    with agent.wire() as client, GpuMemory(MIB) as memory, GpuMemory(MIB, 2) as far, dray.Memory(MIB) as host:
        def refused(kind, extents, *words, **how):
            error = expect(kind, add, client, extents, **how)
            for word in words:
                assert word in str(error), error

        whole = [("cuda_vmm", 0, 0, MIB)]
        good = {"fds": [memory.fd], "device": uuid(0)}
        refused("gpu_device", whole, "UUID", fds=[memory.fd])
        refused("gpu_device", whole, "does not see", uuid(0), fds=[memory.fd], device=uuid(9))
        refused("gpu_device", whole, "gpu.devices", fds=[memory.fd], device=uuid(1))
        refused("gpu_device", whole, "on device 2", fds=[far.fd], device=uuid(0))
        refused("gpu_handle", whole, fds=[host.fd], device=uuid(0))
        refused("gpu_handle", [("cuda_ipc", 0, 0, MIB)], handles=b"x" * 64, device=uuid(0))
        refused("region_too_small", [("cuda_vmm", 0, 1, MIB)], **good)
        refused("region_too_small", whole, str(MIB - 1), allocations=[MIB - 1], **good)
        refused("gpu_handle", whole, str(MIB + 1), allocations=[MIB + 1], **good)
        refused("invalid", whole, "2 allocations", allocations=[MIB, MIB], **good)
        refused("invalid", [("memfd", 0, 0, 100)], "are for kind cuda_vmm", fds=[host.fd], allocations=[MIB])
        refused("invalid", [("cuda_ipc", 0, 0, MIB)], "64 bytes", handles=memory.ipc[:63], device=uuid(0))
        refused("invalid", [("cuda_ipc", 1, 0, MIB)], handles=memory.ipc, device=uuid(0))
        refused("invalid", [("cuda_ipc", 0, 0, MIB)], "belongs to no extent", handles=memory.ipc + far.ipc, device=uuid(0))
        refused("invalid", [("cuda_ipc", 0, 0, 1), ("cuda_ipc", 1, 0, 1)], "same", handles=memory.ipc * 2, device=uuid(0))
        refused("fd_count", [("cuda_vmm", 1, 0, MIB)], **good)
        refused("fd_count", whole, "belongs to no extent", fds=[memory.fd, far.fd], device=uuid(0))
        refused("invalid", [("cuda_vmm", 0, 0, 100), ("cuda_vmm", 0, 99, 1)], "overlap", **good)
        refused("invalid", [("cuda_vmm", 0, 0, 100), ("memfd", 1, 0, 1)], "all memfd", fds=[memory.fd, host.fd], device=uuid(0))
        refused("invalid", [("memfd", 0, 0, 100)], "device is for", fds=[host.fd], device=uuid(0))
        refused("invalid", [("memfd", 0, 0, 100)], "handles are for", fds=[host.fd], handles=memory.ipc)
        refused("region_kind", [("dmabuf", 0, 0, 100)], "not a DMA-BUF", fds=[host.fd])
        refused("fd_count", [("dmabuf", 1, 0, 100)], fds=[host.fd])
        for fd in (os.open("/dev/null", os.O_RDWR), os.pipe()[0], os.open("/", os.O_RDONLY)):
            refused("region_kind", [("dmabuf", 0, 0, 100)], fds=[fd])
            refused("gpu_handle", whole, fds=[fd], device=uuid(0))
            os.close(fd)
        # extents of a read-only region may overlap
        add(client, [("cuda_vmm", 0, 0, 100), ("cuda_vmm", 0, 99, 1)], access="r", **good).remove()
        for known in ([], [0], [MIB]):
            add_vmm(client, memory, allocations=known).remove()
        region = add_vmm(client, memory)
        region.remove()
        expect("not_found", client.request, s.pack_region_remove, region=region.handle)
    gpus.idle()
    until(lambda: len(os.listdir(f"/proc/{agent.pid}/fd")) <= fds + 8, "the descriptors")


def test_quota_returns(gpu_agent):
    agent, gpus = gpu_agent(settings={"limits.regions_per_session": "2", "limits.extents_per_session": "3"})
    with agent.wire() as client, GpuMemory(MIB) as memory:
        two = [("cuda_vmm", 0, 0, 1), ("cuda_vmm", 0, 1, 1)]
        for _ in range(5):
            expect("gpu_handle", add, client, [("cuda_ipc", 0, 0, 1)], handles=bytes(64), device=uuid(0))
            region = add(client, two, fds=[memory.fd], device=uuid(0))
            expect("quota", add, client, two, fds=[memory.fd], device=uuid(0))
            region.remove()


def test_no_plugin(gpu_agent):
    agent, gpus = gpu_agent(settings={"gpu.plugin": "/nowhere/dray-cuda.so"})
    with agent.wire() as client, GpuMemory(MIB) as memory:
        for _ in range(2):
            assert "/nowhere/dray-cuda.so is not there" in str(expect("unsupported", add_vmm, client, memory))
        client.region(dray.Memory(MIB)).remove()
    log_has(agent, "GPU memory cannot be used")
    assert agent.text().count("GPU memory cannot be used") == 1


def test_broken_plugin(lab, gpu_agent):
    broken = lab.directory("broken") / "plugin.so"
    broken.write_bytes(b"\x7fELF and no more")
    agent, gpus = gpu_agent(settings={"gpu.plugin": broken})
    with agent.wire() as client, GpuMemory(MIB) as memory:
        assert "cannot be loaded" in str(expect("unsupported", add_vmm, client, memory))


def test_no_driver(gpu_agent):
    agent, gpus = gpu_agent(fail="open")
    with agent.wire() as client, GpuMemory(MIB) as memory:
        for _ in range(2):
            assert "driver does not load" in str(expect("unsupported", add_vmm, client, memory))


def test_disabled(gpu_agent):
    agent, gpus = gpu_agent(settings={"gpu.enable": "false"})
    with agent.wire() as client, GpuMemory(MIB) as memory:
        assert "gpu.enable" in str(expect("unsupported", add_vmm, client, memory))
        assert not gpus.status.plugins


def test_no_rdma_devices(gpu_agent):
    """A memfd as dmabuf is refused; tests/vm/test_dmabuf.py uses real DMA-BUFs."""
    agent, gpus = gpu_agent(settings={"rdma.enable": "false"})
    with agent.wire() as client, dray.Memory(MIB) as host:
        assert "rdma.enable" in str(expect("unsupported", add, client, [("dmabuf", 0, 0, 1)], fds=[host.fd]))


@pytest.mark.parametrize("what, kind", [("start", "no_memory"), ("queue", None)])
def test_device_does_not_start(gpu_agent, what, kind):
    agent, gpus = gpu_agent(fail=what)
    with agent.wire() as client, GpuMemory(MIB) as memory:
        for _ in range(2):  # each region starts a new attempt
            error = pytest.raises(wire.Error, add_vmm, client, memory)
            assert kind is None or error.value.code == getattr(s, "E_" + kind.upper())
        assert not gpus.status.started and not gpus.status.queues


def test_gpu_that_does_not_reach_its_peer(gpu_agent):
    """A GPU that gets no access to another GPU at its start is used, and transfers between the two are staged."""
    agent, gpus = gpu_agent(fail="peer")
    with agent.wire() as client, GpuMemory(MIB, 0) as a, GpuMemory(MIB, 1, noise(MIB)) as b:
        here = add_vmm(client, a)
        there = add_vmm(client, b)
        log_has(agent, "staged: device 1 does not reach 0", uuid(1))
        copies(client, here, there, MIB)
        assert a.view[1:] == b.view[:-1]
        assert "staged" in agent.ctl("transfers", "--recent")
        assert not gpus.status.lost


def test_nothing_to_flush(lab, new_agent):
    """If the driver cannot flush RDMA writes, the GPU is used without errors, because there are no RDMA writes."""
    gpus = FakeGpus(lab.directory("gpus"), fail="flush")
    here, there = (new_agent(name, n, key=lab.key, listen=[lab.hosts[n].address(4)], env=gpus.env,
                             settings={**PAIR_SETTINGS, **gpus.settings}) for n, name in enumerate("ab"))
    with here.wire() as client, there.wire(notifications=True) as owner, dray.Memory(MIB) as host, GpuMemory(MIB) as memory:
        remote = client.import_token(str(add_vmm(owner, memory).export()), timeout=LIMIT)
        client.write(client.region(host), remote, [(0, 0, MIB)], notify=(7, b"there")).result(LIMIT)
        assert owner.next_notification(LIMIT).tag == 7
        assert gpus.status.flushes == 1 and not gpus.status.lost
        assert "ready" in there.ctl("gpus")


# --- failures -------------------------------------------------------------------------------------------

ENGINE = """
from conftest import PAIR_SETTINGS
from fake_gpu import GpuMemory, add_vmm, uuid
import wire
client = wire.Client(args["socket"])
memory = GpuMemory(1 << 20, args["device"])
wait = args["wait"]
region = add_vmm(client, memory, wait=wait)
os.unlink(memory.path)
tell(str(region.export()) if wait else None)
hear()
"""


def engine(agent, gpus, device=0, wait=True):
    actor = Actor(ENGINE, socket=str(agent.socket), device=device, wait=wait)
    return actor, actor.hear()


@pytest.mark.parametrize("how", ["kill", "close"])
def test_session_ends_while_a_region_opens(gpu_agent, how):
    agent, gpus = gpu_agent()
    with GpuMemory(MIB) as memory, agent.wire() as other:
        add_vmm(other, memory).remove()
        with gpus.held("hold_import"):
            if how == "kill":
                actor, _ = engine(agent, gpus, wait=False)
                until(lambda: agent.ctl("regions").count("opening") == 1, "the opening region")
                actor.kill()
            else:
                client = agent.wire()
                add_vmm(client, memory, wait=False)
                client.close(timeout=0.2)
            # other sessions are served meanwhile
            other.region(dray.Memory(MIB)).remove()
        gpus.idle()
        until(lambda: "opening" not in agent.ctl("regions"), "the end of the opening region")
        add_vmm(other, memory)


def test_drain_while_a_region_opens(gpu_agent):
    agent, gpus = gpu_agent()
    with GpuMemory(MIB) as memory, agent.wire() as client:
        add_vmm(client, memory).remove()
        with gpus.held("hold_import"):
            adding = add_vmm(client, memory, wait=False)
            agent.ctl("drain", "--stay")
            expect("draining", add_vmm, client, memory)
        adding.result(LIMIT).remove()


def test_engine_dies(gpu_agent):
    """The imports of a dead engine are closed at once, even with transfers of other engines in flight."""
    agent, gpus = gpu_agent()
    with GpuMemory(MIB) as memory, agent.wire() as client:
        mine = add_vmm(client, memory)
        actor, token = engine(agent, gpus)
        assert gpus.status.imports == 2
        remote = client.import_token(token, timeout=LIMIT)
        with gpus.held():
            transfer = client.read(mine, remote, [(0, 0, MIB)])
            until(lambda: gpus.status.held, "a copy under way")
            actor.kill()
        with pytest.raises(wire.Error):
            transfer.result(LIMIT)
        until(lambda: gpus.status.imports == 1, "the end of its imports")
        mine.remove()
    gpus.idle()


def test_device_lost(gpu_agent):
    """Only the regions on a lost device end; the device can be used again when it works again."""
    agent, gpus = gpu_agent()
    with agent.wire() as client, GpuMemory(MIB) as a, GpuMemory(MIB) as b, GpuMemory(MIB, 1) as c:
        first, second, third = add_vmm(client, a), add_ipc(client, b), add_vmm(client, c)
        host = client.region(dray.Memory(MIB))
        remote = client.import_token(str(second.export()), timeout=LIMIT)
        gpus.lose(0)
        transfer = client.read(first, remote, [(0, 0, MIB)])
        error = pytest.raises(wire.Error, transfer.result, LIMIT)
        assert error.value.code in (s.E_GPU_LOST, s.E_REVOKED)
        log_has(agent, "lost", uuid(0))
        assert client.next_event(s.RemoteLost, LIMIT).remote == remote.handle
        until(lambda: gpus.status.imports == 1 and gpus.status.started == 1, "the release of the memory on the device")
        assert metric(agent, "dray_gpu_lost_total") == 1 and metric(agent, "dray_gpu_contexts") == 1
        assert agent.ctl("regions").count("lost") == 2
        expect("gpu_lost", first.export)
        # the device is still lost
        assert "lost" in str(expect("gpu_lost", add_vmm, client, a))
        gpus.lose(0, lost=False)
        again = add_vmm(client, a)
        first.remove()
        second.remove()
        fourth = add_ipc(client, b)
        a.view[:] = noise(MIB)
        copies(client, fourth, again, MIB)
        assert b.view[1:] == a.view[:-1]
        # the other device was not affected
        copies(client, third, again, MIB)
        assert c.view[1:] == a.view[:-1]
        host.remove()


def test_refused_copy(gpu_agent):
    """The client and the log have the driver's error, and the next transfer works."""
    agent, gpus = gpu_agent()
    with agent.wire() as client, GpuMemory(MIB) as a, GpuMemory(MIB, fill=noise(MIB)) as b:
        first, second = add_vmm(client, a), add_vmm(client, b)
        remote = client.import_token(str(second.export()), timeout=LIMIT)
        with gpus.held("refuse"):
            error = expect("internal", client.read(first, remote, [(0, 0, MIB)]).result, LIMIT)
        assert "the GPU driver refused a copy of the transfer: fakeErrorRefused" in str(error)
        log_has(agent, "the driver refused a copy: fakeErrorRefused", uuid(0))
        client.read(first, remote, [(0, 0, MIB)]).result(LIMIT)
        assert a.view[:] == b.view[:]


def test_sessions_end_around_the_loss_of_a_device(gpu_agent):
    """Sessions with regions on a lost device end before, during and after the release of the device."""
    agent, gpus = gpu_agent()
    with agent.wire() as client, GpuMemory(MIB) as memory:
        mine = add_vmm(client, memory)
        actors = [engine(agent, gpus) for _ in range(3)]
        remote = client.import_token(actors[0][1], timeout=LIMIT)
        actors[1][0].kill()
        gpus.lose(0)
        pytest.raises(wire.Error, client.read(mine, remote, [(0, 0, 1)]).result, LIMIT)
        actors[2][0].kill()
        until(lambda: not gpus.status.started, "the end of the device")
        actors[0][0].kill()
        until(lambda: agent.ctl("regions").count("lost") == 1, "the end of the sessions' regions")
        gpus.lose(0, lost=False)
        add_vmm(client, memory)


def test_hanging_gpu_keeps_memory_until_copies_end(gpu_agent):
    """A GPU that hangs counts as lost a second after the end of a session; the memory that its copies can touch is closed when they have
    ended."""
    agent, gpus = gpu_agent()
    with GpuMemory(MIB, 0, noise(MIB)) as a, GpuMemory(MIB, 1) as b, dray.Memory(MIB) as host:
        with gpus.held():
            client = agent.wire()
            region, other, pinned = add_vmm(client, a), add_vmm(client, b), client.region(host)
            until(lambda: gpus.status.pins == 1, "pinned memory")
            # shares the pin, which stays after the other region
            sharer = agent.wire()
            sharer.region(host)
            client.read(pinned, client.import_token(str(region.export()), timeout=LIMIT), [(0, 0, MIB)])
            client.read(other, client.import_token(str(region.export()), timeout=LIMIT), [(0, 0, MIB)])
            until(lambda: gpus.status.held == 2, "copies in flight")
            client.close(timeout=0.2)
            until(lambda: gpus.status.ending or gpus.status.imports < 2 or not gpus.status.pins, "the end of a GPU")
            assert gpus.status.imports == 2 and gpus.status.pins == 1
            assert agent.ctl("regions").count("removing") == 3
        gpus.idle()
        sharer.close()
        until(lambda: not gpus.status.pins, "the end of pinned memory")
        assert not gpus.status.illegal
        with agent.wire() as client:
            copies(client, add_vmm(client, b), add_vmm(client, a), MIB)
            assert b.view[1:] == a.view[:-1]


def test_transfer_is_stopped_while_the_gpu_hangs(gpu_agent):
    """It does not wait for ever, and no answer says that the memory is not accessed any more."""
    agent, gpus = gpu_agent({"transfer.slice_timeout": "200ms"}, watched=True)
    with agent.wire() as client, GpuMemory(MIB, 0) as a, GpuMemory(MIB, 0) as b:
        to, source = add_vmm(client, a), add_vmm(client, b)
        remote = client.import_token(str(source.export()), timeout=LIMIT)
        with gpus.held():
            transfer = client.read(to, remote, [(0, 0, MIB)])
            until(lambda: gpus.status.held, "a copy under way")
            transfer.cancel()
            expect("gpu_lost", transfer.result, LIMIT)
            assert gpus.status.imports == 2
    gpus.idle()


def test_hanging_gpu_does_not_affect_unreachable_memory(gpu_agent):
    """While a GPU hangs, memory on another GPU that it cannot reach is closed and opened as usual."""
    agent, gpus = gpu_agent(peers=0)
    with GpuMemory(MIB, 0) as a, GpuMemory(MIB, 1) as b:
        with gpus.held():
            client = agent.wire()
            region = add_vmm(client, a)
            add_vmm(client, b)
            client.read(region, client.import_token(str(region.export()), timeout=LIMIT), [(0, 0, MIB)])
            until(lambda: gpus.status.held == 1, "a copy under way")
            client.close(timeout=0.2)
            until(lambda: gpus.status.ending, "the end of a GPU")
            until(lambda: gpus.status.imports == 1, "the release of the memory that it cannot reach")
            with agent.wire() as other:
                add_vmm(other, b)
        gpus.idle()


def test_gpu_hangs_for_long(gpu_agent):
    """If a GPU's copies do not end, the log and drayctl report it, and new regions are refused."""
    agent, gpus = gpu_agent()
    with GpuMemory(MIB, 0) as a:
        with gpus.held():
            client = agent.wire()
            region = add_vmm(client, a)
            client.read(region, client.import_token(str(region.export()), timeout=LIMIT), [(0, 0, MIB)])
            until(lambda: gpus.status.held == 1, "a copy under way")
            client.close(timeout=0.2)
            until(lambda: gpus.status.ending, "the end of a GPU")
            with agent.wire() as other:
                for _ in range(2):
                    assert "restart the agent" in str(expect("gpu_lost", add_vmm, other, a))
            log_has(agent, "error", "1 regions on it", "restart the agent", uuid(0))
            assert "hangs" in agent.ctl("gpus")
            assert gpus.status.imports == 1
        log_has(agent, "after all", uuid(0))
        gpus.idle()
        with agent.wire() as client:
            add_vmm(client, a)


def test_gpu_lost_while_a_region_is_removed(gpu_agent):
    """When the GPU of a region that is being removed is lost, the removal no longer waits for copies of another, hanging GPU."""
    agent, gpus = gpu_agent()
    with agent.wire() as client, GpuMemory(MIB, 0) as a, GpuMemory(MIB, 0) as b, GpuMemory(MIB, 1) as c:
        region, more, other = add_vmm(client, a), add_vmm(client, b), add_vmm(client, c)
        remote, of_lost = (client.import_token(str(r.export()), timeout=LIMIT) for r in (other, more))
        with gpus.held():
            # the destination's GPU copies
            transfer = client.write(region, remote, [(0, 0, MIB)])
            until(lambda: gpus.status.held == 1, "a copy under way")
            region.remove(wait=False)
            until(lambda: "removing" in agent.ctl("regions"), "the start of the removal")
            gpus.lose(0)
            # revoked or not_found: the agent noticed the loss before
            expect(("gpu_lost", "revoked", "not_found"), lambda: client.read(more, of_lost, [(0, 0, MIB)]).result(LIMIT))
            expect("gpu_lost", transfer.result, LIMIT)
        gpus.lose(0, lost=False)


def test_gpu_lost_while_a_region_opens(gpu_agent):
    agent, gpus = gpu_agent()
    with agent.wire() as client, GpuMemory(MIB) as a, GpuMemory(MIB) as b:
        add_vmm(client, a)
        gpus.lose(0)
        error = expect("gpu_lost", add_vmm, client, b)
        assert "lost" in str(error)
        until(lambda: not gpus.status.started, "the end of the device")
        gpus.lose(0, lost=False)
        add_vmm(client, b)


def test_agent_exits_with_regions_and_pins(gpu_agent):
    """The agent exits while regions and pins exist; the fixture checks that it releases them."""
    agent, gpus = gpu_agent()
    actor, _ = engine(agent, gpus, device=1)
    with agent.wire() as client, GpuMemory(MIB) as memory:
        add_vmm(client, memory)
        client.region(dray.Memory(MIB))
        agent.stop()
    actor.kill()


# --- what copies --------------------------------------------------------------------------------------


def way(agent):
    """How the transfer that ended last was copied."""
    return agent.ctl("transfers", "--recent", "--json")["ended_transfers"][-1]["gpu_way"]


def moved_by(agent, client, here, there, a, b):
    """Copies b to a, checks the bytes, and returns what has copied them."""
    a.view[:] = bytes(MIB)
    copies(client, here, there, MIB)
    assert a.view[1:] == b.view[:MIB - 1]
    return way(agent)


def test_copies_follow_the_load(gpu_agent):
    """While another process keeps the destination's GPU busy, the other GPU of the pair copies; copy engines, if it is busy too."""
    agent, gpus = gpu_agent(watched=True)
    with agent.wire() as client, GpuMemory(MIB, 0) as a, GpuMemory(MIB, 1, noise(MIB)) as b:
        here, there = add_vmm(client, a), add_vmm(client, b)
        moved = partial(moved_by, agent, client, here, there, a, b)
        assert moved() == "kernel" and metric(agent, "dray_gpu_busy") == 0
        gpus.busy(0)
        until(lambda: moved() == "other_kernel", "the other GPU copies")
        assert metric(agent, "dray_gpu_busy") == 1 and metric(agent, "dray_gpu_other_kernel_bytes_total") > 0
        assert [gpu["busy"] for gpu in agent.ctl("gpus", "--json")["gpus"]] == [True, False]
        assert not gpus.status.engine_copies
        gpus.busy(1)
        until(lambda: moved() == "copy_engine", "copy engines copy")
        assert gpus.status.engine_copies and metric(agent, "dray_gpu_engine_bytes_total") > 0
        gpus.busy(0, False)
        gpus.busy(1, False)
        until(lambda: moved() == "kernel", "the kernel copies again")
        # the destination's GPU alone decides that, and while it is idle, only copies to the other one show that this is idle, too
        until(lambda: moved() == "kernel" and copies(client, there, here, MIB) and metric(agent, "dray_gpu_busy") == 0, "both GPUs are found idle")


def test_staging_for_the_network_follows_the_load(lab, new_agent):
    """Beside a load copy engines move bytes between GPU memory and staging memory, at both ends of a stream."""
    ends = [FakeGpus(lab.directory(f"gpus-{name}"), watched=True) for name in "ab"]
    here, there = (new_agent(name, n, key=lab.key, listen=[lab.hosts[n].address(4)], env=gpus.env,
                             settings={**PAIR_SETTINGS, **gpus.settings}) for n, (name, gpus) in enumerate(zip("ab", ends)))
    with here.wire() as client, there.wire() as owner, GpuMemory(MIB) as a, GpuMemory(MIB, 0, noise(MIB)) as b:
        region, remote = add_vmm(client, a), client.import_token(str(add_vmm(owner, b).export()), timeout=LIMIT)

        def moved(move):
            a.view[:] = bytes(MIB) if move == client.read else b.view
            move(region, remote, [(at, at, 4096) for at in range(0, MIB, 4096)][::-1]).result(LIMIT)
            assert a.view == b.view
            return way(here)

        assert moved(client.read) == moved(client.write) == "kernel"
        assert not any(gpus.status.engine_copies for gpus in ends)
        for gpus in ends:
            gpus.busy(0)
        for move in (client.read, client.write):
            before = [gpus.status.engine_copies for gpus in ends]
            until(lambda: moved(move) == "copy_engine", "copy engines copy at the near end")
            until(lambda: moved(move) and ends[1].status.engine_copies > before[1], "copy engines copy at the far end")
            assert ends[0].status.engine_copies > before[0]
        for gpus in ends:
            gpus.busy(0, False)
        until(lambda: moved(client.read) == "kernel", "the kernel copies again")


@pytest.mark.skipif(WORKERS < 2 or len(os.sched_getaffinity(0)) < 2, reason="this agent has one worker, or one CPU")
def test_workers_receive_one_read_for_a_gpu(lab, new_agent):
    """Also while others are stopped in the middle, after which the memory is the client's alone."""
    size = 16 * MIB
    ends = [FakeGpus(lab.directory(f"gpus-{name}")) for name in "ab"]
    here, there = (new_agent(name, n, key=lab.key, listen=[lab.hosts[n].address(4)], env=gpus.env,
                             settings={**PAIR_SETTINGS, **gpus.settings}) for n, (name, gpus) in enumerate(zip("ab", ends)))
    with here.wire() as client, there.wire() as owner, GpuMemory(size) as a, GpuMemory(size, 0, noise(size)) as b:
        region, remote = add_vmm(client, a), client.import_token(str(add_vmm(owner, b).export()), timeout=LIMIT)

        def helped():
            before = counters(here)["dray_tcp_helped_slices_total"]
            a.view[:] = bytes(size)
            assert transport(client.read(region, remote, [(0, 0, size)]).result(LIMIT)) == "tcp"
            assert a.view == b.view
            return counters(here)["dray_tcp_helped_slices_total"] > before

        until(helped, "a slice that the other worker has received")
        for _ in range(20):
            transfer = client.read(region, remote, [(0, 0, size)])
            transfer.cancel()
            transfer.exception(LIMIT)
            a.view[:] = bytes(size)
            # by the same streams, behind the answers that nobody wants any more
            client.read(region, remote, [(0, 0, 4096)]).result(LIMIT)
            assert not any(a.view[4096:])
        until(helped, "a slice that the other worker has received")
    for gpus in ends:
        assert not gpus.status.illegal and not gpus.status.lost


def test_transfer_over_neighbouring_allocations(lab, new_agent):
    """The driver opens allocations at descending addresses. Where an extent begins at the address at which the one before ends, no
    copy of the driver may lie in both."""
    ends = [FakeGpus(lab.directory(f"gpus-{name}")) for name in "ab"]
    here, there = (new_agent(name, n, key=lab.key, listen=[lab.hosts[n].address(4)], env=gpus.env,
                             settings={**PAIR_SETTINGS, **gpus.settings, "gpu.copy": "copy_engine"})
                   for n, (name, gpus) in enumerate(zip("ab", ends)))

    # both are parts of one slice
    size = MIB // 4

    def add_two(client, a, b):
        return add(client, [("cuda_ipc", 1, 0, size), ("cuda_ipc", 0, 0, size)], handles=a.ipc + b.ipc, device=uuid(0))

    with here.wire() as client, there.wire() as owner, contextlib.ExitStack() as stack:
        a, b, c, d = (stack.enter_context(GpuMemory(size, 0, noise(size, seed))) for seed in range(4))
        region, remote = add_two(client, a, b), client.import_token(str(add_two(owner, c, d).export()), timeout=LIMIT)
        for move, source, to in (client.read, (d, c), (b, a)), (client.write, (b, a), (d, c)):
            for memory in to:
                memory.view[:] = bytes(size)
            assert transport(move(region, remote, [(0, 0, 2 * size)]).result(LIMIT)) == "tcp"
            assert [m.view.tobytes() for m in source] == [m.view.tobytes() for m in to]
        assert state(here) == state(there) == "ready"
    for gpus in ends:
        assert not gpus.status.illegal and not gpus.status.lost


def rates(agent):
    return [gpu["rates"] for gpu in agent.ctl("gpus", "--json")["gpus"]]


def test_rates_are_measured_once(gpu_agent):
    """When a GPU is started and idle; they are known after a restart."""
    agent, gpus = gpu_agent(watched=True, measured=True, dry=1)
    gpus.busy(0)
    with agent.wire() as client, GpuMemory(MIB, 0) as a, GpuMemory(MIB, 1) as b:
        add_vmm(client, a)
        assert rates(agent) == ["built_in", "built_in"]  # it is busy
        add_vmm(client, b)
        until(lambda: rates(agent) == ["measured", "measured"], "the idle one of two of a model is measured")
        log_has(agent, "rates of copies by kernels on Fake GPU", "nvlink")
    # all of it was released, and saved
    until(lambda: not gpus.status.blocks, "the memory of the measurement is free")
    agent.stop()
    gpus.busy(1)
    agent.start()
    with agent.wire() as client, GpuMemory(MIB, 0) as a:
        add_vmm(client, a)
        assert rates(agent) == ["measured", "measured"]


def test_a_measurement_that_hangs(gpu_agent):
    """It is abandoned. Requests do not wait for it: a GPU that is unused stays started, and one that is lost is refused."""
    agent, gpus = gpu_agent({"gpu.idle_time": "100ms"}, watched=True, measured=True, dry=1)
    with agent.wire() as client, GpuMemory(MIB, 0) as a:
        with gpus.held("hold_free"):
            add_vmm(client, a).remove()
            until(lambda: rates(agent) == ["abandoned", "built_in"], "the end of the time limit")
            log_has(agent, "error", "does not end", "restart the agent", uuid(0))
            # unused for fifty times gpu.idle_time
            add_vmm(client, a)
            gpus.lose(0)
            expect("gpu_lost", add_vmm, client, a)
            gpus.lose(0, lost=False)
            assert "measurement does not end" in str(expect("gpu_lost", add_vmm, client, a))
            assert "measurement does not end" in agent.ctl("gpus")
        log_has(agent, "after all", uuid(0))
        add_vmm(client, a)
        until(lambda: rates(agent) == ["partly", "partly"], "rates without those between GPUs")


def test_staged_copies(gpu_agent):
    """The memory for staged copies comes with the first one, is shown, and goes with the agent; killed clients disturb nothing."""
    agent, gpus = gpu_agent({"gpu.copy": "staged", "gpu.copy_memory": "8MiB"})
    with agent.wire() as client, GpuMemory(MIB, 0) as a, GpuMemory(MIB, 1, noise(MIB)) as b:
        here, there = add_vmm(client, a), add_vmm(client, b)
        moved = partial(moved_by, agent, client, here, there, a, b)
        moved()  # asks for the memory
        until(lambda: moved() == "staged", "copies are staged")
        assert metric(agent, "dray_gpu_copy_staged_bytes_total") > 0 and metric(agent, "dray_gpu_copy_memory_bytes") == 16 * MIB
        assert [gpu["copy_memory_bytes"] for gpu in agent.ctl("gpus", "--json")["gpus"]] == [8 * MIB, 8 * MIB]
        assert gpus.status.blocks == 2
        for _ in range(4):
            actor, _ = engine(agent, gpus, device=1)
            actor.kill()
            # the memory is given back, and comes again, if the engine took ten seconds
            until(lambda: moved() == "staged", "copies are staged")
        gpus.lose(1)
        remote = client.import_token(str(there.export()), timeout=LIMIT)
        pytest.raises(wire.Error, client.read(here, remote, [(0, 0, MIB)]).result, LIMIT)
        until(lambda: gpus.status.blocks <= 1 and gpus.status.started == 1, "the lost GPU's memory for copies is released")


@pytest.mark.parametrize("setting, free, given", [("4GiB", 0, 256), ("4GiB", 100, 64), ("32MiB", 100, 32), ("4GiB", 63, 0), ("32MiB", 31, 0)])
def test_size_of_memory_for_staged_copies(gpu_agent, setting, free, given):
    """At most a thirty-second of the GPU's 8 GiB; half as much, down to 64 MiB, as long as the GPU has less free."""
    agent, gpus = gpu_agent({"gpu.copy": "staged", "gpu.copy_memory": setting}, memory=8192, free=free)
    with agent.wire() as client, GpuMemory(MIB, 0) as a, GpuMemory(MIB, 1, noise(MIB)) as b:
        here, there = add_vmm(client, a), add_vmm(client, b)
        copies(client, here, there, MIB)  # asks for the memory
        if given:
            until(lambda: moved_by(agent, client, here, there, a, b) == "staged", "copies are staged")
        else:
            log_has(agent, "no copy memory on the GPU", uuid(0))
        assert metric(agent, "dray_gpu_copy_memory_bytes") == 2 * given * MIB


@pytest.mark.parametrize("little", [0, 1])
def test_one_gpu_of_a_pair_has_little_memory_for_staged_copies(gpu_agent, little):
    """What passes through the memory of both fits into that of each: 64 MiB on one, 256 MiB on the other."""
    agent, gpus = gpu_agent({"gpu.copy": "staged", "gpu.copy_memory": "4GiB"}, memory=8192, free=64, free_of=little)
    size, piece = 48 * MIB, 32 << 10
    with agent.wire() as client, GpuMemory(size, 0) as a, GpuMemory(size, 1, noise(size)) as b:
        here, there = add_vmm(client, a), add_vmm(client, b)
        remote = client.import_token(str(there.export()), timeout=LIMIT)
        pieces = [(at, at, piece) for at in range(0, size, piece)][::-1]

        def moved():
            a.view[:] = bytes(size)
            client.read(here, remote, pieces).result(LIMIT)
            assert a.view == b.view
            return way(agent)

        until(lambda: moved() == "staged", "copies are staged")
        for _ in range(3):
            assert moved() == "staged"
        assert metric(agent, "dray_gpu_copy_memory_bytes") == (256 + 64) * MIB


def test_no_memory_for_staged_copies(gpu_agent):
    agent, gpus = gpu_agent({"gpu.copy": "staged"}, fail="block")
    with agent.wire() as client, GpuMemory(MIB, 0) as a, GpuMemory(MIB, 1, noise(MIB)) as b:
        here, there = add_vmm(client, a), add_vmm(client, b)
        for _ in range(3):
            copies(client, here, there, MIB)
            assert way(agent) == "kernel"
        assert metric(agent, "dray_gpu_copy_memory_bytes") == 0
        log_has(agent, "no copy memory on the GPU", uuid(0))


@pytest.mark.parametrize("setting, used", [("auto", "copy_engine"), ("kernel", "kernel"), ("copy_engine", "copy_engine")])
def test_staging_by_the_setting(gpu_agent, setting, used):
    """Copies to and from staging memory, for host memory that is not pinned, beside a load."""
    agent, gpus = gpu_agent({"gpu.copy": setting, "gpu.pin_host": "false"}, watched=True)
    gpus.busy(0)
    with agent.wire() as client, dray.Memory(MIB) as host, GpuMemory(MIB, 0, noise(MIB)) as memory:
        here, there = client.region(host), add_vmm(client, memory)
        until(lambda: copies(client, here, there, MIB) and way(agent) == used, f"{used} copies to the host")
        assert host.view[1:] == memory.view[:MIB - 1]
        host.view[:] = noise(MIB, 5)
        until(lambda: copies(client, there, here, MIB) and way(agent) == used, f"{used} copies from the host")
        assert memory.view[1:] == host.view[:MIB - 1] and metric(agent, "dray_gpu_staged_bytes_total") >= 2 * (MIB - 1)


@pytest.mark.parametrize("setting, used", [("kernel", "kernel"), ("copy_engine", "copy_engine")])
def test_fixed_copies_do_not_follow_the_load(gpu_agent, setting, used):
    agent, gpus = gpu_agent({"gpu.copy": setting}, watched=True)
    gpus.busy(0)
    with agent.wire() as client, GpuMemory(MIB, 0) as a, GpuMemory(MIB, 0, noise(MIB)) as b:
        here, there = add_vmm(client, a), add_vmm(client, b)
        for _ in range(4):
            copies(client, here, there, MIB)
            assert way(agent) == used
        assert a.view[1:] == b.view[:MIB - 1] and metric(agent, "dray_gpu_busy") == 0
