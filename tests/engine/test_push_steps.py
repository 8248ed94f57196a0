# SPDX-License-Identifier: Apache-2.0
"""vLLM's real schedulers step by step in mode 'push': when blocks are announced, written and free."""

import dataclasses

import model
import pytest
from harness import ROOT
from world import BLOCK, World

from dray import errors
from dray.vllm.letters import Announcement, mailbox_name, write

STEP = BLOCK * 3 // 2  # tokens that P computes in a step
TRANSFER = "the id of the transfer"
FOR_P = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": TRANSFER}
FOR_D = {"do_remote_prefill": True, "transfer_id": TRANSFER, "remote_engine_id": "p", "remote_host": "p", "remote_port": 1}


class Calm:
    """Chances of a world in which nothing goes wrong by itself, and nothing happens unless the test says so."""

    def random(self):
        return 0.99

    def randrange(self, n):
        return 0


@pytest.fixture(params=["recompute", "fail"])
def world(request, monkeypatch):
    return World(monkeypatch, str(model.make(ROOT / "build/engine-model")), request.param, Calm(), "push")


def prompt(tokens, seed=0):
    return [(seed + i) * 7 % 1000 for i in range(tokens)]


def agents(world):
    """All that the agents have to do happens, in order."""
    while world.actions:
        world.happen(0)
    world.check()


def turns(world, *sides, n=1):
    for _ in range(n):
        for side in sides:
            side.step()
            agents(world)


def announce(world, tokens, params=FOR_D, name="r"):
    """D allocates the blocks of a request and announces them."""
    world.d.add(name, prompt(tokens), 1, params)
    turns(world, world.d, n=3)


def written(world):
    """Tokens of D's blocks that have the content of the first layer of the first rank."""
    return int((world.d.memory[0, 0] != 0).sum())


def reason(world, caplog):
    """Why D's request has failed; it has ended by the policy, and nothing is left."""
    turns(world, world.d, n=4)
    turns(world, world.p, world.d, n=4)
    assert world.d.answers["r"][0] in ("LENGTH", "ERROR")
    assert not world.d.left()
    return caplog.text


@pytest.fixture(autouse=True)
def log(caplog):
    import logging
    logger = logging.getLogger("vllm")
    logger.addHandler(caplog.handler)  # which does not propagate
    yield
    logger.removeHandler(caplog.handler)


def nothing_left(world):
    assert not world.p.left() and not world.d.left(), (world.p.left(), world.d.left())


def test_chunks_end_with_a_block(world):
    """A chunk of which the last block is not full is written up to the block before; the last chunk to its end."""
    announce(world, 2 * STEP + 10)
    world.p.add("r", prompt(2 * STEP + 10), 1, FOR_P)
    turns(world, world.p)
    assert written(world) == 0  # the right is acquired while the first chunk is computed
    turns(world, world.p)
    assert written(world) == 2 * STEP // BLOCK * BLOCK
    turns(world, world.p)
    assert written(world) == 2 * STEP + 10
    turns(world, world.d, n=3)
    assert world.d.answers["r"][0] == "LENGTH"
    turns(world, world.p, world.d, n=3)
    nothing_left(world)


def test_notifications_that_d_has_no_room_for(world):
    """The bytes are in place, and D is notified again."""
    announce(world, 5)
    world.p.add("r", prompt(5), 1, FOR_P)
    turns(world, world.p)
    world.p.step()
    assert len(world.transfers) == 2
    for transfer in world.transfers:
        transfer.end(errors.NotifyRefused("the queue is full"))
    assert not world.seen["notified"]
    for _ in range(3):
        world.now += 1
        turns(world, world.p, world.d)
    assert world.seen["notified"] == 2 and world.d.answers["r"][0] == "LENGTH"
    turns(world, world.p, world.d, n=3)
    nothing_left(world)


def test_a_prompt_shorter_than_a_block(world):
    announce(world, 5)
    world.p.add("r", prompt(5), 1, FOR_P)
    turns(world, world.p, world.d, n=5)
    assert world.seen["notified"] == 2 and world.d.answers["r"][0] == "LENGTH"
    nothing_left(world)


def test_announced_after_the_request_has_finished(world):
    world.p.add("r", prompt(STEP), 1, FOR_P)
    turns(world, world.p, n=3)
    assert world.p.answers["r"][1]["transfer_id"] == TRANSFER
    assert world.p.scheduler.has_requests()  # so that the engine goes on stepping
    assert sum(world.p.references().values()) == 2
    announce(world, STEP)
    turns(world, world.p, world.d, n=5)
    assert world.d.answers["r"][0] == "LENGTH" and world.seen["notified"] == 2
    nothing_left(world)


def test_never_announced(world, caplog):
    world.p.add("r", prompt(STEP), 1, FOR_P)
    turns(world, world.p, n=3)
    world.now += 59
    turns(world, world.p)
    assert world.p.left()
    world.now += 2
    turns(world, world.p, n=2)
    nothing_left(world)
    announce(world, STEP)
    turns(world, world.p)
    assert "has been used, or has expired" in reason(world, caplog)


def test_preempted_between_chunks(world):
    announce(world, 3 * STEP)
    world.p.add("r", prompt(3 * STEP), 1, FOR_P)
    turns(world, world.p, n=2)
    world.p.preempt()
    turns(world, world.p, world.d, n=6)
    assert world.seen["p preempted"] and world.d.answers["r"][0] == "LENGTH" and not world.seen["d finished ERROR"]
    nothing_left(world)


def test_blocks_of_an_aborted_request_stay_until_nothing_reads_them(world, caplog):
    announce(world, 3 * STEP)
    world.p.add("r", prompt(3 * STEP), 1, FOR_P)
    turns(world, world.p)
    world.p.step()  # the transfer of the first chunk is under way
    reading = [t for t in world.transfers if not t.ended]
    assert len(reading) == 2
    world.p.abort("r")
    world.check()
    world.p.step()  # cancels them
    assert all(t.ended for t in reading)
    turns(world, world.p)
    assert "the request has ended before its prompt was computed" in reason(world, caplog)
    turns(world, world.p)
    nothing_left(world)


def test_only_what_d_does_not_have_is_lent(world):
    world.d.add("before", prompt(2 * BLOCK + 3), 1, None)
    turns(world, world.d, n=3)
    announce(world, 3 * STEP)
    cached = world.d.scheduler.kv_cache_manager.get_block_ids("r")[0][:2]
    assert world.d.grants.open and not any(grant.blocks & set(cached) for grant in world.d.grants.open)
    world.p.add("r", prompt(3 * STEP), 1, FOR_P)
    turns(world, world.p, world.d, n=6)
    assert world.d.answers["r"][0] == "LENGTH"
    nothing_left(world)


def test_d_has_everything(world):
    world.d.add("before", prompt(2 * BLOCK + 1), 1, None)
    turns(world, world.d, n=4)
    world.p.add("r", prompt(2 * BLOCK), 1, FOR_P)
    turns(world, world.p, n=4)
    assert world.p.left()
    world.d.add("r", prompt(2 * BLOCK), 1, FOR_D)
    turns(world, world.d, world.p, n=5)
    assert world.d.answers["r"][0] == "LENGTH"
    nothing_left(world)


def test_aborted_at_d_before_it_is_scheduled(world):
    world.p.add("r", prompt(STEP), 1, FOR_P)
    turns(world, world.p, n=3)
    world.d.add("r", prompt(STEP), 1, FOR_D)
    world.d.abort("r")
    agents(world)
    turns(world, world.d, world.p, n=3)
    nothing_left(world)


def test_unknown_transfer_id(world, caplog):
    announce(world, STEP)
    world.p.add("r", prompt(STEP), 1, {**FOR_P, "transfer_id": TRANSFER + " of another request"})
    turns(world, world.p, n=3)
    world.now += 31
    assert "has not written the blocks within 30 s" in reason(world, caplog)
    world.now += 61
    turns(world, world.p, n=3)
    nothing_left(world)


def test_another_prompt_with_the_same_transfer_id(world):
    """D takes it for a sample of the same request, and computes it."""
    announce(world, STEP)
    world.d.add("again", prompt(STEP, 5), 1, FOR_D)
    turns(world, world.d, n=3)
    world.p.add("r", prompt(STEP), 1, FOR_P)
    turns(world, world.p, world.d, n=8)
    assert world.d.answers["r"][0] == world.d.answers["again"][0] == "LENGTH" and world.seen["notified"] == 2
    nothing_left(world)


def test_two_requests_with_one_transfer_id(world, caplog):
    announce(world, STEP)
    world.p.add("r", prompt(STEP), 1, FOR_P)
    world.p.add("again", prompt(STEP, 5), 1, FOR_P)
    turns(world, world.p, world.d, n=8)
    assert world.p.answers["again"][1] is None and "another request has used its transfer_id" in caplog.text
    assert world.d.answers["r"][0] == "LENGTH"
    nothing_left(world)


@pytest.mark.parametrize("transfer_id", ["1", 5, "x" * 300])
def test_transfer_id_that_is_refused(world, transfer_id, caplog):
    world.p.add("r", prompt(STEP), 1, {**FOR_P, "transfer_id": transfer_id})
    turns(world, world.p, n=3)
    assert world.p.answers["r"] == ("LENGTH", None) and "transfer_id is" in caplog.text
    nothing_left(world)


def test_another_model(world, caplog):
    """D hears at once why, with both values; P keeps nothing."""
    turns(world, world.d)  # which reports the ranks
    world.d.side.ranks.add([dataclasses.replace(one._worker.info(), model={"model": "other"}) for one in world.d.workers])
    announce(world, STEP)
    world.p.add("r", prompt(STEP), 1, FOR_P)
    turns(world, world.p, n=3)
    assert "differ in model: other here, m at the other engine" in reason(world, caplog)
    nothing_left(world)


def test_another_prompt(world, caplog):
    announce(world, STEP)
    world.p.add("r", prompt(STEP - 1), 1, FOR_P)
    turns(world, world.p, n=3)
    assert f"{STEP} tokens are wanted of a prompt of {STEP - 1}" in reason(world, caplog)
    nothing_left(world)


def test_another_transport(world, caplog):
    for options in (world.p.side._sender, world.d.side._receiver):
        options._options = dataclasses.replace(options._options, transport="rdma")
    announce(world, STEP)
    world.p.add("r", prompt(STEP), 1, FOR_P)
    turns(world, world.p, n=3)
    assert "option 'transport' is 'rdma' here, and rank 0 of D is reached over tcp" in reason(world, caplog)
    nothing_left(world)


def test_the_deadline_of_d(world, caplog):
    announce(world, 2 * STEP)
    world.p.add("r", prompt(2 * STEP), 1, FOR_P)
    world.p.step()
    agents(world)
    world.now += 31
    assert "has not written the blocks within 30 s" in reason(world, caplog)
    turns(world, world.p, n=3)
    nothing_left(world)


def test_the_agent_of_d_is_known_after_the_first_transfer(world):
    """Then the right is granted when it is given, without a message."""
    asked = []
    give = world.d.grants.give
    world.d.grants.give = lambda *what, **how: asked.append(what[-1]) or give(*what, **how)
    for i, name in enumerate(("r", "r2")):
        params = {**FOR_D, "transfer_id": TRANSFER + name}
        world.d.add(name, prompt(STEP, 100 * i), 1, params)
        world.p.add(name, prompt(STEP, 100 * i), 1, {**FOR_P, "transfer_id": TRANSFER + name})
        turns(world, world.d, world.p, n=6)
    assert asked == [None, None, world.p.agent_id, world.p.agent_id]
    nothing_left(world)


def test_letters_that_are_none_of_ours(world, caplog):
    for letter in (b"something", b"DrP1" + bytes(8) + b"\0\0\1\0" + b"no text",
                   write(Announcement(TRANSFER, "d:1", mailbox_name("d"), 1, (), {}, (), 0, 5, 1.0, "auto"))[0]):
        world.d.clients["scheduler"].post("p:1", "vllm p", letter, wait=False)
    agents(world)
    world.p.add("r", prompt(STEP), 1, FOR_P)
    turns(world, world.p, n=2)
    assert "is ignored" in caplog.text and world.p.answers["r"][0] == "LENGTH"
    world.now += 61
    turns(world, world.p, world.d, n=3)
    nothing_left(world)


def opens_in_time(world, box, after):
    """D waits for P's mailbox, which opens so many seconds after P's request has come, and is served."""
    assert "r" not in world.d.answers
    world.p.add("r", prompt(STEP), 1, FOR_P)
    turns(world, world.p)
    world.mailboxes["p:1", mailbox_name("p")] = box
    world.now += after
    turns(world, world.d, world.p, n=6)
    assert world.d.answers["r"][0] == "LENGTH" and world.seen["transfer done"] == 2
    nothing_left(world)


def test_announced_before_p_has_a_mailbox_again(world):
    """An idle engine whose agent was restarted opens its mailbox when it gets a request."""
    box = world.mailboxes.pop(("p:1", mailbox_name("p")))
    announce(world, STEP)
    opens_in_time(world, box, 0.2)


def test_announced_long_after_the_request(world):
    """The blocks were lent late: P has as long as ever to open its mailbox."""
    box = world.mailboxes.pop(("p:1", mailbox_name("p")))
    world.d.add("r", prompt(STEP), 1, FOR_D)
    world.d.step()
    world.now += 4
    turns(world, world.d, n=3)
    opens_in_time(world, box, 0.5)


def test_an_engine_without_a_mailbox(world, caplog):
    del world.mailboxes["p:1", mailbox_name("p")]
    announce(world, STEP)
    world.now += 3.5
    turns(world, world.d, n=2)
    assert "the agent at p:1 has had no mailbox of engine 'p' for 3 s: either" in reason(world, caplog)
    nothing_left(world)


def test_a_request_of_p_that_comes_too_late(world, caplog):
    """Until its request an idle engine whose agent was restarted has no mailbox, but D cannot know that this is why."""
    boxes = dict(world.mailboxes)
    del world.mailboxes["p:1", mailbox_name("p")]
    announce(world, STEP)
    world.now += 3.5
    turns(world, world.d, n=2)
    world.mailboxes.update(boxes)
    world.p.add("r", prompt(STEP), 1, FOR_P)
    assert "or it has had no request since its agent was restarted" in reason(world, caplog)
    assert "does not run in mode 'push' at" not in caplog.text
    world.now += 61
    turns(world, world.p, world.d, n=3)
    nothing_left(world)


def mark(world):
    """P's ranks compute on a device: its chunks are computed when the list that is returned is not empty."""
    reached = []
    for connector in world.p.workers:
        connector._worker._pushes._mark = lambda: lambda: bool(reached)
    return reached


def test_a_chunk_is_not_written_before_the_device_has_computed_it(world):
    reached = mark(world)
    announce(world, 2 * STEP)
    world.p.add("r", prompt(2 * STEP), 1, FOR_P)
    turns(world, world.p, world.d, n=5)
    assert "r" in world.p.answers and "r" not in world.d.answers and written(world) == 0
    assert world.p.scheduler.has_requests() and sum(world.p.references().values()) == 3  # the blocks stay allocated
    reached.append(True)
    turns(world, world.p, world.d, n=5)
    assert written(world) == 2 * STEP and world.d.answers["r"][0] == "LENGTH"
    nothing_left(world)


def test_a_chunk_that_is_given_up_before_the_device_has_computed_it(world):
    mark(world)
    announce(world, 2 * STEP)
    world.p.add("r", prompt(2 * STEP), 1, FOR_P)
    turns(world, world.p, n=3)
    world.d.abort("r")
    turns(world, world.d, world.p, n=5)
    assert written(world) == 0
    nothing_left(world)
