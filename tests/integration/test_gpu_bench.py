# SPDX-License-Identifier: Apache-2.0
"""drayctl bench with memory on GPUs, and beside a load that it makes there, over the fake plug-in."""

import json
import os
import subprocess
import threading

import pytest
from fake_gpu import PLUGIN, FakeGpus, uuid
from harness import DRAYCTL, until
from test_ctl import conform, ctl, schema_of


@pytest.fixture
def gpus(lab):
    return FakeGpus(lab.directory("gpus"))


@pytest.fixture
def agent(new_agent, gpus):
    return new_agent(settings=gpus.settings, env=gpus.env)


DEFAULTS = {"--gpu-plugin": PLUGIN, "--size": "32KiB", "--ops": 16, "--batch": 2, "--memory": "8MiB"}


def bench(agent, *argv, **env):
    """argv: options, also instead of DEFAULTS."""
    defaults = [word for option in DEFAULTS.items() if option[0] not in argv for word in option]
    return ctl(agent.control, "bench", "--socket", agent.socket, *defaults, *argv, env={**os.environ, **env})


@pytest.mark.parametrize("direction", ["read", "write"])
@pytest.mark.parametrize("ends", [["--gpu", uuid(0), "--far-gpu", uuid(1)], ["--gpu", uuid(0), "--far-gpu", uuid(0)],
                                  ["--gpu", uuid(1).upper()], ["--far-gpu", uuid(1)]])
def test_bytes(agent, gpus, ends, direction):
    """The first transfer is compared at both ends, wherever they are, and the agent's GPUs copy."""
    done = bench(agent, "--json", "--count", 20, "--direction", direction, *ends)
    assert done.returncode == 0, done.stderr
    out = json.loads(done.stdout)
    conform(out, schema_of("bench"))
    assert out["transfers"] == 20 and out["transport"] == "gpu" and out["loads"] == []
    assert gpus.status.bytes >= 21 * 16 * 32768


@pytest.mark.parametrize("size,ops", [("3000001B", 2), (1, 3)])
def test_sizes(agent, size, ops):
    """All bytes of the first transfer are compared, in parts if there are many."""
    done = bench(agent, "--size", size, "--ops", ops, "--count", 2, "--memory", "16MiB", "--gpu", uuid(0), "--far-gpu", uuid(1))
    assert done.returncode == 0 and "verified    the bytes of the first transfer" in done.stdout, done.stderr


def test_load(agent):
    """Each GPU that takes part has a load, whose time alone and beside the transfers is in the result."""
    for kind, ends, n in (("steps", ["--gpu", uuid(0), "--far-gpu", uuid(1)], 2), ("steady", ["--gpu", uuid(1), "--far-gpu", uuid(1)], 1)):
        done = bench(agent, "--json", "--count", 2, "--load", kind, *ends)
        assert done.returncode == 0, done.stderr
        out = json.loads(done.stdout)
        conform(out, schema_of("bench"))
        assert [load["gpu"] for load in out["loads"]] == [uuid(0), uuid(1)][-n:]
        assert all(load["steps_per_second_alone"] > 0 for load in out["loads"])
        assert "steps only; measure longer" in done.stderr
    done = bench(agent, "--duration", "200ms", "--load", "steps", "--gpu", uuid(0))
    assert f"load        {uuid(0)}: its time x" in done.stdout and "ms lost for each GB" in done.stdout
    done = bench(agent, "--plain", "--count", 2, "--load", "steps", "--gpu", uuid(0))
    assert done.stdout.split("\t")[-3] == uuid(0)


def test_serve(agent, gpus):
    """The other end of a token lies on a GPU, too."""
    with subprocess.Popen([DRAYCTL, "bench", "--serve", "--socket", str(agent.socket), "--gpu", uuid(1), "--gpu-plugin", str(PLUGIN),
                           "--memory", "8MiB"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        token = server.stdout.readline().strip()
        done = bench(agent, "--json", "--count", 5, "--token", token)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["transport"] == "gpu"
        alone = ctl(agent.control, "bench", "--serve", "--far-gpu", uuid(0))
        assert alone.returncode == 2 and "--far-gpu is for an end that is here" in alone.stderr
        server.stdin.close()
        assert server.wait() == 0
    assert gpus.status.imports == 0


@pytest.mark.parametrize("argv,status,why", [
    (["--gpu", "GPU-unknown"], 1, "there is no GPU GPU-unknown here"),
    (["--load", "steps"], 2, "--load needs --gpu or --far-gpu"),
    (["--load", "often", "--gpu", uuid(0)], 2, "none|steady|steps"),
    (["--far-gpu", uuid(0), "--token", "dray-token"], 2, "--far-gpu is for an end that is here"),
    (["--gpu", uuid(0), "--ceiling"], 2, "--ceiling is for host memory"),
    (["--gpu", uuid(0), "--gpu-plugin", "none"], 2, "exclude each other"),
    (["--gpu", uuid(0), "--gpu-plugin", "/nowhere/dray-cuda.so"], 1, "/nowhere/dray-cuda.so"),
])
def test_misuse(agent, argv, status, why):
    done = bench(agent, *argv)
    assert done.returncode == status and why in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.parametrize("fails,why", [("open", "no GPU can be used"), ("start", "cannot be used"), ("block", "no 8388608 free bytes"),
                                       ("host_alloc", "no pinned memory"), ("queue", "memory on GPU")])
def test_failures(agent, gpus, fails, why):
    """What the driver refuses is named, and nothing is left in the agent."""
    done = bench(agent, "--gpu", uuid(0), FAKE_GPU_FAIL=fails)
    assert done.returncode == 1 and why in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    assert gpus.status.imports == 0
    assert agent.ctl("sessions", "--json")["sessions"] == []


@pytest.mark.parametrize("lasts", [["--duration", "1h"], ["--count", 1 << 60]])
@pytest.mark.parametrize("moment", ["before", "beside"])
def test_gpu_is_lost(agent, gpus, lab, lasts, moment):
    """A GPU that is lost below the load, before the transfers or beside them, ends the measurement with its name."""
    file = lab.directory("load") / "lose"
    done = []
    thread = threading.Thread(target=lambda: done.append(bench(agent, *lasts, "--load", "steady", "--gpu", uuid(0), FAKE_GPU_LOSE=file,
                                                               **{"FAKE_GPU_LOSE_AFTER": "20"} if moment == "before" else {})))
    thread.start()
    if moment == "beside":
        until(lambda: gpus.status.copies > 20, "transfers run beside the load")
        file.with_name("lose0").touch()
    thread.join()
    done, = done
    assert done.returncode == 1 and f"GPU {uuid(0)}" in done.stderr, done.stderr
