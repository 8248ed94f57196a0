#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Many sessions: the cost of idle ones, fairness between busy ones, and latency transfers behind bulk transfers."""

import contextlib
import resource
import statistics

import common as c

SESSIONS = 64
IDLE_SECONDS, IDLE_ROUNDS = 10, 3
CROWDS = 64, 1024  # idle sessions beside a busy one
TRIPS = 3000
SHARE_MS, SHARE_ROUNDS = 1500, 5
BIG = 256 * c.MIB
BEHIND = 6  # transfers of BIG: more than 1 GiB always waits behind the transfer that moves
PROBES = ("4 KiB x 16", "4096:16", 65536), ("4 KiB", "4096:1", 4096)
PROBE_TRIPS = 400
OVERTAKE_ROUNDS = 11
MANY = {"limits.sessions": 4096, "limits.sessions_per_owner": 4096}


def one_worker(lab, n=2, **settings):
    return c.agents(lab, n, **{"agent.workers": 1, **MANY, **settings})


def crowd(agent, n):
    """Opens n idle sessions with rings."""
    sessions = [agent.wire(group=f"engine-{i}", ring_entries=64, arena_bytes=65536) for i in range(n)]
    for session in sessions:
        session.open_ring()
    return sessions


def idle(lab, records):
    """Two idle agents at the same time, one of them with sessions."""
    alone, crowded = one_worker(lab)
    sessions = crowd(crowded, SESSIONS)
    c.time.sleep(5)  # until the workers sleep again after the set-up
    without, with_them = [], []
    for _ in range(IDLE_ROUNDS):
        before, since = [c.cpu_ns(a.pid) for a in (alone, crowded)], c.now()
        c.time.sleep(IDLE_SECONDS)
        took = c.now() - since
        shares = [(c.cpu_ns(a.pid) - b) / 1e9 / took * 100 for a, b in zip((alone, crowded), before)]
        without.append(shares[0])
        with_them.append(shares[1])
    records.add("no session, idle: processor", statistics.median(without), "%", spread=without)
    records.add(f"{SESSIONS} sessions with rings, idle: processor", statistics.median(with_them), "%", spread=with_them)
    more = [b - a for a, b in zip(without, with_them)]
    records.add(f"{SESSIONS} sessions with rings, idle: more than without sessions", statistics.median(more), "%", target=("<=", 0.1),
                spread=more)
    for session in sessions:
        session.close()


def beside_idle(lab, records):
    """A busy session, one transfer at a time, beside idle sessions and alone."""
    near, far = c.dray.Memory(c.MIB), c.dray.Memory(c.MIB)
    ops = c.ops_fd([(at, at, 64) for at in range(0, c.MIB, 4096)])
    alone, crowded = one_worker(lab)
    sessions = []
    for n in CROWDS:
        sessions += crowd(crowded, n - len(sessions))
        for way, args in (("awake", ["--poll"]), ("client sleeps", ["--no-spin"])):
            with c.client(alone, alone, [near], [far], ops, *args) as few, \
                    c.client(crowded, crowded, [near], [far], ops, *args) as many:
                few.ask("trip", TRIPS)
                many.ask("trip", TRIPS)
                value, ceiling, ratio, spread = c.pairs(lambda: few.ask("trip", TRIPS)["ns"] / 1e3,
                                                        lambda: many.ask("trip", TRIPS)["ns"] / 1e3)
            records.add(f"64 B, {way}, beside {n} idle sessions", value, "us", ceiling_name="without them", ceiling=ceiling,
                        ratio=ratio, target=("<=", 1.1), spread=spread)
    for session in sessions:
        session.close()


def jain(values):
    """Jain's index of fairness. 1: all values are equal; 1/n: one session has everything."""
    return sum(values) ** 2 / (len(values) * sum(v * v for v in values))


@contextlib.contextmanager
def engine(agent, owner, size, *args):
    local, remote = c.dray.Memory(size), c.dray.Memory(size)
    with c.Tool("bench_sessions", "--socket", agent.socket, "--owner", owner.socket, "--local", c.name_memory(local),
                "--remote", c.name_memory(remote), *args, fds=[local.fd, remote.fd], first=True) as tool:
        yield tool


def shared(tool):
    """The bytes that each session moved, in several rounds."""
    tool.ask("share", SHARE_MS / 5)
    return [tool.ask("share", SHARE_MS) for _ in range(SHARE_ROUNDS)]


def fairness(lab, records):
    for workers in (1, 2):
        agents = one_worker(lab, **{"agent.workers": workers})
        for owner, transport in ((agents[0], "local"), (agents[1], "tcp")):
            what = f"{SESSIONS} sessions, {transport}, {workers} worker{'s' * (workers > 1)}"
            args = "--sessions", SESSIONS, "--depth", 4
            with engine(agents[0], owner, 64 * c.MIB, *args, "--shape", f"{c.MIB}:1") as tool:
                assert tool.first["transport"] == transport
                answers = shared(tool)
                indexes = [jain(a["moved"]) for a in answers]
                records.add(f"{what}, all 1 MiB: Jain's index", statistics.median(indexes), "", target=(">=", 0.98), spread=indexes)
                inside = [min(jain(a["moved"][i::workers]) for i in range(workers)) for a in answers]
                if workers > 1:
                    records.add(f"{what}, all 1 MiB: within each worker", statistics.median(inside), "", target=(">=", 0.98),
                                spread=inside)
                records.add(f"{what}, all 1 MiB", statistics.median(a["bytes_per_second"] for a in answers) / 1e9, "GB/s")
            if workers > 1:
                continue
            # a transfer of 256 x 64 B has only 16 KiB: the queue must be deep, so that the client keeps up
            with engine(agents[0], owner, 64 * c.MIB, "--sessions", SESSIONS, "--depth", 48, "--shape", f"{c.MIB}:1",
                        "--shape", "64:256") as tool:
                answers = shared(tool)
                for i, shape in enumerate(("1 MiB", "256 x 64 B")):
                    indexes = [jain(a["moved"][i::2]) for a in answers]
                    records.add(f"{what}, half of them 256 x 64 B: Jain's index of those with {shape}", statistics.median(indexes), "",
                                target=(">=", 0.98), spread=indexes)
                cost = [jain([sum(a["moved"][0::2]), sum(a["moved"][1::2]) * (64 + 512) / 64]) for a in answers]
                records.add(f"{what}, half of them 256 x 64 B: Jain's index of both halves, 512 B more an operation",
                            statistics.median(cost), "", spread=cost)


def percentiles(tool):
    answer = tool.ask("trip", PROBE_TRIPS)
    return answer["ns"] / 1e3, answer["p99"] / 1e3


def loaded_and_idle(tool):
    """Interleaved rounds: ((median, 99 %) idle, (median, 99 %) loaded) of each pair."""
    rounds = []
    percentiles(tool)
    for _ in range(OVERTAKE_ROUNDS):
        quiet = percentiles(tool)
        tool.ask("load", 1)
        rounds.append((quiet, percentiles(tool)))
        tool.ask("load", 0)
    return rounds


def overtaking(lab, records):
    agents = one_worker(lab)
    for owner, transport in ((agents[0], "local"), (agents[1], "tcp")):
        for name, probe, size in PROBES:
            if transport == "tcp":
                with c.Tool("ceiling_ping", "--size", size) as tool:
                    bare = loaded_and_idle(tool)
                records.add(f"bare sockets, {size // c.KIB} KiB and a byte back beside full connections: 99 %",
                            statistics.median(b[1] for _, b in bare), "us")
                records.add(f"bare sockets, {size // c.KIB} KiB and a byte back, idle: 99 %",
                            statistics.median(a[1] for a, _ in bare), "us")
            for where, apart in (("the same session", []), ("another session", ["--apart"])):
                with engine(agents[0], owner, BIG, "--sessions", 1, "--depth", BEHIND, "--shape", f"{BIG}:1", "--probe", probe,
                            *apart) as tool:
                    assert tool.first["transport"] == transport
                    slices = [c.MIB / tool.ask("share", 300)["bytes_per_second"] * 1e6 for _ in range(3)]
                    one = statistics.median(slices)
                    rounds = loaded_and_idle(tool)
                what = f"{name}, {transport}, 1 GiB of bulk in {where}"
                limits = [2 * quiet[1] + one for quiet, _ in rounds]
                ratios = [busy[1] / limit for (_, busy), limit in zip(rounds, limits)]
                records.add(f"{what}: median", statistics.median(b[0] for _, b in rounds), "us", ceiling_name="idle",
                            ceiling=statistics.median(a[0] for a, _ in rounds),
                            ratio=statistics.median(b[0] / a[0] for a, b in rounds))
                records.add(f"{what}: 99 %", statistics.median(b[1] for _, b in rounds), "us",
                            ceiling_name="2 x idle + slice", ceiling=statistics.median(limits),
                            ratio=statistics.median(ratios), target=("<=", 1), spread=ratios)


resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
with c.bench("sessions") as (lab, records):
    c.need_memory(3 * c.GIB)
    idle(lab, records)
    beside_idle(lab, records)
    fairness(lab, records)
    overtaking(lab, records)
