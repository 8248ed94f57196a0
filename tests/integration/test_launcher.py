# SPDX-License-Identifier: Apache-2.0
"""A launcher as platform teams write it: it starts the node's owner and an engine, which must get the right variables."""

import contextlib
import json
import os
import subprocess

import pytest
from harness import DRAYCTL, LIMIT, until
from test_segments import QUICK_PROBES, Owner, descriptor, handshake_daemon, listen, port_of, preferred, rows, state

pytestmark = pytest.mark.skipif(not DRAYCTL.exists(), reason=f"{DRAYCTL} is not there")

SHOW = ["python3", "-c", "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:]]))"]


def launch(agent, *options, argv=SHOW, env=()):
    """Starts drayctl exec on the agent's host, as the last line of a launcher does."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("DRAY_", "MOONCAKE_", "MC_"))}
    return subprocess.Popen(agent.host.command(DRAYCTL, "--control", agent.control, "exec", *options, "--", *argv), text=True,
                            env={**clean, **dict(env)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def seen(process):
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    environment, argv = json.loads(out)
    return environment, argv, err


def spare_port(host):
    with contextlib.closing(listen(host)) as sock:
        return port_of(sock)


def test_owner_starts_late(lab, new_agent):
    """The agent and the launcher start before the owner; the engine starts when the owner's segment answers the handshake."""
    host = lab.hosts[0]
    port = spare_port(host)
    name = f"{host.v4}:{port}"
    agent = new_agent(settings={**QUICK_PROBES, "segment.ports": f"{port} mooncake"}, listen=[host.v4], key=lab.key)
    launcher = launch(agent, f"--wait-ready={LIMIT}s", "--profile", "dray,vllm,vllm-mooncake", argv=[*SHOW, "serve", "a model"])
    # a port that accepts and does not answer is not an owner
    with contextlib.closing(listen(host, port=port)):
        until(lambda: rows(agent).get(name, {"failures": 0})["failures"])
        assert launcher.poll() is None and preferred(agent).segment == ""
    with Owner(listen(host, port=port), handshake_daemon(descriptor(name))):
        environment, argv, err = seen(launcher)
        assert argv == ["serve", "a model"]
        assert environment["MOONCAKE_PREFERRED_SEGMENT"] == name
        assert environment["MOONCAKE_REQUESTER_LOCAL_HOSTNAME"] == environment["VLLM_HOST_IP"] == host.v4
        assert environment["DRAY_SOCKET"] == str(agent.socket)
        assert environment["DRAY_SEGMENT"] == agent.ctl("status", "--json")["segment"]
        assert "MC_GID_INDEX" not in environment and "MC_GID_INDEX" in err  # omitted, because there is no RDMA
        # variables that are set already are kept, unless --override is given
        mine = {"MOONCAKE_PREFERRED_SEGMENT": "mine:1"}
        assert seen(launch(agent, "--profile", "vllm-mooncake", env=mine))[0]["MOONCAKE_PREFERRED_SEGMENT"] == "mine:1"
        assert seen(launch(agent, "--profile", "vllm-mooncake", "--override", env=mine))[0]["MOONCAKE_PREFERRED_SEGMENT"] == name


def test_owner_does_not_start(lab, new_agent):
    agent = new_agent(settings=QUICK_PROBES, listen=[lab.hosts[0].v4], key=lab.key)
    late = launch(agent, "--wait-ready=200ms", "--profile", "vllm-mooncake")
    assert late.communicate(timeout=LIMIT)[0] == "" and late.returncode == 124
    environment, _, err = seen(launch(agent, "--wait-ready=200ms", "--on-timeout=start", "--profile", "vllm-mooncake"))
    assert "MOONCAKE_PREFERRED_SEGMENT" not in environment and err


def test_wait_ready_needs_a_verified_segment(lab, new_agent):
    """After a restart the agent returns the segment at once, unverified; --wait-ready waits until a probe confirms it."""
    host = lab.hosts[0]
    port = spare_port(host)
    name = f"{host.v4}:{port}"
    settings = {**QUICK_PROBES, "segment.ports": f"{port} mooncake"}
    with Owner(listen(host, port=port), handshake_daemon(descriptor(name))):
        agent = new_agent(settings=settings, listen=[host.v4], key=lab.key)
        state(agent, name, "ready")
        until(lambda: agent.ctl("hints", "--json")["hints"])
        agent.stop()
    agent.settings["probe.timeout"] = "60s"
    with Owner(listen(host, port=port), lambda conn: True) as owner:
        agent.start()
        assert preferred(agent).segment == name and preferred(agent).unverified
        launcher = launch(agent, f"--wait-ready={LIMIT}s", "--profile", "vllm-mooncake")
        until(lambda: owner.held)  # the owner holds a probe without answering
        assert launcher.poll() is None
        owner.serve = handshake_daemon(descriptor(name))
        for conn in owner.held:
            conn.close()
        assert seen(launcher)[0]["MOONCAKE_PREFERRED_SEGMENT"] == name
        assert not preferred(agent).unverified


def sourced(path):
    out = subprocess.run(["sh", "-c", f"set -a; . {path}; exec env -0"], stdout=subprocess.PIPE, env={}, check=True).stdout
    return dict(v.split("=", 1) for v in out.decode().split("\0") if v)


def test_env_file_and_data_socket_agree(lab, new_agent):
    host = lab.hosts[0]
    port = spare_port(host)
    agent = new_agent(settings={**QUICK_PROBES, "segment.ports": f"{port}", "env.profiles": "dray,vllm,vllm-mooncake"}, listen=[host.v4],
                      key=lab.key)
    path = agent.directory / "env"
    until(path.exists)
    assert path.stat().st_mode & 0o777 == 0o644
    until(lambda: sourced(path).get("VLLM_HOST_IP") == host.v4)
    assert "MOONCAKE_PREFERRED_SEGMENT" not in sourced(path)
    with contextlib.closing(listen(host, port=port)):
        until(lambda: sourced(path).get("MOONCAKE_PREFERRED_SEGMENT") == f"{host.v4}:{port}")
        with agent.client() as c:
            asked = c.environment()
            assert {k: v for k, v in sourced(path).items() if k not in ("PWD", "_", "SHLVL", "OLDPWD")} == dict(asked)
            assert set(asked.notes) >= {"MC_GID_INDEX"}
            assert "NCCL_SOCKET_IFNAME" in {*c.environment(["nccl"]), *c.environment(["nccl"]).notes}
    until(lambda: "MOONCAKE_PREFERRED_SEGMENT" not in sourced(path))
    agent.stop()
    assert not path.exists()


def test_env_file_in_a_directory_without_write_access(lab, new_agent):
    agent = new_agent(settings={**QUICK_PROBES, "env.file": "/proc/env"})
    until(lambda: "/proc/env" in agent.text())
    assert preferred(agent).segment == ""


def test_no_env_file(lab, new_agent):
    agent = new_agent(settings={**QUICK_PROBES, "env.file": "none"})
    assert preferred(agent).segment == ""
    assert not (agent.directory / "env").exists()


def test_unknown_profile(lab, new_agent):
    agent = new_agent(settings=QUICK_PROBES)
    done = agent.ctl("env", "--profile", "dray,nope", check=False)
    assert done.returncode != 0 and "nope" in done.stderr and "vllm-mooncake" in done.stderr and not done.stdout


def test_master_address_for_clients(lab, new_agent):
    agent = new_agent(settings=QUICK_PROBES, env={"MOONCAKE_MASTER": "10.0.0.9:50051"}, listen=[lab.hosts[0].v4], key=lab.key)
    with agent.client() as c:
        assert c.environment(["mooncake"])["MOONCAKE_MASTER"] == "10.0.0.9:50051"
    assert "--master_server_address=10.0.0.9:50051" in agent.ctl("env", "--profile", "mooncake-owner", "--format", "args")
    other = new_agent(settings={**QUICK_PROBES, "mooncake.master_rpc": "etcd://10.0.0.8:2379"}, env={"MOONCAKE_MASTER": "10.0.0.9:50051"})
    with other.client() as c:
        assert c.environment(["mooncake"])["MOONCAKE_MASTER"] == "etcd://10.0.0.8:2379"
