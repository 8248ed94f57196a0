# SPDX-License-Identifier: Apache-2.0
"""Outputs that are read by the export of an encoder's pool, without waiting for the right of the offer."""

import itertools
import signal
from types import SimpleNamespace

import pytest
from dray import errors
from dray.events import Reconnected
from dray.vllm.ec import consumer as consumer_module, pool_rights
from dray.vllm.ec.load import Load
from dray.vllm.ec.pool_rights import PoolExports, PoolRemotes
from ec_bare import NO_PIXELS, encode, images, making, offered
from ec_world import Pending
from harness import until


@pytest.fixture
def engine(agents):
    with making(agents) as make:
        yield make


def consumer(engine, name, transport="tcp"):
    """A consumer that reads nothing in place, and what its reads are by: True for the export of a pool."""
    pd, early = engine(name, "ec_consumer", transport == "tcp", transport=transport), []
    pd.side.in_place = False
    read = pd.side._client.read

    def recorded(region, remote, operations, **how):
        early.append(remote.expiry is None)
        return read(region, remote, operations, **how)

    pd.side._client.read = recorded
    return pd, early


def load(e, pd, name, wanted):
    params = encode(e, name, wanted)
    assert pd.run(pd.add(name, wanted, params, NO_PIXELS))[0] == "LENGTH"
    return params


def meet(e, pd, early, name):
    """Requests until the consumer reads the encoder's pool by its export."""
    numbers = iter(range(100))

    def knows():
        n = next(numbers)
        load(e, pd, f"{name}-{n}", images(1, f"{name}-{n}"))
        return early[-1]
    until(knows, "a read by the export of the pool")


@pytest.fixture
def known(engine, request):
    """An encoder whose leases expire after 600 seconds, or as many as the parameter says, and a consumer that reads its pool by the export."""
    e = engine("e", "ec_producer", lease=getattr(request, "param", 600))
    pd, early = consumer(engine, "pd")
    meet(e, pd, early, "known")
    pd.idle()
    return e, pd, early


def told_after(pd, monkeypatch):
    """Whether a request's tokens had come, for each right that is acquired from now on."""
    told, acquire = [], pd.side.acquire

    def recorded(source):
        told.append(source.request_id in pd.answers)
        return acquire(source)
    monkeypatch.setattr(pd.side, "acquire", recorded)
    return told


def scheduled(pd, name):
    """Steps until one has scheduled a request, whose workers have done nothing yet."""
    def step():
        output, requests = pd._schedule()
        if name in requests:
            return output, requests
        return pd._work(output, requests)
    return until(step, f"{name} is scheduled")


def exports(params):
    """Tokens of the encoder's pool in its offer, by agent."""
    with offered(params) as offer:
        return offer.get("exports", {})


@pytest.mark.parametrize("transport", ["local", "tcp"])
def test_a_consumer_that_is_known_reads_early(engine, agents, transport):
    e = engine("e", "ec_producer")
    pd, early = consumer(engine, "pd", transport)
    params = load(e, pd, "a", images(3, 1))
    assert early == [False] and not exports(params)
    meet(e, pd, early, "b")
    params = load(e, pd, "c", images(3, 2))
    assert early[-1] and list(exports(params)) == [pd.side._client.agent_id.hex()]
    pd.idle()
    e.idle()
    assert not pd.encoded and len(agents[0].ctl("leases", "--json")["leases"]) == 0


def two_consumers(engine, name):
    """An encoder with room for two outputs of 120 embeddings, and consumers that it knows. The first one loads such an output."""
    e = engine("e", "ec_producer", size=256 * 512 + 4096)
    (pd, early), (other, other_early) = consumer(engine, "pd"), consumer(engine, "other")
    meet(e, pd, early, f"{name}-pd")
    meet(e, other, other_early, f"{name}-other")
    params = load(e, pd, name, [(name, 120)])
    pd.idle()
    other.idle()
    e.idle()
    return e, pd, other, other_early, params


def test_outputs_that_are_still_there(engine):
    """The right has been used up, and the bytes are those of the offer."""
    e, pd, other, early, params = two_consumers(engine, "f")
    assert other.run(other.add("f", [("f", 120)], params, NO_PIXELS))[0] == "LENGTH"
    assert early[-1] and not other.encoded
    other.idle()


def test_places_that_are_used_anew(engine):
    """What was read is another output. The right is asked for, and is not there any more."""
    e, pd, other, early, params = two_consumers(engine, "g")
    for n in range(3):
        load(e, pd, f"g{n}", [(f"g{n}", 120)])
        pd.idle()
        e.idle()
    reads = len(early)
    assert other.run(other.add("g", [("g", 120)], params))[0] == "LENGTH"
    assert early[reads:] == [True] and other.encoded == ["g"]
    other.idle()
    load(e, other, "h", images(1, 4))
    assert early[-1] and len(other.encoded) == 1


def test_a_request_that_ends_before_it_is_scheduled(engine):
    """Its offer's right is used up all the same."""
    e, pd, other, early, _ = two_consumers(engine, "m")
    params = encode(e, "n", [("n", 120)])
    pd.add("n", [("n", 120)], params, NO_PIXELS)
    pd.abort("n")
    pd.idle()
    e.idle()


def test_a_pool_that_is_lost_is_not_needed(known):
    """The early read fails, and the outputs come by the right."""
    e, pd, early = known
    for token in list(e.side._exports._tokens.values()):
        e.side._region.revoke(token)
    wanted = images(2, 5)
    params = encode(e, "i", wanted)
    assert pd.run(pd.add("i", wanted, params, NO_PIXELS))[0] == "LENGTH"
    assert not early[-1] and not pd.encoded
    pd.idle()
    e.idle()


@pytest.mark.parametrize("known", [1], indirect=True)
def test_a_request_that_waits_for_room_keeps_its_right(known, monkeypatch):
    e, pd, early = known
    wanted = images(2, 7)
    params = encode(e, "q", wanted)
    with monkeypatch.context() as patch:
        patch.setattr(pd.side._pool, "enter", lambda *how: None)
        pd.add("q", wanted, params, NO_PIXELS)
        pd.step()
        source, = pd.side._wants["q"].sources
        assert source.pool is not None, "it could be loaded at once"
        until(lambda: pd.step() or source.hold is not None and source.hold._renewal is not None, "the right is renewed")
    assert pd.run("q")[0] == "LENGTH" and not pd.encoded and not early[-1]
    pd.idle()
    e.idle()


def test_a_load_at_once_that_takes_long_keeps_its_right(known, monkeypatch):
    """And the encoder hears of the consumer all the same."""
    e, pd, early = known
    heard = dict(e.side._exports._heard)
    monkeypatch.setattr(pool_rights, "_AGAIN", 0)
    wanted = images(2, 8)
    params = encode(e, "s", wanted)
    with monkeypatch.context() as patch:
        patch.setattr(Load, "_go_on", lambda *how: None)
        pd.add("s", wanted, params, NO_PIXELS)
        pd.step()
        source, = pd.side._wants["s"].sources
        until(lambda: pd.step() or source.hold is not None and source.hold.remote is not None, "the right")
    assert pd.run("s")[0] == "LENGTH" and not pd.encoded and early[-1]
    until(lambda: e.step() or e.side._exports._heard != heard, "the encoder hears of the consumer")
    pd.idle()
    e.idle()


def test_a_load_at_once_that_has_ended_needs_no_right(known, monkeypatch):
    """However long it took: the right is used up after the tokens."""
    e, pd, early = known
    wanted = images(2, 12)
    params = encode(e, "y", wanted)
    with monkeypatch.context() as patch:
        patch.setattr(Load, "_go_on", lambda *how: None)
        patch.setattr(consumer_module, "_SOON", 600)
        pd.add("y", wanted, params, NO_PIXELS)
        pd.step()
        load, = pd.side._loads
        until(lambda: pd.step() or load._transfer.done(), "the outputs")
    monkeypatch.setattr(consumer_module, "_SOON", 0)
    told = told_after(pd, monkeypatch)
    assert pd.run("y")[0] == "LENGTH" and early[-1]
    pd.idle()
    e.idle()
    assert told == [True]


def test_the_step_after_the_tokens_tells_nothing(known, monkeypatch):
    """The engine may be sending them."""
    e, pd, early = known
    told = told_after(pd, monkeypatch)
    load(e, pd, "t", images(1, 14))
    pd.step()
    assert early[-1] and not told and pd.side.busy
    pd.step()
    assert told == [True]
    pd.idle()
    e.idle()


@pytest.fixture(params=["V1", "V2"])
def decodes(known, request):
    """A step of the consumer that has tokens of a long answer, with either model runner."""
    _, pd, _ = known
    pd.v2, numbers = request.param == "V2", itertools.count()

    def step():
        if not any(name.startswith("text") for name in pd.scheduler.requests):
            pd.add(f"text {next(numbers)}", [], tokens=1000)
        pd.step()
    yield step
    for name in list(pd.scheduler.requests):
        pd.abort(name)
    pd.idle()


@pytest.mark.parametrize("after", ["decodes", "is idle"])
def test_an_agent_that_answers_late(known, agents, monkeypatch, decodes, after):
    """The encoder has its place back when the answer has come, and the engine needs no more steps for it, whatever it does after the load."""
    e, pd, early = known
    monkeypatch.setattr(consumer_module, "_SOON", 600)
    told = told_after(pd, monkeypatch)
    step = decodes if after == "decodes" else pd.step
    pd.add("late", images(1, 15), encode(e, "late", images(1, 15)), NO_PIXELS)
    until(lambda: step() or "late" in pd.answers, "the token")
    assert early[-1] and not told
    agents[0].signal(signal.SIGSTOP)
    try:
        until(lambda: step() or told, "the encoder is told")
        for _ in range(20):
            step()
        assert pd.side.busy
    finally:
        agents[0].signal(signal.SIGCONT)
    until(lambda: step() or not pd.side.busy, "the answer")
    until(lambda: e.step() or e.side.idle, "the encoder has its place back")
    assert told == [True] and not agents[0].ctl("leases", "--json")["leases"]


def test_the_end_of_the_session_is_seen_in_a_long_decode(known, agents, decodes):
    _, pd, _ = known
    seen, on_event = [], pd.side._grants.on_event
    pd.side._grants.on_event = lambda event: seen.append(type(event)) or on_event(event)
    decodes()
    agents[1].restart()
    until(lambda: decodes() or Reconnected in seen, "the session is there again")


@pytest.mark.parametrize("other", ["an empty step", "tokens of another request"])
def test_steps_that_are_scheduled_ahead(known, monkeypatch, other):
    """As with asynchronous scheduling: rights are used up after the tokens of the request, and not after those of another step."""
    e, pd, early = known
    params = encode(e, "z", images(2, 13))
    steps = []
    if other != "an empty step":
        pd.add("text", [])
        steps.append(scheduled(pd, "text"))
    told = told_after(pd, monkeypatch)
    pd.add("z", images(2, 13), params, NO_PIXELS)
    steps.append(scheduled(pd, "z"))
    if len(steps) > 1:
        pd._work(*steps.pop(0))
    steps += [pd._schedule() for _ in range(2)]
    assert not told and early[-1]
    for step in steps:
        pd._work(*step)
    pd.idle()
    e.idle()
    assert told == [True]


def test_a_load_at_once_that_fails_gives_its_right_back(known, monkeypatch):
    e, pd, early = known
    wanted, read = images(2, 9), pd.side._client.read
    params = encode(e, "u", wanted)

    def refused(*what, **how):
        read(*what, **how)
        raise errors.Quota("no room")

    with monkeypatch.context() as patch:
        patch.setattr(pd.side._client, "read", refused)
        assert pd.run(pd.add("u", wanted, params))[0] == "LENGTH"
    assert early[-1] and pd.encoded == [name for name, _ in wanted]
    pd.idle()
    e.idle()


def test_an_encoder_hears_of_consumers_that_read(known, monkeypatch):
    e, pd, early = known
    heard = dict(e.side._exports._heard)
    load(e, pd, "w", images(1, 10))
    assert e.side._exports._heard == heard, "it was heard of just now"
    monkeypatch.setattr(pool_rights, "_AGAIN", 0)
    load(e, pd, "x", images(1, 11))
    assert early[-1]
    until(lambda: e.step() or e.side._exports._heard != heard, "the encoder hears of the consumer")
    assert list(e.side._exports._heard) == list(heard)


def test_an_encoder_with_another_session_is_met_again(known, agents):
    e, pd, early = known
    e.idle()
    agents[0].restart()
    until(lambda: e.side._client.connected, "the encoder's session")
    e.step()
    assert not exports(load(e, pd, "k", images(1, 6)))
    meet(e, pd, early, "l")
    assert not pd.encoded


class Region:
    def __init__(self):
        self.exported, self.revoked = [], []

    def export(self, *, access, audience, wait):
        if self.exported is None:
            raise errors.SessionClosed("lost")
        self.exported.append((audience, Pending()))
        return self.exported[-1][1]

    def revoke(self, token, *, wait):
        self.revoked.append(token)


def test_exports_are_bounded(monkeypatch):
    now, region = [0.0], Region()
    monkeypatch.setattr(pool_rights, "time", SimpleNamespace(monotonic=lambda: now[0]))
    exports = PoolExports(region)
    names = [b"%15d" % n for n in range(20)]
    for name in names:
        exports.introduced(name)
        exports.introduced(name)
    assert [name for name, _ in region.exported] == names[:16] and not exports.offered
    for name, pending in region.exported:
        pending.end(f"token of {name.decode().strip()}")
    assert list(exports.offered) == [name.hex() for name in names[:16]]
    now[0] = 59.0
    exports.introduced(names[0])
    now[0] = 61.0
    exports.introduced(names[16])
    assert region.revoked == ["token of 1"] and names[0].hex() in exports.offered and names[1].hex() not in exports.offered
    region.exported[-1][1].end(None, errors.Quota("no room"))
    assert len(exports.offered) == 15
    exports.introduced(names[17])
    exports.lost()
    region.exported[-1][1].end("late")
    assert not exports.offered
    region.exported = None
    exports.introduced(names[18])
    assert not exports.offered


def test_pools_of_a_consumer_are_bounded(monkeypatch):
    monkeypatch.setattr(pool_rights, "_REMOTES", 2)
    pending, released = {}, []

    def begin(token, *, wait):
        pending[token] = Pending()
        return pending[token]

    def remote(name):
        return SimpleNamespace(lost=None, release=lambda wait: released.append(name))

    pools = PoolRemotes(SimpleNamespace(agent_id=b"me", import_token=begin))
    me = b"me".hex()
    assert pools.find({}) is None and pools.find({"other": "x"}) is None and not pending and pools.is_stranger({"other": "x"})
    assert not pools.is_stranger({me: "x"})
    for token in ("x", "y", "z"):
        assert pools.find({me: token}) is None
        pending[token].end(remote(token))
    assert released == ["x"] and pools.find({me: "z"}) is pending["z"].value
    pending["y"].value.lost = errors.Revoked("gone")
    assert pools.find({me: "y"}) is None and pools.find({me: "y"}) is None
    pending["y"].end(None, errors.TokenInvalid("no such token"))
    assert pools.find({me: "y"}) is None
    pools.lost()
    pools.find({me: "y"})
    assert not pending["y"].ended
