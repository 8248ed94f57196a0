# SPDX-License-Identifier: Apache-2.0
"""Outputs of encoders that are larger than a pool, with vLLM's real schedulers and agents."""

import contextlib
import os
from collections import Counter
from types import SimpleNamespace

import pytest
from dray import errors
from dray.vllm.ec.header import HEADER, digest, pack
from dray.vllm.ec.load import Load
from dray.vllm.ec.pieces import SLOTS, Handout, Pieces, Progress, consumer_window, encoder_window, piece_of, slot
from dray.vllm.ec.pool import Item, Pool, Shape
from dray.vllm.ec.pool_memory import Seal
from dray.vllm.ec.protocol import Offered
from ec_bare import NO_PIXELS, PIXELS, encode, images, making, offered
from harness import LIMIT, until

SMALL, LARGE = 64 << 10, 4 << 20
BIG = 900  # embeddings of 512 bytes: 7 times as much as a small pool


@pytest.fixture
def engine(agents):
    with making(agents) as make:
        yield make


def files():
    """Those of outputs that are put together, in this process."""
    return [name for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}") and
            (name := os.readlink(f"/proc/self/fd/{fd}")).startswith("/memfd:dray-ec-output")]


def ends(name, e, *consumers):
    """How a request ends at all consumers, while the encoder goes on."""
    until(lambda: [one.step() for one in (e, *consumers)] and all(name in one.answers for one in consumers), name)
    (how,) = {one.answers[name][0] for one in consumers}
    return how


def nothing_left(e, pd):
    e.idle()
    pd.idle()
    assert not e.worker._worker._kept and not files()


@pytest.mark.parametrize("transport", ["local", "tcp"])
@pytest.mark.parametrize(("of_e", "of_pd"), [(SMALL, SMALL), (SMALL, LARGE), (LARGE, SMALL)])
def test_a_large_output(engine, transport, of_e, of_pd):
    """It arrives as it is, whichever pool is too small, beside others of the same request; and again."""
    e = engine("e", "ec_producer", size=of_e)
    pd = engine("pd", "ec_consumer", transport == "tcp", size=of_pd, transport=transport)
    pd.side.in_place = False
    assert (e.side._pool.size, pd.side._pool.size) == (of_e, of_pd)
    for n in range(2):
        wanted = [*images(1, 10 + n, most=20), (f"big-{n}", BIG), *images(2, 20 + n, most=20)]
        params = encode(e, f"a{n}", wanted)
        assert ends(pd.add(f"a{n}", wanted, params, NO_PIXELS, tokens=2), e, pd) == "LENGTH"
        nothing_left(e, pd)
    assert not pd.encoded


def test_an_encoder_is_read_in_place_by_a_small_consumer(engine):
    """The output is in E's pool as a whole: nothing is put together."""
    e, pd = engine("e", "ec_producer", size=LARGE), engine("pd", "ec_consumer", size=SMALL, transport="local")
    wanted = [("big", BIG)]
    assert pd.run(pd.add("b", wanted, encode(e, "b", wanted), NO_PIXELS))[0] == "LENGTH"
    assert not pd.encoded


def test_two_consumers(engine):
    """A slot is filled anew when both have its piece."""
    e = engine("e", "ec_producer", size=SMALL)
    both = [engine(f"pd{i}", "ec_consumer", 1, size=size) for i, size in enumerate((SMALL, LARGE))]
    wanted = [("big", BIG)]
    params = encode(e, "c", wanted, params={"consumers": 2})
    for pd in both:
        pd.add("c", wanted, params, NO_PIXELS)
    assert ends("c", e, *both) == "LENGTH"
    for pd in both:
        pd.idle()
    for pd in both:
        nothing_left(e, pd)
        assert not pd.encoded


def hold_back(e):
    """E hands no more pieces out until the function that is returned is called."""
    taken, take = [], Handout.take
    for handout in e.side._handouts.values():
        handout.take = taken.append

    def go_on():
        for handout in e.side._handouts.values():
            del handout.take
            for progress in taken:
                take(handout, progress)
    return go_on


def under_way(engine, name, e_options=None, **options):
    """A large output of which two pieces have moved, and no more do until go_on()."""
    e, pd = engine("e", "ec_producer", size=SMALL, **(e_options or {})), engine("pd", "ec_consumer", 1, size=SMALL, transport="tcp", **options)
    params = encode(e, name, [("big", BIG)])
    go_on = hold_back(e)
    pd.add(name, [("big", BIG)], params)
    until(lambda: pd.step() or e.step() or pd.side._loads and pd.side._loads[0]._pieces[0]._at >= SLOTS * piece_of(encoder_window(SMALL)), "two pieces")
    assert files()
    return e, pd, go_on


def test_small_outputs_pass_a_large_one(engine):
    """As long as a large one takes; and another large one waits for its turn without holding small ones up."""
    e, pd, go_on = under_way(engine, "d", e_options={"lease": 2 * LIMIT}, deadline=2 * LIMIT)  # no time ends before the test
    e.add("d2", [("big 2", BIG)])
    for n in range(8):
        name, wanted = f"d-small-{n}", [(f"small-{n}", 30)]
        e.add(name, wanted)
        until(lambda name=name: pd.step() or e.step() or name in e.answers, name)  # PD says what it has read
        assert pd.run(pd.add(name, wanted, e.answers[name][1], NO_PIXELS))[0] == "LENGTH"
    assert "d" not in pd.answers and "d2" not in e.answers and not pd.encoded
    go_on()
    assert ends("d", e, pd) == "LENGTH"
    _, params = e.run("d2")
    assert ends(pd.add("d2", [("big 2", BIG)], params, NO_PIXELS), e, pd) == "LENGTH" and not pd.encoded
    nothing_left(e, pd)


def test_the_consumer_gives_up(engine):
    e, pd, _ = under_way(engine, "f")
    pd.abort("f")
    nothing_left(e, pd)


def test_the_right_expires(engine):
    """PD is silent for longer than the lease: E gives everything up, and PD encodes when it goes on."""
    e, pd, _ = under_way(engine, "g", e_options={"lease": 1})
    until(lambda: e.step() or e.side.idle, "the end of the right")
    until(lambda: pd.step() or "g" in pd.answers, "the request")
    assert pd.answers["g"][0] == "LENGTH" and pd.encoded == ["big"]
    nothing_left(e, pd)


def test_pieces_that_never_come(engine):
    """E's engine stands still: the request ends at its deadline."""
    e, pd, _ = under_way(engine, "h", deadline=2)
    assert pd.run("h")[0] == "LENGTH" and pd.encoded == ["big"]
    nothing_left(e, pd)


def test_notifications_that_the_encoder_has_no_room_for(lab, monkeypatch):
    """As while it computes for long. The output moves on when it reads them."""
    ended, go_on = [], Load._go_on
    monkeypatch.setattr(Load, "_go_on", lambda load, *how: ended.append(load._transfer.error()) or go_on(load, *how))
    agents = [lab.agent(f"agent-ec-pieces-few-{i}", key=lab.key, settings={"limits.notifications_per_session": 1}).start() for i in range(2)]
    with making(agents) as engine:
        e, pd = engine("e", "ec_producer", size=SMALL), engine("pd", "ec_consumer", 1, size=SMALL, transport="tcp")
        pd.add("p", [("big", BIG)], encode(e, "p", [("big", BIG)]), NO_PIXELS)

        def refused():
            pd.step()
            remote = pd.side._wants["p"].sources[0].hold.remote
            with contextlib.suppress(errors.NotifyRefused):
                while remote:  # until the queue is full, of which the agent moves some to the session
                    remote.notify(7)
            return any(isinstance(error, errors.NotifyRefused) for error in ended)

        until(refused, "a refusal")
        assert ends("p", e, pd) == "LENGTH" and not pd.encoded
        nothing_left(e, pd)
    for agent in agents:
        agent.stop()


@pytest.mark.parametrize("which", [0, 1])
def test_an_agent_dies(lab, which):
    agents = [lab.agent(f"agent-ec-pieces-dies-{which}{i}", key=lab.key).start() for i in range(2)]
    with making(agents) as engine:
        e, pd, _ = under_way(engine, "i")
        agents[which].kill()
        assert pd.run("i")[0] == "LENGTH" and pd.encoded == ["big"]
        agents[which].start()
        nothing_left(e, pd)
    for agent in agents:
        agent.stop()


@pytest.mark.parametrize("what", ["bytes", "nonce"])
def test_wrong_bytes(engine, what):
    """In a piece, or in its header: found with that piece, and not at the end."""
    e, pd = engine("e", "ec_producer", size=SMALL), engine("pd", "ec_consumer", 1, size=SMALL, transport="tcp")
    failed = Counter()
    pd.side.stats.failed = lambda name: failed.update([name])
    params = encode(e, "j", [("big", BIG)])
    with offered(params) as offer:
        (offset, *_), = offer["items"].values()
    e.side._memory.memory.view[slot(offset, piece_of(encoder_window(SMALL)), 1) + (HEADER + 99 if what == "bytes" else 10)] ^= 1
    assert pd.run(pd.add("j", [("big", BIG)], params))[0] == "LENGTH" and pd.encoded == ["big"]
    assert failed == {"io" if what == "bytes" else "not_found": 1}
    nothing_left(e, pd)


def test_the_output_of_another_tenant(engine):
    e, pd = engine("e", "ec_producer", size=SMALL), engine("pd", "ec_consumer", 1, size=SMALL, transport="tcp")
    params = encode(e, "k", [("big", BIG)], salt="one")
    assert pd.run(pd.add("k", [("big", BIG)], params))[0] == "LENGTH" and pd.encoded == ["big"]
    e.idle()


def test_two_large_outputs_of_one_request(engine):
    """E offers one of them, and PD encodes the other one."""
    e, pd = engine("e", "ec_producer", size=SMALL), engine("pd", "ec_consumer", 1, size=SMALL, transport="tcp")
    wanted = [("big 1", 400), ("big 2", 400)]
    params = encode(e, "l", wanted)
    assert ends(pd.add("l", wanted, params), e, pd) == "LENGTH" and pd.encoded == ["big 2"]
    e.idle()
    pd.idle()


def test_a_window_beside_an_output_that_is_read_in_place(engine):
    """Its place is free when its own output has moved, although another one near it is being read."""
    e, pd = engine("e", "ec_producer", size=SMALL), engine("pd", "ec_consumer", size=SMALL, transport="local")
    params = encode(e, "m", [("big", BIG)])
    pd.add("n", [("near", 30)], encode(e, "n", [("near", 30)]), NO_PIXELS, tokens=50)
    pd._schedule()
    assert pd.side._wants["n"].items["near"].opened is not None
    assert ends(pd.add("m", [("big", BIG)], params, NO_PIXELS), e, pd) == "LENGTH"
    until(lambda: pd.step() or e.step() or not e.side._handouts, "the end of the right")
    assert not e.side._pool._read
    pd.abort("n")
    nothing_left(e, pd)


@pytest.mark.parametrize("data", [NO_PIXELS, PIXELS], ids=["no image", "image"])
def test_a_preempted_request(engine, data):
    """It needs an output again that has moved, and whose right has been used. With its image it encodes, and keeps nothing meanwhile."""
    e, pd = engine("e", "ec_producer", size=SMALL), engine("pd", "ec_consumer", 1, size=SMALL, transport="tcp")
    wanted = [("small", 20), ("big", BIG)]
    pd.add("o", wanted, encode(e, "o", wanted), data, tokens=800)
    until(lambda: pd.step() or e.step() or pd.scheduler.requests["o"].num_output_tokens > 3, "some tokens")
    until(lambda: pd.step() or e.step() or e.side.idle, "the end of the right")
    assert bool(files()) == (data is NO_PIXELS) and not pd.side._pool.used, "the window is free"
    params = encode(e, "o2", [("big 2", BIG)])
    assert ends(pd.add("o2", [("big 2", BIG)], params, NO_PIXELS), e, pd) == "LENGTH"
    assert "o" not in pd.answers
    pd.preempt()
    again = pd.scheduler.requests["o"]
    again.max_tokens = again.num_output_tokens + 2
    assert ends("o", e, pd) == "LENGTH" and pd.encoded == ([] if data is NO_PIXELS else ["big"])
    nothing_left(e, pd)


# --- parts ----------------------------------------------------------------------------------------------


def shape(name, size, window=0):
    return Shape(digest(name, None), 1, size, size, window)


@pytest.mark.parametrize("pool", [64 << 10, 100_000, 1 << 30])
def test_windows(pool):
    """They are a half and a quarter of a pool, at most, and hold a piece behind each header."""
    assert encoder_window(pool) <= pool // 2 and consumer_window(pool) <= pool // 4
    piece = piece_of(encoder_window(pool))
    assert slot(0, piece, SLOTS - 1) + HEADER + piece <= encoder_window(pool) and slot(7, piece, SLOTS) == 7


def test_slots_are_filled_anew_when_all_have_the_piece():
    window = encoder_window(SMALL)
    piece = piece_of(window)
    item = Item(shape("a", 5 * piece - 1, window), 0, b"n" * 16)
    one = Handout(item, 2)
    said = lambda reader, n: one.take(Progress(b"n" * 16, reader, n)) or list(one.next())  # noqa: E731
    assert said(b"1" * 8, 0) == [] and said(b"1" * 8, 2) == []
    assert said(b"2" * 8, 1) == [2] and said(b"3" * 8, 2) == [], "a third reader is none of these"
    assert said(b"2" * 8, 99) == [3], "nobody has a piece that was not handed out"
    assert said(b"1" * 8, 3) == [4] and said(b"2" * 8, 4) == [] and said(b"1" * 8, 5) == []
    payload = Progress(b"n" * 16, b"r" * 8, 7).pack()
    assert Progress.read(payload) == (b"n" * 16, b"r" * 8, 7) and Progress.read(payload[:-1]) is None


@pytest.mark.parametrize("of", [1, 2])
def test_a_header_that_is_being_written(of):
    """It is read again. The header of a later piece ends the load, because the right one does not come back."""
    old, new = (pack(b"n" * 16, b"d" * 32, index, number) for index, number in ((0, 5), (of, 1 << 40)))
    told = Offered(0, 1, 3000, b"n" * 16, b"d" * 32, 0, 1024)
    item = Item(Shape(b"d" * 32, 1, 3000, 3000, 2048), 0, b"n" * 16)
    item.seal = Seal("cpu", b"d" * 32, 0)
    there = bytearray(HEADER)
    memory = SimpleNamespace(assemble=lambda item: object(), peek=lambda offset, length: there[offset:offset + length])
    pieces = Pieces(item, told, "cpu", memory)
    pieces._at = 1024
    for written in (new[:n] + old[n:] for n in range(len(new))):
        pieces.operation()
        there[:len(new)] = written
        assert written == new or not pieces.take(), written
    there[:len(new)] = new
    with pytest.raises(errors.NotFound, match="later pieces") if of > 1 else contextlib.nullcontext():
        assert pieces.take()


def test_a_pool_has_one_output_in_pieces_at_a_time():
    pool = Pool(SMALL)
    big = [shape(name, 1 << 20, encoder_window(SMALL)) for name in "ab"]
    (first,) = pool.enter(big[:1], "u", [b"1" * 16])
    assert pool.find(big[0]) is None and pool.taken(big[1:]) and not pool.taken([shape("c", 99)])
    assert pool.enter(big[1:], "v", [b"2" * 16]) is None and not pool.fits(big) and pool.fits(big[1:])
    closed = []
    first.assembled = type("Assembled", (), {"close": lambda self: closed.append(1)})()
    pool.leave(first, "u")
    assert closed == [1] and pool.used == 0 and pool.enter(big[1:], "v", [b"2" * 16])
