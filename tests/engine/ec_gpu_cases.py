# SPDX-License-Identifier: Apache-2.0
"""Outputs of encoders in memory of GPUs, with vLLM's real schedulers and agents with fake GPUs (tests/gpu/fake.h).

test_ec_gpu.py runs these tests in a process of their own, because a process has one driver.
"""

import contextlib
import ctypes
import itertools

import ec_gpu
import pytest
from dray import errors
from dray.vllm.ec import hooks
from dray.vllm.ec.gpu_pool import GpuPool
from ec_bare import NO_PIXELS, Bare, encode, images, offered
from fake_gpu import FakeGpus
from harness import until

numbers = itertools.count()
SMALL = 256 * 512 + 4096  # bytes; the pool is raised to the largest output


@pytest.fixture(scope="module")
def driver():
    return ctypes.CDLL(str(ec_gpu.DRIVER))


@pytest.fixture
def agents(lab, driver):
    fakes = [FakeGpus(lab.directory(f"gpus {next(numbers)}")) for _ in range(2)]
    started = [lab.agent(f"agent-ec-gpu-{next(numbers)}", key=lab.key, env=fake.env, settings=fake.settings).start() for fake in fakes]
    pids = [agent.pid for agent in started]
    yield started
    for agent, fake, first in zip(started, fakes, pids):
        if agent.pid == first:  # one that was killed has not counted what it gave up
            fake.idle()
        agent.stop()
        if agent.pid == first:
            fake.over()


@pytest.fixture
def engine(agents, monkeypatch):
    """Makes an engine; its pool lies on the GPU `device`, or in host memory: None."""
    ec_gpu.use(monkeypatch, ec_gpu.SimulatedBytes)
    made = []

    def make(name, role, at=0, device=0, **how):
        monkeypatch.setattr(ec_gpu.SimulatedBytes, "device", device)
        one = Bare(name, agents[at].socket, role, **{"pool_device": "cpu" if device is None else "cuda", **how})
        assert one.side._memory.device == ("cpu" if device is None else "cuda")
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()
        assert GpuPool.find(f"gpu {one.name}") is None


PAIRS = [(0, 1, 0, "local"), (0, 0, 0, "local"), (0, 1, 1, "tcp"), (None, 0, 0, "local"), (0, None, 0, "local"), (None, 1, 1, "tcp"),
         (1, None, 1, "tcp")]


@pytest.mark.parametrize(("device_e", "device_pd", "at", "transport"), PAIRS)
def test_outputs_move_between_pools(engine, device_e, device_pd, at, transport):
    """From GPU to GPU, and between a GPU and host memory, within an agent and between two: no output is encoded twice."""
    e = engine("e", "ec_producer", device=device_e)
    pd = engine("pd", "ec_consumer", at, device_pd, transport=transport)
    pd.side.in_place = False
    for n, wanted in enumerate((images(3, 1), images(1, 2), images(2, 3, most=250), images(3, 1))):
        params = encode(e, f"a{n}", wanted)
        with offered(params) as offer:
            assert ("pool" in offer) == (device_e is None)
        assert pd.run(pd.add(f"a{n}", wanted, params, NO_PIXELS, tokens=2))[0] == "LENGTH"
    assert not pd.encoded and sum(pd.side.stats._minute["blocks"]) == 6, "the last request found its outputs in the pool"
    pd.idle()
    e.idle()


@pytest.mark.parametrize(("device_e", "device_pd", "at", "transport"), PAIRS)
def test_outputs_larger_than_a_pool(engine, device_e, device_pd, at, transport):
    """They move in pieces, whichever of both pools is too small."""
    for n, (of_e, of_pd) in enumerate(((64 << 10, 64 << 10), (64 << 10, 4 << 20), (4 << 20, 64 << 10))):
        e = engine(f"e{n}", "ec_producer", device=device_e, size=of_e)
        pd = engine(f"pd{n}", "ec_consumer", at, device_pd, transport=transport, size=of_pd)
        pd.side.in_place = False
        wanted = [("big", 900), ("small", 9)]
        pd.add("a", wanted, encode(e, "a", wanted), NO_PIXELS)
        until(lambda: [e.step(), pd.step()] and "a" in pd.answers, "the request")
        assert pd.answers["a"][0] == "LENGTH" and not pd.encoded
        pd.idle()
        e.idle()
        assert not e.worker._worker._kept and not getattr(pd.side._memory, "_assembled", ())


def test_an_encoder_on_the_host_is_read_in_place(engine):
    e, pd = engine("e", "ec_producer", device=None), engine("pd", "ec_consumer")
    wanted = images(2, 5)
    assert pd.run(pd.add("b", wanted, encode(e, "b", wanted), NO_PIXELS))[0] == "LENGTH"
    assert not pd.encoded and not pd.side._loads
    pd.idle()
    e.idle()


def test_full_pools(engine):
    """Six requests through room for two."""
    e, pd = engine("e", "ec_producer", size=SMALL), engine("pd", "ec_consumer", device=1, size=SMALL)
    wanted = {f"g{i}": [(f"large-{i}", 120)] for i in range(6)}
    for name, these in wanted.items():
        e.add(name, these)
    for name, these in wanted.items():
        params = e.run(name)[1]
        assert pd.run(pd.add(name, these, params, NO_PIXELS))[0] == "LENGTH"
        pd.idle()
    e.idle()
    assert e.side._pool.evicted >= 4 and pd.side._pool.evicted >= 4 and not pd.encoded


def test_what_nobody_claims_expires(engine):
    e = engine("e", "ec_producer", size=SMALL, lease=0.3)
    for name in ("h1", "h2", "h3"):
        encode(e, name, [(name, 250)])
    e.idle()
    assert e.side._pool.evicted == 2 and len(e.side._memory._seals) == 1, "seals go with their outputs"


def ends(pd, name, wanted, params):
    """With its image a request encodes, without it fails: the errors that were counted."""
    counted = []
    pd.side.stats.failed = counted.append
    both = pd.add(name, wanted, params), pd.add(name + "-without", wanted, params, NO_PIXELS)
    assert [pd.run(one)[0] for one in both] == ["LENGTH", "ERROR"]
    pd.idle()
    return set(counted)


@pytest.mark.parametrize("device_e", [0, None])
@pytest.mark.parametrize("device_pd", [1, None])
def test_wrong_bytes(engine, device_e, device_pd):
    """Whichever of both pools is on a GPU, one wrong bit is found."""
    e, pd = engine("e", "ec_producer", device=device_e), engine("pd", "ec_consumer", device=device_pd)
    pd.side.in_place = False
    params = encode(e, "c", [("c", 50)], params={"consumers": 2})
    with offered(params) as offer:
        (offset, *_), = offer["items"].values()
    if device_e is None:
        e.side._memory.memory.view[offset + 300] ^= 1
    else:
        data = e.side._memory._data
        data.poke(offset + 300, bytes([int(data.load(offset + 300, 1)) ^ 1]))
    assert "io" in ends(pd, "c", [("c", 50)], params)
    e.idle()


def test_the_output_of_another_tenant(engine):
    e, pd = engine("e", "ec_producer"), engine("pd", "ec_consumer", device=1)
    params = encode(e, "s", [("s", 20)], salt="one", params={"consumers": 2})
    assert "denied" in ends(pd, "s", [("s", 20)], params)
    e.idle()


def test_an_agent_that_is_started_again(engine, agents):
    """Both register their pools anew, and outputs are loaded as before."""
    e, pd = engine("e", "ec_producer"), engine("pd", "ec_consumer", device=1)
    params = encode(e, "r1", [("r1", 30)])
    agents[0].kill()
    assert pd.run(pd.add("r1", [("r1", 30)], params))[0] == "LENGTH" and pd.encoded == ["r1"]
    agents[0].start()
    names = map("r{}".format, itertools.count(2))

    def loads():
        name = next(names)
        _, params = e.run(e.add(name, [(name, 30)]))
        assert pd.run(pd.add(name, [(name, 30)], params))[0] == "LENGTH"
        return name not in pd.encoded

    until(loads, "an output is loaded again")
    pd.idle()
    e.idle()


@pytest.mark.parametrize("wanted", ["auto", "cuda"])
def test_memory_that_cannot_be_shared(engine, agents, monkeypatch, wanted):
    """"auto" takes host memory then, and "cuda" refuses, with the reason."""
    class Unshared(ec_gpu.SimulatedBytes):
        closed = 0

        def extents(self):
            raise errors.Unsupported("the memory cannot be shared")

        def close(self):
            Unshared.closed += 1
            super().close()

    monkeypatch.setattr(hooks, "TorchBytes", Unshared)
    if wanted == "cuda":
        with pytest.raises(errors.Unsupported, match="cannot be shared"):
            engine("e", "ec_producer", pool_device="cuda")
    else:
        with contextlib.closing(Bare("e", agents[0].socket, "ec_producer", pool_device="auto")) as e:
            assert e.side._memory.device == "cpu"
    assert Unshared.closed == 1 and GpuPool.find("gpu e") is None
