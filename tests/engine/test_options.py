# SPDX-License-Identifier: Apache-2.0
"""Options that name a path: a load over another one fails with both names, and nothing falls back in silence."""

import os
import shutil
import tempfile

import pytest
from bare import dray, prompt
from dray.vllm import agent
from harness import DRAYD


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
