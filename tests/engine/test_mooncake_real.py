# SPDX-License-Identifier: Apache-2.0
"""MultiConnector of DrayConnector and MooncakeStoreConnector, with Mooncake's own store whose owner runs beside the agent."""

import json
import os
import pathlib
import subprocess
import sys
import urllib.request

import pytest
import torch
from bare import BLOCK, dray, multi, prompt
from harness import BUILD, LIMIT, ROOT, until
from test_mooncake_bare import Event, alone, free_port, stored  # noqa: F401

pytestmark = pytest.mark.long


@pytest.fixture
def master(lab, tmp_path, monkeypatch):
    made = subprocess.run([ROOT / "scripts/mooncake-env"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    if made.returncode == 3:
        pytest.skip("Mooncake is not in this machine's package registry")
    site = next(pathlib.Path(made.stdout.strip()).parents[1].glob("lib/python*/site-packages"))
    rpc, pages, owner, segment = (free_port() for _ in range(4))
    agent = lab.agent("agent-beside", key=lab.key, settings={
        "mooncake.masters": f"http://127.0.0.1:{pages}", "mooncake.master_rpc": f"127.0.0.1:{rpc}", "mooncake.interval": "200ms",
        "mooncake.owner_rpc": owner, "mooncake.owner_segment": segment, "segment.ports": "none"}).start()
    process = subprocess.Popen(
        [ROOT / "examples/vllm-mooncake/owner", "--metadata_server=P2PHANDSHAKE", "--global_segment_size=256MB"], stdout=subprocess.PIPE, text=True,
        stderr=(tmp_path / "owner.log").open("w"), env={
            **os.environ, "PATH": f"{BUILD}:{site / 'mooncake'}:{os.environ['PATH']}", "LD_LIBRARY_PATH": str(site / "mooncake"),
            "MASTER": f"127.0.0.1:{rpc}", "METRICS_PORT": str(pages), "DRAY_CONTROL_SOCKET": str(agent.control), "DRAY_SOCKET": str(agent.socket)})
    try:
        assert process.stdout.readline() == "owner: ready\n", (tmp_path / "owner.log").read_text()[-3000:]
        (tmp_path / "mooncake.json").write_text(json.dumps({
            "mode": "standalone-store", "metadata_server": "P2PHANDSHAKE", "master_server_address": f"127.0.0.1:{rpc}", "protocol": "tcp",
            "global_segment_size": 0, "local_buffer_size": "64MB"}))
        monkeypatch.setenv("MOONCAKE_CONFIG_PATH", str(tmp_path / "mooncake.json"))
        for name in [name for name in sys.modules if name.partition(".")[0] == "mooncake"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.syspath_prepend(str(site))
        for line in agent.ctl("env", "--profile", "vllm-mooncake", "--format", "dotenv").splitlines():
            monkeypatch.setenv(*line.split("=", 1))
        yield agent, f"http://127.0.0.1:{pages}/metrics"
    finally:
        process.terminate()
        process.wait(LIMIT)
        agent.stop()


def test_beside_dray(alone, bare, master, monkeypatch):  # noqa: F811
    agent, pages = master
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setenv("VLLM_HOST_IP", "127.0.0.1")
    p, d = (bare(name, multi(dray(agent.socket), stored(name))) for name in "pd")
    import mooncake.store
    assert mooncake.store.__file__.endswith(".so")  # not dray's
    params = p.offer(prompt(BLOCK * 5 + 7, 21))
    assert d.run(d.add(prompt(BLOCK * 5 + 7, 21), tokens=3, params=params))[0] == "LENGTH"
    assert d.loaded() == BLOCK * 5 + 7

    def keys():
        p.step()
        text = urllib.request.urlopen(pages).read().decode()
        return float(next(line for line in text.splitlines() if line.startswith("master_key_count")).split()[-1])

    until(lambda: keys() >= 5, "five blocks in the store")
    p.idle()
    d.idle()
