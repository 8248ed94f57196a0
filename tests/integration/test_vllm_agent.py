# SPDX-License-Identifier: Apache-2.0
"""dray.vllm.agent: which agent an engine uses, and the life of a private one."""

import contextlib
import errno
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

import dray
import pytest
from dray import errors
from dray.vllm import agent as agents
from dray.vllm.options import Options
from harness import BUILD, DRAYD, LIMIT, until, wait_exit


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A machine without an agent, on which the package dray-agent is installed."""
    package = tmp_path / "site/dray_agent"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"BIN = {str(BUILD)!r}\n")
    run = pathlib.Path(tempfile.mkdtemp(prefix="dray-"))  # a socket's path must be short
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.delitem(sys.modules, "dray_agent", raising=False)
    monkeypatch.delenv("DRAY_SOCKET", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(run))
    monkeypatch.setattr(agents, "DEFAULT_SOCKET", str(tmp_path / "default.sock"))
    yield tmp_path
    shutil.rmtree(run)


def serves(socket):
    with dray.Client(socket, patience=LIMIT) as client:
        return client.segment


@pytest.mark.skipif(not DRAYD.exists(), reason="the agent is not built")
def test_private_agent(place, caplog):
    caplog.set_level("INFO")
    found = agents.find(Options(), "engine-1")
    try:
        assert found.private is not None and found.socket.startswith(os.environ["XDG_RUNTIME_DIR"])
        assert serves(found.socket).startswith("127.0.0.1:")
        assert "started a private one" in caplog.text and "on this host only" in caplog.text
        other = agents.find(Options(), "engine-1")  # another rank
        assert other.socket == found.socket and other.private is None
        pid = os.pidfd_open(found.private.pid)
    finally:
        found.close()
    found.close()
    assert wait_exit(pid)
    os.close(pid)
    again = agents.find(Options(), "engine-1")
    try:
        assert again.private is not None and serves(again.socket)
    finally:
        again.close()


@pytest.mark.skipif(not DRAYD.exists(), reason="the agent is not built")
def test_private_agent_is_started_again(place, caplog):
    found = agents.find(Options(), "engine-2")
    try:
        with dray.Client(found.socket, patience=LIMIT) as client:
            incarnation = client.incarnation
            os.kill(found.private.pid, signal.SIGKILL)
            assert client.wait_until(lambda: client.connected and client.incarnation != incarnation, LIMIT)
        assert "has ended with status -9" in caplog.text
    finally:
        found.close()


@pytest.mark.skipif(not DRAYD.exists(), reason="the agent is not built")
def test_private_agent_that_cannot_be_started_again_at_once(place, caplog, monkeypatch):
    """It is started as soon as the system lets it; meanwhile it can be stopped."""
    start, failures = subprocess.Popen, [OSError(errno.EMFILE, "no descriptor"), MemoryError()]

    def once_more(*arguments, **how):
        if failures:
            raise failures.pop()
        return start(*arguments, **how)

    monkeypatch.setattr(agents, "_PAUSES", (0.01,))
    found = agents.find(Options(), "engine-7")
    try:
        with dray.Client(found.socket, patience=LIMIT) as client:
            incarnation = client.incarnation
            monkeypatch.setattr(subprocess, "Popen", once_more)
            os.kill(found.private.pid, signal.SIGKILL)
            assert client.wait_until(lambda: client.connected and client.incarnation != incarnation, LIMIT)
        assert "cannot be started: MemoryError" in caplog.text and "cannot be started: [Errno 24] no descriptor" in caplog.text
        failures += [OSError(errno.EAGAIN, "no process")] * 1000
        os.kill(found.private.pid, signal.SIGKILL)
        until(lambda: not found.private.pid, "the end of the agent")
    finally:
        found.close()


@contextlib.contextmanager
def engine(place, then, *wrap, options=""):
    """A process whose private agent is `found.private`, which prints the agent's process id and does `then`. Killed at the end."""
    program = ("import os, sys, time, dray\nfrom dray.vllm import agent\nfrom dray.vllm.options import Options\n"
               f"agent.DEFAULT_SOCKET = {str(place / 'default.sock')!r}\n"
               f"found = agent.find(Options({options}), 'engine-3')\nprint(found.private.pid, flush=True)\n{then}\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(place / "site"), str(pathlib.Path(dray.__file__).parents[1])])}
    with subprocess.Popen([*wrap, sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                          env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.skipif(not DRAYD.exists(), reason="the agent is not built")
def test_private_agent_ends_with_a_killed_engine(place):
    with engine(place, "time.sleep(600)") as process:
        pid = os.pidfd_open(int(process.stdout.readline()))
        process.kill()
        assert wait_exit(pid)
        os.close(pid)


def status(pid, key):
    return next(line.split()[1] for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(f"{key}:"))


@pytest.mark.skipif(not DRAYD.exists(), reason="the agent is not built")
@pytest.mark.parametrize("end", ["sys.exit()", "found.close()\n    os._exit(0)"])
def test_private_agent_outlives_a_forked_child(place, end):
    """The child sends the agent no signal: none is pending while the agent is stopped."""
    with engine(place, f"input()\nif os.fork() == 0:\n    {end}\nos.wait()\nprint('forked', flush=True)\ninput()") as process:
        pid = int(process.stdout.readline())
        os.kill(pid, signal.SIGSTOP)
        until(lambda: status(pid, "State") == "T", "the agent to stop")
        print(file=process.stdin, flush=True)
        assert process.stdout.readline() == "forked\n"
        assert not int(status(pid, "ShdPnd"), 16) & 1 << signal.SIGTERM - 1


@pytest.mark.skipif(not DRAYD.exists(), reason="the agent is not built")
def test_a_forked_child_does_not_keep_the_lock(place):
    """When the engine is killed, another process of it starts an agent, although the child runs on."""
    with engine(place, "if os.fork() == 0:\n    print('forked', flush=True)\n    input()\ntime.sleep(600)") as process:
        pid = os.pidfd_open(int(process.stdout.readline()))
        assert process.stdout.readline() == "forked\n"
        process.kill()
        assert wait_exit(pid)
        os.close(pid)
        process.wait()
        found = agents.find(Options(), "engine-3")
        try:
            assert found.private is not None
        finally:
            found.close()


@pytest.mark.skipif(not DRAYD.exists(), reason="the agent is not built")
def test_options_of_the_private_agent(place, lab):
    found = agents.find(Options(key_file=str(lab.key), transport="tcp", devices=("none0",)), "engine-4")
    try:
        assert not serves(found.socket).startswith("127.")
        argv = pathlib.Path(f"/proc/{found.private.pid}/cmdline").read_text().split("\0")
        assert "rdma.enable=false" in argv and "rdma.devices=none0" in argv
    finally:
        found.close()


IPV6_ONLY = """ip link set lo up
ip link add d0 type veth peer name d1
ip link set d0 up
ip link set d1 up
ip -6 addr add 2001:db8::1/64 dev d0 nodad
exec "$@"
"""


@pytest.mark.skipif(not DRAYD.exists(), reason="the agent is not built")
def test_a_host_with_ipv6_only(place, lab):
    lab.need_namespaces()
    wrap = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "sh", "-ec", IPV6_ONLY, "sh"]
    then = f"with dray.Client(found.socket, patience={LIMIT}) as client:\n    print(client.segment, flush=True)\n"
    with engine(place, then, *wrap, options=f"key_file={str(lab.key)!r}") as process:
        process.stdout.readline()
        assert process.stdout.readline().startswith("[2001:db8::1]:")


@pytest.mark.skipif(not DRAYD.exists(), reason="the agent is not built")
def test_push_needs_a_key(place):
    with pytest.raises(errors.Invalid, match="mode 'push' needs a key.*Set the option 'key_file'"):
        agents.find(Options(mode="push"), "engine-6")


def test_an_agent_that_cannot_start(place):
    with pytest.raises(errors.Io, match="cannot be started: .*/nowhere/key"):
        agents.find(Options(key_file="/nowhere/key"), "engine-5")
    found = agents.find(Options(), "engine-5")  # the lock is free again
    found.close()


def test_a_configured_socket_is_never_replaced(place, monkeypatch):
    assert agents.find(Options(socket="/run/x.sock"), "e") == agents.Found("/run/x.sock")
    assert agents.find(Options(agent="external"), "e") == agents.Found(agents.DEFAULT_SOCKET)
    monkeypatch.setenv("DRAY_SOCKET", "/run/y.sock")
    assert agents.find(Options(), "e") == agents.Found("/run/y.sock")
    with pytest.raises(errors.Invalid, match="/run/y.sock has its own configuration, and 'key_file' and 'devices'"):
        agents.find(Options(key_file="/k", devices=("a",)), "e")


def test_the_default_place(place):
    (place / "default.sock").touch()
    assert agents.find(Options(), "e") == agents.Found(agents.DEFAULT_SOCKET)


def test_no_agent_at_all(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "dray_agent", None)
    monkeypatch.setenv("PATH", str(DRAYD.parent))
    with pytest.raises(errors.PeerUnreachable, match="no socket is configured.*Install dray-agent"):
        agents.find(Options(), "e")


def test_a_folder_of_somebody_else(place):
    folder = agents._folder("e")
    folder.chmod(0o755)
    with pytest.raises(errors.Denied, match="others may use it"):
        agents.find(Options(), "e")
    folder.rmdir()
    folder.symlink_to(place)
    with pytest.raises(errors.Denied, match="belongs to somebody else"):
        agents.find(Options(), "e")
