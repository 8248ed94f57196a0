# SPDX-License-Identifier: Apache-2.0
"""Keys of agents are replaced while connections stay: two keys at once, and files that are read again."""

import secrets
import subprocess

import dray
import pytest
from harness import DRAYCTL, LIMIT, MIB, Side


@pytest.fixture
def agents(lab, new_agent):
    """Two agents, each with key files of its own."""
    def start(name, **files):
        folder = lab.directory("keys")
        agent = new_agent(name, start=False, key=folder / "key", settings={"peer.accept_key_file": folder / "accept"})
        write(agent, **files)
        return agent.start()
    return start


def write(agent, **files):
    """Key files of the agent by name; None removes one."""
    for name, text in files.items():
        path = agent.key.parent / name
        path.unlink(missing_ok=True)
        if text:
            path.touch(0o600)
            path.write_text(text)


def keys(agent):
    return agent.ctl("status", "--json")["keys"].split()


def used(agent):
    """The ids of the keys of its connections, by the handle of the peer."""
    return {p["peer"]: p["key"] for p in agent.ctl("peers", "--json")["peers"]}


def test_rotation_without_a_lost_connection(agents):
    """Both accept the new key, then both offer it, then the old one is gone. One connection carries transfers all the time."""
    old, new = secrets.token_hex(32), secrets.token_hex(32)
    a, b = agents("a", key=old), agents("b", key=old)
    (old_id,) = keys(a)
    with Side(a, MIB) as here, Side(b, MIB, b"x" * MIB) as there:
        remote = here.client.import_token(there.export(), timeout=LIMIT)
        first = used(a)
        assert list(first.values()) == [old_id] == list(used(b).values())
        for step in ({"accept": new}, {"key": new, "accept": old}, {"accept": None}):
            for agent in (a, b):
                write(agent, **step)
                assert "peer.key_file" in agent.ctl("reload")
            here.client.read(here.region, remote, [(0, 0, MIB)]).result(LIMIT)
            assert used(a) == first, "the connection is the same"
        (new_id,) = keys(a)
        assert new_id != old_id and keys(b) == [new_id]
        assert a.ctl("reload", "--json")["applied"] == [], "the files have not changed since"


@pytest.fixture
def one(lab, new_agent):
    """An agent whose configuration file names its key files, and the function that writes both settings anew."""
    folder = lab.directory("keys")
    file = folder / "dray.conf"

    def configure(key, accept=""):
        lines = [f'{name} = "{folder / value if value else ""}";' for name, value in (("key_file", key), ("accept_key_file", accept))]
        file.write_text("peer: { " + " ".join(lines) + " };\n")

    for name in ("one", "two"):
        (folder / name).touch(0o600)
        (folder / name).write_text(secrets.token_hex(32))
    (folder / "open").write_text("k" * 16)
    configure("one")
    return new_agent(args=["--config", str(file)]), configure


def test_other_paths(one):
    """A reload reads the files that the new configuration names, and says which settings have changed."""
    agent, configure = one
    (first,) = keys(agent)
    configure("two", "one")
    assert agent.ctl("reload", "--json") == {"applied": ["peer.key_file", "peer.accept_key_file"], "restart": []}
    second, accepted = keys(agent)
    assert accepted == first != second
    configure("two")
    assert agent.ctl("reload", "--json")["applied"] == ["peer.accept_key_file"] and keys(agent) == [second]


def test_a_bad_other_path_changes_nothing(one):
    agent, configure = one
    before = keys(agent)
    configure("open")
    done = subprocess.run([DRAYCTL, "--control", agent.control, "reload"], stderr=subprocess.PIPE, text=True, timeout=LIMIT)
    assert done.returncode and "peer.key_file has mode" in done.stderr and keys(agent) == before
    (setting,) = (s for s in agent.ctl("config", "--json")["settings"] if s["key"] == "peer.key_file")
    assert setting["value"].endswith("/one")


def test_giving_up_the_key_needs_a_restart(one):
    agent, configure = one
    before = keys(agent)
    configure("")
    assert agent.ctl("reload", "--json") == {"applied": [], "restart": ["peer.key_file"]} and keys(agent) == before


@pytest.mark.parametrize("first", ["late", "early"])
def test_an_agent_that_was_not_told_yet(agents, first):
    """While two keys are accepted, agents that hold one of them connect. The key is that of the agent that connects."""
    old, new = secrets.token_hex(32), secrets.token_hex(32)
    late, early = agents("late", key=old, accept=new), agents("early", key=new, accept=old)
    assert keys(late) == keys(early)[::-1]
    one, two = (late, early) if first == "late" else (early, late)
    with Side(one, MIB) as here, Side(two, MIB) as there:
        here.client.import_token(there.export(), timeout=LIMIT)
        assert list(used(two).values()) == [keys(one)[0]]
    only_new = agents("only", key=new)
    with Side(only_new, MIB) as here, Side(late, MIB) as there:
        here.client.import_token(there.export(), timeout=LIMIT)
        assert keys(only_new)[0] in used(late).values()
    text = late.ctl("status")
    assert f"{keys(late)[0]} offered, {keys(late)[1]} accepted too" in text


@pytest.mark.parametrize(("broken", "message"), [("key", "peer.key_file"), ("accept", "peer.accept_key_file")])
def test_a_file_that_others_can_read_changes_nothing(agents, broken, message):
    agent = agents("a", key="k" * 16, accept="l" * 16)
    before = keys(agent)
    write(agent, key="m" * 16, accept="n" * 16)
    (agent.key.parent / broken).chmod(0o644)
    done = subprocess.run([DRAYCTL, "--control", agent.control, "reload"], stderr=subprocess.PIPE, text=True, timeout=LIMIT)
    assert done.returncode and f"{message} has mode 0644" in done.stderr and "chmod 600" in done.stderr
    assert keys(agent) == before


def test_a_replaced_key_is_refused(agents):
    a, b = agents("a", key="k" * 16), agents("b", key="k" * 16)
    write(b, key="l" * 16)
    b.ctl("reload")
    with Side(a, MIB) as here, Side(b, MIB) as there, pytest.raises(dray.Error):
        here.client.import_token(there.export(), timeout=LIMIT)
    assert [p["state"] for p in a.ctl("peers", "--json")["peers"]] == ["denied"]
