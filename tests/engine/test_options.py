# SPDX-License-Identifier: Apache-2.0
"""Options that name a path: a load over another one fails with both names, and nothing falls back in silence."""

import os
import shutil
import tempfile

import pytest
from bare import dray, prompt
from dray import Client, Memory
from dray.vllm import agent
from harness import DRAYD, LIMIT, until


@pytest.mark.parametrize(("wanted", "ends"), [("tcp", "LENGTH"), ("auto", "LENGTH"), ("rdma", "ERROR"), ("local", "ERROR")])
def test_transport_that_is_named(bare, sockets, caplog, wanted, ends):
    """Two agents without RDMA devices reach each other over TCP."""
    p, d = bare("p", dray(sockets[0], lease=60)), bare("d", dray(sockets[1], transport=wanted))
    assert d.run(d.add(prompt(100, 1), params=p.offer(prompt(100, 1))))[0] == ends
    assert d.loaded() == (100 if ends == "LENGTH" else 0)
    if ends == "ERROR":
        assert f"option 'transport' is '{wanted}', and rank 0 of the other engine is reached over tcp" in caplog.text
    p.idle()  # P's blocks are free at once, not only at the end of the lease
    d.idle()


@pytest.mark.parametrize(("wanted", "ends"), [("local", "LENGTH"), ("tcp", "ERROR")])
def test_transport_inside_one_agent(bare, sockets, caplog, wanted, ends):
    p, d = bare("p", dray(sockets[0], lease=60)), bare("d", dray(sockets[0], transport=wanted))
    assert d.run(d.add(prompt(100, 2), params=p.offer(prompt(100, 2))))[0] == ends
    if ends == "ERROR":
        assert "option 'transport' is 'tcp', and rank 0 of the other engine is reached over local" in caplog.text
    p.idle()


@pytest.mark.parametrize(("mode", "at_p", "limit"), [("pull", False, "remotes"), ("push", False, "leases"), ("push", True, "remotes")])
def test_more_loads_at_once_than_an_agent_allows(lab, bare, sockets, mode, at_p, limit):
    """Those beyond a limit wait for others to end, as they would for blocks."""
    few = lab.agent(f"agent-{mode}-{limit}", key=lab.key, settings={f"limits.{limit}_per_session": 1}).start()
    at = (few.socket, sockets[0]) if at_p else (sockets[0], few.socket)
    p, d = (bare(name, dray(socket, mode=mode, lease=LIMIT)) for name, socket in zip("pd", at, strict=True))
    requests = [d.add(prompt(100, seed), params=p.offer(prompt(100, seed))) for seed in range(3)]
    until(lambda: (d.step(), p.step(), len(d.answers) == len(requests))[2], "the end of all requests")
    assert [d.answers[one][0] for one in requests] == ["LENGTH"] * 3 and d.loaded() == 300
    for engine in (p, d):
        engine.idle()
    few.stop()


def test_limit_that_allows_nothing(lab, bare, sockets, caplog):
    few = lab.agent("agent-none", key=lab.key, settings={"limits.remotes_per_session": 1}).start()
    p, d = bare("p", dray(sockets[0], lease=LIMIT)), bare("d", dray(few.socket, deadline=0.5))
    with Client(few.socket, group=f"vllm {d.name}", timeout=LIMIT) as owner:
        d.scheduler.connector._scheduler._client.import_token(owner.region(Memory(4096)).export())
        assert d.run(d.add(prompt(100, 1), params=p.offer(prompt(100, 1))))[0] == "ERROR"
    assert "its blocks were not loaded: quota: " in caplog.text and "limits.remotes_per_session" in caplog.text
    few.stop()


@pytest.mark.parametrize(("transport", "ends"), [("auto", "ERROR"), ("tcp", "LENGTH")])
def test_devices_that_are_not_there(lab, bare, sockets, monkeypatch, caplog, transport, ends):
    """An engine whose private agent has none of the named devices does not use TCP instead, unless it is asked for."""
    run = tempfile.mkdtemp(prefix="dray-")  # a socket's path must be short
    monkeypatch.setenv("XDG_RUNTIME_DIR", run)
    monkeypatch.setattr(agent, "_program", lambda: os.fspath(DRAYD))
    private = dray("", agent="private", devices=["none0"], key_file=str(lab.key), transport=transport)
    del private["kv_connector_extra_config"]["socket"]
    p, d = bare("p", dray(sockets[0], lease=60)), bare("d", private)
    assert d.run(d.add(prompt(100, 3), params=p.offer(prompt(100, 3))))[0] == ends
    if ends == "ERROR":
        assert "option 'devices' is 'none0', and rank 0 of the other engine is reached over tcp" in caplog.text
    p.idle()
    d.idle()
    d.close()
    shutil.rmtree(run)
