# SPDX-License-Identifier: Apache-2.0
"""What goes wrong on the first day: each problem of docs/first-day.md is provoked, and says the sentence of that page."""

import os
import pathlib
import re
import secrets
import shutil
import subprocess
import sys

import dray
import pytest
from harness import DRAYCTL, LIMIT, MIB, ROOT, Side, unreachable_token, until

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from machines import models  # noqa: E402

ROWS = {problem: sentence.replace("\\|", "|") for problem, sentence in
        re.findall(r"^\| (.+?) \| [^|]+ \| `(.+)` \|$", (ROOT / "docs/first-day.md").read_text(), re.M)}
PROBLEMS = {}
NOBODY = {"user": 65534, "group": 65534, "extra_groups": []}
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its user id and mount")


def problem(*names, marks=()):
    """Declares a function that provokes these problems, and returns what each says."""
    def declare(function):
        PROBLEMS[names] = pytest.param(names, function, marks=marks, id=names[0])
        return function
    return declare


def refused(agent):
    """The output of an agent that does not start."""
    agent.start(ready=False)
    assert agent.wait() != 0
    agent.process = None
    return agent.text()


def ctl(*argv, wrap=(), program=DRAYCTL, **how):
    done = subprocess.run([*map(str, wrap), program, *map(str, argv)], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=LIMIT, cwd="/", **how)
    return done.stdout


def error(function, *args, **how):
    with pytest.raises(dray.Error) as caught:
        function(*args, **how)
    return str(caught.value)


def mounted(lab, options, then="true"):
    """(the prefix of a command that sees a file system of its own, its directory)."""
    mount = lab.directory("mount")
    return ["unshare", "--mount", "sh", "-c", f"mount -t tmpfs -o {options} none {mount} && {then.format(mount)} && exec \"$@\"", "sh"], mount


@problem("wrong key", "wrong key, seen by the engine")
def wrong_key(lab, new_agent):
    one, two = new_agent("one", key=lab.key), new_agent("two", key=lab.write("key", secrets.token_hex(32), 0o600))
    with Side(one, MIB) as here, Side(two, MIB) as there:
        seen = error(here.client.import_token, there.export(), timeout=LIMIT)
    return one.text(), seen


@problem("key file that others can read")
def key_mode(lab, new_agent):
    return refused(new_agent(start=False, key=lab.write("key", "ab" * 32, 0o644)))


@problem("key that is too short")
def key_short(lab, new_agent):
    return refused(new_agent(start=False, key=lab.write("key", "ab", 0o600)))


@problem("no key, beyond loopback")
def no_key(lab, new_agent):
    return refused(new_agent(start=False, listen=["0.0.0.0"]))


@problem("port taken")
def port(lab, new_agent):
    return refused(new_agent(start=False, listen=[new_agent().listen[0]]))


@problem("port of the metrics taken")
def http_port(lab, new_agent):
    with lab.hosts[0].socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        return refused(new_agent(start=False, settings={"http.listen": f"127.0.0.1:{taken.getsockname()[1]}"}))


@problem("address of another host")
def address(lab, new_agent):
    return refused(new_agent(start=False, listen=["192.0.2.1:7411"], key=lab.key))


@problem("two agents on one state directory")
def state_dir(lab, new_agent):
    first, second = new_agent(), new_agent(start=False)
    second.state_dir = first.state_dir
    return refused(second)


@problem("two agents on one socket")
def socket_in_use(lab, new_agent):
    first, second = new_agent(), new_agent(start=False)
    second.socket = first.socket
    return refused(second)


@problem("a file where the socket should be")
def socket_file(lab, new_agent):
    agent = new_agent(start=False)
    agent.socket = lab.write("file", "text")
    return refused(agent)


@problem("read-only state directory", marks=as_root)
def read_only(lab, new_agent):
    wrap, mount = mounted(lab, "ro")
    agent = new_agent(start=False, wrap=wrap)
    agent.state_dir = mount / "state"
    return refused(agent)


@problem("full disk", marks=as_root)
def full_disk(lab, new_agent):
    wrap, mount = mounted(lab, "size=8k,nr_inodes=20", "head -c 8192 /dev/zero >{}/full")
    agent = new_agent(start=False, wrap=wrap)
    agent.state_dir = mount / "state"
    return refused(agent)


@problem("wrong option")
def option(lab, new_agent):
    return refused(new_agent(start=False, args=["--sokcet", "x"]))


@problem("missing configuration file")
def no_file(lab, new_agent):
    return refused(new_agent(start=False, args=["--config", lab.tmp / "absent.conf"]))


@problem("unknown name in the configuration")
def unknown_name(lab, new_agent):
    return refused(new_agent(start=False, args=["--config", lab.write("conf", 'agent: { statedir = "/x"; };\n')]))


@problem("time without a unit")
def unit(lab, new_agent):
    return refused(new_agent(start=False, settings={"peer.heartbeat": "1"}))


@problem("time without a unit, at `drayctl`")
def unit_of_drayctl(lab, new_agent):
    return ctl("--timeout", "5", "status")


@problem("no agent")
def no_agent(lab, new_agent):
    return ctl("--timeout", "100ms", "--control", lab.tmp / "absent.sock")


@problem("no agent, seen by the engine")
def no_agent_for_engine(lab, new_agent):
    return error(dray.Client, socket=str(lab.tmp / "absent.sock"))


@problem("no permission on the control socket", "no permission on the data socket", marks=as_root)
def permission(lab, new_agent):
    agent = new_agent(settings={"data.mode": "0600", "control.mode": "0600"})
    program = lab.tmp / "drayctl-of-nobody"  # The other user may have no access to the source tree.
    shutil.copy(DRAYCTL, program)
    program.chmod(0o755)
    return (ctl("--control", agent.control, "status", program=program, **NOBODY),
            ctl("bench", "--socket", agent.socket, program=program, **NOBODY))


@problem("uid that is not allowed")
def uid(lab, new_agent):
    return error(dray.Client, socket=str(new_agent(settings={"data.allow_uids": "4711"}).socket))


@problem("no agent at the other side", "peer beyond loopback, agent without a key")
def peer(lab, new_agent):
    token = unreachable_token(lab.hosts[0])
    with new_agent(key=lab.key).client() as client, new_agent().client() as without_key:
        return error(client.import_token, token, timeout=0.2), error(without_key.import_token, token, timeout=LIMIT)


@problem("token of an agent that was restarted", "agent that drains")
def restarted(lab, new_agent):
    one, two = new_agent("one"), new_agent("two")
    with Side(two, MIB) as there:
        token = there.export()
    two.restart()
    with one.client() as client:
        stale = error(client.import_token, token, timeout=LIMIT)
    two.ctl("drain", "--stay", "--wait")
    return stale, error(dray.Client, socket=str(two.socket))


@problem("missing RDMA device")
def device(lab, new_agent):
    agent = new_agent(settings={"rdma.devices": "mlx5_9"})
    # a thread of the agent looks for devices
    until(lambda: "mlx5_9" in agent.text(), "the log's line")
    return agent.text()


@problem("wrong GID")
def gid(lab, new_agent):
    directory = lab.directory("machine")
    models.two_rails_16().write(directory)
    return ctl("detect", "--from-sysfs", directory, "--gid-index", "mlx5_0:99")


@problem("MTU")
def mtu(lab, new_agent):
    directory = lab.directory("machine")
    models.link_local_only().write(directory)
    return ctl("doctor", "--from-sysfs", directory)


@problem("limit on locked memory", marks=as_root)
def memlock(lab, new_agent):
    return ctl("doctor", "--register", "64GiB", wrap=["prlimit", "--memlock=65536", "setpriv", "--bounding-set=-ipc_lock", "--"])


@problem("small `/dev/shm`", marks=as_root)
def shm(lab, new_agent):
    return ctl("doctor", wrap=["unshare", "--mount", "sh", "-c", "mount -t tmpfs -o size=32m none /dev/shm && exec \"$@\"", "sh"])


@problem("missing library")
def library(lab, new_agent):
    done = subprocess.run([sys.executable, "-c", "import dray; dray.Client()"], stderr=subprocess.PIPE, text=True, timeout=LIMIT,
                          env={**os.environ, "DRAY_LIBRARY": "/nonexistent/libdray.so.0"})
    return done.stderr


@pytest.mark.parametrize(("names", "provoke"), PROBLEMS.values())
def test_problem(lab, new_agent, names, provoke):
    """The output has the sentence of the page. An ellipsis there stands for what differs from case to case."""
    said = provoke(lab, new_agent)
    for name, text in zip(names, said if len(names) > 1 else (said,), strict=True):
        pattern = ".*?".join(map(re.escape, ROWS[name].split("…")))
        assert re.search(pattern, " ".join(text.split())), f"{name}: {text}"


def test_each_problem_of_the_page_is_provoked():
    assert sorted(ROWS) == sorted(name for names in PROBLEMS for name in names) and len(ROWS) >= 20


def test_clocks_may_differ(lab, new_agent):
    """Tokens expire by the clock of their owner alone, so agents of hosts with other clocks work together."""
    holder = subprocess.Popen(["unshare", "--time", "--monotonic=86400", "--boottime=86400", "sh", "-c", "echo; read x"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        if not holder.stdout.readline():
            pytest.skip("time namespaces are not allowed here")
        one, two = new_agent("one"), new_agent("two", wrap=["nsenter", f"--time=/proc/{holder.pid}/ns/time_for_children", "--"])
        with Side(one, MIB) as here, Side(two, MIB, b"x" * MIB) as there:
            remote = here.client.import_token(there.export(ttl=LIMIT), timeout=LIMIT)
            here.client.read(here.region, remote, [(0, 0, MIB)]).result(LIMIT)
            assert here.view == there.view
    finally:
        holder.communicate()
