# SPDX-License-Identifier: Apache-2.0
"""Owners: the pair of a listening socket (the tenant) and a uid. Each has its own groups, names, hints and quotas."""

import contextlib
import os
import re
import socket
import sys
from types import SimpleNamespace

import dray
import pytest
import wire
from dray import errors
from harness import LIMIT, MIB, Raw, expect, until, wait_for_release
from test_lifecycle import ACTIVATE, fails
from test_segments import QUICK_PROBES, Owner, listen, port_of
from wire import codec as s


def tenants(new_agent, *names, settings=(), **how):
    """An agent with a data socket for each name beside its own, and a function that connects by one of them."""
    agent = new_agent(start=False, settings=dict(settings), **how)
    agent.settings["data.tenants"] = ",".join(f"{name}:{agent.directory}/{name}.sock" for name in names)
    agent.start()

    def connect(tenant, **options):
        return dray.Client(agent.directory / f"{tenant}.sock" if tenant in names else agent.socket, timeout=LIMIT, **options)

    return agent, connect


def region(client, size=4096):
    with dray.Memory(size) as memory:
        return client.region(memory)


def sessions(agent):
    return {row["name"]: row for row in agent.ctl("sessions", "--json")["sessions"]}


def test_sockets_have_names(new_agent):
    agent, connect = tenants(new_agent, "a", "b", settings={"data.tenant": "own"})
    with connect("a", name="first"), connect("b", name="second"), connect("own", name="third"):
        assert {name: row["tenant"] for name, row in sessions(agent).items()} == {"first": "a", "second": "b", "third": "own"}
        assert "TENANT" in agent.ctl("sessions")
        assert re.search(r"opened by first .* tenant=a uid=", agent.text())
    agent.stop()
    assert not list(agent.directory.glob("*.sock"))


@pytest.mark.parametrize("value, why", [
    ("a:/x,a:/y", "two data sockets of tenant a"), ("default:/x", "two data sockets of tenant default"),
    ("a:/x,b:/x", "two sockets at /x"), ("a", "write NAME:PATH"), ("a b:/x", "is not the name of a tenant"), (":/x", "is not the name"),
    ("a:x", "write NAME:PATH"), ("a" * 32 + ":/x", "at most 31 bytes"), (",".join(f"a{i}:/{i}" for i in range(65)), "64 are allowed")])
def test_wrong_names(new_agent, value, why):
    fails(new_agent(start=False, settings={"data.tenants": value}), why)


def test_sockets_of_systemd(lab, new_agent):
    """systemd passes the sockets of tenants as data-NAME; their paths are its own."""
    directory = lab.directory("activated")
    listeners = {}
    for name in ("data", "data-a", "data-b"):
        listeners[name] = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listeners[name].bind(str(directory / name))
        listeners[name].listen()
    fds = [sock.fileno() for sock in listeners.values()]
    agent = new_agent(directory=directory, pass_fds=fds, settings={"data.tenants": "a:/unused/path"},
                      wrap=[sys.executable, "-c", ACTIVATE, ":".join(listeners), ",".join(map(str, fds))])
    with contextlib.ExitStack() as stack:
        for name in listeners:
            stack.enter_context(dray.Client(directory / name, name=name, timeout=LIMIT))
        assert {name: row["tenant"] for name, row in sessions(agent).items()} == {"data": "default", "data-a": "a", "data-b": "b"}


def test_groups_are_separate(new_agent):
    """A region of a group is unknown to sessions of another tenant that name the same group."""
    agent, _ = tenants(new_agent, "a", "b")
    a, b = (SimpleNamespace(socket=agent.directory / f"{name}.sock") for name in "ab")
    with Raw(a, group="g") as owner, Raw(a, group="g") as mate, Raw(b, group="g") as other, dray.Memory(MIB) as memory:
        handle = owner.ask(s.pack_region_add, [memory.fd], access=s.ACCESS_READ, extents=[(s.KIND_MEMFD, 0, 0, 0, MIB)]).region
        export = {"region": handle, "length": MIB, "access": s.ACCESS_READ}
        assert mate.ask(s.pack_region_export, **export).token_id
        assert other.error(other.request(s.pack_region_export, **export)) == "not_found"


def test_mailboxes_are_separate(new_agent):
    """The same name in two tenants is two mailboxes; a letter reaches that of its sender's tenant."""
    agent, connect = tenants(new_agent, "a", "b", settings={"limits.mailboxes_per_owner": 1})
    with connect("a") as a, connect("b") as b, connect("default") as c:
        box_a, box_b = a.open_mailbox("engine"), b.open_mailbox("engine")
        a.post("", "engine", b"from a")
        b.post("", "engine", b"from b")
        with pytest.raises(errors.NotFound):
            c.post("", "engine", b"from c")
        for client, box, text in ((a, box_a, b"from a"), (b, box_b, b"from b")):
            got = client.next_event(dray.Letter, LIMIT)
            assert got[:2] == (box, text)
        rows = agent.ctl("mailboxes", "--json")["mailboxes"]
        assert sorted((row["tenant"], row["name"]) for row in rows) == [("a", "engine"), ("b", "engine")]
        with pytest.raises(errors.Quota, match="limits.mailboxes_per_owner"):
            a.open_mailbox("second")


def test_mailboxes_of_agents(new_pair):
    """Tenants of two agents that have the same name share the name space of their mailboxes."""
    a, b = new_pair()
    for agent in (a, b):
        agent.kill()
        agent.settings["data.tenants"] = f"blue:{agent.directory}/blue.sock"
        agent.start()
    with dray.Client(a.directory / "blue.sock", timeout=LIMIT) as sender, b.client() as other, \
            dray.Client(b.directory / "blue.sock", timeout=LIMIT) as owner:
        other.open_mailbox("engine")
        with pytest.raises(errors.NotFound):
            sender.post(owner.segment, "engine", b"nobody of blue has it")
        box = owner.open_mailbox("engine")
        sender.post(owner.segment, "engine", b"blue")
        assert owner.next_event(dray.Letter, LIMIT)[:2] == (box, b"blue")
        assert other.next_event(dray.Letter, 0) is None


def test_sessions_are_counted_by_owner(new_agent):
    agent, connect = tenants(new_agent, "a", "b", settings={"limits.sessions_per_owner": 2})
    with connect("a"), connect("a"), connect("b"):
        error = expect("quota", connect, "a")
        assert "limits.sessions_per_owner" in str(error) and "tenant a" in str(error)
        with connect("b"):
            pass
    until(lambda: not sessions(agent), "the end of the sessions")


def test_hints_are_separate(new_agent):
    """A client sees the hints of its own owner and of administrators, also after a restart; the node follows data.socket's tenant."""
    agent, connect = tenants(new_agent, "a", "b")
    with connect("a") as a, connect("b") as b, connect("default") as own:
        a.put_hint("model", "10.0.0.1:50053")
        b.put_hint("model", "10.0.0.2:50053", score=9)
        assert a.hint("model").segment == "10.0.0.1:50053" and b.hint("model").segment == "10.0.0.2:50053"
        with pytest.raises(errors.NotFound):
            own.hint("model")
        with pytest.raises(errors.NotFound):
            own.forget_hint("model")
        b.put_hint("", "10.0.0.3:50053")
        assert b.preferred_segment().segment == "10.0.0.3:50053"
        assert own.preferred_segment().segment == "" and agent.ctl("status", "--json")["preferred_segment"] == ""
        own.put_hint("", "10.0.0.4:50053")
        assert agent.ctl("status", "--json")["preferred_segment"] == "10.0.0.4:50053"
    agent.stop()
    agent.start()
    with connect("a") as a, connect("b") as b:
        assert a.hint("model").segment == "10.0.0.1:50053" and b.hint("model").segment == "10.0.0.2:50053"
        a.forget_hint("model")
        with pytest.raises(errors.NotFound):
            a.hint("model")
        agent.ctl("hints", "--set", "model=10.0.0.5:50053")
        assert a.hint("model").segment == b.hint("model").segment == "10.0.0.5:50053"


def test_segments_of_hints_are_separate(lab, new_agent):
    """Segments that only one owner's hints name concern that owner: others get no event of them, and log and history are bounded."""
    owner = Owner(listen(lab.hosts[0]), lambda conn: False)
    port = port_of(owner.sock)
    agent, connect = tenants(new_agent, "a", "b", settings={**QUICK_PROBES, "segment.ports": "none", "limits.log_lines_per_owner": 1})
    with owner, connect("a", segments=True) as a, connect("b", segments=True) as b:
        for i in range(100):
            a.put_hint(f"scope{i}", f"127.1.0.{i + 1}:{port}")
        until(lambda: sum(row["state"] == "ready" for row in agent.ctl("segments", "--json")["segments"]
                          if row["segment"].startswith("127.1.")) == 100)
        assert a.next_event(dray.SegmentChanged, LIMIT).segment.startswith("127.1.")
        agent.ctl("hints", "--set", f"x=127.2.0.1:{port}")
        assert b.next_event(dray.SegmentChanged, LIMIT).segment == f"127.2.0.1:{port}"
        subjects = [e["subject"] for e in agent.ctl("events", "--json")["events"]]
        assert f"127.2.0.1:{port}" in subjects and not [name for name in subjects if name.startswith("127.1.")]
        assert len(re.findall(r"127\.1\.\S+ probing -> ready", agent.text())) < 100


def fill(more, key):
    """Calls more() until the quota ends it; returns the number of calls that succeeded, and the error."""
    for n in range(100):
        try:
            more()
        except (dray.Error, wire.errors.Error) as e:
            assert e.name in ("quota", "busy"), e
            assert key in str(e) and re.search(r"(close|remove|release|revoke|end|wait|forget|describe)", str(e)), e
            return n, e
    raise AssertionError(f"{key} has no effect")


class User:
    """One client, and ways to use up each resource."""

    def __init__(self, agent, connect, tenant):
        self.client = connect(tenant)
        self.path, self.raw = agent.directory / f"{tenant}.sock", None
        self.connect, self.tenant, self.kept = connect, tenant, []
        self.memory = dray.Memory(MIB)
        self.region = self.client.region(self.memory)
        self.remote = self.client.import_token(self.region.export())

    def sessions(self):
        self.kept.append(self.connect(self.tenant))

    def regions(self):
        self.client.region([(self.memory, 0, 4096)])

    def mappings(self):
        region(self.client)

    def mapped_bytes(self):
        region(self.client, MIB)

    def pool_bytes(self):
        self.client.pool(MIB).memory.close()

    def tokens(self):
        self.region.export()

    def remotes(self):
        self.client.import_token(self.region.export())

    def leases(self):
        self.region.lease([(0, 4096, 4096, 1)], expiry=60)

    def lease_ranges(self):
        self.region.lease([(0, 4096, 4096, 1), (16384, 4096, 4096, 1)], expiry=60)

    def transfers(self):
        self.waiting_transfers()

    def waiting_transfers(self):
        if not self.raw:
            self.raw = wire.Client(self.path, timeout=LIMIT)
            self.raw_region = self.raw.region(self.memory)
            self.raw_remote = self.raw.import_token(str(self.region.export()))
        pending = self.raw.read(self.raw_region, self.raw_remote, [(4096, 8192, 4096)], wait_word=(self.raw_region, 0, 7), via="inline")
        # the same worker answers this later
        with contextlib.suppress(wire.errors.Error):
            self.raw.request(s.pack_transfer_cancel, request=0)
        if pending.done():
            pending.result(0)
        self.kept.append(pending)

    def hints(self):
        self.client.put_hint(f"scope-{len(self.kept)}", "10.0.0.1:50053")
        self.kept.append(None)

    def mailboxes(self):
        self.client.open_mailbox(f"box-{len(self.kept)}")
        self.kept.append(None)

    def close(self):
        for kept in self.kept:
            if isinstance(kept, dray.Client):
                kept.close()
        if self.raw:
            self.raw.close()
        self.client.close()
        self.memory.close()


# what a user has already, and the limit of the agent; each step takes one of the unit
RESOURCES = {"sessions": (1, 8), "regions": (1, 8), "mappings": (1, 8), "mapped_bytes": (1, "8MiB"), "pool_bytes": (0, "8MiB"),
             "tokens": (1, 8), "leases": (0, 8), "lease_ranges": (0, 16), "remotes": (1, 8), "transfers": (0, 8),
             "waiting_transfers": (0, 8), "hints": (0, 16), "mailboxes": (0, 8)}


@pytest.mark.parametrize("how", ["share", "fixed"])
@pytest.mark.parametrize("resource", RESOURCES)
def test_an_owner_does_not_take_everything(new_agent, resource, how):
    """By default half of what the others leave; or the limit of the configuration."""
    before, total = RESOURCES[resource]
    key, units = f"limits.{resource}", int(str(total).removesuffix("MiB"))
    step = 2 if resource == "lease_ranges" else 1
    settings = {key: total, "limits.remotes": 1000, "limits.tokens": 1000, "limits.regions": 1000, "limits.mappings": 1000, "limits.sessions": 100}
    settings[key] = total
    if how == "fixed":
        settings[f"{key}_per_owner"] = f"{2 * step}MiB" if str(total).endswith("MiB") else 2 * step
    agent, connect = tenants(new_agent, "a", "b", settings=settings)
    users = [User(agent, connect, name) for name in "ab"]
    try:
        used = []
        for user, name in zip(users, "ab"):
            others = sum(used) + before * step * (len(users) - 1 - len(used))
            share = 2 * step if how == "fixed" else (units - others + (not str(total).endswith("MiB"))) // 2
            n, error = fill(getattr(user, resource), key)
            assert before + n == share // step, (n, str(error))
            assert f"of tenant {name} " in str(error) or resource == "hints"
            if how == "fixed":
                assert f"{key}_per_owner" in str(error)
            used.append((before + n) * step)
        rows = {(row["tenant"], row["resource"]): row for row in agent.ctl("quotas", "--json")["quotas"]}
        for name, n in zip("ab", used):
            row = rows[name, resource]
            assert row["used"] == n << 20 * str(total).endswith("MiB") and row["limit"] - row["used"] < step << 20 and row["refused"] == 1
            assert row["uid"] == (0 if agent.lab.userns else os.getuid())
    finally:
        for user in users:
            user.close()
    if resource != "hints":  # which outlive their clients
        wait_for_release(agent, resource)
