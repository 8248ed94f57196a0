# SPDX-License-Identifier: Apache-2.0
"""Hardening: capabilities, system calls, core dumps, secrets; the agent as process 1; systemd's files."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import dray
import harness
import pytest
from harness import LIMIT, MIB, ROOT, Side, expect, noise, until
from test_hostile import as_root
from test_lifecycle import fails, waiting_transfer

IPC_LOCK = 1 << 14
NOBODY = 65534
SYSTEMD = ROOT / "packaging/systemd"


def statuses(pid):
    """/proc/PID/status of each thread."""
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        yield dict(re.findall(r"(\w+):\s+(.*)", (task / "status").read_text()))


def capabilities(pid, *sets):
    """The union of the capabilities of all threads."""
    have = 0
    for status in statuses(pid):
        for name in sets:
            have |= int(status[name], 16)
    return have


def works(agent):
    """Checks that regions, a ring and transfers work."""
    with Side(agent, MIB, wire=True) as here, Side(agent, MIB, noise(MIB)) as there:
        here.client.open_ring(16, 65536)
        here.client.read(here.region, here.reach(there), [(0, 0, MIB)], via="ring").result(LIMIT)
        assert here.view == there.view


# --- privileges ---------------------------------------------------------------------------------------

def test_every_thread_is_confined(new_pair):
    """Every thread of a working agent has the filter, no_new_privs, and no capability except CAP_IPC_LOCK."""
    agent, other = new_pair()
    with Side(agent, MIB) as here, Side(other, MIB, noise(MIB)) as there:
        here.client.read(here.region, here.reach(there), [(0, 0, MIB)]).result(LIMIT)
        # each thread drops its capabilities when it starts
        until(lambda: not capabilities(agent.pid, "CapPrm", "CapEff") & ~IPC_LOCK, "the end of capabilities")
        assert not capabilities(agent.pid, "CapInh", "CapAmb")
        own = dict(re.findall(r"(\w+):\s+(.*)", pathlib.Path("/proc/self/status").read_text()))
        if int(own["CapEff"], 16) >> 8 & 1:  # emptying the bounding set needs CAP_SETPCAP
            assert not capabilities(agent.pid, "CapBnd")
        for status in statuses(agent.pid):
            assert status["Seccomp"] == "2" and status["NoNewPrivs"] == "1", status["Name"]
            assert int(status["Seccomp_filters"]) > int(own["Seccomp_filters"]), status["Name"]


def test_work_without_executable_mappings(lab, new_agent):
    """Without RDMA and GPUs no file can be mapped as code; agents do all their work without that."""
    settings = {"rdma.enable": "false", "gpu.enable": "false", "http.listen": "127.0.0.1:0"}
    a, b = (new_agent(name, key=lab.key, settings=settings) for name in "ab")
    with Side(a, MIB) as here, Side(b, MIB, noise(MIB)) as there:
        remote = here.reach(there)
        here.client.read(here.region, remote, [(0, 0, MIB)]).result(LIMIT)
        assert bytes(here.view) == bytes(there.view)
        here.client.pool(MIB)
        a.ctl("detect")
        a.ctl("reload")
        there.region.revoke()
    for agent in (a, b):
        agent.stop()
        assert "Operation not permitted" not in agent.text(), agent.text()


@pytest.mark.parametrize("mode", ["log", "off"])
def test_seccomp_modes(new_agent, mode):
    agent = new_agent(settings={"agent.seccomp": mode})
    works(agent)
    own = re.search(r"Seccomp_filters:\s+(\d+)", pathlib.Path("/proc/self/status").read_text())[1]
    for status in statuses(agent.pid):
        assert int(status["Seccomp_filters"]) == int(own) + (mode == "log"), status["Name"]
    assert ("agent.seccomp is off" in agent.text()) == (mode == "off")


def as_nobody(*capabilities):
    caps = ",".join("+" + c for c in capabilities)
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
            *([f"--inh-caps={caps}", f"--ambient-caps={caps}"] if caps else [])]


def low_port(agent):
    agent.listen = ["127.0.0.1:811"]
    return "127.0.0.1:811"


def foreign_group(agent):
    agent.settings["data.group"] = "54321"
    return "data.socket: setting the group"


def closed_key(agent):
    agent.key = agent.lab.key
    return "peer.key_file"


def closed_directory(agent):
    agent.socket = agent.lab.directory("closed") / "dray.sock"
    return "data.socket: binding"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give capabilities to another user")
@pytest.mark.parametrize("capability, needing", [
    ("net_bind_service", low_port), ("chown", foreign_group), ("dac_read_search", closed_key),
    ("dac_override", closed_directory), ("ipc_lock", None)])
def test_capabilities(lab, new_agent, monkeypatch, capability, needing):
    """Without a capability that its configuration needs, an agent of another user does not start; with it, the agent starts and drops it."""
    if lab.userns:
        pytest.skip("in a user namespace without other users")
    program = lab.tmp / "drayd"  # the user nobody may have no access to the source tree
    shutil.copy(harness.DRAYD, program)
    program.chmod(0o755)
    monkeypatch.setattr(harness, "DRAYD", program)

    def make(*capabilities):
        agent = new_agent(start=False, wrap=as_nobody(*capabilities))
        os.chown(agent.directory, NOBODY, NOBODY)
        return agent, needing and needing(agent)

    if needing:
        agent, words = make()
        fails(agent, words)
    agent, _ = make(capability, "net_raw")
    agent.start()
    kept = IPC_LOCK if capability == "ipc_lock" else 0
    until(lambda: capabilities(agent.pid, "CapPrm", "CapEff", "CapInh", "CapAmb") == kept, "the end of capabilities")
    agent.stop()


def test_limits_are_raised(new_agent):
    agent = new_agent(wrap=["prlimit", "--memlock=65536:131072", "--nofile=512:1024"])
    limits = pathlib.Path(f"/proc/{agent.pid}/limits").read_text()
    assert re.search(r"Max locked memory +131072 ", limits) and re.search(r"Max open files +1024 ", limits)


# --- secrets ------------------------------------------------------------------------------------------

def test_core_dumps_leave_client_memory_out(new_agent):
    """Regions, pools, rings and arenas are excluded from core dumps."""
    agent = new_agent()
    with Side(agent, MIB, wire=True) as here, Side(agent, MIB) as there:
        here.client.open_ring(16, 65536)
        here.reach(there)
        here.client.pool(MIB)
        maps = re.findall(r"^[0-9a-f]+-\S+ .*?(/memfd:.*)\n(?:\w+:.*\n)*?VmFlags:(.*)",
                          pathlib.Path(f"/proc/{agent.pid}/smaps").read_text(), re.M)
        assert len(maps) >= 5, maps
        for name, flags in maps:
            assert "dd" in flags.split(), f"{name}:{flags}"


@pytest.mark.parametrize("mode, owner", [(0o604, None), (0o660, None), (0o600, 4711)])
def test_key_file_with_wrong_permissions(lab, new_agent, mode, owner):
    """The agent refuses the file and names a command that corrects it; after that command it starts."""
    path = lab.write("key", "ab" * 32, mode)
    if owner is not None:
        try:
            os.chown(path, owner, -1)
        except OSError as e:
            pytest.skip(f"files cannot be given away here: {e}")
    agent = new_agent(start=False, key=path)
    fix = re.search(r"run: (ch\w+ \d+ \S+)", fails(agent, "peer.key_file", str(path)))[1]
    subprocess.run(fix.split(), check=True)
    agent.start()


@as_root
def test_key_file_of_a_group(lab, new_agent):
    """A file of root may be readable by its group, as in a pod with fsGroup. An agent that is root warns of a group other than its own."""
    path = lab.write("key", "ab" * 32, 0o640)
    os.chown(path, 0, 4711)
    agent = new_agent(key=path)
    assert f"{path} can be read by group 4711" in agent.text()


def test_key_only_from_a_file(new_agent):
    """The key cannot be given on the command line or in the environment, and the log does not contain it."""
    for args in (["--key", "ab" * 32], ["--set", f"peer.key={'ab' * 32}"]):
        agent = new_agent(start=False, args=args)
        fails(agent)
        assert "ab" * 32 not in agent.text()
    agent = new_agent(env={"DRAY_PEER_KEY": "ab" * 32})
    assert "DRAY_PEER_KEY" in agent.text() and "ab" * 32 not in agent.text()
    assert "no key" in agent.text()


# --- process 1 ----------------------------------------------------------------------------------------

PROCESS_1 = ["unshare", "--pid", "--fork", "--mount-proc"]


def children(pid):
    return [int(p) for p in subprocess.run(["pgrep", "-P", str(pid)], stdout=subprocess.PIPE, text=True).stdout.split()]


def start_as_process_1(new_agent, *wrap, **how):
    """Starts an agent as the first process of a PID namespace; returns it and its process id outside."""
    agent = new_agent(start=False, wrap=[*PROCESS_1, *wrap], **how)
    try:
        agent.host.run(*PROCESS_1, "true")
    except OSError as e:
        pytest.skip(f"PID namespaces cannot be made here: {e}")
    agent.start()
    inner, = children(agent.pid)
    assert re.search(r"NSpid:.*\t1$", pathlib.Path(f"/proc/{inner}/status").read_text(), re.M)
    return agent, inner


def ended(agent, status):
    """Checks the exit status; unshare exits with the status of its child."""
    assert agent.wait() == status
    agent.check_log()
    agent.process = None


@pytest.mark.parametrize("second", [None, signal.SIGTERM, signal.SIGINT])
def test_process_1_drains(new_agent, second):
    """After SIGTERM transfers in flight finish; a second signal stops the agent at once."""
    agent, inner = start_as_process_1(new_agent, settings={"agent.drain_timeout": "1h"})
    with Side(agent, MIB) as here, Side(agent, MIB, noise(MIB)) as there:
        words = here.memory.words()
        transfer = waiting_transfer(here, here.reach(there))
        os.kill(inner, signal.SIGTERM)
        assert here.client.next_event(dray.Draining, LIMIT)
        assert agent.wait_notify("EXTEND_TIMEOUT_USEC=36"), "systemd would kill it"
        assert agent.running and not transfer.done()
        if second:
            os.kill(inner, second)
            ended(agent, 1)
            assert transfer.exception(LIMIT).name in ("session_closed", "agent_restarted")
        else:
            words[0] = 1
            transfer.result(LIMIT)
            ended(agent, 0)
        words.release()


def test_process_1_drain_deadline(new_agent):
    agent, inner = start_as_process_1(new_agent, settings={"agent.drain_timeout": "200ms"})
    with Side(agent, MIB) as here, Side(agent, MIB) as there:
        transfer = waiting_transfer(here, here.reach(there))
        os.kill(inner, signal.SIGTERM)
        expect("deadline", transfer.result, LIMIT)
        ended(agent, 0)


def test_process_1_stops_at_sigint(new_agent):
    agent, inner = start_as_process_1(new_agent)
    works(agent)
    os.kill(inner, signal.SIGINT)
    ended(agent, 1)


# Leaves a zombie, a child, and a grandchild whose parent ends. The latter two end when the pipe is closed.
LEAVE_CHILDREN = """
import os, sys
pipe = int(sys.argv[1])
if not (pid := os.fork()): os._exit(0)
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
if not os.fork(): os._exit(len(os.read(pipe, 1)))
if not os.fork(): os._exit(0 if os.fork() else len(os.read(pipe, 1)))
os.execvp(sys.argv[2], sys.argv[2:])
"""


def test_process_1_reaps_orphans(new_agent):
    theirs, ours = os.pipe()
    agent, inner = start_as_process_1(new_agent, sys.executable, "-c", LEAVE_CHILDREN, str(theirs), pass_fds=[theirs])
    until(lambda: len(children(inner)) == 2, "two remaining orphans")
    os.close(theirs)
    os.close(ours)
    until(lambda: not children(inner), "the end of the orphans")
    works(agent)
    os.kill(inner, signal.SIGTERM)
    ended(agent, 0)


# --- systemd ------------------------------------------------------------------------------------------

def run(*argv):
    done = subprocess.run([str(a) for a in argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_unit(lab):
    """systemd-analyze accepts the unit and rates its exposure below 2."""
    unit = lab.directory("units") / "drayd.service"
    unit.write_text((SYSTEMD / "drayd.service.in").read_text().replace("@PREFIX@/sbin/drayd", str(harness.DRAYD)))
    assert not run("systemd-analyze", "verify", "--man=no", unit)
    assert "drayd.service: 1." in run("systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=20", unit)


@pytest.mark.skipif(not shutil.which("systemd-sysusers") or os.geteuid() != 0, reason="needs systemd and root")
def test_systemd_user_and_directories(lab):
    root = lab.directory("root")
    (root / "etc").mkdir()
    run("systemd-sysusers", f"--root={root}", SYSTEMD / "dray.sysusers")
    uid, gid = re.search(r"^dray:[^:]*:(\d+):(\d+):[^:]*:/var/lib/dray:\S*nologin$", (root / "etc/passwd").read_text(), re.M).groups()
    run("systemd-tmpfiles", f"--root={root}", "--create", SYSTEMD / "dray.tmpfiles")
    for path, mode in (("run/dray", 0o755), ("var/lib/dray", 0o700)):
        st = (root / path).stat()
        assert (st.st_mode & 0o7777, st.st_uid, st.st_gid) == (mode, int(uid), int(gid))
