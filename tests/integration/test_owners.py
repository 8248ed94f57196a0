# SPDX-License-Identifier: Apache-2.0
"""Owners: the pair of a listening socket (the tenant) and a uid. Each has its own groups, names, hints and quotas."""

import contextlib
import re
import socket
import sys
from types import SimpleNamespace

import dray
import pytest
from dray import errors
from harness import LIMIT, MIB, Raw, expect, until
from test_lifecycle import ACTIVATE, fails
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
