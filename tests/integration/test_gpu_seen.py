# SPDX-License-Identifier: Apache-2.0
"""An agent's GPUs in the output of drayctl gpus, regions and status."""

import pytest
from fake_gpu import PLUGIN, FakeGpus, GpuMemory, add_ipc, add_vmm, uuid
from harness import MIB, expect, until
from test_ctl import conform, schema_of


@pytest.fixture
def gpus(lab):
    return FakeGpus(lab.directory("gpus"))


@pytest.fixture
def agent_with_gpus(new_agent, gpus):
    return new_agent(settings=gpus.settings, env=gpus.env)


def gpus_of(agent):
    out = agent.ctl("gpus", "--json")
    conform(out, schema_of("gpus"))
    return out["gpus"]


def plugin_of(agent):
    out = agent.ctl("status", "--json")
    conform(out, schema_of("status"))
    return out["gpu_plugin"]


def test_before_a_gpu_is_needed(agent_with_gpus):
    """An agent whose clients use only host memory does not load CUDA, and drayctl reports that."""
    agent = agent_with_gpus
    assert gpus_of(agent) == [] and plugin_of(agent) == "not loaded yet"
    assert agent.ctl("gpus") == "no GPUs; CUDA plug-in: not loaded yet\n"
    assert "CUDA plug-in  not loaded yet" in agent.ctl("status")


@pytest.mark.parametrize("add, kind", [(add_vmm, "cuda_vmm"), (add_ipc, "cuda_ipc")])
def test_a_region_on_a_gpu(agent_with_gpus, add, kind):
    agent = agent_with_gpus
    with agent.wire() as client, GpuMemory(MIB, 1) as memory:
        add(client, memory)
        unused, used = gpus_of(agent)
        assert (unused["state"], unused["regions"], unused["bytes"], unused["context_bytes"]) == ("unused", 0, 0, 0)
        assert (used["state"], used["regions"], used["bytes"], used["uuid"]) == ("ready", 1, MIB, uuid(1))
        assert used["context_bytes"] and used["peers"] == "NVLink 0" and used["bdf"] == "0000:f1:00.0"
        region, = agent.ctl("regions", "--json")["regions"]
        assert (region["kind"], region["device"]) == (kind, uuid(1))
        assert uuid(1) in agent.ctl("regions") and uuid(1) in agent.ctl("gpus")
        assert plugin_of(agent).startswith("fake") and "GPUs in use: 1, " in agent.ctl("status")
    until(lambda: [g["regions"] for g in gpus_of(agent)] == [0, 0])


def test_a_lost_gpu(agent_with_gpus, gpus):
    agent = agent_with_gpus
    with agent.wire() as client, GpuMemory(MIB, 1) as memory:
        add_vmm(client, memory)
        gpus.lose(1)
        # the next use of the device fails
        expect("gpu_lost", add_vmm, client, memory)
        until(lambda: gpus_of(agent)[1]["reason"])
        assert gpus_of(agent)[1]["state"] in ("lost", "unused") and not gpus_of(agent)[0]["reason"]
        assert "lost since the start: 1" in agent.ctl("status")


def test_no_plugin(new_agent):
    agent = new_agent(settings={"gpu.plugin": "/nowhere/dray-cuda.so"})
    with agent.wire() as client, GpuMemory(MIB) as memory:
        expect("unsupported", add_vmm, client, memory)
        assert gpus_of(agent) == [] and "is not there" in plugin_of(agent)
        assert "/nowhere/dray-cuda.so is not there" in agent.ctl("gpus")


def test_no_gpus_wanted(new_agent):
    agent = new_agent(settings={"gpu.plugin": PLUGIN, "gpu.enable": "false"})
    with agent.wire() as client, GpuMemory(MIB) as memory:
        expect("unsupported", add_vmm, client, memory)
        assert gpus_of(agent) == [] and "gpu.enable" in plugin_of(agent) and "gpu.enable" in agent.ctl("gpus")


def test_gpus_left_out(new_agent, gpus):
    agent = new_agent(settings={**gpus.settings, "gpu.devices": uuid(1)}, env=gpus.env)
    with agent.wire() as client, GpuMemory(MIB, 1) as memory:
        add_vmm(client, memory)
        assert [(g["state"], g["reason"]) for g in gpus_of(agent)] == [("excluded", "not in gpu.devices"), ("ready", "")]
