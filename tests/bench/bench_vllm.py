#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What DrayConnector and DrayStoreConnector cost vLLM engines on this machine, with 131,072 bytes of KV cache a token.

    bench_vllm.py [--only PART]...     default: hooks, cost and five; each part takes 2 to 8 minutes on a quiet machine,
                                       and those of encoder outputs begin no round 120 s after their start ($DRAY_BENCH_SECONDS), those with engines when these have started

hooks  time that the connector's hooks take of a step, with vLLM's scheduler and without a model
cost   the cost of moving: time to D's first token with blocks from P, minus the same with all blocks cached at D. With P's engine
       stopped it is compared with `drayctl bench` of the same pieces in the same round; with both engines live it competes with P
five   the same of five requests at once, and what idle engines and agents use
push   time from the end of P's last prefill step to D's first token, chunked prefill, push against pull
nixl   the cost of moving beside NixlConnector's, each engine with a private agent, and the pairs alone on the machine in turn; with a
       session for each engine and its agent, as in containers, and with both engines in one session
serve  `vllm bench serve` with 100 requests through a router at a concurrency of 4, 16 and 100, beside NixlConnector
store-hooks, store   the hooks of DrayStoreConnector; and the time to the first token of a prompt whose blocks the store holds, minus
       the same with all blocks in the engine's own cache, beside the store's own GET of as many objects in the same round
store-beside   the same time beside MooncakeStoreConnector's, each store alone on the machine in turn
store-serve    `vllm bench serve` as above on one engine, whose requests share prefixes that its own cache has no room for, with and without the store
store-decode   tokens a second of as many requests as an engine takes, whose blocks are saved, beside an engine without a connector
cache  requests with images on engines with vLLM's own encoder cache manager and with DrayEncoderCacheManager
ec     time from the end of an encoder's step to another engine's first token, minus the same with the output cached there, beside
       ECExampleConnector and ECMooncakeConnector, for images of 64, 256 and 1,024 embeddings ($DRAY_BENCH_EMBEDDINGS: some of them, with a comma between)
ec-local  the part of it on one host, beside ECExampleConnector: with fewer engines there is time for more turns
ec-inside, ec-inside-local  the same at engines each of which is one thread (inside.py), with many more requests, in couples of a remote and a cached one, and
       divided into its parts; with $DRAY_BENCH_BEFORE beside the client of another folder of the repository
ec-hooks  time that the hooks of a consumer's connector and the reading of the output take until a request has its first token, minus the same with the output cached
       there, with vLLM's scheduler and without a model, beside ECExampleConnector
ec-bytes  bytes a second of loads of outputs, without engines, beside transfers between the same pools
ec-text   time to the first token of text beside an encoder that is idle, busy or dead, beside an engine without a connector

The parts ec, ec-local, ec-inside, ec-inside-local and ec-text run the command of $DRAY_BENCH_BUSY while their engines start, and that of $DRAY_BENCH_QUIET during their rounds, each with a program to run:
a lock of a machine that others use, too, is not held longer than that.

It needs vLLM for the CPU: scripts/engine-env makes the environment. Without it, the bench says so and measures nothing.
"""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

if __name__ == "__main__" and "DRAY_BENCH_VLLM" not in os.environ:
    made = subprocess.run([ROOT / "scripts/engine-env"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    if made.returncode:
        sys.exit("vllm: not measured, because vLLM for the CPU cannot be installed here" if made.returncode != 3 else 0)
    os.execve(made.stdout.strip(), [made.stdout.strip(), __file__, *sys.argv[1:]], {**os.environ, "DRAY_BENCH_VLLM": "1"})

import argparse  # noqa: E402
import contextlib  # noqa: E402
import json  # noqa: E402
import statistics  # noqa: E402
import time  # noqa: E402

import common as c  # noqa: E402

sys.path.insert(0, str(ROOT / "tests/engine"))

import ec_inside  # noqa: E402
import engine_cache  # noqa: E402
import engine_ec  # noqa: E402
import engine_store  # noqa: E402
import model  # noqa: E402
from dray import Client  # noqa: E402
from harness import BUILD, DRAYCTL, LIMIT, until  # noqa: E402
import serving  # noqa: E402
from rig import BLOCK, Engine, prefill, prompts, push  # noqa: E402
from timed import Timed  # noqa: E402

ROUNDS = int(os.environ.get("DRAY_BENCH_ROUNDS", "5"))
LENGTHS = (64, 512, 2048)
FIVE = (64, 64, 512, 960, 2048)
PIECE = model.BYTES_A_TOKEN // model.LAYERS * BLOCK  # of one layer of one block
IDLE = 20  # seconds
SEQUENCES, DECODED = 32, 192  # requests at once, and tokens that each generates
KV_BYTES = 1 << 30  # of an engine of the store's parts
SAVED = "vllm:dray_store_saved_blocks"
NIXL_ROUNDS, NIXL_VALUES = 3, 3  # lives of a pair of engines, and values of each; a value of NixlConnector takes up to a minute
NIXL_LENGTHS = tuple((length,) for length in reversed(LENGTHS))
NIXL = "nixl-cu13==1.5.1", "nixl==1.5.1"
LOADS = [(100, 4), (100, 16), (100, 100)]  # requests, at once
seed = iter(range(1, 1 << 30))


def prompt(length):
    """A prompt that no engine has seen, with so many tokens before its last one.

    The last token is computed in any case. Without it, an engine would compute the whole last block of a prompt that it has.
    """
    return prompts(1, length + 1, seed=next(seed))[0]


# --- hooks ----------------------------------------------------------------------------------------

SCHEDULER = ("on_new_request", "get_num_new_matched_tokens", "update_state_after_alloc", "request_finished_all_groups",
             "update_connector_output", "build_connector_meta", "has_pending_push_work", "take_events")
WORKER = ("start_load_kv", "wait_for_save", "get_transfer_results", "get_kv_connector_stats", "build_connector_worker_meta")


def timed_hooks(engine):
    return Timed(engine, (engine.scheduler.connector, SCHEDULER), (engine.worker, WORKER))


def without_content():
    """The engine of bare.py with the shapes of the model, whose steps leave the content of blocks alone."""
    import bare
    import vllm.distributed.parallel_state as parallel

    parallel.get_tensor_model_parallel_rank = lambda: 0
    bare.LAYERS, bare.HEADS, bare.HEAD, bare.CONTENT = model.LAYERS, model.HEADS, model.HEAD_DIM, 2 * model.HEAD_DIM
    bare.BYTES_A_TOKEN = model.BYTES_A_TOKEN

    class Quick(bare.Bare):
        """Steps without the content of blocks."""

        def _compute(self, *_):
            pass

        check = _compute

    return bare, Quick


def report_steps(records, what, steps):
    """steps: microseconds of steps with nothing in flight, with something, and the longest one of each load."""
    for kind, name, limit in (("alone", "a step without a load", 20), ("load", "a step with a load", 150),
                              ("save", "a step with a save", 150), ("first", "the longest step of a load", None)):
        if values := steps.get(kind):
            records.add(f"hooks, {what}: {name}", statistics.median(values), "us", target=("<=", limit) if limit else None,
                        spread=[statistics.quantiles(values, n=20)[0], statistics.quantiles(values, n=20)[-1]])


def hooks(lab, records):
    bare, Quick = without_content()
    agents = c.agents(lab, 2)
    for mode in ("pull", "push"):
        p, d = (Quick(f"{name}-{mode}", bare.dray(agent.socket, mode=mode)) for name, agent in zip("pd", agents))
        timed, steps = timed_hooks(d), {"alone": [], "first": [], "load": []}
        beside = d.add(prompt(40), 900)
        d.step()
        for _ in range(300):
            steps["alone"].append(timed.step())
        for turn in range(10 * ROUNDS):
            asked = prompt(512)
            _, params = p.run(p.add(asked, params=bare.PREFILL))
            if not params:
                continue  # its agent was slower than its step
            if beside in d.answers:
                beside = d.add(prompt(40), 900)  # without it the steps compute nothing, and wait for the agent
                d.step()
            name = d.add(asked, params=params)
            taken = []
            while name not in d.answers:
                taken.append(timed.step())
                if mode == "push":
                    p.step()
            if turn and taken[:-1]:
                steps["first"].append(max(taken[:-1]))
                steps["load"] += taken[:-1]
        for engine in (p, d):
            engine.close()
        report_steps(records, mode, steps)


def store_hooks(lab, records):
    """One engine saves a prompt, and another one loads it, each beside a request that generates."""
    bare, Quick = without_content()
    agent, = c.agents(lab, 1, **engine_store.LIMITS)
    first, second = (Quick(name, bare.kept(agent.socket)) for name in ("first", "second"))
    timed, steps = {engine: timed_hooks(engine) for engine in (first, second)}, {"alone": [], "load": [], "save": [], "first": []}
    beside = {engine: engine.add(prompt(40), 900) for engine in timed}

    def run(engine, asked):
        """The longest step with a load."""
        name, longest = engine.add(asked), 0
        worker = engine.worker._worker
        while name not in engine.answers or worker._saves:
            if beside[engine] in engine.answers:
                beside[engine] = engine.add(prompt(40), 900)
                engine.step()
                timed[engine].spent = 0.0
            before = bool(worker._loads), bool(worker._saves)
            taken = timed[engine].step()
            loads, saves = before[0] or bool(worker._loads), before[1] or bool(worker._saves)
            steps["load" if loads else "save" if saves else "alone"].append(taken)
            longest = max(longest, taken if loads else 0)
        return longest

    for turn in range(10 * ROUNDS):
        asked = prompt(512)
        run(first, asked)
        if (longest := run(second, asked)) and turn:
            steps["first"].append(longest)
    for engine in timed:
        name = engine.add(prompt(20), 200)
        while name not in engine.answers:
            busy = engine.worker._worker._saves
            taken = timed[engine].step()
            if not busy and not engine.worker._worker._saves:
                steps["alone"].append(taken)
        engine.close()
    report_steps(records, "store", steps)


# --- engines --------------------------------------------------------------------------------------

def dray(agent, name, mode="pull", options=None):
    """options: instead of the agent's socket."""
    return {"kv_connector": "DrayConnector", "kv_connector_module_path": "dray.vllm", "kv_role": "kv_both", "engine_id": name,
            "kv_connector_extra_config": {**(options or {"socket": str(agent.socket)}), "mode": mode, "deadline": 4 * LIMIT}}


def nixl_packages():
    """A folder with NixlConnector's packages, which the environment of the tests does not have."""
    folder = ROOT / "build/nixl"
    if not (folder / "complete").exists():
        uv = pathlib.Path(sys.executable).parents[2] / "tools/bin/uv"
        made = subprocess.run([uv, "pip", "install", "--quiet", "--no-deps", "--target", folder, "--python", sys.executable, *NIXL])
        if made.returncode:
            raise c.CannotRun(f"{' and '.join(NIXL)} cannot be installed")
        (folder / "complete").touch()
    return folder


def nixl(role, name):
    """(kv_transfer_config, environment)"""
    return {"kv_connector": "NixlConnector", "kv_buffer_device": "cpu", "kv_role": role, "engine_id": name}, {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(serving.free_port()), "UCX_TLS": "tcp,self",
        "PYTHONPATH": f"{ROOT / 'client/python'}:{nixl_packages()}"}


def connectors(agents, name, mode):
    """(kv_transfer_config, environment) of P and of D; NixlConnector's if there are no agents."""
    roles = zip("pd", ("kv_producer", "kv_consumer"), agents or (None, None))
    return [(dray(agent, f"{name}-{which}", mode), {}) if agent else nixl(role, f"{name}-{which}") for which, role, agent in roles]


@contextlib.contextmanager
def engines(lab, name, mode="pull", **arguments):
    """P and D with an agent each; with NixlConnector and without agents if mode is "nixl"."""
    agents = [] if mode == "nixl" else c.agents(lab, 2)
    made = [Engine(lab.tmp, f"{name}-{which}", connector=connector, variables=environment, **arguments)
            for which, (connector, environment) in zip("pd", connectors(agents, name, mode))]
    try:
        yield (*[engine.ready() for engine in made], agents)
    finally:
        for engine in made:
            engine.stop()
        for agent in agents:
            agent.stop()


# --- the cost of moving ---------------------------------------------------------------------------

def first_tokens(waits, engine):
    """Seconds until the first token of each request."""
    answers = [w.get(timeout=4 * LIMIT) for w in waits]
    for answer in answers:
        if "error" in answer or answer["reason"] == "error":
            raise c.CannotRun(f"a request has failed: {answer}\n{engine.tail(15)}")
    return [answer["first"] for answer in answers]


def move(p, d, lengths, stopped=False):
    """Seconds that it takes longer than with cached blocks until the first token of each prompt, all at once."""
    asked = [prompt(length) for length in lengths]
    params = [prefill(p, one)["params"] for one in asked]
    with p.stopped() if stopped else contextlib.nullcontext():
        remote = first_tokens([d.start(one, 1, given) for one, given in zip(asked, params)], d)
        cached = first_tokens([d.start(one, 1) for one in asked], d)
    return [a - b for a, b in zip(remote, cached)]


def bare_transfer(agents, lengths):
    """Seconds that `drayctl bench` needs for the pieces of these prompts, one after the other in one session."""
    pieces = sum(-(-length // BLOCK) for length in lengths) * model.LAYERS
    done = subprocess.run([DRAYCTL, "bench", "--json", "--socket", agents[1].socket, "--owner", agents[0].socket, "--size", str(PIECE),
                           "--ops", str(min(pieces, 4096)), "--batch", "1", "--count", "3", "--memory", "512MiB", "--wait", "sleep"],
                          stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)["latency_ns"]["p50"] / 1e9


def beside_bench(p, d, agents, lengths, records):
    """Records what moving such prompts costs; returns the milliseconds of the first of them with both engines live."""
    what = "five at once" if len(lengths) > 1 else f"{lengths[0]} tokens"
    stopped, live, bench, first = [], [], [], []
    move(p, d, lengths)  # the engines' first steps of a size take longer
    for _ in range(ROUNDS):
        bench.append(bare_transfer(agents, lengths) * 1e3)
        stopped.append(max(move(p, d, lengths, True)) * 1e3)
        times = move(p, d, lengths)
        live.append(max(times) * 1e3)
        first.append(times[0] * 1e3)
    ceiling = statistics.median(bench)
    for name, values, target in (("P stopped", stopped, (1.5 * ceiling + 10) / ceiling), ("both live", live, 5)):
        ours = statistics.median(values)
        records.add(f"moving {what}, {name}", ours, "ms", ceiling_name="drayctl bench", ceiling=ceiling, ratio=ours / ceiling,
                    target=("<=", target), spread=[v / ceiling for v in values])
    return first


def cost(lab, records):
    with engines(lab, "cost") as (p, d, agents):
        for length in LENGTHS:
            beside_bench(p, d, agents, (length,), records)


def five(lab, records):
    with engines(lab, "five") as (p, d, agents):
        smallest = beside_bench(p, d, agents, FIVE, records)
        records.add("the smallest of five at once, both live", statistics.median(smallest), "ms")
        idle(p, d, agents, records)


def group_of(pid):
    """The processes of an engine."""
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            if stat.read_text().rsplit(")", 1)[1].split()[2] == str(pid):
                found.append(int(stat.parent.name))
    return found


def idle(p, d, agents, records):
    time.sleep(3)  # vLLM's workers spin for a second after each message
    pids = {"agents": [agent.process.pid for agent in agents], "engines": [pid for one in (p, d) for pid in group_of(one.process.pid)]}
    before, began = {what: c.cpu_seconds(*of) for what, of in pids.items()}, time.monotonic()
    time.sleep(IDLE)
    seconds = time.monotonic() - began
    for what, of in pids.items():
        records.add(f"idle: {what}, of a core for each engine", (c.cpu_seconds(*of) - before[what]) / seconds * 100 / 2, "%",
                    target=("<=", 0.3) if what == "agents" else None)


def chunked(lab, records):
    """P's answer is taken as the end of its last prefill step: it is later than that by the same time in both modes."""
    length, found = 2048, {}
    for mode in ("pull", "push"):
        with engines(lab, mode, mode, max_num_batched_tokens=512) as (p, d, agents):
            values = found[mode] = []
            for turn in range(ROUNDS + 2):
                asked = prompt(length)
                if mode == "push":
                    for_p, for_d = push(p, d, agents[0], asked, 1)
                    value = first_tokens([for_d], d)[0] - for_p.get(timeout=4 * LIMIT)["total"]
                else:
                    params = prefill(p, asked)["params"]
                    value = first_tokens([d.start(asked, 1, params)], d)[0]
                if turn > 1:
                    values.append(value * 1e3)
    pull, ours = (statistics.median(found[mode]) for mode in ("pull", "push"))
    records.add(f"end of prefill to D's first token, {length} tokens, push", ours, "ms", ceiling_name="pull", ceiling=pull, ratio=ours / pull,
                target=("<=", 0.5), spread=[value / pull for value in found["push"]])


class Private:
    """The private agent of an engine, as the tools find it. folder: where the engine makes its folder."""

    def __init__(self, folder):
        self.folder = folder
        self.folder.mkdir(0o700)

    @property
    def socket(self):
        return next(self.folder.glob("dray-vllm-*/dray.sock"))

    def engine(self, lab, name):
        """Arguments of an engine with this agent."""
        package = lab.tmp / "site/dray_agent"
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text(f"BIN = {str(BUILD)!r}\n")
        connector = dray(self, name, options={"agent": "private", "key_file": str(lab.key)})
        return {"connector": connector, "variables": {
            "XDG_RUNTIME_DIR": str(self.folder), "PYTHONPATH": f"{ROOT / 'client/python'}:{package.parent}"}}


def meet(p, d):
    """The first contact of NixlConnector's engines, which gives up after a few seconds on busy processors."""
    for _ in range(5):
        with contextlib.suppress(c.CannotRun):
            return move(p, d, LENGTHS[:1])
    raise c.CannotRun(f"NixlConnector's engines do not find each other\n{d.tail(15)}")


def pair(lab, folder, connector, session):
    """P and D, alone on the machine; with DrayConnector their private agents too."""
    agents = [Private(folder.with_name(f"{folder.name}-{which}")) for which in "pd"] if connector == "dray" else []
    arguments = [agent.engine(lab, which) for which, agent in zip("pd", agents)] or \
        [{"connector": made, "variables": environment} for made, environment in connectors([], folder.name, "nixl")]
    return agents, [Engine(lab.tmp, f"{folder.name}-{which}", session=session, **made) for which, made in zip("pd", arguments)]


def beside_nixl(lab, records):
    """The pairs live in turn. The threads of NixlConnector spin, so that its engines would disturb others, and a rest would help them."""
    for session, arrangement in ((True, "a session each"), (False, "one session")):
        found = {"dray": {}, "bench": {}, "nixl": {}}
        for turn in range(2 * NIXL_ROUNDS):
            connector = ("dray", "nixl")[turn % 2]
            with contextlib.ExitStack() as stack:
                agents, engines = pair(lab, lab.tmp / f"{session:d}-{turn}", connector, session)
                for engine in engines:
                    stack.callback(engine.stop)
                for engine in engines:
                    engine.ready()
                meet(*engines)
                for lengths in NIXL_LENGTHS:
                    times = [max(move(*engines, lengths)) * 1e3 for _ in range(NIXL_VALUES)]
                    found[connector].setdefault(lengths, []).extend(times)
                    if agents:
                        found["bench"].setdefault(lengths, []).append(bare_transfer(agents, lengths) * 1e3)
        for lengths in NIXL_LENGTHS:
            what = f"moving {'five at once' if len(lengths) > 1 else f'{lengths[0]} tokens'}, {arrangement}"
            mine = statistics.median(found["dray"][lengths])
            for name, which in (("drayctl bench", "bench"), ("NixlConnector", "nixl")):
                ceiling = statistics.median(found[which][lengths])
                target = ("<=", 0.02) if session and which == "nixl" and lengths == (max(LENGTHS),) else None
                records.add(what, mine, "ms", ceiling_name=name, ceiling=ceiling, ratio=mine / ceiling, target=target,
                            spread=[value / ceiling for value in found["dray"][lengths]])
            records.add(f"the same, NixlConnector's shortest and longest: {min(found['nixl'][lengths]):,.0f} to", max(found["nixl"][lengths]), "ms")


def served(lab, name, connectors, requests_of=serving.RANDOM):
    """What `vllm bench serve` finds for each load."""
    with serving.Servers(lab.tmp, name, connectors) as servers:
        servers.ready()
        # the engines' first steps of a size take longer
        _, *results = servers.load([(25, 2, next(seed)), *[(requests, at_once, next(seed)) for requests, at_once in LOADS]], requests_of)
    return results


def add_served(records, ours, theirs, beside):
    for (requests, at_once), mine, other in zip(LOADS, ours, theirs):
        records.add(f"{requests} requests, {at_once} at once: failed", requests - mine["completed"], "", target=("<=", 0))
        for what, key, unit in [("requests a second", "request_throughput", "1/s"), *[
                (f"{metric.upper()} p{q}", f"p{q}_{metric}_ms", "ms") for metric in ("ttft", "tpot", "itl") for q in (50, 90, 99)]]:
            records.add(f"{at_once} at once: {what}", mine[key], unit, ceiling_name=beside, ceiling=other[key], ratio=mine[key] / other[key])


def serve(lab, records):
    agents = c.agents(lab, 2)
    ours = served(lab, "serve-pull", connectors(agents, "serve-pull", "pull"))
    for agent in agents:
        agent.stop()
    add_served(records, ours, served(lab, "serve-nixl", connectors([], "serve-nixl", "nixl")), "NixlConnector")


# --- the store ------------------------------------------------------------------------------------

def own_get(client, count, size, pieces):
    """Seconds of one GET of so many objects, each to so many pieces of memory, that were not asked for before."""
    step = size // pieces
    region = client.pool(count * size)
    items = [(b"%d of %d" % (i, next(seed)), [(i * size + n * step, step) for n in range(pieces)]) for i in range(count)]
    space = client.store()
    if any(one.status for one in space.put(region, items)):
        raise c.CannotRun("the store has not taken objects of its own")
    began = time.perf_counter()
    got = space.get(region, items)
    seconds = time.perf_counter() - began
    space.remove([key for key, _ in items])
    region.remove()
    if any(one.status for one in got):
        raise c.CannotRun("the store does not give what it has")
    return seconds


def store(lab, records):
    length = LENGTHS[-1]
    blocks = length // BLOCK
    # Until an object was written to each block, the agent's first touch of its pages is a part of the load.
    untouched = -(-KV_BYTES // (blocks * BLOCK * model.BYTES_A_TOKEN))
    agent, = c.agents(lab, 1, **engine_store.LIMITS)
    made = [Engine(lab.tmp, name, connector=engine_store.kept(agent, name), kv_cache_memory_bytes=KV_BYTES) for name in ("first", "second")]
    try:
        first, second = (engine.ready() for engine in made)
        ours, ceiling, computing, touching = [], [], [], []
        with Client(agent.socket) as client:
            for turn in range(ROUNDS + untouched + 1):
                asked = prompt(length)
                computed, = first_tokens([first.start(asked, 1)], first)
                wanted = (turn + 1) * blocks
                until(lambda wanted=wanted: first.metrics(SAVED).get(SAVED, 0) >= wanted or first.run(prompt(20), 1) and False, "the saves")
                loaded, = first_tokens([second.start(asked, 1)], second)
                cached, = first_tokens([second.start(asked, 1)], second)
                alone = own_get(client, blocks, BLOCK * model.BYTES_A_TOKEN, model.LAYERS)
                if turn > untouched:
                    ours.append((loaded - cached) * 1e3)
                    ceiling.append(alone * 1e3)
                    computing.append(loaded / computed)
                elif turn:  # the first steps of a size take longer
                    touching.append((loaded - cached) * 1e3)
    finally:
        for engine in made:
            engine.stop()
    cost, get = statistics.median(ours), statistics.median(ceiling)
    records.add(f"moving {length} tokens from the store", cost, "ms", ceiling_name="GET", ceiling=get, ratio=cost / get,
                target=("<=", (1.3 * get + 10) / get), spread=[value / get for value in ours])
    records.add("the same into memory that was not used before", statistics.median(touching), "ms", spread=touching)
    records.add("first token from the store, of computing", statistics.median(computing), "", target=("<=", 0.25), spread=computing)


def decoded(engine):
    """Tokens a second, from the first token of the last request to the end of all. All of them are in each step."""
    waits = [engine.start(one, DECODED) for one in prompts(SEQUENCES, BLOCK, seed=next(seed))]
    answers = [w.get(timeout=4 * LIMIT) for w in waits]
    if any("error" in answer or len(answer["tokens"]) != DECODED for answer in answers):
        raise c.CannotRun(f"a request has failed\n{engine.tail(15)}")
    began = max(answer["first"] for answer in answers)
    return SEQUENCES * (DECODED - 1) / (max(answer["total"] for answer in answers) - began)


def store_decode(lab, records):
    agent, = c.agents(lab, 1, **engine_store.LIMITS)
    how = {"max_num_seqs": SEQUENCES, "kv_cache_memory_bytes": KV_BYTES}
    made = [Engine(lab.tmp, "saving", connector=engine_store.kept(agent, "saving"), **how), Engine(lab.tmp, "plain", **how)]
    try:
        saving, plain = (engine.ready() for engine in made)
        for _ in range(2):  # the first steps of a size take longer
            decoded(saving)
            decoded(plain)
        before = saving.metrics(SAVED).get(SAVED, 0)
        ours, without, ratio, ratios = c.pairs(lambda: decoded(plain), lambda: decoded(saving), 2 * ROUNDS)
        blocks = saving.metrics(SAVED).get(SAVED, 0) - before
    finally:
        for engine in made:
            engine.stop()
    records.add(f"decoding of {SEQUENCES} requests with saving", ours, "/s", ceiling_name="without a connector", ceiling=without, ratio=ratio,
                target=(">=", 0.97), spread=ratios)
    records.add("blocks that were saved, of those that were computed", blocks / (2 * ROUNDS * SEQUENCES * (DECODED // BLOCK + 1)), "")


def store_serve(lab, records):
    """The engine's own cache is too small for the prefixes of the requests."""
    agent, = c.agents(lab, 1, **engine_store.LIMITS)
    ours = served(lab, "serve-store", [(engine_store.kept(agent, "store"), {})], serving.PREFIXES)
    hits = agent.ctl("status", "--json")["counters"]["dray_store_hits_total"]
    agent.stop()
    add_served(records, ours, served(lab, "serve-plain", [(None, {})], serving.PREFIXES), "without the store")
    records.add("blocks that came from the store", hits, "")


def store_beside(lab, records):
    engine_store.beside(lab, records, ROUNDS)


def cache(lab, records):
    engine_cache.cache(lab, records, ROUNDS)


def ec(lab, records):
    engine_ec.ec(lab, records, ROUNDS)


def ec_local(lab, records):
    engine_ec.ec(lab, records, ROUNDS, beside_mooncake=False)


def inside(lab, records):
    ec_inside.inside(lab, records, ROUNDS)


def inside_local(lab, records):
    ec_inside.inside(lab, records, ROUNDS, beside_mooncake=False)


def ec_hooks(lab, records):
    engine_ec.ec_hooks(lab, records, ROUNDS)


def ec_bytes(lab, records):
    engine_ec.ec_bytes(lab, records, ROUNDS)


def ec_text(lab, records):
    engine_ec.ec_text(lab, records, ROUNDS)


PARTS = {"hooks": hooks, "cost": cost, "five": five, "push": chunked, "nixl": beside_nixl, "serve": serve,
         "store-hooks": store_hooks, "store": store, "store-decode": store_decode, "store-serve": store_serve, "store-beside": store_beside, "cache": cache, "ec": ec, "ec-local": ec_local,
         "ec-inside": inside, "ec-inside-local": inside_local,
         "ec-hooks": ec_hooks, "ec-bytes": ec_bytes, "ec-text": ec_text}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", action="append", choices=PARTS)
    for part in parser.parse_args().only or ("hooks", "cost", "five"):
        with c.bench(f"vllm_{part.replace('-', '_')}") as (where, results):
            PARTS[part](where, results)
