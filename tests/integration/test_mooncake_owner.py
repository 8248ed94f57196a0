# SPDX-License-Identifier: Apache-2.0
"""examples/vllm-mooncake/owner with the real mooncake_master and mooncake_client beside an agent."""

import os
import pathlib
import signal
import subprocess

import pytest
from harness import BUILD, LIMIT, PORTS, ROOT, until

OWNER = ROOT / "examples/vllm-mooncake/owner"


@pytest.fixture(scope="module")
def programs():
    """(interpreter, folder of Mooncake's programs)"""
    if "DRAY_LONG" not in os.environ:
        pytest.skip("make check-long has Mooncake's programs")
    made = subprocess.run([ROOT / "scripts/mooncake-env"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    if made.returncode == 3:
        pytest.skip("Mooncake is not in this machine's package registry")
    python = pathlib.Path(made.stdout.strip())
    return python, next(python.parents[1].glob("lib/python*/site-packages/mooncake"))


PROGRAM = """
import sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup(sys.argv[1], "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", sys.argv[2]) == 0
assert store.put("k", b"hello") == 0 and store.get("k") == b"hello"
store.close()
"""


@pytest.fixture(params=["memory"])
def owner(request, lab, new_agent, programs, tmp_path):
    """Starts an agent, a master and an owner; returns (agent, process of the owner, addresses of the master and of the segment)."""
    _, folder = programs
    host = lab.hosts[0]
    address = f"[{host.v6}]" if request.param == "ipv6" else host.v4
    rpc, pages, owner_rpc, segment = (next(PORTS) for _ in range(4))
    agent = new_agent(listen=[host.v4], key=lab.key, settings={
        "mooncake.masters": f"http://{host.v4}:{pages}", "mooncake.master_rpc": f"{address}:{rpc}", "mooncake.interval": "200ms",
        "mooncake.owner_rpc": owner_rpc, "mooncake.owner_segment": segment, "segment.ports": "none", "probe.interval": "200ms"})
    process = subprocess.Popen(
        host.command(OWNER, "--metadata_server=P2PHANDSHAKE", "--global_segment_size=64MB"), stdout=subprocess.PIPE, text=True,
        stderr=(agent.directory / "owner.log").open("w"), start_new_session=True,
        env={**os.environ, "PATH": f"{BUILD}:{folder}:{os.environ['PATH']}", "LD_LIBRARY_PATH": str(folder), "MASTER": f"{address}:{rpc}",
             "MOONCAKE_ENABLE_OFFLOAD": str(int(request.param == "offload")), "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": str(tmp_path),
             "METRICS_PORT": str(pages), "DRAY_CONTROL_SOCKET": str(agent.control), "DRAY_SOCKET": str(agent.socket)})
    yield agent, process, f"{address}:{rpc}", f"{host.v4}:{segment}"
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def ready(agent, process):
    said = process.stdout.readline()
    assert said == "owner: ready\n", (agent.directory / "owner.log").read_text()


def children(pid):
    return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def name(pid):
    return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()


@pytest.mark.parametrize("owner", ["memory", "offload", "ipv6"], indirect=True)
def test_owner(request, lab, owner, programs):
    """The segment is ready when the owner says so, engines are told to prefer it, and a client of the store can use it."""
    agent, process, master, segment = owner
    ready(agent, process)
    told = f"MOONCAKE_PREFERRED_SEGMENT={segment}"
    assert told in agent.ctl("env", "--profile", "vllm-mooncake", "--format", "dotenv")
    subprocess.run(lab.hosts[0].command(programs[0], "-c", PROGRAM, lab.hosts[0].v4, master), check=True, timeout=4 * LIMIT, stdout=subprocess.DEVNULL)
    found = children(process.pid)
    started = [pathlib.Path(f"/proc/{pid}/cmdline").read_text().split("\0") for pid in found]
    assert len(started) == 2 and all(("--enable_offload=true" in command) == (request.node.callspec.params["owner"] == "offload") for command in started)
    process.terminate()
    assert process.wait(LIMIT) == 143 and not any(pathlib.Path(f"/proc/{pid}").exists() for pid in found)
    until(lambda: told not in agent.ctl("env", "--profile", "vllm-mooncake", "--format", "dotenv"), "the segment to be lost")


@pytest.mark.parametrize("victim", ["mooncake_master", "mooncake_client"])
def test_one_ends(owner, victim):
    """When one of the two programs dies, the other one is ended, too."""
    agent, process, *_ = owner
    ready(agent, process)
    found = {name(pid): pid for pid in children(process.pid)}
    os.kill(found[victim[:15]], signal.SIGKILL)
    assert process.wait(4 * LIMIT) == 128 + signal.SIGKILL
    assert not any(pathlib.Path(f"/proc/{pid}").exists() for pid in found.values())


@pytest.mark.parametrize("master", ["::1", "::1:50051", "10.0.0.7", ":50051", "10.0.0.7:", "[::1]", "10.0.0.7:port", "[::1]50051"])
def test_master_without_host_or_port(master):
    """An IPv6 address has brackets, because its last part could be a port."""
    done = subprocess.run([OWNER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=LIMIT, env={**os.environ, "MASTER": master})
    assert done.returncode == 2 and not done.stdout
    assert done.stderr == f"owner: MASTER={master} is not HOST:PORT; write 10.0.0.7:50051 or [2001:db8::7]:50051\n"
