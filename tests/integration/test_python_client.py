# SPDX-License-Identifier: Apache-2.0
"""The Python package: threads, waiting, batches, lists of operations, the struct layouts, fork and exit."""

import ctypes
import errno
import os
import pathlib
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from array import array
from collections import deque

import dray
import pytest
from dray import _library, errors, pending, session
from fake_agent import FakeAgent
from harness import LIMIT, MIB, ROOT, Side, noise, until
from wire import codec as s


@pytest.fixture
def two(agent):
    """Two sides of one agent, and a remote of the second for the first."""
    with Side(agent, MIB) as here, Side(agent, MIB, noise(MIB)) as there:
        here.remote, here.there = here.reach(there), there
        yield here


def waiting(side, word, at=4096):
    """A read of one byte that starts when a word of the memory is 1."""
    return side.client.read(side.region, side.remote, [(at + word, word, 1)], wait_word=(side.region, 4 * word, 1))


def run_threads(functions):
    """Runs each function in a thread; returns their results, or raises the first error."""
    results, threads = {}, []

    def run(i, function):
        try:
            results[i] = function()
        except BaseException as e:
            results[i] = e

    for i, function in enumerate(functions):
        threads.append(threading.Thread(target=run, args=(i, function)))
        threads[-1].start()
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive(), "a thread has not ended"
    for result in results.values():
        if isinstance(result, BaseException):
            raise result
    return [results[i] for i in range(len(functions))]


# --- waiting --------------------------------------------------------------------------------------

def test_results_without_waiting(two):
    transfer = waiting(two, 0)
    assert not transfer.done() and transfer.error() is None and transfer.lent()
    with pytest.raises(errors.Timeout, match="has not ended in 0"):
        transfer.result(0)
    with pytest.raises(errors.Timeout):
        transfer.result(0.01)
    ended = []
    transfer.add_done_callback(ended.append)
    two.memory.words()[0] = 1
    until(transfer.done, "the end of the transfer")
    assert ended == [transfer] and transfer.error() is None and not transfer.lent()
    transfer.add_done_callback(ended.append)
    assert ended == [transfer] * 2
    assert transfer.result().bytes == 1 and transfer.exception() is None


def test_failing_callback_is_logged(two, caplog):
    transfer = waiting(two, 0)
    ended = []
    transfer.add_done_callback(lambda t: 1 / 0)
    transfer.add_done_callback(ended.append)
    two.memory.words()[0] = 1
    transfer.result(LIMIT)
    assert ended and "ZeroDivisionError" in caplog.text


def test_callback_may_start_and_close(two):
    """A callback can start a transfer, and another one can close the client."""
    first, second = waiting(two, 0), []
    first.add_done_callback(lambda t: second.append(two.client.read(two.region, two.remote, [(0, 64, 64)])))
    two.memory.words()[0] = 1
    first.result(LIMIT)
    second[0].result(LIMIT)
    assert two.view[:64] == two.there.view[64:128]
    last = waiting(two, 20)
    last.add_done_callback(lambda t: two.client.close())
    two.memory.words()[20] = 1
    last.exception(LIMIT)
    assert not two.client.connected


def test_each_waiting_thread_wakes_once(two):
    """The end of a request wakes its own thread, not all that wait."""
    n, client, words = 100, two.client, two.memory.words()
    woken, rouse = [], client._rouse
    client._rouse = lambda lock: (woken.append(lock), rouse(lock))
    transfers = [waiting(two, i) for i in range(n)]

    def drive():
        until(lambda: len(client._sleeping) >= n - 1 and client._leader, "the sleep of all threads")
        for i in reversed(range(n)):
            words[i] = 1
            until(lambda: transfers[i]._ended, "the end of a transfer")

    run_threads([drive] + [lambda t=t: t.result(LIMIT) for t in transfers])
    assert all(t.done() for t in transfers)
    # one for its end, and at most one because it is the next to poll
    assert len(woken) <= 2 * n
    words.release()


def test_answer_taken_by_another_thread(agent):
    """A thread that is about to poll for something wakes when another thread takes it first."""
    with agent.client() as client, agent.client() as sender:
        client.open_mailbox("x")
        letter, poll = client.event(dray.Letter), client._poll

        def take_first(seconds):
            client._poll = poll
            sender.post("", "x")
            other = threading.Thread(target=until, args=(letter.done, "the letter"))
            other.start()
            other.join()
            poll(seconds)

        client._poll = take_first
        waiting = threading.Thread(target=letter.result, daemon=True)
        waiting.start()
        waiting.join(LIMIT / 2)  # other traffic of the session wakes it, too, after a while
        assert not waiting.is_alive()
        with pytest.raises(errors.Timeout):  # a wake-up that is left over does no harm
            client.event(dray.Letter).result(0.01)


def test_condition_met_by_another_thread(agent):
    """wait_until() sees what another thread takes: before this one polls, while it polls, and while it sleeps beside the one that does."""
    with agent.client() as client, agent.client() as sender:
        client.open_mailbox("x")
        progress, poll = client._progress, client._poll

        def start(letter):
            waiting = threading.Thread(target=client.wait_until, args=(lambda: letter._ended,), daemon=True)
            waiting.start()
            return waiting

        def ends(waiting):
            waiting.join(LIMIT / 2)  # other traffic of the session wakes it, too, after a while
            return not waiting.is_alive()

        for name in ("_progress", "_poll"):
            letter = client.event(dray.Letter)

            def take(*args, name=name, letter=letter):
                found = progress() if name == "_progress" else None  # there is nothing yet
                client._progress, client._poll = progress, poll
                sender.post("", "x")
                other = threading.Thread(target=until, args=(letter.done, "the letter"))
                other.start()
                other.join()
                return found if name == "_progress" else poll(*args)

            setattr(client, name, take)
            assert ends(start(letter)), name

        letter, later = client.event(dray.Letter), client.event(dray.RemoteLost)
        leader = threading.Thread(target=later.result)
        leader.start()
        until(lambda: client._leader, "the thread that polls")
        waiting = start(letter)
        until(lambda: client._sleeping, "the thread that sleeps")
        sender.post("", "x")
        assert ends(waiting)
        later.cancel()
        leader.join(LIMIT / 2)
        assert not leader.is_alive()


def test_threads_share_a_session(two):
    """Threads move, import, export and look for events in one session at the same time."""
    step = MIB // 8

    def move(i):
        for k in range(100):
            two.client.read(two.region, two.remote, [(i * step + k * 64, i * step + k * 64, 64)]).result(LIMIT)

    def exchange():
        for _ in range(20):
            remote = two.client.import_token(two.there.region.export())
            assert remote.length == MIB
            remote.release()

    run_threads([lambda i=i: move(i) for i in range(6)] + [exchange, exchange])
    for i in range(6):
        at = i * step
        assert two.view[at:at + 6400] == two.there.view[at:at + 6400]


def test_close_ends_waiting_threads(two):
    """Threads that wait for requests and events end when another thread closes the client."""
    transfers = [waiting(two, i) for i in range(20)]
    seen = []

    def wait(transfer):
        try:
            transfer.result(LIMIT)
        except errors.Error as e:
            seen.append(e.name)

    def close():
        until(lambda: two.client._leader and len(two.client._sleeping) >= 20, "the sleep of all threads")
        two.client.close()

    events = []
    run_threads([close, lambda: events.append(two.client.next_event(dray.Draining, LIMIT))] +
                [lambda t=t: wait(t) for t in transfers])
    assert events == [None]
    assert len(seen) == 20 and set(seen) <= {"session_closed", "cancelled"}
    two.client.close()


def test_close_beside_threads_that_submit(agent):
    """Threads that use a client while it is closed get errors, and the process survives."""
    for _ in range(10):
        with Side(agent, MIB) as here, Side(agent, MIB, noise(MIB)) as there:
            remote, ended = here.reach(there), []

            def move():
                try:
                    while True:
                        here.client.read(here.region, remote, [(0, 0, 64)]).result(LIMIT)
                except errors.Error as e:
                    ended.append(e.name)

            def close():
                until(lambda: here.view[:64] == there.view[:64], "the first transfer")
                here.client.close()

            run_threads([close, move, move, move])
            assert len(ended) == 3 and set(ended) <= {"session_closed", "cancelled", "not_found"}, ended


def test_cancel(two):
    transfer = waiting(two, 0)
    assert transfer.cancel()
    with pytest.raises(errors.Cancelled):
        transfer.result()
    with pytest.raises(errors.NotFound, match="has ended"):
        transfer.cancel()


def test_pending_request_given_up(two):
    """The remote of an import that was given up is released when it comes."""
    pending = two.client.import_token(two.there.region.export(), wait=False)
    assert pending.cancel() and not pending.cancel()
    with pytest.raises(errors.Cancelled):
        pending.result()
    until(lambda: two.client.process() or not two.client._pending, "the answer and the release")
    assert not [r for r in two.client._remotes.values() if r.handle != two.remote.handle]


def test_batch_of_the_store_given_up(tmp_path):
    """The agent is asked to stop its copy, and has the memory until it answers. One that was not sent ends at once."""
    asked, held = [], []

    def answer(request_id, kind, message):
        if kind == s.MSG_REGION_ADD:
            return [s.pack_region_add_reply(request_id, region=request_id, length=4096)]
        if kind == s.MSG_REGION_REMOVE:
            return [s.pack_region_remove_reply(request_id)]
        if kind == s.MSG_TRANSFER_CANCEL:
            asked.append(message.request)
            return [s.pack_transfer_cancel_reply(request_id)]
        held.append(request_id)
        return []

    with FakeAgent(tmp_path / "dray.sock", answer) as fake, fake.client() as client:
        region, store = client.region(dray.Memory(4096)), client.store()
        pending = store.get(region, [(b"key", [(0, 8)])], wait=False)
        until(lambda: held, "the request")
        assert pending.lent() and pending.cancel() and pending.lent() and not pending.cancel()
        with pytest.raises(errors.Cancelled):
            pending.result(0)
        until(lambda: client.process() or asked, "the cancellation")
        assert asked == held and pending.lent()
        fake.sock.send(s.pack_error(held[0], code=errors.Cancelled.code, message="stopped"))
        until(lambda: not pending.lent(), "the end of the copy")
        client.timeout = 0.01
        with pytest.raises(errors.Timeout):
            store.get(region, [(b"key", [(0, 8)])])
        client.timeout = LIMIT
        until(lambda: client.process() or len(asked) == 2, "the cancellation")
        assert asked == held


def test_export_given_up(two):
    """Its token is revoked when it comes, by a thread that waits for something else."""
    region = two.there.region
    assert region.export(wait=False).cancel()
    token, = run_threads([region.export])
    assert region.revoke(token) == 1
    until(lambda: two.there.client.process() or not two.there.client._pending, "the end of the revocation")
    with pytest.raises(errors.NotFound, match="does not say which one it is"):
        region.revoke(dray.Token(str(token)))
    assert region.revoke() == 1, "the token of the remote"


def notification(i):
    return s.pack_notification(0, region=1, tag=i, agent_id=bytes(16), incarnation=1, id=i, payload=b"x")


def test_events_that_nobody_takes(tmp_path, monkeypatch):
    """They do not grow without limit, and push out none of another kind."""
    monkeypatch.setattr(session, "_EVENTS_MAX", 16)
    monkeypatch.setattr(session, "_EVENTS_DROPPED", 4)
    with FakeAgent(tmp_path / "dray.sock", None) as fake, fake.client() as client:
        fake.sock.send(s.pack_draining(0, deadline_ms=7))
        for i in range(100):
            fake.sock.send(notification(i))
        until(lambda: client.process() or client.events and client.events[-1][0] == 99, "the notifications")
        assert len(client.events) <= 16
        assert client.events[0] == dray.Draining(7)
        kinds = [type(event) for event in client.events]
        assert kinds.count(dray.Dropped) == 1 and kinds[1] is dray.Dropped
        first = 100 - kinds.count(dray.Notification)
        assert client.events[1] == dray.Dropped(dray.Notification, first)
        assert [event.tag for event in list(client.events)[2:]] == list(range(first, 100))
        assert client.next_event(dray.Dropped, 0).number == first
        assert client.next_notification(0).tag == first
        waits = client.event(dray.Dropped)
        for i in range(30):
            fake.sock.send(notification(i))
        assert waits.result(LIMIT).kind is dray.Notification


def test_event_that_comes_when_a_wait_begins(tmp_path):
    """It is not left in the queue, where the wait has just looked."""
    threads = []

    class Late(deque):
        def __iter__(self):
            yield from super().__iter__()
            if not threads:
                threads.append(threading.Thread(target=client._report, args=(dray.Draining(2),)))
                threads[0].start()
                threads[0].join(LIMIT)

    with FakeAgent(tmp_path / "dray.sock", None) as fake, fake.client() as client:
        client.events = Late([dray.Connected(1)])
        wait = client.event(dray.Draining)
        for thread in threads:
            thread.join(LIMIT)
        assert wait.result(LIMIT) == dray.Draining(2)


def test_event_before_the_end_of_the_session(agent):
    """A wait that begins just when the session ends for good has the event that is in the queue."""
    with agent.client() as client:
        progress = client._progress

        def late():
            client._progress = progress
            client.error = errors.SessionClosed("the end")
            client._report(dray.Disconnected(client.error, True))
            return progress()

        client.events.append(dray.Draining(1))
        client._progress = late
        assert client.next_event(dray.Draining, LIMIT) == dray.Draining(1)
        assert client.next_event(dray.Draining, LIMIT) is None and not client._event_waits
        assert client.next_event(dray.Disconnected, LIMIT).final


def test_order_of_events(agent):
    """A wait that begins just when an event comes has the older one that is in the queue."""
    with agent.client() as client:
        progress = client._progress

        def late():
            client._progress = progress
            client._report(dray.Draining(2))
            return progress()

        client.events.append(dray.Draining(1))
        client._progress = late
        assert [client.next_event(dray.Draining, LIMIT) for _ in range(2)] == [dray.Draining(1), dray.Draining(2)]


class Counted(type):
    """A kind of events that counts how many are compared with it."""

    compared = 0

    def __instancecheck__(cls, event):
        cls.compared += 1
        return isinstance(event, dray.Draining)


def test_events_are_compared_once(agent):
    """A wait compares what has come before it began, and each event that comes, until another wait has that event."""
    class Kind(metaclass=Counted):
        pass

    with agent.client() as client:
        client.events.extend(dray.Connected(i) for i in range(100))
        waits = [client.event(Kind) for _ in range(3)]
        assert Kind.compared == 300
        for i in range(10):
            client._report(dray.Connected(i))
        assert Kind.compared == 330
        client._report(dray.Draining(1))
        assert Kind.compared == 331 and waits[0].result(0) == dray.Draining(1)
        client._report(dray.Draining(2))
        assert Kind.compared == 332 and waits[1].result(0) == dray.Draining(2)
        waits[1]._miss()
        assert Kind.compared == 333 and waits[2].result(0) == dray.Draining(2)
        assert len(client.events) == 110 and not client._event_waits


def test_wait_longer_than_the_kernel_knows(agent):
    with agent.client() as client, agent.client() as sender:
        client.open_mailbox("x")
        for limit in (1e9, float("inf")):
            later = threading.Timer(0.01, sender.post, ("", "x"))
            later.start()
            assert client.next_event(dray.Letter, limit)
            later.join(LIMIT)


def test_session_that_opens_when_a_wait_for_it_begins(agent):
    """Another thread takes the event just when this one has seen no session."""
    with agent.client(wait=False) as client:
        info = client.info

        def late():
            seen, client.info = info(), info
            until(lambda: client.process() or info().connected, "the session")
            client.process()
            return seen

        client.info = late
        client.reconnect(LIMIT)


def test_no_descriptors(agent):
    """Each limit of open files is reported as such, and leaves none behind."""
    def session():
        with agent.client() as client:
            client.import_token(client.pool(4096).export())

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with agent.client():
        before, highest = len(os.listdir("/proc/self/fd")), os.dup(0)
        filled = [os.dup(0) for _ in range(highest - before)]
        refused = 0
        try:
            for spare in range(32):
                resource.setrlimit(resource.RLIMIT_NOFILE, (highest + spare, limits[1]))
                try:
                    session()
                except (errors.NoFds, errors.FdLimit):
                    refused += 1
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        finally:
            for fd in [highest, *filled]:
                os.close(fd)
        assert 4 < refused < 32 and len(os.listdir("/proc/self/fd")) == before


def test_pool_that_cannot_be_mapped(agent, monkeypatch):
    with agent.client(name="poor") as client:
        for code, error in ((errno.EMFILE, errors.NoFds), (errno.EIO, errors.Io)):
            def refuse(fd, code=code):
                raise OSError(code, os.strerror(code))

            with monkeypatch.context() as patch:
                patch.setattr(os, "dup", refuse)
                with pytest.raises(error):
                    client.pool(4096)
        until(lambda: client.process() or not client._pending, "the removal")
        assert not client._regions and "poor" not in agent.ctl("regions")


def test_result_that_cannot_be_taken(agent, caplog):
    """It ends its request, and not the wait of the thread that came to take it."""
    with agent.client() as client:
        first = client.pool(4096, wait=False)
        first._convert = lambda c: 1 // 0
        assert client.pool(4096)
        with pytest.raises(errors.Internal, match="ZeroDivisionError") as error:
            first.result(0)
        assert isinstance(error.value.__cause__, ZeroDivisionError)
        assert "cannot be taken" in caplog.text


def test_batch(two):
    """Transfers of a batch are submitted together at its end, or when one of them is waited for."""
    client, ops = two.client, [[(i * 100, i * 100, 100)] for i in range(20)]
    with client.batch():
        transfers = [client.read(two.region, two.remote, op) for op in ops[:10]]
        assert not any(t.id for t in transfers)
        transfers[3].result(LIMIT)
        assert all(t.id for t in transfers)
        transfers += [client.read(two.region, two.remote, op) for op in ops[10:]]
        assert not transfers[-1].id
    for transfer in transfers:
        transfer.result(LIMIT)
    assert two.view[:2000] == two.there.view[:2000]


def test_batch_that_grows_while_another_thread_submits_it(two):
    """The operations of each transfer live until its own submission."""
    class Operations(array):
        pass

    call = two.client._call
    alive, last = [], []

    def add_meanwhile(function, *arguments):
        del two.client._call
        operations = Operations("Q", [64, 64, 8])
        alive.append(weakref.ref(operations))
        last.append(two.client.read(two.region, two.remote, operations))
        return call(function, *arguments)

    with two.client.batch():
        batch, = two.client._batches.values()
        first = two.client.read(two.region, two.remote, [(0, 0, 8)])
        two.client._call = add_meanwhile  # as if this thread went on while another one submits
        batch._submit()
        first.result(LIMIT)
        assert alive[0]() is not None, "it is not submitted yet"
    last[0].result(LIMIT)
    assert two.view[64:72] == two.there.view[64:72]


def test_batch_larger_than_the_ring(agent):
    """What does not fit ends with busy, and can be started again."""
    with Side(agent, MIB, ring_entries=16) as here, Side(agent, MIB, noise(MIB)) as there:
        here.remote = here.reach(there)
        with here.client.batch():
            transfers = [waiting(here, i) for i in range(30)]
        refused = [t for t in transfers if isinstance(t.error(), errors.Busy)]
        assert 0 < len(refused) < 30 and "start this one again" in str(refused[0].error())
        for i in range(30):
            here.memory.words()[i] = 1
        for transfer in transfers:
            transfer.exception(LIMIT)


# --- operations -----------------------------------------------------------------------------------

TRIPLES = [(i * 128 + 1, i * 256 + 3, 100) for i in range(64)]
FLAT = array("Q", [word for op in TRIPLES for word in op])


class Tensor:
    """The part of a PyTorch tensor that the package uses."""

    def __init__(self, words, shape, stride, dtype="torch.int64", device="cpu"):
        self.words, self.shape, self.strides, self.dtype = words, shape, stride, dtype
        self.device = type("device", (), {"type": device, "__str__": lambda self: device + ":0"})()

    def data_ptr(self):
        return self.words.buffer_info()[0]

    def stride(self):
        return self.strides


class Interface:
    """An object with numpy's array interface and without the buffer protocol."""

    def __init__(self, words, shape, typestr="<i8", strides=None):
        self.words = words
        self.__array_interface__ = {"data": (words.buffer_info()[0], False), "shape": shape, "typestr": typestr,
                                    "strides": strides, "version": 3}


FORMS = {
    "list of tuples": TRIPLES, "list of lists": [list(op) for op in TRIPLES], "tuple": tuple(TRIPLES),
    "generator": lambda: (op for op in TRIPLES), "bytes": FLAT.tobytes(), "bytearray": bytearray(FLAT.tobytes()),
    "array": FLAT, "signed array": array("q", FLAT),
    "memoryview": memoryview(FLAT.tobytes()).cast("Q", [64, 3]), "tensor": Tensor(FLAT, (64, 3), (3, 1)),
    "array interface": Interface(FLAT, (64, 3)),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_operations(two, form):
    ops = FORMS[form]
    done = two.client.read(two.region, two.remote, ops() if callable(ops) else ops).result(LIMIT)
    assert done.bytes == 6400
    for local, remote, n in TRIPLES:
        assert two.view[local:local + n] == two.there.view[remote:remote + n]


def test_numpy_operations(two):
    numpy = pytest.importorskip("numpy")
    for kind in (numpy.uint64, numpy.int64):
        ops = numpy.array(TRIPLES, dtype=kind)
        ops.flags.writeable = False
        assert two.client.read(two.region, two.remote, ops).result(LIMIT).bytes == 6400
    for ops in (numpy.array(TRIPLES, dtype=numpy.int32), numpy.array(TRIPLES, dtype=numpy.int64)[::2],
                numpy.array(TRIPLES, dtype=">u8"), numpy.zeros((3, 5), numpy.int64)):
        with pytest.raises(errors.Invalid, match="ndarray"):
            two.client.read(two.region, two.remote, ops)


BAD_OPERATIONS = {
    "nothing": (None, "NoneType"), "a number": (7, "int"), "text": ("abc", "str"),
    "pairs": ([(1, 2), (3, 4), (5, 6)], "three numbers"), "numbers": ([1, 2, 3], "triples"),
    "a float": ([(1.5, 2, 3)], "triples"), "no operation": ([], "at least one operation"),
    "bytes of half an operation": (bytes(30), "30 bytes"), "words of 32 bits": (array("I", range(6)), "4 bytes"),
    "floats": (array("d", range(6)), "'d'"), "five words": (array("Q", range(5)), "shape"),
    "four columns": (memoryview(bytes(64)).cast("Q", [2, 4]), "shape (2, 4)"),
    "a gap": (memoryview(array("Q", range(12)))[::2], "contiguous"),
    "a transposed tensor": (Tensor(FLAT, (64, 3), (1, 64)), "contiguous"),
    "a tensor of floats": (Tensor(FLAT, (64, 3), (3, 1), "torch.float32"), "float32"),
    "a tensor on a GPU": (Tensor(FLAT, (64, 3), (3, 1), device="cuda"), "cuda:0"),
    "an interface of 32 bits": (Interface(FLAT, (64, 3), "<i4"), "<i4"),
}


@pytest.mark.parametrize("name", BAD_OPERATIONS)
def test_bad_operations(two, name):
    ops, word = BAD_OPERATIONS[name]
    with pytest.raises(errors.Invalid) as caught:
        two.client.read(two.region, two.remote, ops)
    assert word in caught.value.message, caught.value
    two.client.read(two.region, two.remote, [(0, 0, 1)]).result(LIMIT)


@pytest.mark.parametrize("op", [(-1, 0, 1), (0, 1 << 64, 1)])
def test_operations_beyond_64_bits(two, op):
    with pytest.raises(errors.Range, match="64 bits"):
        two.client.read(two.region, two.remote, [op])


def test_buffer_is_held_only_during_the_call(two):
    ops = bytearray(FLAT.tobytes())
    transfer = two.client.read(two.region, two.remote, ops, wait_word=(two.region, 0, 1))
    ops.extend(bytes(100))  # a held buffer would refuse this
    ops[:] = bytes(len(ops))  # the list was copied
    two.memory.words()[0] = 1
    assert transfer.result(LIMIT).bytes == 6400


# --- the library ----------------------------------------------------------------------------------

def test_layouts(tmp_path):
    """Each struct that the package declares has the size and the offsets of the compiler's."""
    lines, expected = [], []
    for name, struct in _library.STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof(struct {name}));')
        expected.append(f"{name} {ctypes.sizeof(struct)}")
        for field, *_ in struct._fields_:
            if field.startswith("_"):
                continue
            member = field
            if name == "dray_transfer" and field.startswith(("wait_", "set_")):
                member = field.replace("_", ".", 1)
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof(struct {name}, {member}));')
            expected.append(f"{name}.{field} {getattr(struct, field).offset}")
    source = tmp_path / "layouts.c"
    source.write_text("#include <stdio.h>\n#include \"client/dray.h\"\nint main(void)\n{\n" + "\n".join(lines) + "\n}\n")
    subprocess.run(["gcc", "-I", ROOT, "-o", tmp_path / "layouts", source], check=True)
    assert subprocess.check_output(tmp_path / "layouts", text=True).splitlines() == expected


def test_outcome_of_a_completion():
    """What is read of a completion by one call is what its fields say."""
    c = _library.Completion(status=-7, transport=3, bytes=(1 << 40) + 5, duration_ns=(1 << 50) + 9)
    assert pending._outcome(c, pending._OUTCOME_AT) == (c.status, c.transport, c.bytes, c.duration_ns)


def test_constants():
    """Numbers that the package writes down are those of the header."""
    text = (ROOT / "client/dray.h").read_text()
    for name, value in vars(_library).items():
        if name.startswith(("OPTION_", "EVENT_", "REQUEST_", "REGION_")) and isinstance(value, int):
            assert f"DRAY_{name} = {value}" in text or name.startswith("REQUEST_"), name


def python(code, *args, **how):
    """Starts a Python program that has the package."""
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(dray.__file__).parents[1])}
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), *map(str, args)], env=environment,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how)


def ended(process):
    out, error = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, error
    return out


def test_checksums():
    """The vectors of RFC 3720, B.4, in all kinds of memory; and of more bytes than are read with the interpreter's lock."""
    vector = bytes(range(32))
    assert dray.checksum(vector) == dray.checksum(memoryview(bytearray(vector))) == dray.checksum(array("I", vector)) == 0x46dd794e
    assert dray.checksum(vector[5:], dray.checksum(vector[:5])) == 0x46dd794e
    assert dray.checksum(b"") == 0 and dray.checksum(b"", 7) == 7
    long = bytes(range(256)) * 4096
    assert dray.checksum(long) == dray.checksum(long[1000:], dray.checksum(long[:1000])) != dray.checksum(long[:-1] + b"?")
    for wrong in ("text", 5, None, memoryview(vector)[::2]):
        with pytest.raises(errors.Invalid, match="data is no contiguous memory"):
            dray.checksum(wrong)
    for wrong in (-1, 1 << 32, "0", None, 0.5):
        with pytest.raises(errors.Invalid, match="before is"):
            dray.checksum(vector, wrong)


def test_import_needs_no_other_package():
    out = ended(python("""
        import sys
        sys.modules.update(numpy=None, torch=None)
        import dray
        print(sorted(m for m in sys.modules if m.startswith("dray")))
    """))
    assert "dray.client" in out


@pytest.mark.parametrize("name, text", [("missing.so", "cannot be loaded"), ("libc.so.6", "older than this package")])
def test_wrong_library(name, text):
    code = """
        try:
            import dray
        except Exception as e:
            print(type(e).__mro__[1].__name__, e, e.path)
    """
    process = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], text=True, stdout=subprocess.PIPE, env={
        **os.environ, "PYTHONPATH": str(pathlib.Path(dray.__file__).parents[1]), "DRAY_LIBRARY": name}, check=True)
    assert "Error" in process.stdout and text in process.stdout and "DRAY_LIBRARY" in process.stdout


def test_package_near_the_root(monkeypatch):
    """A package without a library beside it takes the system's, however short its path is, as /app/dray in an image."""
    monkeypatch.delenv("DRAY_LIBRARY", raising=False)
    for at in ("/app/dray/_library.py", "/dray/_library.py"):
        monkeypatch.setattr(_library, "__file__", at)
        assert _library._path() == _library.SONAME


# --- fork and exit --------------------------------------------------------------------------------

def in_child(function):
    """Runs a function in a forked child, which then ends as an interpreter does; returns what it returned."""
    out, into = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(out)
        try:
            text = repr(function())
        except BaseException as e:
            text = f"{type(e).__name__}: {e}"
        os.write(into, text.encode())
        import gc
        gc.collect()
        os._exit(0)
    os.close(into)
    with os.fdopen(out) as file:
        text = file.read()
    assert os.waitpid(pid, 0)[1] == 0, text
    return text


def test_forked_child(two):
    """Every call fails in a forked child, and the session of the parent goes on."""
    client, transfer = two.client, waiting(two, 0)
    token = two.region.export()
    threads = [threading.Thread(target=transfer.exception, args=(LIMIT,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: client._leader, "a thread that polls")
    calls = [
        lambda: client.read(two.region, two.remote, [(0, 0, 1)]), lambda: client.info(), lambda: client.process(),
        lambda: client.process(1), lambda: client.region(two.memory), lambda: client.pool(4096),
        lambda: client.import_token(token), lambda: two.region.export(), lambda: two.region.remove(),
        lambda: two.region.revoke(), lambda: two.remote.notify(1), lambda: two.remote.release(), lambda: transfer.done(),
        lambda: transfer.error(), lambda: transfer.result(1), lambda: transfer.cancel(), lambda: transfer.lent(),
        lambda: client.next_event(timeout=1), lambda: client.reconnect(1), lambda: client.fileno(),
        lambda: client.connected, lambda: client.agent_id, lambda: client.preferred_segment(),
        lambda: client.borrow_remote(1), lambda: two.remote.agent_handle]

    def check():
        seen = set()
        for call in calls:
            try:
                seen.add(repr(call()))
            except errors.OutOfOrder as e:
                assert "forked" in e.message and "in the child" in str(e)
                seen.add("out_of_order")
        client.close()
        return seen

    assert in_child(check) == "{'out_of_order'}"
    two.memory.words()[0] = 1
    for thread in threads:
        thread.join(LIMIT)
    assert transfer.result(0).bytes == 1
    client.read(two.region, two.remote, [(0, 0, MIB)]).result(LIMIT)
    assert two.view == two.there.view


def test_forked_child_makes_its_own_client(agent, two):
    def check():
        with agent.client() as client:
            return client.info().connected

    assert in_child(check) == "True"
    two.client.read(two.region, two.remote, [(0, 0, 1)]).result(LIMIT)


EXITS = """
    import sys, threading, time
    import dray
    client = dray.Client(sys.argv[1], name="exits")
    region = client.region(dray.Memory(1 << 20))
    remote = client.import_token(region.export())
    transfers = [client.read(region, remote, [(4096, 0, 1)], wait_word=(region, 0, 1)) for _ in range(10)]
    for t in transfers:
        threading.Thread(target=t.exception, daemon=True).start()
    threading.Thread(target=client.next_event, daemon=True).start()
    while not client._leader:
        time.sleep(0.001)
    print("ready", flush=True)
    sys.stdin.readline()
"""


def sessions(agent):
    return [s["name"] for s in agent.ctl("sessions", "--json")["sessions"]]


@pytest.mark.parametrize("way", ["exit", "killed"])
def test_interpreter_exits(agent, way):
    """An interpreter with waiting daemon threads exits with status 0, and its session ends."""
    process = python(EXITS, agent.socket, stdin=subprocess.PIPE)
    assert process.stdout.readline() == "ready\n"
    assert "exits" in sessions(agent)
    if way == "exit":
        assert ended(process) == ""
    else:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=LIMIT)
    until(lambda: "exits" not in sessions(agent), "the end of the session")


class Kept(dray.Memory):
    pass


def test_memory_of_a_region_that_has_ended(new_agent):
    """Neither a region that was removed, nor a client that was closed keeps it, with an agent or without one."""
    agent = new_agent()

    def register(client):
        memory = Kept(4096)
        return weakref.ref(memory), client.region(memory)

    with agent.client() as client:
        memory, region = register(client)
        assert memory()
        region.remove()
        assert not memory() and not region.handle
        memory, region = register(client)
    assert not memory()
    with agent.client() as client:
        memory, region = register(client)
        agent.kill()
        until(lambda: client.process() or not client.connected, "the loss of the session")
    assert not memory() and not client._regions
    agent.start()


def test_memory_of_a_region_whose_removal_fails(tmp_path, monkeypatch):
    """It is kept until the removal has succeeded, or the client has ended its session, whether or not the caller still waits."""
    answers, removals, seen = [], [], []

    def answer(request_id, kind, message):
        if kind == s.MSG_REGION_ADD:
            return [s.pack_region_add_reply(request_id, region=request_id, length=4096)]
        if answers:
            return [answers.pop()(request_id)]
        removals.append(request_id)
        return []

    def refused(request_id):
        return s.pack_error(request_id, code=errors.Internal.code, message="not now")

    def register(client):
        memory = Kept(4096)
        return weakref.ref(memory), client.region(memory)

    def disconnect(d):
        seen.append([bool(memory()) for memory in kept])
        dray_disconnect(d)

    dray_disconnect = _library.held.dray_disconnect
    monkeypatch.setattr(_library.held, "dray_disconnect", disconnect)
    with FakeAgent(tmp_path / "dray.sock", answer) as fake, fake.client() as client:
        memory, region = register(client)
        kept = [memory]
        answers.append(refused)
        with pytest.raises(errors.Internal, match="not now.*until the client is closed"):
            region.remove()
        del region

        for late in (refused, s.pack_region_remove_reply):
            memory, region = register(client)
            client.timeout = 0.01
            with pytest.raises(errors.Timeout):
                region.remove()
            client.timeout = LIMIT
            assert memory(), "the agent still has it"
            until(lambda: removals, "the removal")
            fake.sock.send(late(removals.pop()))
            until(lambda: client.process() or not client._pending, "the answer")
            if late is refused:
                kept.append(memory)
        assert not memory(), "the agent uses it no more"

        memory, region = register(client)
        kept.append(memory)
        removal = region.remove(wait=False)
        assert removal.cancel()
        memory, region = register(client)
        kept.append(memory)
        assert all(memory() for memory in kept)
        client.close(0)
        assert seen == [[True] * 4], "the memory was given back before the end of the session"
        assert not any(memory() for memory in kept)


def test_dropped_client(agent):
    """A client that nobody refers to is closed."""
    client = agent.client(name="dropped")
    assert "dropped" in sessions(agent)
    del client
    import gc
    gc.collect()
    until(lambda: "dropped" not in sessions(agent), "the end of the session")
