# SPDX-License-Identifier: Apache-2.0
"""Agents, hosts and raw sockets for the integration tests.

Nothing here sleeps for a fixed time. Tests wait for events (readiness by sd_notify, the end of a process by pidfd, answers by
their sockets). until() polls state that has no event, such as another process's descriptors or bytes in memory.
"""

import array
import contextlib
import errno
import fcntl
import itertools
import json
import mmap
import os
import pathlib
import random
import re
import resource
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import time
from collections import Counter, namedtuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = (ROOT / os.environ.get("DRAY_BUILD", "build")).resolve()


def sanitized(program):
    """True if a program or library is a build with a sanitizer."""
    data = program.read_bytes()
    return b"__asan_init" in data or b"__tsan_init" in data


# The libdray that the Python package loads: of the build under test, unless an interpreter without a sanitizer cannot load it.
LIBRARY = next((path for build in (BUILD, ROOT / "build/gcc", ROOT / "build") if (path := build / "libdray.so.0").exists() and
                not sanitized(path)), None)
if LIBRARY:
    os.environ.setdefault("DRAY_LIBRARY", str(LIBRARY))

import dray  # noqa: E402
import wire  # noqa: E402
from wire import codec as s  # noqa: E402

DRAYD = BUILD / "drayd"
DRAYCTL = BUILD / "drayctl"
# Beside that library, for commands that an agent has carried out before: with a sanitizer, drayctl takes six times the processor time.
PLAIN_DRAYCTL = LIBRARY.with_name("drayctl") if LIBRARY and LIBRARY.with_name("drayctl").exists() else DRAYCTL
GOLDEN = ROOT / "tests/data/golden"
# Seconds after which a wait fails; normally nothing takes nearly as long.
LIMIT = float(os.environ.get("DRAY_TEST_LIMIT", 30))
WORKERS = int(os.environ.get("DRAY_TEST_WORKERS", 2))  # of each agent
STREAMS = 8 * WORKERS  # data streams that two agents may have opened to each other
MIB = 1 << 20


def _ports():
    """Ports for agents: none that Linux gives to a socket without a port, which could take it before the agent does, and none of
    another run of tests beside this one, as long as there are no more runs than parts."""
    first, parts = 10000, 16
    end = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    mine = range(first, end)
    with socket.socket(socket.AF_UNIX) as claim:
        for part in range(parts):
            with contextlib.suppress(OSError):
                claim.bind(f"\0dray-test-ports-{part}")
                mine = mine[part::parts]
                break
        yield from itertools.cycle(random.sample(mine, len(mine)))


PORTS = _ports()

BAD_LOG = re.compile(r"(ERROR: \w+Sanitizer|WARNING: ThreadSanitizer|runtime error:|assertion .* failed|"
                     r"SUMMARY: \w+Sanitizer).*")


def golden(name, text):
    """Checks that the text equals a reviewed file of tests/data/golden. DRAY_GOLDEN=write rewrites the file."""
    path = GOLDEN / name
    if os.environ.get("DRAY_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.exists() and text == path.read_text(), f"{name} differs: rewrite it with DRAY_GOLDEN=write, and review the diff"


def fault_words(path):
    """The 32-bit words, all 0, of a file that a library of tests/faults maps, too."""
    path.write_bytes(bytes(4096))
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 4096)


def until(condition, what="the condition", limit=LIMIT):
    """Polls until condition() is true, and returns its value."""
    ends, pause = time.monotonic() + limit, 0.0005
    while True:
        began = children_time()
        if value := condition():
            return value
        if time.monotonic() > ends:
            raise AssertionError(f"{what}: not within {limit} s")
        # a look with a program, such as drayctl, leaves four times its own time to the processes that it waits for; a condition
        # that works itself, such as a step of an engine, is not slowed
        select.select([], [], [], max(pause, min(4 * (children_time() - began), 0.25)))
        pause = min(pause * 1.5, 0.02)


def children_time():
    """Seconds of processor time of the children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def wait_exit(pidfd, limit=LIMIT):
    """True if the process of a pidfd ends in time."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(limit * 1000))


# --- hosts ----------------------------------------------------------------------------------------

_HOLDER = """
import socket, sys
s = socket.socket(fileno=int(sys.argv[1]))
s.send(b".")
while m := s.recv(64):
    with socket.socket(*map(int, m.split())) as new:
        socket.send_fds(s, [b"."], [new.fileno()])
    s.send(b".")
"""


class Host:
    """A network namespace with the addresses v4 and v6, or this machine's loopback if namespaces are not allowed."""

    def __init__(self, name, wrap=None, enter=()):
        self.name = name
        self.holder, self.prefix = None, []
        self.v4, self.v6 = "127.0.0.1", "::1"
        if wrap is not None:
            # A process that keeps the namespaces alive and makes sockets in them for the tests.
            self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.holder = subprocess.Popen([*wrap, sys.executable, "-c", _HOLDER, str(theirs.fileno())],
                                           pass_fds=[theirs.fileno()], stderr=subprocess.PIPE)
            theirs.close()
            self._ours.settimeout(LIMIT)
            if not self._ours.recv(1):
                raise OSError(self.holder.stderr.read().decode().strip())
            self.prefix = ["nsenter", f"--target={self.holder.pid}", *enter, "--net", "--mount", "--"]

    @property
    def real(self):
        return self.holder is not None

    def command(self, *argv):
        return [*self.prefix, *map(str, argv)]

    def run(self, *argv):
        """Runs a command on this host; returns its output."""
        done = subprocess.run(self.command(*argv), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise OSError(f"{' '.join(map(str, argv))}: {done.stdout.strip()}")
        return done.stdout

    def socket(self, family=socket.AF_INET, kind=socket.SOCK_STREAM):
        """Makes a socket on this host."""
        if not self.real:
            new = socket.socket(family, kind)
        else:
            self._ours.send(f"{int(family)} {int(kind)}".encode())
            _, fds, _, _ = socket.recv_fds(self._ours, 1, 1, socket.MSG_CMSG_CLOEXEC)
            new = socket.socket(fileno=fds[0])
            # the holder has closed its descriptor, which would keep a port taken
            self._ours.recv(1)
        new.settimeout(LIMIT)
        return new

    def connect(self, segment):
        """A TCP connection from this host to a segment."""
        host, port = parse_segment(segment)
        sock = self.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        sock.connect((host, port))
        return sock

    def address(self, family=4):
        return self.v4 if family == 4 else self.v6

    def link(self, up):
        """Connects or disconnects the link between the two hosts."""
        self.run("ip", "link", "set", "dray0", "up" if up else "down")
        if up:  # the IPv6 address was dropped with the link
            with contextlib.suppress(OSError):
                self.run("ip", "-6", "address", "add", f"{self.v6}/64", "dev", "dray0", "nodad")

    def close(self):
        if self.real:
            self._ours.close()
            self.holder.wait()
            self.holder.stderr.close()


def parse_segment(segment):
    host, port = segment.rsplit(":", 1)
    return host.strip("[]"), int(port)


class Lab:
    """Two hosts joined by a link, a directory for all files, and the agents that were started."""

    def __init__(self, alone=False):
        """alone: both hosts are this machine."""
        self.tmp = pathlib.Path(tempfile.mkdtemp(prefix="dray-"))
        self.tmp.chmod(0o755)
        self.agents = []
        self.counter = 0
        self.why_not = ""
        self.userns = False
        self.hosts = [Host("a"), Host("b")] if alone else self._namespaces()
        self.key = self.write("key", secrets.token_hex(32), 0o600)

    def _namespaces(self):
        if os.environ.get("DRAY_TEST_LOOPBACK"):
            self.why_not = "DRAY_TEST_LOOPBACK is set"
            return [Host("a"), Host("b")]
        ways = [(["unshare", "--net", "--mount"], None)] if os.geteuid() == 0 else []
        ways.append((["unshare", "--user", "--map-root-user", "--net", "--mount"], ["--user", "--preserve-credentials"]))
        for wrap, enter in ways:
            hosts = []
            try:
                hosts.append(Host("a", wrap, enter or []))
                if enter:  # the second host joins the same user namespace
                    wrap = ["nsenter", f"--target={hosts[0].holder.pid}", *enter, "--", "unshare", "--net", "--mount"]
                hosts.append(Host("b", wrap, enter or []))
                a, b = hosts
                a.run("ip", "link", "add", "dray0", "type", "veth", "peer", "name", "dray0", "netns", b.holder.pid)
                for n, host in enumerate(hosts, 1):
                    host.v4, host.v6 = f"10.77.0.{n}", f"fd77::{n}"
                    host.run("ip", "link", "set", "lo", "up")
                    host.run("ip", "address", "add", f"{host.v4}/24", "dev", "dray0")
                    host.run("ip", "-6", "address", "add", f"{host.v6}/64", "dev", "dray0", "nodad")
                for host in hosts:
                    host.run("ip", "link", "set", "dray0", "up")
                self.userns = bool(enter)
                return hosts
            except (OSError, FileNotFoundError) as e:
                self.why_not = str(e)
                for host in hosts:
                    host.close()
        return [Host("a"), Host("b")]

    @property
    def namespaces(self):
        return self.hosts[0].real

    def need_namespaces(self):
        """Skips the test if both hosts are this machine's loopback."""
        if not self.namespaces:
            import pytest
            pytest.skip(f"network namespaces are not allowed here ({self.why_not}); needs a link to cut")

    def directory(self, name):
        self.counter += 1
        path = self.tmp / f"{name}-{self.counter}"
        path.mkdir()
        return path

    def write(self, name, text, mode=0o644):
        self.counter += 1
        path = self.tmp / f"{name}-{self.counter}"
        path.touch(mode)
        path.chmod(mode)
        path.write_text(text)
        return path

    def agent(self, name="agent", host=None, **how):
        agent = Agent(self, name, host or self.hosts[0], **how)
        self.agents.append(agent)
        return agent

    def close(self, keep=False):
        for agent in self.agents:
            agent.kill()
        for host in reversed(self.hosts):
            host.close()
        if not keep:
            shutil.rmtree(self.tmp, ignore_errors=True)


# --- agents ---------------------------------------------------------------------------------------

Resources = namedtuple("Resources", "fds threads mappings")


class Agent:
    """One drayd. settings: configuration keys. listen: segments; one without a port gets a free port."""

    def __init__(self, lab, name, host, *, settings=(), listen=("127.0.0.1",), key=None, args=(), env=None,
                 wrap=(), directory=None, pass_fds=(), program=None):
        self.lab, self.name, self.host, self.program = lab, name, host, program or DRAYD
        self.directory = directory or lab.directory(name)
        self.socket = self.directory / "dray.sock"
        self.control = self.directory / "control.sock"
        self.state_dir = self.directory / "state"
        self.log = self.directory / "log"
        self.key = key
        self.settings = {"agent.workers": WORKERS, "log.format": "text", "http.listen": "none", **dict(settings)}
        self.listen = [self._segment(address) for address in listen]
        self.args, self.env, self.wrap, self.pass_fds = list(args), dict(env or {}), list(wrap), pass_fds
        self.process = self.pidfd = self.notify = None
        self.notified = []
        self.shown = self.checked = 0  # bytes of the log that new_text() and check_log() have read
        self.commands = set()  # that ctl() has run

    def _segment(self, address):
        """Adds a free port to an address; the agent keeps the port after a restart."""
        if address == "none" or re.search(r"\]:\d+$|^[^:]+:\d+$", address):
            return address
        for port in itertools.islice(PORTS, 1000):
            with self.host.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
                try:
                    probe.bind((address, port))
                except OSError as e:
                    if e.errno != errno.EADDRINUSE:
                        raise
                else:
                    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        raise AssertionError(f"{self.name}: no free port for {address}")

    def command(self):
        # setpriv: the kernel kills the agent if the test run is killed
        argv = ["setpriv", "--pdeathsig=KILL", str(self.program), "--state-dir", self.state_dir,
                "--socket", self.socket, "--control", self.control]
        for segment in self.listen:
            argv += ["--listen", segment]
        if self.key:
            argv += ["--key-file", self.key]
        for key, value in self.settings.items():
            argv += ["--set", f"{key}={value}"]
        return self.host.command(*self.wrap, *argv, *self.args)

    def start(self, ready=True):
        """Starts the agent, and waits until it reports readiness."""
        path = self.directory / "notify"
        path.unlink(missing_ok=True)
        if self.notify:
            self.notify.close()
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(str(path))
        path.chmod(0o777)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("DRAY_") and k != "NOTIFY_SOCKET"}
        environment.update(NOTIFY_SOCKET=str(path), **self.env)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            env=environment, cwd="/", pass_fds=self.pass_fds)
        self.pidfd = os.pidfd_open(self.process.pid)
        if ready and not self.wait_notify("READY=1"):
            self.kill()
            raise AssertionError(f"{self.name} ended with {self.process.returncode} before it was ready:\n{self.tail()}")
        return self

    def wait_notify(self, text, limit=LIMIT):
        """Waits for an sd_notify message that contains text; False at the agent's end or at the limit."""
        poll = select.poll()
        poll.register(self.notify, select.POLLIN)
        poll.register(self.pidfd, select.POLLIN)
        ends = time.monotonic() + limit
        while time.monotonic() < ends:
            for fd, _ in poll.poll(max(0.0, ends - time.monotonic()) * 1000):
                if fd == self.notify.fileno():
                    self.notified.append(self.notify.recv(4096).decode())
                    if text in self.notified[-1]:
                        return True
                    break
            else:
                if wait_exit(self.pidfd, 0):
                    return False
        return False

    @property
    def pid(self):
        return self.process.pid

    @property
    def running(self):
        return self.process is not None and self.process.poll() is None

    def client(self, **how):
        """A session of the Python package."""
        how.setdefault("timeout", LIMIT)
        return dray.Client(self.socket, **how)

    def wire(self, **how):
        """A session of tests/wire, for tests of the protocol itself."""
        how.setdefault("timeout", LIMIT)
        return wire.Client(self.socket, **how)

    def signal(self, number):
        self.process.send_signal(number)
        if number == signal.SIGSTOP:  # threads stop one by one, and do some more work until then
            tasks = pathlib.Path(f"/proc/{self.process.pid}/task")
            until(lambda: all((t / "stat").read_text().rsplit(")", 1)[1].split()[0] == "T" for t in tasks.iterdir()), "the stop")

    def wait(self, limit=LIMIT):
        """Waits for the agent's end; returns the exit status."""
        if not wait_exit(self.pidfd, limit):
            raise AssertionError(f"{self.name} has not ended in {limit} s:\n{self.tail()}")
        return self.process.wait()

    def stop(self):
        """Sends SIGTERM: the agent must drain and exit with status 0, with a clean log."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            with contextlib.suppress(AssertionError):
                self.wait()
        status = self.process.poll()
        self.kill()
        self.check_log()
        assert status == 0, f"{self.name} ended with {status}:\n{self.tail()}"

    def kill(self):
        """Sends SIGKILL, unless the agent has ended."""
        if self.process is not None and self.pidfd is not None:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            os.close(self.pidfd)
            self.pidfd = None
            with contextlib.suppress(BlockingIOError):
                while True:
                    self.notified.append(self.notify.recv(4096, socket.MSG_DONTWAIT).decode())
            self.notify.close()
            self.notify = None

    def restart(self):
        """Kills the agent and starts it again with the same state directory and addresses."""
        self.kill()
        return self.start()

    def text(self):
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def tail(self, lines=40):
        return "\n".join(self.text().splitlines()[-lines:])

    def new_text(self):
        """Returns the log lines since the previous call."""
        text = self.text()
        new, self.shown = text[self.shown:], len(text)
        return new

    def check_log(self):
        """Checks that the log since the previous call has no report of a sanitizer or assertion."""
        text = self.text()
        found = BAD_LOG.search(text, self.checked)
        self.checked = len(text)
        assert not found, f"{self.name}: {found.group()}:\n{self.tail(120)}"

    def resources(self):
        """Counts descriptors by kind, threads, and mappings of client memory."""
        proc = pathlib.Path(f"/proc/{self.pid}")
        fds = Counter()
        for fd in (proc / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                fds[re.sub(r":\[\d+\]$|^/memfd:.*", lambda m: "memfd" if m[0][0] == "/" else "", os.readlink(fd))] += 1
        maps = (proc / "maps").read_text()
        return Resources(fds, len(list((proc / "task").iterdir())), maps.count("/memfd:"))

    def rss_anon(self):
        """Private memory in bytes."""
        status = pathlib.Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(r"RssAnon:\s+(\d+)", status)[1]) << 10

    def polling(self):
        """The time that workers poll, in nanoseconds, and the reason if it is 0."""
        got = self.ctl("status", "--json")
        return got["poll_time_ns"], got["poll_reason"]

    def ctl(self, *argv, check=True):
        """Runs drayctl against this agent; returns its output, parsed if --json is given. A command that is repeated, such as a poll,
        takes the build without a sanitizer."""
        program = PLAIN_DRAYCTL if argv in self.commands else DRAYCTL
        self.commands.add(argv)
        done = subprocess.run([program, "--control", self.control, "--timeout", f"{LIMIT:.0f}s", *argv], text=True, timeout=LIMIT,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if check:
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout) if "--json" in argv else done.stdout
        return done


@contextlib.contextmanager
def nothing_leaked(*agents, streams=0):
    """Checks that the agents hold no more resources after the block than before.

    streams: number of data streams to peers that may have been opened in the block and stay open.
    """
    before = [agent.resources() for agent in agents]
    yield
    for agent, old in zip(agents, before):
        def same(agent=agent, old=old):
            new = agent.resources()
            fds = new.fds - old.fds
            fds["socket"] = max(0, fds["socket"] - streams)
            return not +fds and new.threads <= old.threads and new.mappings <= old.mappings

        try:
            until(same, limit=LIMIT)
        except AssertionError:
            new = agent.resources()
            raise AssertionError(f"{agent.name} leaks: more descriptors {dict(new.fds - old.fds)}, threads "
                                 f"{old.threads} -> {new.threads}, mappings {old.mappings} -> {new.mappings}") from None


def counters(agent):
    return agent.ctl("status", "--json")["counters"]


def wait_for_release(agent, resource):
    """Waits until no owner has any of a resource: an owner gets its share back a moment after the memory or descriptor is gone."""
    until(lambda: not any(row["used"] for row in agent.ctl("quotas", "--json")["quotas"] if row["resource"] == resource),
          f"the release of all {resource}")


# --- raw messages ---------------------------------------------------------------------------------

class Raw:
    """Sends valid or invalid messages to the data socket, without the client library."""

    def __init__(self, agent, hello=True, sndbuf=None, group=""):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(LIMIT)
        if sndbuf:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, sndbuf)
        self.sock.connect(str(agent.socket))
        self.last_id = 0
        if hello:
            self.hello = self.ask(s.pack_hello, major_min=1, major_max=1, group=group)

    def send(self, packet, fds=()):
        """True if the packet was sent; the agent may have closed already."""
        try:
            socket.send_fds(self.sock, [packet], list(fds), socket.MSG_NOSIGNAL)
            return True
        except (BrokenPipeError, ConnectionResetError):
            return False

    def receive(self):
        """Returns (header, message, fds), or None at the end."""
        try:
            packet, fds, _, _ = socket.recv_fds(self.sock, 1 << 16, 16, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            return None
        if not packet:
            return None
        return (*s.unpack(packet), fds)

    def request(self, pack, fds=(), **fields):
        """Sends a request; returns its id."""
        self.last_id += 1
        self.send(pack(self.last_id, **fields), fds)
        return self.last_id

    def ask(self, pack, fds=(), **fields):
        """Sends a request and returns the answer, which must be the next message."""
        request_id = self.request(pack, fds, **fields)
        answer = self.receive()
        assert answer, f"the agent closed instead of answering {pack.__name__}"
        header, message, got = answer
        assert header.request_id == request_id
        self.fds = got
        return message

    def error(self, request_id=None):
        """The next message must be an error for that request (None: for any); returns its name."""
        answer = self.receive()
        assert answer, "the agent closed without an error message"
        header, message, _ = answer
        assert header.type == s.MSG_ERROR, f"{s.TYPE_NAMES.get(header.type)} instead of an error: {message}"
        if request_id is not None:
            assert header.request_id == request_id
        assert message.message, "an error without a sentence"
        return s.error_name(message.code)

    def ended(self):
        """Waits until the agent closes; drops the messages before."""
        while self.receive():
            pass
        return True

    def close(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


# --- other processes --------------------------------------------------------------------------------

_ACTOR = """
import json, os, signal, sys, time
sys.path[:0] = {path!r}
import dray
def tell(what=None): print(json.dumps(what), flush=True)
def hear(): return json.loads(sys.stdin.readline() or sys.exit(0))
args = {args!r}
"""


class Actor:
    """Python code in a process of its own; it sends values with tell() and receives them with hear()."""

    def __init__(self, code, prefix=(), **args):
        head = _ACTOR.format(path=[p for p in sys.path if p], args={k: v if isinstance(v, (int, list)) else str(v)
                                                                    for k, v in args.items()})
        self.process = subprocess.Popen([*prefix, sys.executable, "-c", head + code], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)

    @property
    def pid(self):
        return self.process.pid

    def tell(self, what=None):
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def hear(self, limit=LIMIT):
        ready, _, _ = select.select([self.process.stdout], [], [], limit)
        assert ready, f"the process has sent nothing in {limit} s"
        line = self.process.stdout.readline()
        assert line, f"the process ended with {self.process.wait()}"
        return json.loads(line)

    def kill(self):
        self.process.kill()
        self.close()

    def close(self):
        """Ends the process: its hear() gets an end of file."""
        self.process.stdin.close()
        self.process.stdout.close()
        try:
            self.process.wait(LIMIT)
        finally:
            self.process.kill()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.kill()


class Waiter:
    """waiter.c beside an agent: makes transfers on request and reports how it waited for them."""

    def __init__(self, agent, *args, wrap=(), **env):
        # setpriv: as for agents
        self.process = subprocess.Popen(["setpriv", "--pdeathsig=KILL", *wrap, BUILD / "tests/integration/waiter", agent.socket, *args], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=1,
                                        env={k: v for k, v in os.environ.items() if not k.startswith("DRAY_")} | env)

    def trips(self, n):
        self.process.stdin.write(f"{n}\n")
        return self.hear()

    def sleeping_trip(self, agent):
        """One transfer that cannot end before the client sleeps, because the agent is stopped until then."""
        agent.signal(signal.SIGSTOP)
        try:
            self.process.stdin.write("1\n")
            until(self._sleeps, "the client's sleep")
        finally:
            agent.signal(signal.SIGCONT)
        return self.hear()

    def _sleeps(self):
        """True if the waiter has read its command and its thread is blocked."""
        unread = array.array("i", [0])
        fcntl.ioctl(self.process.stdin, termios.FIONREAD, unread)
        stat = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text()
        return not unread[0] and stat.rsplit(")", 1)[1].split()[0] == "S"

    def hear(self):
        return json.loads(self.process.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.kill() if exc[0] else self.process.wait(LIMIT)


# --- memory ---------------------------------------------------------------------------------------

class Side:
    """One engine of a test: a client, a memory with given bytes or zeros, and its region.

    wire: the client is that of tests/wire, with all parts of the session public.
    """

    def __init__(self, agent, size, fill=None, *, wire=False, **how):
        self.agent = agent
        self.client = agent.wire(**how) if wire else agent.client(**how)
        self.memory = dray.Memory(size)
        if fill is not None:
            self.memory.view[:min(len(fill), size)] = fill[:size]
        self.region = self.client.region(self.memory)

    @property
    def view(self):
        return self.memory.view

    def export(self, **how):
        return str(self.region.export(**how))

    def reach(self, other, **how):
        """Imports all of the other side's region; returns the remote."""
        return self.client.import_token(other.export(**how), timeout=LIMIT)

    def close(self):
        self.client.close()
        self.memory.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


def unreachable_token(host):
    """A well-formed token of an agent at an address that does not answer, for requests that stay pending."""
    segment = (host.v4.rsplit(".", 1)[0] + ".200:7411" if host.real else "192.0.2.1:7411").encode()
    return s.PEER_TOKEN.pack(1, 0, 3, b"\1" * 16, 1, 1, 1, 0, 4096, 0, bytes(16), b"\2" * 16) + \
        len(segment).to_bytes(4, "little") + segment


def concerns(event, remote):
    """True if an event of the package is about the remote."""
    return event is not None and event.remote is remote


def noise(size, seed=1):
    """Pseudorandom bytes, so that a byte at a wrong place is detected."""
    import random
    return random.Random(seed).randbytes(size)


def same(*memories):
    """True if all memories hold the same bytes. Compares bytes, because memoryviews compare element by element."""
    first, *others = map(bytes, memories)
    return all(other == first for other in others)


def transport(ended):
    """Name of the transport of a transfer that ended."""
    return s.TRANSPORT_NAMES[ended.transport]


def expect(kind, fn, *args, **how):
    """Checks that fn raises an error, of the package or of tests/wire, with one of the names in kind; returns the error."""
    names = {kind} if isinstance(kind, str) else set(kind)
    try:
        value = fn(*args, **how)
    except (dray.Error, wire.Error) as e:
        assert e.name in names, f"{e.name} ({e}) instead of {' or '.join(names)}"
        return e
    raise AssertionError(f"{value!r} instead of {' or '.join(names)}")
