# SPDX-License-Identifier: Apache-2.0
"""Waiting on both sides of a ring: the number of doorbells, and no spinning with a single CPU."""

import os

import pytest
import wire
from wire import codec as s
from harness import LIMIT, MIB, Side, Waiter, counters, noise, until

CPU = min(os.sched_getaffinity(0))
MANY = len(os.sched_getaffinity(0)) > 1


def bell(agent, which):
    return counters(agent)[f"dray_doorbells_{which}_total"]


# --- doorbells --------------------------------------------------------------------------------------

def test_one_doorbell_for_a_batch(agent):
    """One doorbell to a sleeping agent, and one back to a sleeping client."""
    with Side(agent, MIB, wire=True, ring_entries=16) as here, Side(agent, MIB, noise(MIB)) as there:
        here.client.open_ring()
        remote, ring = here.reach(there), here.client.ring
        for batch in range(1, 11):
            until(lambda: ring.word(s.RING_AGENT_SLEEPING), "the worker's sleep")
            received, sent = bell(agent, "received"), bell(agent, "sent")
            pending = []
            for i in range(batch):
                transfer = wire.Transfer(here.client)
                ring.put(user_data=here.client.number(transfer), direction=2, op_count=1, local=here.region.handle,
                         remote=remote.handle, op_local=i * 100, op_remote=i * 100, op_length=100)
                pending.append(transfer)
            # once, after the last entry, so that a worker that wakes for another reason finds all entries or none
            ring.store(s.RING_SQ_TAIL, ring.tail)
            ring.ring_doorbell()
            for transfer in pending:
                transfer.result(LIMIT)
            until(lambda: bell(agent, "received") == received + 1, "its count")
            assert bell(agent, "sent") == sent + 1
        assert here.view[:1000] == there.view[:1000]


def test_no_doorbell_while_both_poll(new_agent):
    """A client that spins for up to a second and a worker that polls for 10 ms need no doorbells."""
    if not MANY:
        pytest.skip("one CPU: nobody spins")
    agent = new_agent(settings={"agent.poll_time": "10ms", "agent.workers": 1})
    with Waiter(agent, "1000000") as waiter:
        def counts():
            now = counters(agent)
            return now["dray_doorbells_received_total"], now["dray_doorbells_sent_total"]

        def needs_no_doorbell():
            received, sent = counts()
            got = waiter.trips(5)
            assert got["spun"] + got["slept"] <= 5
            after = counts()
            return after[0] <= received + 1 and after[1] == sent

        # The first transfer of a batch finds the worker asleep. A busy machine may deschedule either side, but at some time not
        # during a whole batch.
        until(needs_no_doorbell, "a batch that needs no doorbell after its first transfer", limit=2 * LIMIT)


def test_doorbell_to_a_sleeping_client(new_agent):
    """A client with one transfer at a time gets one doorbell for each transfer during which it sleeps."""
    agent = new_agent()
    with Waiter(agent, DRAY_SPIN="0") as waiter:
        waiter.trips(10)

        def sleeps_once():
            sent = bell(agent, "sent")
            got = waiter.trips(100)
            assert got["spin_ns"] == 0 and got["spun"] == 0
            # a transfer that ends before the client has stored client_sleeping needs no doorbell
            assert bell(agent, "sent") - sent <= 100
            return got["slept"] <= 100

        # A doorbell that comes after the client has found the completion by itself ends its next sleep early, but not in each batch.
        until(sleeps_once, "a batch with at most one sleep for each transfer", limit=2 * LIMIT)
        sent = bell(agent, "sent")
        assert waiter.sleeping_trip(agent)["slept"] == 1
        until(lambda: bell(agent, "sent") == sent + 1, "its doorbell")


# --- one CPU ----------------------------------------------------------------------------------------

def test_one_cpu(new_agent):
    """With one CPU by affinity, the worker does not poll and the client does not spin."""
    taskset = ["taskset", "-c", str(CPU)]
    agent = new_agent(wrap=taskset)
    assert agent.polling() == (0, "1 CPU allowed")
    assert "off: 1 CPU allowed" in agent.ctl("status")
    with Waiter(agent, wrap=taskset) as waiter:
        got = waiter.trips(500)
    assert got["spin_ns"] == 0 and got["spun"] == 0


def test_cpus_change(new_agent):
    """The agent notices a changed affinity mask soon, and at once on a reload; masks of its workers do not count."""
    if not MANY:
        pytest.skip("one CPU alone")
    agent = new_agent(settings={"segment.listen_interval": "100ms"})
    every = os.sched_getaffinity(agent.pid)
    assert agent.polling() == (30000, "")
    for task in os.listdir(f"/proc/{agent.pid}/task"):
        if int(task) != agent.pid:
            os.sched_setaffinity(int(task), {CPU})
    agent.ctl("reload")
    assert agent.polling() == (30000, "")
    os.sched_setaffinity(agent.pid, {CPU})
    until(lambda: agent.polling() == (0, "1 CPU allowed"), "the agent's look")
    assert "workers no longer poll: 1 CPU allowed" in agent.text()
    os.sched_setaffinity(agent.pid, every)
    agent.ctl("reload")
    assert agent.polling() == (30000, "")


def test_polling_switched_off(new_agent):
    agent = new_agent(settings={"agent.poll_time": "0us"})
    if MANY:
        assert agent.polling() == (0, "agent.poll_time is 0")
    with Waiter(agent) as waiter:
        waiter.trips(100)


# --- DRAY_SPIN --------------------------------------------------------------------------------------

@pytest.mark.parametrize("value, args, spin", [("50us", (), 50000), ("0", (), 0), ("700ns", (), 700), ("1s", (), 10**9),
                                               ("50us", ("7",), 7000), ("nonsense", ("7",), 7000)])
def test_spin_by_environment(agent, value, args, spin):
    """An explicit spin_us overrides DRAY_SPIN."""
    with Waiter(agent, *args, DRAY_SPIN=value) as waiter:
        assert waiter.trips(3)["spin_ns"] == spin


@pytest.mark.parametrize("value", ["20", "fast", "-1us", "2s", "20us "])
def test_spin_malformed(agent, value):
    with Waiter(agent, DRAY_SPIN=value) as waiter:
        assert waiter.hear()["why"] == f'DRAY_SPIN is "{value}": write a duration up to 1s, such as 20us, or 0'
