# SPDX-License-Identifier: Apache-2.0
"""Outputs of encoders through the store of an agent, with vLLM's real schedulers."""

import signal

import dray
import pytest
from dray import errors
from dray.memory import Memory
from dray.store import Status
from dray.vllm.ec.header import HEADER, digest
from dray.vllm.ec.pool import Shape
from ec_bare import NO_PIXELS, WIDTH, BareStore, images
from harness import until

STORE = {"limits.store_bytes": "64MiB", "limits.store_bytes_per_owner": "64MiB", "store.segment_size": "2MiB"}


@pytest.fixture(scope="module")
def agent(lab):
    started = lab.agent("agent-ec-store", settings=STORE).start()
    yield started
    started.stop()


@pytest.fixture
def engine(agent):
    """Makes an engine of a test's own."""
    made = []

    def make(name, role, **how):
        made.append(BareStore(name, agent.socket, role, **how))
        return made[-1]

    yield make
    for one in made:
        one.close()


def encode(e, name, wanted, **how):
    assert e.run(e.add(name, wanted, **how)) == ("STOP", None)


def uses(pd, name, wanted, **how):
    """The consumer computes a request that brings no image."""
    before = len(pd.encoded)
    assert pd.run(pd.add(name, wanted, None, NO_PIXELS, **how))[0] == "LENGTH" and len(pd.encoded) == before


def fails(pd, name, wanted, *expected, **how):
    """The consumer encodes an item that is not in the store; without its image, that request fails."""
    counted, failed = [], pd.side.stats.failed
    pd.side.stats.failed = lambda name: (counted.append(name), failed(name))
    with_image, without = pd.add(name, wanted, **how), pd.add(name + "-without", wanted, None, NO_PIXELS, **how)
    assert pd.run(with_image)[0] == "LENGTH" and pd.run(without)[0] == "ERROR"
    pd.side.stats.failed = failed
    assert counted and set(counted) <= set(expected), counted


def test_several_encoders_and_several_consumers(engine):
    """Each output is there when its request at E has ended. Nothing but the store leads from E to PD."""
    e1, e2, p1, p2 = (engine(name, role) for name, role in (
        ("e1", "ec_producer"), ("e2", "ec_producer"), ("p1", "ec_consumer"), ("p2", "ec_consumer")))
    first, second, third = images(3, 1)
    encode(e1, "a", [first, second, first])
    encode(e2, "a", [third])
    encode(e2, "b", [first])  # which is there
    for pd in (p1, p2):
        uses(pd, "a", [first, second, third], tokens=2)
        uses(pd, "b", [first])
        pd.idle()
        assert sum(pd.side.stats._minute["blocks"]) == 3 and not pd.side.stats._minute["failures"]
    assert sum(p1.side.stats._minute["operations"]) == 3
    e1.close()
    uses(p2, "c", [second, second])  # the encoder is not needed any more
    for one in (p1, p2, e2):
        one.idle()


def test_those_that_finish_in_one_step_wait_for_one_batch(engine):
    e, pd = engine("e", "ec_producer"), engine("pd", "ec_consumer")
    batches, put = [], e.side._start
    e.side._start = lambda asked, seconds: (batches.append(len(asked)), put(asked, seconds))[1]
    wanted = {f"d{i}": images(2, 10 + i) for i in range(4)}
    for name, these in wanted.items():
        e.add(name, these)
    e.step()
    e.idle()
    assert batches == [8] and all(reason == "STOP" for reason, _ in e.answers.values())
    for name, these in wanted.items():
        uses(pd, name, these)


def test_what_is_not_there_or_of_others(engine):
    e, pd, other = engine("e", "ec_producer"), engine("pd", "ec_consumer"), engine("other", "ec_consumer", weights="of another model")
    fails(pd, "none", images(1, 20), "not_found")
    wanted = images(2, 21)
    encode(e, "t", wanted, salt="one")
    fails(pd, "t", wanted, "not_found", salt="two")
    fails(pd, "t2", wanted, "not_found")
    fails(other, "t", wanted, "not_found", salt="one")
    for one in (e, pd, other):
        one.idle()


def test_wrong_bytes(agent, engine):
    """An object that somebody else has put under the key of an output: the bytes are checked before they are used."""
    pd = engine("pd", "ec_consumer")
    client = dray.Client(str(agent.socket))
    memory = Memory(1 << 20)
    store, region = client.store(), client.region(memory)
    for name, size, error in (("zeros", HEADER + 9 * WIDTH * 2, "not_found"), ("short", 100, "invalid"), ("long", HEADER + 9999, "invalid")):
        key = pd.side._keys.of(Shape(digest(name, None), 9, WIDTH, 9 * WIDTH * 2))
        until(lambda: store.put(region, [(key, [(0, size)])])[0].status == Status.OK, "room in the store")  # noqa: B023
        fails(pd, name, [(name, 9)], error)
    pd.idle()
    client.close()


def test_a_small_pool_passes_everything(engine):
    e, pd = (engine(name, role, size=256 * 512 + 4096) for name, role in (("e", "ec_producer"), ("pd", "ec_consumer")))
    wanted = {f"g{i}": [(f"large-{i}", 120)] for i in range(6)}
    for name, these in wanted.items():
        e.add(name, these)
    for name, these in wanted.items():
        assert e.run(name)[0] == "STOP"
    for name, these in wanted.items():
        pd.add(name, these, None, NO_PIXELS, tokens=3)
    for name in wanted:
        assert pd.run(name)[0] == "LENGTH"
    assert not pd.encoded
    pd.add("preempted", wanted["g0"], None, NO_PIXELS, tokens=30)
    until(lambda: pd.step() or pd.scheduler.requests["preempted"].num_output_tokens > 3, "some tokens")
    uses(pd, "between", wanted["g1"] + wanted["g2"])  # evicts it from the pool
    pd.preempt()
    pd.scheduler.reset_encoder_cache()
    pd.cache.clear()
    assert pd.run("preempted")[0] == "LENGTH" and not pd.encoded
    e.idle()
    pd.idle()


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_an_agent_that_does_not_answer(lab, how):
    """E encodes, and its requests end; PD encodes what it has an image for. Text is not delayed."""
    agent = lab.agent(f"agent-ec-store-{how}", settings=STORE).start()
    e = BareStore("e", agent.socket, "ec_producer", save_wait=0.3)
    pd = BareStore("pd", agent.socket, "ec_consumer", deadline=3)
    wanted = images(1, "own " + how)
    encode(e, "p", wanted)
    agent.signal(signal.SIGSTOP if how == "stopped" else signal.SIGKILL)
    for name in ("p1", "p2", "p3"):
        encode(e, name, images(2, how + name))
    pd.add("p", wanted)
    pd.add("p-without", wanted, None, NO_PIXELS)
    assert pd.run(pd.add("text", [], tokens=2))[0] == "LENGTH" and "p-without" not in pd.answers
    assert pd.run("p")[0] == "LENGTH" and pd.run("p-without")[0] == "ERROR"
    fails(pd, "q", images(1, "q " + how), "deadline" if how == "stopped" else "session_closed", "session_closed", "agent_restarted")
    if how == "stopped":
        agent.signal(signal.SIGCONT)
        pd.idle()
        e.idle()
        encode(e, "p4", images(1, "own 4"))
        uses(pd, "p4", images(1, "own 4"))
    for one in (e, pd):
        one.close()
    agent.kill()


def test_aborted_requests_leave_nothing(engine):
    e, pd = engine("e", "ec_producer"), engine("pd", "ec_consumer")
    wanted = images(2, 60)
    encode(e, "n", wanted)
    pd.add("n", wanted, None, NO_PIXELS)
    pd.step()
    pd.abort("n")
    for steps in range(3):
        e.add(f"n{steps}", images(1, 61 + steps))
        for _ in range(steps):
            e.step()
        e.abort(f"n{steps}")
    pd.idle()
    e.idle()


def test_what_cannot_work_is_refused(lab, agent):
    with pytest.raises(errors.Invalid, match="unknown option 'lease'.*Options of DrayECStoreConnector"):
        BareStore("e", agent.socket, "ec_producer", lease=3)
    plain = lab.agent("agent-no-store").start()
    with pytest.raises(errors.Unsupported, match="store"):
        BareStore("e", plain.socket, "ec_producer")
    plain.stop()
