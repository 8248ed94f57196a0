# SPDX-License-Identifier: Apache-2.0
"""Streams that order transfers, engines that are killed, PID namespaces, an idle agent, and the tools."""

import contextlib
import importlib.util
import itertools
import json
import os
import pathlib
import shutil
import sqlite3
import statistics
import subprocess
import sys
import time

import harness
from suite import FAKE, GIB, KIB, MIB, ROOT, SIMULATED, EngineError, Side, Skip, scattered

GONE_LIMIT = 0.1  # seconds from an engine's death until its GPU memory is free
DEATHS = 5
UNSHARED = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def words(t):
    """A stream of the engine's GPU releases each transfer and waits for its end; no processor waits."""
    agent = t.agent()
    for kind, size, by in (("cuda_ipc", 4 * KIB, "driver"), ("cuda_vmm", MIB, "driver"), ("cuda_vmm", 4 * KIB, "libdray"),
                           ("cuda_ipc", MIB, "libdray")):
        label = f"words: 1,000 rounds of {size // KIB} KiB, {kind}, by {by}"
        if not t.wanted(label):
            continue
        with t.case(label):
            if t.fake and by == "libdray":
                raise Skip("the simulated driver has only the functions that the engine uses")
            engine = t.engine(agent)
            source, target = Side(engine, kind, size), Side(engine, kind, size)
            remote, _ = target.reach(source)
            ran = engine.ask("words", source.region, target.region, remote, size, 1000, by)
            t.say(f"{ran['seconds'] * 1e3:.2f} us a round")
        t.close_engines()
    t.drop(agent)


def one_death(t, agent, kind, size):
    """An engine is killed while another reads its GPU memory: (seconds until that is free, how the reads ended)."""
    owner, reader, watcher = t.engine(agent), t.engine(agent), t.engine()
    watcher.ask("memory", 0)  # makes its context before memory is counted
    there, here = Side(owner, kind, size), Side(reader, "cuda_ipc", size)
    remote, _ = here.reach(there)
    path = t.ops(scattered(MIB, size))
    reader.tell("hold", here.region, remote, "read", path, 256, 4, size)
    reader.hear()  # moving
    free = watcher.ask("memory", 0)["free"]
    watcher.tell("watch", 0, free + size * 95 // 100, 20000)
    died = owner.kill()
    seen, ended = watcher.hear(), reader.hear()
    t.engines.remove(owner)
    t.close_engines()
    assert seen["reached"], f"{size / GIB:.1f} GiB were not free 20 s after the death"
    return max(0, seen["ns"] - died) / 1e9, ended


def deaths(t):
    for kind in ("cuda_ipc", "cuda_vmm"):
        label = f"deaths: owner of {kind} memory killed in mid-transfer"
        if not t.wanted(label):
            continue
        agent = t.agent()
        with t.case(label):
            if t.fake:
                fake_death(t, agent, kind)
            else:
                found = [one_death(t, agent, kind, 8 * GIB) for _ in range(DEATHS)]
                times = [seconds for seconds, _ in found]
                t.say(f"8 GiB were free {', '.join(f'{s * 1e3:.1f}' for s in times)} ms after the death; the reads ended with "
                      f"{', '.join(sorted({end['code'] for _, end in found}))}")
                assert all(end["failed"] for _, end in found)
                assert statistics.median(times) <= GONE_LIMIT
            left = Side(t.engine(agent), "cuda_vmm", MIB), Side(t.engine(agent), "cuda_vmm", MIB)
            remote, _ = left[0].reach(left[1])
            t.move(*left, remote, "read", [(0, 0, MIB)])  # the agent serves others as before
        t.close_engines()
        t.drop(agent)


def fake_death(t, agent, kind):
    """Without a GPU: the transfers end, and the agent keeps no descriptor and no mapping of the dead engine."""
    reader, owner = t.engine(agent), t.engine(agent)
    here = Side(reader, kind, MIB)
    before = agent.resources()
    there = Side(owner, kind, 64 * MIB)
    here2 = Side(reader, kind, 64 * MIB)
    remote, _ = here2.reach(there)
    reader.tell("hold", here2.region, remote, "read", t.ops(scattered(64 * KIB, 64 * MIB)), 256, 4, MIB)
    reader.hear()
    owner.kill()
    t.engines.remove(owner)
    assert reader.hear()["failed"]
    reader.ask("release", remote)
    here2.close()
    harness.until(lambda: agent.resources().mappings <= before.mappings, "the mappings of the dead engine to go")
    here.close()
    t.close_engines()


def namespaces(t):
    """The engines and the agent are each process 1 of a PID namespace of their own, as in containers."""
    if not any(t.wanted(f"namespaces: {kind}") for kind in ("cuda_vmm", "cuda_ipc")):
        return
    tried = subprocess.run([*UNSHARED, "true"], stderr=subprocess.PIPE, text=True)
    if tried.returncode:
        with t.case("namespaces: PID namespaces"):
            raise Skip(tried.stderr.strip())
        return
    agent = t.agent(wrap=UNSHARED)
    for kind in ("cuda_vmm", "cuda_ipc"):
        label = f"namespaces: {kind}, each process in a PID namespace of its own"
        if not t.wanted(label):
            continue
        with t.case(label):
            engines = [t.engine(agent, UNSHARED) for _ in range(2)]
            try:
                sides = [Side(engine, kind, 4 * MIB) for engine in engines]
            except EngineError as e:
                t.say(f"refused: {e}")
                assert kind == "cuda_ipc" and e.code == "gpu_handle", f"{e.code}: {e}"
            else:
                remote, _ = sides[0].reach(sides[1])
                t.move(*sides, remote, "read", scattered(16 * KIB, 4 * MIB), transport="gpu")
                t.say("works")
        t.close_engines()
    # the agent is process 1 below unshare, which does not forward signals
    t.agents.remove(agent)
    agent.kill()


def rest(t):
    """An idle agent with a context and regions uses no processor."""
    if not t.wanted("rest: the agent uses no processor"):
        return
    agent = t.agent()
    with t.case("rest: the agent uses no processor"):
        here, there = (Side(t.engine(agent), "cuda_vmm", 16 * MIB) for _ in range(2))
        remote, _ = here.reach(there)
        t.move(here, there, remote, "read", scattered(16 * KIB, 16 * MIB))
        tasks = pathlib.Path(f"/proc/{agent.pid}/task")

        def used():
            return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir())

        def share():
            before, began = used(), time.monotonic_ns()
            assert not harness.wait_exit(agent.pidfd, 1), "the agent died"  # a second of rest
            return (used() - before) / (time.monotonic_ns() - began)

        shares = [share() for _ in range(1 if t.fake else 3)]
        t.say(f"{min(shares) * 100:.3f} % of one processor")
        assert min(shares) < 0.01
    t.close_engines()
    t.drop(agent)


def stops(t):
    """A GPU without use is stopped; host memory stays, and is pinned again for the next start."""
    label = "stops: host memory is pinned again with the next start"
    if not t.wanted(label):
        return
    agent = t.agent(**{"gpu.idle_time": "100ms"})

    def pinned():
        return agent.ctl("status", "--json")["counters"]["dray_gpu_pinned_bytes"]

    with t.case(label):
        host = Side(t.engine(agent), "pool", 4 * MIB)
        for _ in range(2):
            engine = t.engine(agent)
            device = Side(engine, "cuda_vmm", 4 * MIB)
            harness.until(lambda: pinned() >= 4 * MIB, "host memory is pinned")
            remote, _ = host.reach(device)
            for direction in ("read", "write"):
                t.move(host, device, remote, direction, scattered(16 * KIB, 4 * MIB), transport="gpu")
            t.engines.remove(engine)
            engine.close()
            harness.until(lambda: {gpu["state"] for gpu in gpus(agent)} == {"unused"} and not pinned(), "the GPU is stopped")
    t.close_engines()
    t.drop(agent)


def gpus(agent):
    return agent.ctl("gpus", "--json")["gpus"]


def rates(t):
    """What an idle GPU does is measured when it has started."""
    label = "rates: measured on idle GPUs"
    if not t.wanted(label):
        return
    agent = t.agent()
    with t.case(label):
        if t.fake:
            raise Skip("the fake's GPUs are shared, so their load decides nothing")
        began = time.monotonic()
        for device in range(min(2, len(t.gpus))):
            Side(t.engine(agent), "cuda_vmm", 2 * MIB, device)
        started = [gpu["uuid"] for gpu in t.gpus[:2]]
        harness.until(lambda: {gpu["rates"] for gpu in gpus(agent) if gpu["uuid"] in started} <= {"measured", "partly"}, "rates")
        t.say(f"known {time.monotonic() - began:.2f} s after the first region was asked for")
        for gpu in gpus(agent):
            t.say(f"{gpu['name']} {gpu['uuid']}: {gpu['rates']}; {gpu['kernel_rates']}")
        harness.until(lambda: not agent.ctl("status", "--json")["counters"]["dray_gpu_copy_memory_bytes"], "nothing is left")
    t.close_engines()
    t.drop(agent)
    with contextlib.closing(sqlite3.connect(agent.state_dir / "state.db")) as db:
        for bus in ("within", "nvlink", "pcie", "to_host", "from_host"):
            got = [f"{rate / 1000:g}" for rate, in db.execute("SELECT rate FROM gpu_rate WHERE bus = ? ORDER BY piece", (bus,))]
            if got:
                t.say(f"saved for {bus}, GB/s: kernel {got[0]}; copy engines, pieces of 4 KiB to 1 MiB: {', '.join(got[1:])}")


def refused(t):
    """An extent beyond the end of its memory is refused with a reason."""
    agent = t.agent()
    # the size of a VMM allocation is found by trying; the driver of the fake plug-in reports it
    for kind, codes in (("cuda_vmm", ("gpu_handle", "region_too_small")), ("cuda_ipc", ("region_too_small",))):
        label = f"refused: an extent beyond the end of {kind} memory"
        if not t.wanted(label):
            continue
        with t.case(label):
            engine = t.engine(agent)
            memory = engine.alloc(kind, 2 * MIB)
            try:
                engine.region((memory, 0, 64 * MIB))
            except EngineError as e:
                t.say(str(e))
                assert e.code in codes, e.code
            else:
                raise AssertionError("64 MiB of 2 were taken")
        t.close_engines()
    t.drop(agent)


def tools(t):
    """Prints the output of the tools to the log of this run."""
    if not t.wanted("tools"):
        return
    agent = t.agent()
    here, there = (Side(t.engine(agent), "cuda_vmm", MIB) for _ in range(2))
    remote, _ = here.reach(there)
    t.move(here, there, remote, "read", [(0, 0, MIB)])
    for words in (("gpus",), ("status",), ("transfers",), ("regions",), ("doctor",), ("detect",)):
        with t.case(f"tools: drayctl {' '.join(words)}"):
            done = agent.ctl(*words, check=False)
            t.say(done.stdout + done.stderr)
            # doctor's exit status is 1 if it found a problem
            assert done.returncode == 0 or words == ("doctor",) and done.returncode == 1, f"exit status {done.returncode}"
    with t.case("tools: drayctl gpus --json"):
        got = json.loads(agent.ctl("gpus", "--json", check=False).stdout)
        t.say(json.dumps(got))
    if not t.fake:
        with t.case("tools: GPU memory of the agent's context"):
            t.say(subprocess.run(["nvidia-smi", "--query-compute-apps=pid,name,used_memory", "--format=csv"],
                                 stdout=subprocess.PIPE, text=True, check=True).stdout + f"agent: {agent.pid}")
    t.close_engines()
    t.drop(agent)


def bench_verb(t):
    """drayctl bench between GPUs and hosts, beside loads that it makes itself."""
    ends = [("between GPUs", ["--gpu", 0, "--far-gpu", 1]), ("within a GPU", ["--gpu", 0, "--far-gpu", 0]), ("from host", ["--gpu", 0]),
            ("to host", ["--far-gpu", 0])]
    loads = ("none", "steps", "steady")
    agent = None
    for (what, where), load in itertools.product(ends, loads):
        label = f"bench: drayctl bench {what}, load {load}"
        if not t.wanted(label):
            continue
        with t.case(label):
            names = [t.gpus[t.device(word)]["uuid"] if isinstance(word, int) else word for word in where]
            agent = agent or t.agent()
            run(t, [harness.DRAYCTL, "bench", "--socket", agent.socket, "--size", "32KiB", "--ops", 32 if t.fake else 2048, "--batch", 4,
                    "--duration", "1s", "--load", load, *names, *(["--gpu-plugin", FAKE] if t.fake else [])], 60)
    if agent:
        t.drop(agent)


def plugin(t):
    """The plug-in without an agent, plain and under compute-sanitizer; and the client's helpers with PyTorch."""
    checker = harness.BUILD / "tests/gpu/ceiling_gpu"
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    ways = [("plugin: checks itself", [], ["--check"])]
    # API errors are expected: the plug-in finds the size of an allocation by trying
    options = ["--error-exitcode", "9", "--target-processes", "all", "--report-api-errors", "no"]
    ways += [(f"plugin: {tool}", [sanitizer, "--tool", tool, *options[:None if tool == "memcheck" else -2]], ["--quick"])
             for tool in ("memcheck", "racecheck")]
    for label, prefix, args in ways:
        if not t.wanted(label):
            continue
        with t.case(label):
            if t.fake:
                raise Skip("no GPU")
            if prefix and not os.access(prefix[0], os.X_OK):
                raise Skip(f"{prefix[0]} is not there")
            if not checker.exists():
                raise Skip(f"{checker.name} is not built")
            run(t, [*prefix, str(checker), *args], 100)
    label = "client: tensors of PyTorch"
    script = ROOT / "tests/gpu/check_client.py"
    if t.wanted(label):
        with t.case(label):
            if t.fake or not script.exists():
                raise Skip("no GPU" if t.fake else f"{script.name} is not there")
            run(t, [sys.executable, str(script)], 60)


def connector(t):
    """Worker sides of dray.vllm on tensors of PyTorch, between two GPUs of one agent and of two agents."""
    ways = [(devices, pool, agents) for devices in ((0, 1), (0, 0)) for pool in ("pool", "none") for agents in (1, 2)]
    script = ROOT / "tests/gpu/check_vllm.py"
    for devices, pool, count in ways:
        label = f"connector: GPU {devices[0]} to GPU {devices[1]}, {'memory of the wheel' if pool == 'pool' else 'memory of PyTorch'}, " \
                f"{'one agent' if count == 1 else 'two agents over TCP'}"
        if not t.wanted(label):
            continue
        with t.case(label):
            if t.fake or not importlib.util.find_spec("torch"):
                raise Skip("no GPU" if t.fake else f"there is no PyTorch for {sys.executable}")
            t.device(max(devices))
            agents = [t.agent(f"connector-{i}") for i in range(count)]
            try:
                run(t, [sys.executable, str(script), agents[0].socket, agents[-1].socket, *(f"cuda:{n}" for n in devices), pool], 100)
            finally:
                for agent in agents:
                    t.drop(agent)


def encoder_outputs(t):
    """Sides of DrayECConnector: an output of one GPU is used on another one, by way of the pools."""
    script = ROOT / "tests/gpu/check_ec.py"
    pools = ("cuda", "cuda"), ("cpu", "cpu"), ("cpu", "cuda"), ("cuda", "cpu")
    for (transport, count), (of_e, of_pd) in itertools.product((("local", 1), ("tcp", 2)), pools):
        label = f"encoder outputs: GPU 0 to GPU 1, {transport}, pools on {of_e} and {of_pd}"
        if not t.wanted(label):
            continue
        with t.case(label):
            if t.fake or not importlib.util.find_spec("torch"):
                raise Skip("no GPU" if t.fake else f"there is no PyTorch for {sys.executable}")
            t.device(1)
            agents = [t.agent(f"encoder-{i}") for i in range(count)]
            try:
                run(t, [sys.executable, str(script), agents[0].socket, agents[-1].socket, "cuda:0", "cuda:1", transport, of_e, of_pd,
                        15 if of_e == of_pd else 0], 100)
            finally:
                for agent in agents:
                    t.drop(agent)


def mooncake(t):
    """Engines of dray.mooncake with memory of GPUs, and the store."""
    script = ROOT / "tests/gpu/check_mooncake.py"
    for devices, count in (((0, 0), 1), ((0, 1), 1), ((0, 1), 2)):
        label = f"mooncake: GPU {devices[0]} to GPU {devices[1]}, {'one agent' if count == 1 else 'two agents over TCP'}"
        if not t.wanted(label):
            continue
        with t.case(label):
            t.device(max(devices))
            agents = [t.agent(f"mooncake-{i}", **{"limits.store_bytes": "256MiB"}) for i in range(count)]
            try:
                rounds = [] if t.fake else [0.3]
                simulated = {"LD_LIBRARY_PATH": SIMULATED, "FAKE_GPU_FOLDER": t.lab.tmp} if t.fake else {}
                run(t, [sys.executable, script, agents[0].socket, agents[-1].socket, *devices, *rounds], 100, **simulated)
            finally:
                for agent in agents:
                    t.drop(agent)


def run(t, argv, limit, **env):
    done = subprocess.run([str(word) for word in argv], env={**os.environ, **{k: str(v) for k, v in env.items()}}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit)
    t.say("\n".join(done.stdout.splitlines()[-25:]))
    assert done.returncode == 0, f"exit status {done.returncode}"


PARTS = (words, deaths, namespaces, rest, stops, rates, refused, tools, bench_verb, plugin, connector, encoder_outputs, mooncake)
