# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the benches: the tools, memory and lists of operations, interleaved rounds, and the records.

A figure on a shared machine drifts from minute to minute, so no figure is used alone: rounds of the ceiling and rounds of
dray alternate, each pair gives a ratio, and the median of the ratios is the result. Without a ceiling the median of the
values is the result.
"""

import contextlib
import json
import math
import os
import pathlib
import random
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from array import array

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / p) for p in ("tests/integration", "tests", "client/python")]

import harness  # noqa: E402 selects the library that dray loads
import dray  # noqa: E402
import report  # noqa: E402

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
# Many short rounds instead of few long ones: a disturbance of a shared machine mostly lasts longer than a round, and then
# affects both rounds of a pair.
PAIRS = max(7, int(os.environ.get("DRAY_BENCH_PAIRS", "21")))
ROUND = 0.15  # target duration of a round, seconds
BEGAN, SECONDS = time.monotonic(), float(os.environ.get("DRAY_BENCH_SECONDS", "120"))
DEATHS = 7  # repetitions of the measurements that kill a process
TOOLS = harness.BUILD / "tests/bench"
OUT = ROOT / os.environ.get("DRAY_BENCH_OUT", "build/bench")


class CannotRun(Exception):
    """The bench cannot run at all. A missed target is not such an error."""


# --- memory and operations ------------------------------------------------------------------------

def name_memory(*memories):
    """Names memories in the form that the tools parse."""
    return ",".join(f"{m.fd}:{m.size}" for m in memories)


def ops_fd(ops):
    """Puts operations, packed or as triples, into a memfd for the tools."""
    if not isinstance(ops, (bytes, bytearray)):
        ops = array("Q", [word for op in ops for word in op]).tobytes()
    fd = os.memfd_create("ops", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(ops)
    return fd


def scattered(size, total, seed=1):
    """Operations between all pieces of `size` bytes of two memories of `total` bytes: each piece has a random place in the
    other memory. Adjacent pieces here are not adjacent there, so nothing can be merged."""
    rng = random.Random(seed)
    here, there = list(range(total // size)), list(range(total // size))
    rng.shuffle(here)
    rng.shuffle(there)
    return [(a * size, b * size, size) for a, b in zip(here, there)]


def need_memory(memory):
    """Raises CannotRun if the machine has less available memory."""
    available = next(int(line.split()[1]) << 10 for line in open("/proc/meminfo") if line.startswith("MemAvailable"))
    if available < memory:
        raise CannotRun(f"needs {memory / GIB:.1f} GiB of memory, and {available / GIB:.1f} GiB are available")


# --- tools ----------------------------------------------------------------------------------------

class Tool:
    """A program of this folder, controlled by commands on its standard input."""

    def __init__(self, name, *args, fds=(), prefix=(), first=False):
        path = TOOLS / name
        if not path.exists():
            raise CannotRun(f"{path.name} is not built: make tools builds it")
        self.process = subprocess.Popen([*prefix, str(path), *map(str, args)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, pass_fds=tuple(fds))
        self.name = name
        self.first = self.hear() if first else None

    @property
    def pid(self):
        return self.process.pid

    def tell(self, word, number=0):
        self.process.stdin.write(f"{word} {int(number)}\n")
        self.process.stdin.flush()

    def hear(self):
        line = self.process.stdout.readline()
        if not line:
            raise CannotRun(f"{self.name} ended with status {self.process.wait()}")
        return json.loads(line)

    def ask(self, word, number=0):
        self.tell(word, number)
        return self.hear()

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


@contextlib.contextmanager
def socket_loop(source, target, ops, *, streams, batch, source_column="remote", hosts=None, threads=0, buffer=0, options=()):
    """Starts the bare send and recv loop from the memories `source` to the memories `target`; returns it as a Tool."""
    a, b = hosts or (harness.Host("a"), harness.Host("b"))
    column = {"remote": "local", "local": "remote"}[source_column]
    common = ["--ops", ops, "--streams", streams, "--batch", batch, "--threads", threads, "--buffer", buffer, *options]
    with Tool("ceiling_tcp", "receive", "--listen", a.v4, "--memory", name_memory(*target), "--column", column, *common,
              fds=[ops, *(m.fd for m in target)], prefix=a.prefix, first=True) as receiver:
        with Tool("ceiling_tcp", "send", "--connect", f"{a.v4}:{receiver.first['port']}", "--memory", name_memory(*source),
                  "--column", source_column, *common, fds=[ops, *(m.fd for m in source)], prefix=b.prefix) as sender:
            sender.pids = sender.pid, receiver.pid
            yield sender


def client(agent, owner, local, remote, ops, *args, prefix=()):
    """Starts a bench_client and waits until both its sessions are open."""
    return Tool("bench_client", "--socket", agent.socket, "--owner", owner.socket, "--local", name_memory(*local),
                "--remote", name_memory(*remote), "--ops", ops, *args,
                fds=[ops, *(m.fd for m in (*local, *remote))], prefix=prefix, first=True)


# --- rounds ---------------------------------------------------------------------------------------

def sized(tool, guess, word="run"):
    """Returns the number of operations that take about a round. Also warms the tool up."""
    while True:
        seconds = tool.ask(word, guess)["seconds"]
        if seconds > ROUND / 4:
            return max(1, int(guess * ROUND / seconds))
        guess = int(guess * min(16, max(2, ROUND / 2 / max(seconds, 1e-9))))


def against_transfer(records, remote, name, unit=("GB/s", 1e9), n=None):
    """
    GETs of what bench_remote has put at the other agent, beside its transfers of these bytes, without and with a CRC-32C afterwards; and beside the
    latter after a bare round trip, because a GET asks the owner, which leases the objects.
    """
    times = sized(remote, 1, "get")
    done = rounds({word: lambda word=word: rate(remote.ask(word, times)) / unit[1] for word in ("get", "ask", "check", "read")}, n)
    add_beside(records, done, f"GET from another agent, {name}", "get", unit[0], "read", "dray's transfer of these bytes", (">=", 0.85))
    add_beside(records, done, f"the same, {name}", "get", unit[0], "check", "the transfer, then CRC-32C", (">=", 0.85))
    add_beside(records, done, f"the same, {name}", "get", unit[0], "ask", "a bare round trip, the transfer, CRC-32C")
    add_beside(records, done, f"a bare round trip, the transfer, CRC-32C, {name}", "ask", unit[0], "check", "the transfer, then CRC-32C")


def rounds(ways, n=None):
    """Interleaved rounds of several functions, by name: what each returned, for each round. Their order changes."""
    done = []
    for i in range(n or PAIRS):
        order = list(ways)[::-1 if i % 2 else 1]
        at = i // 2 % len(order)
        done.append({way: ways[way]() for way in order[at:] + order[:at]})
    return done


def add_beside(records, done, name, way, unit, other, ceiling_name, target=None):
    """Records one of the functions of rounds() beside another one: their medians, and that of the rounds' ratios."""
    spread = [r[way] / r[other] for r in done]
    ours, ceiling = (statistics.median(r[w] for r in done) for w in (way, other))
    records.add(name, ours, unit, ceiling_name=ceiling_name, ceiling=ceiling, ratio=statistics.median(spread), target=target, spread=spread)


def pairs(ceiling, ours, n=None):
    """Interleaved rounds: returns (median of ours, of the ceiling, of the ratios), and the ratios. The first of a pair alternates."""
    values, ceilings = [], []
    for i in range(n or PAIRS):
        if i % 2:
            values.append(ours())
            ceilings.append(ceiling())
        else:
            ceilings.append(ceiling())
            values.append(ours())
    ratios = [v / c for v, c in zip(values, ceilings)]
    return statistics.median(values), statistics.median(ceilings), statistics.median(ratios), ratios


def turns(count, began=BEGAN):
    """Numbers of rounds, up to `count`; no more than one begins SECONDS after `began`."""
    for turn in range(count):
        if turn and time.monotonic() > began + SECONDS:
            return
        yield turn


@contextlib.contextmanager
def under(variable):
    """Runs the command of an environment variable as long as the block lasts, such as one that holds a lock. It is given a program to run, and the
    block begins when that has started. Without the variable nothing is run."""
    command = shlex.split(os.environ.get(variable, ""))
    if not command:
        yield
        return
    holder = subprocess.Popen([*command, "sh", "-c", "echo && exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        if not holder.stdout.readline():
            raise CannotRun(f"the command of {variable} has ended: {shlex.join(command)}")
        yield
        if holder.poll() is not None:
            raise CannotRun(f"the command of {variable} has ended before the measurement: {shlex.join(command)}")
    finally:
        holder.stdin.close()
        holder.stdout.close()
        holder.wait()


def rate(answer):
    """Bytes a second."""
    return answer["bytes"] / answer["seconds"]


def cpu_seconds(*pids):
    """Processor time of processes, including threads that have ended."""
    fields = [pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in pids]
    return sum(int(f[11]) + int(f[12]) for f in fields) / os.sysconf("SC_CLK_TCK")


def children(pid):
    """Those of the main thread."""
    return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def bind(pid, cpus):
    """Binds all threads of a process to processors."""
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), cpus)


def cpu_ns(pid):
    """Processor time of the current threads of a process; finer than clock ticks."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in pathlib.Path(f"/proc/{pid}/task").iterdir())


# --- records --------------------------------------------------------------------------------------

class Records:
    """The results of one bench: prints each as a row, and saves all in build/bench/NAME.json."""

    def __init__(self, name):
        self.name = name
        self.records = []
        print(f"{name}\n  {'':44} {'dray':>12} {'ceiling':>12}        {'ratio':>6}  target", flush=True)

    def add(self, name, value, unit, *, ceiling_name=None, ceiling=None, ratio=None, target=None, spread=None, interval=None):
        """target: (">=" or "<=", number), for the ratio if there is a ceiling, otherwise for the value. interval: in which that lies."""
        met = None
        if target:
            asked = value if ratio is None else ratio
            met = asked >= target[1] if target[0] == ">=" else asked <= target[1]
            target = f"{target[0]} {target[1]:g}" + (f" {unit}" if ratio is None else " of the ceiling")
        self.records.append({"name": name, "value": value, "unit": unit, "ceiling_name": ceiling_name, "ceiling": ceiling,
                             "ratio": finite(ratio), "target": target, "met": met, "interval": interval and [finite(bound) for bound in interval]})
        spread = interval or spread
        print(f"  {name:44} {show(value):>12} {show(ceiling):>12} {unit:7}{show(ratio):>6}  {target or ''}"
              f"{'' if met is None else ', met: yes' if met else ', met: NO'}"
              f"{'' if not spread else f'  ({min(spread):.3g} to {max(spread):.3g})'}", flush=True)

    def save(self):
        save(self.name, self.records)


def save(name, results):
    """Saves the results of a bench, and rewrites the page."""
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{name}.json").write_text(json.dumps(results, indent=2) + "\n")
    (OUT / "machine.txt").write_text(f"{report.machine()}, {time.strftime('%Y-%m-%d')}\n")
    if OUT == ROOT / "build/bench":  # results in another folder do not change the page
        report.main()


def finite(value):
    """A number for JSON, which has no infinite ones; None."""
    return value if value is not None and math.isfinite(value) else None


def show(value):
    """A number with three significant digits."""
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3g}"




@contextlib.contextmanager
def lab(name):
    """with lab("tcp") as where: a lab for the agents of a bench. The exit status is 1 only if the bench could not run."""
    if not harness.DRAYD.exists():
        sys.exit(f"{name}: {harness.DRAYD.name} is not built; make bench builds it")
    where = None
    try:
        where = harness.Lab()
        yield where
        for agent in where.agents:
            if agent.running:
                agent.stop()
    except (CannotRun, AssertionError, OSError, dray.Error) as e:
        for agent in where.agents if where else ():
            print(agent.tail(15), file=sys.stderr)
        sys.exit(f"{name}: could not run: {e}")
    finally:
        if where:
            where.close()


@contextlib.contextmanager
def bench(name):
    """with bench("tcp") as (lab, records): ... """
    with lab(name) as where:
        records = Records(name)
        yield where, records
    records.save()


def agents(lab, n=2, hosts=None, **settings):
    """Agents with default settings, and with a key if a link connects them."""
    made = []
    for i in range(n):
        host = hosts[i] if hosts else harness.Host(f"host{i}")
        agent = lab.agent(f"agent{i}", host, listen=(host.v4,), key=lab.key,
                          settings={"agent.workers": 0, "log.level": "warning", "http.listen": "127.0.0.1:0", **settings})
        made.append(agent.start())
    return made


def now():
    return time.monotonic()


def which(program):
    return shutil.which(program)
