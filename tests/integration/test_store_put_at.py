# SPDX-License-Identifier: Apache-2.0
"""PUTs that do not say where they go, while an agent is preferred for them: by store.put_at, its variable, or a hint. What it does not take stays here."""

import pytest
from dray import Status, Tier, errors
from harness import LIMIT, MIB, until
from test_store import User, counters, tenants
from test_store_at import AT, SPACE, ends, nothing_is_here, put, there
from test_store_replicas import SIZE, STORE, UID, connected, stopped, value_of

HERE = [(Status.OK, Tier.NONE)]


class Pair:
    """The first agent has the second one in store.peers."""

    def __init__(self, new_agent, folder, settings, other):
        self.file = folder / "dray.conf"
        self.other = new_agent("other", settings=STORE | other, args=["--allow-insecure"])
        self.agent = new_agent("agent", start=False, settings=STORE | {"store.peers": self.other.listen[0]} | settings,
                               args=["--allow-insecure", "--config", str(self.file)])
        self.write("")

    def write(self, at):
        self.file.write_text(f'store: {{ put_at = "{at}"; }};\n')

    def prefer(self, at):
        self.write(at)
        assert "store.put_at" in self.agent.ctl("reload")

    def start(self, at=""):
        self.write(at)
        self.agent.start()
        connected(self.agent, 1)
        return self.agent, self.other


@pytest.fixture
def pair(new_agent, lab):
    def make(settings=(), other=()):
        return Pair(new_agent, lab.directory("pair"), dict(settings), dict(other))
    return make


def lines(agent):
    return agent.text().count("objects that were to go to")


def fallbacks(agent):
    return counters(agent)["dray_store_forward_fallbacks_total"]


def test_configured(pair):
    """The client's own word counts first."""
    p = pair()
    a, b = p.start(p.other.listen[0])
    with User(a, space=SPACE) as here, User(a) as own, User(b, space=SPACE) as other:
        assert there(here, b"key", at=None) == AT
        assert there(here, b"empty", at="") == AT
        nothing_is_here(a)
        assert other.get(b"key") == value_of(b"key")
        assert there(here, b"key", at=None) == [(Status.EXISTS, Tier.AGENT)]
        assert ends(put(here, b"local", at="local")) == HERE
        assert ends(put(here, b"self", at=a.listen[0])) == HERE
        assert ends(put(here, b"local", at=None)) == [(Status.EXISTS, Tier.NONE)]
        # a name space without a name stays here
        assert ends(put(own, b"key", at=None)) == HERE
        assert other.has(b"local", b"self") == [False, False]
        # copies are at both agents
        until(lambda: put(here, b"copied", at=None, replicas=2)[0].copies == 2, "a copy")
        assert here.has(b"copied") == other.has(b"copied") == [True]
        assert fallbacks(a) == counters(a)["dray_store_forward_failed_total"] == lines(a) == 0


def test_environment(pair):
    """The variable has precedence over the file."""
    p = pair()
    p.agent.env["DRAY_STORE_PUT_AT"] = p.other.listen[0]
    a, b = p.start("local")
    with User(a, space=SPACE) as here, User(b, space=SPACE) as other:
        assert there(here, b"key", at=None) == AT
        assert other.has(b"key") == [True]


def test_reload(pair):
    p = pair()
    a, b = p.start()
    with User(a, space=SPACE) as here:
        assert ends(put(here, b"first", at=None)) == HERE
        p.prefer(b.listen[0])
        assert there(here, b"second", at=None) == AT
        p.prefer("local")
        assert ends(put(here, b"third", at=None)) == HERE
        p.prefer(a.listen[0])
        assert ends(put(here, b"fourth", at=None)) == HERE
        p.prefer("")
        assert ends(put(here, b"fifth", at=None)) == HERE
        assert fallbacks(a) == 0


@pytest.mark.parametrize("settings", [{"store.lend": "false"}, {"store.spaces": f"kv=default:{UID + 1}"}, {"limits.store_bytes_per_owner": "256KiB"}],
                         ids=["lends-nothing", "other-owner", "too-small"])
def test_other_agent_does_not_take_it(pair, settings):
    p = pair(other=settings)
    a, b = p.start(p.other.listen[0])
    with User(a, space=SPACE) as here:
        for i in range(3):
            assert ends(put(here, b"%d" % i, at=None)) == HERE
            assert here.get(b"%d" % i) == value_of(b"%d" % i)
        assert ends(put(here, b"0", at=None)) == [(Status.EXISTS, Tier.NONE)]
        assert fallbacks(a) == 3
        assert counters(a)["dray_store_puts_total"] == 3 and counters(a)["dray_store_busy_total"] == 0
        assert lines(a) == 1
        assert ends(put(here, b"named", at=b.listen[0])) != HERE and here.has(b"named") == [False]


def test_none_of_the_peers(pair):
    p = pair()
    a, _ = p.start("127.0.0.1:1")
    assert "store.put_at is 127.0.0.1:1, which is not in store.peers" in a.text()
    with User(a, space=SPACE) as here:
        assert ends(put(here, b"a", b"b", b"a", at=None)) == [*HERE * 2, (Status.EXISTS, Tier.NONE)]
    line, = (t for t in a.text().splitlines() if "objects that were to go to 127.0.0.1:1 stayed here: it is none of store.peers" in t)
    assert line.endswith("keys=2")
    assert fallbacks(a) == 2


PEER = 'peers = [ "127.0.0.1:1" ]; lend = true;'


@pytest.mark.parametrize("before, after, warning", [
    (f"store: {{ {PEER} }};", 'store: { peers = [ "127.0.0.1:2" ]; lend = true; put_at = "127.0.0.1:2"; };',
     "store.put_at is 127.0.0.1:2, which is not in store.peers"),
    ('store: { peers = [ "127.0.0.1:1" ]; };', f'store: {{ {PEER} put_at = "127.0.0.1:1"; }};',
     "store.put_at needs store.peers and store.lend = true"),
    (f"store: {{ {PEER} replicas = 2; }};", f'store: {{ {PEER} put_at = "127.0.0.1:1"; }};',
     "store.put_at and store.replicas = 2 exclude each other"),
    ("limits: { regions = 10; };", "limits: { regions = 30; regions_per_group = 20; };",
     "limits.regions_per_group (20) is over limits.regions (10)"),
])
def test_values_that_fit_those_of_a_later_start(new_agent, lab, before, after, warning):
    """A reload takes a value, and has another one that takes a restart."""
    file = lab.directory("later") / "dray.conf"
    file.write_text(before)
    agent = new_agent(args=["--allow-insecure", "--config", str(file)])
    assert warning not in agent.text()
    file.write_text(after)
    agent.ctl("reload")
    line, = (t for t in agent.text().splitlines() if warning in t)
    assert f"until the agent restarts: {file}:1: " in line


def test_own_agent_by_another_address(new_agent):
    """Agents may have one list of all of them, with addresses that they do not advertise."""
    agent = new_agent(start=False, settings=STORE, args=["--allow-insecure"], listen=("127.0.0.1", "127.0.0.2"))
    other = agent.listen[1]
    agent.settings |= {"store.peers": other, "store.put_at": other}
    agent.start()
    with User(agent, space=SPACE) as here:
        until(lambda: [c["segment"] for c in candidates(agent) if c["preference"] != "explicit"] == [agent.listen[0]], "the own answer")
        before = fallbacks(agent)
        assert ends(put(here, b"key", at=None)) == HERE
        assert ends(put(here, b"named", at=other)) == HERE
        assert fallbacks(agent) == before
        assert here.has(b"key", b"named") == [True, True]


def test_killed_agent(pair):
    p = pair()
    a, b = p.start(p.other.listen[0])
    with User(a, space=SPACE) as here:
        with stopped(b):
            pending = put(here, b"key", at=None, wait=False)
            until(lambda: counters(a)["dray_store_objects"] == 1, "the object")
            b.kill()
        assert ends(pending.result(LIMIT)) == HERE
        assert ends(put(here, b"second", at=None)) == HERE
        assert here.has(b"key", b"second") == [True, True]
        b.start()
        until(lambda: ends(put(here, b"third-%d" % fallbacks(a), at=None)) == AT, "the next agent")
        assert lines(a) == 1


def test_stopped_agent(pair):
    """It is waited for once; then PUTs stay here without asking it for a while."""
    p = pair({"store.peer_timeout": "0.3s"})
    a, b = p.start(p.other.listen[0])
    with User(a, space=SPACE) as here:
        with stopped(b):
            for i in range(5):
                assert ends(put(here, b"%d" % i, at=None)) == HERE
        assert here.has(*[b"%d" % i for i in range(5)]) == [True] * 5
        assert fallbacks(a) == 5 and lines(a) == 1
        until(lambda: ends(put(here, b"later-%d" % fallbacks(a), at=None)) == AT, "the agent that goes on")


def test_deadline_and_cancel(pair):
    """The bytes are here: the objects stay."""
    p = pair()
    a, b = p.start(p.other.listen[0])
    with User(a, space=SPACE) as here, stopped(b):
        assert ends(put(here, b"late", at=None, deadline=0.2)) == HERE
        pending = put(here, b"cancelled", at=None, wait=False)
        until(lambda: counters(a)["dray_store_objects"] == 2, "the object")
        pending.cancel()
        with pytest.raises(errors.Cancelled):
            pending.result(LIMIT)
        until(lambda: fallbacks(a) == 2, "the end of the PUT")
        assert here.has(b"late", b"cancelled") == [True, True]


def test_session_ends_meanwhile(pair):
    p = pair()
    a, b = p.start(p.other.listen[0])
    with User(a, space=SPACE) as second:
        with stopped(b):
            with User(a, space=SPACE) as here:
                pending = put(here, b"key", at=None, wait=False)
                until(lambda: counters(a)["dray_store_objects"] == 1, "the object")
            with pytest.raises(errors.Error):
                pending.result(LIMIT)
            until(lambda: fallbacks(a) == 1, "the end of the PUT")
        assert second.has(b"key") == [True]


def test_second_put_meanwhile(pair):
    p = pair()
    a, b = p.start(p.other.listen[0])
    with User(a, space=SPACE) as here, User(a, space=SPACE) as second:
        with stopped(b):
            pending = put(here, b"key", at=None, wait=False)
            until(lambda: counters(a)["dray_store_objects"] == 1, "the object")
            assert ends(put(second, b"key", at=None)) == [(Status.EXISTS, Tier.NONE)]
            assert ends(put(second, b"key", at=b.listen[0])) == [(Status.EXISTS, Tier.NONE)]
        # a stopped agent may have been too late
        went = ends(pending.result(LIMIT)) == AT
        assert here.has(b"key") == [not went]


def test_disk_takes_what_stays(pair, lab):
    """What has fallen back is an object of this agent's own."""
    disk = {"store.disk_dir": lab.directory("disk"), "limits.store_disk_bytes": "64MiB", "limits.store_disk_bytes_per_owner": "64MiB"}
    p = pair(disk, {"store.lend": "false"})
    a, _ = p.start(p.other.listen[0])
    with User(a, space=SPACE) as here:
        assert ends(put(here, b"key", at=None)) == HERE
        until(lambda: counters(a)["dray_store_disk_objects"] == 1, "the object on disk")


def test_large_batch_falls_back(pair):
    """More than one message, and more than one part."""
    p = pair(other={"store.full": "busy", "limits.store_bytes": "16MiB", "limits.store_bytes_per_owner": "8MiB"})
    a, b = p.start(p.other.listen[0])
    keys = [b"%d" % i for i in range(12)]
    with User(a, space=SPACE, size=16 * MIB) as here, User(b, space=SPACE) as other:
        results = put(here, *keys, at=None, size=MIB)
        assert [r.status for r in results] == [Status.OK] * 12
        at_other = other.has(*keys)
        assert [r.tier == Tier.AGENT for r in results] == at_other
        assert 0 < fallbacks(a) == at_other.count(False)
        until(lambda: counters(a)["dray_store_objects"] == at_other.count(False), "the end of the others")


# --- hints

SCOPE = f"store:{SPACE}"


def candidates(agent):
    return agent.ctl("segments", "--explain", "--scope", SCOPE, "--json")["candidates"]


def chosen(agent):
    return [(c["segment"], c["preference"]) for c in candidates(agent) if c["chosen"]]


def test_hint_of_a_client(pair):
    p = pair()
    a, b = p.start()
    with User(a, space=SPACE) as here, User(b, space=SPACE) as other:
        assert chosen(a) == [(a.listen[0], "detected")]
        here.client.put_hint(SCOPE, b.listen[0])
        assert chosen(a) == [(b.listen[0], "hint")]
        assert here.client.preferred_segment(SCOPE).segment == b.listen[0]
        assert there(here, b"key", at=None) == AT
        assert other.has(b"key") == [True]
        # the client's word and the configuration count first
        assert ends(put(here, b"own", at="local")) == HERE
        p.prefer("local")
        assert chosen(a) == [(a.listen[0], "explicit")]
        assert ends(put(here, b"configured", at=None)) == HERE
        p.prefer("")
        here.client.forget_hint(SCOPE)
        assert ends(put(here, b"forgotten", at=None)) == HERE
        assert fallbacks(a) == 0


def test_hint_that_expires(pair):
    p = pair()
    a, b = p.start()
    with User(a, space=SPACE) as here:
        a.ctl("hints", "--set", f"{SCOPE}={b.listen[0]}", "--ttl", "1s")
        until(lambda: not [h for h in a.ctl("hints", "--json")["hints"] if h["scope"] == SCOPE], "its end")
        assert ends(put(here, b"key", at=None)) == HERE


def test_hint_after_a_restart(pair):
    """The database has it, before the name space is used."""
    p = pair()
    a, b = p.start()
    a.ctl("hints", "--set", f"{SCOPE}={b.listen[0]}")
    a.stop()
    a.start()
    connected(a, 1)
    with User(a, space=SPACE) as here:
        assert there(here, b"key", at=None) == AT


def test_hint_for_others(pair):
    """Hints for the whole node, another name space, or an agent without a store, change nothing; an agent that is gone is no candidate."""
    p = pair()
    a, b = p.start()
    with User(a, space=SPACE) as here:
        for scope, segment in (("", b.listen[0]), ("store:other", b.listen[0]), (SPACE, b.listen[0]), (SCOPE, "10.0.0.9:50053")):
            a.ctl("hints", "--set", f"{scope}={segment}")
        assert ends(put(here, b"first", at=None)) == HERE
        assert chosen(a) == [(a.listen[0], "detected")]
        assert "none of store.peers" in next(c["reason"] for c in candidates(a) if c["segment"] == "10.0.0.9:50053")
        a.ctl("hints", "--set", f"{SCOPE}={b.listen[0]}", "--score", "5")
        assert there(here, b"second", at=None) == AT
        b.kill()
        until(lambda: chosen(a) == [(a.listen[0], "detected")], "the loss of the agent")
        assert ends(put(here, b"third", at=None)) == HERE
        assert fallbacks(a) == 0
        b.start()
        until(lambda: chosen(a) == [(b.listen[0], "hint")], "the next agent")


def test_who_may_give_hints(pair):
    """A hint of an owner that may not use the name space would cost its owners time."""
    p = pair()
    a, b = p.start()
    with User(a, space=SPACE) as here:
        with pytest.raises(errors.Denied):
            here.client.put_hint("store:nobodys", b.listen[0])
        with pytest.raises(errors.Denied):
            here.client.put_hint("store:", b.listen[0])


def test_explain_has_hints_of_all_owners(new_agent):
    agent, (left,) = tenants(new_agent, "left", **{"store.spaces": f"{SPACE}=left:*"})
    with left.client() as client:
        client.put_hint(SCOPE, agent.listen[0])
        assert chosen(agent) == [(agent.listen[0], "hint")]
        assert f"by client of uid {UID} of tenant left" in candidates(agent)[0]["reason"]


def test_profile_of_mooncake(pair):
    """An agent is a candidate for PUTs, and never for Mooncake, whoever names it."""
    p = pair()
    a, b = p.start()
    a.ctl("hints", "--set", f"{SCOPE}={b.listen[0]}")
    assert {c["segment"] for c in candidates(a)} == {a.listen[0], b.listen[0]}
    assert not [c for c in a.ctl("segments", "--explain", "--json")["candidates"] if c["chosen"]]
    assert b.listen[0] not in a.ctl("env", "--profile", "vllm-mooncake")
    a.ctl("hints", "--set", f"={b.listen[0]}")
    assert [c["segment"] for c in a.ctl("segments", "--explain", "--json")["candidates"] if c["chosen"]] == [b.listen[0]]
    assert b.listen[0] not in a.ctl("env", "--profile", "vllm-mooncake", "--format", "dotenv").replace(f"{b.listen[0]} is a dray agent", "")
