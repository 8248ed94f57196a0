#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What DrayConnector costs vLLM engines on this machine, with two agents over TCP and 131,072 bytes of KV cache a token.

    bench_vllm.py [--only PART]...     default: all; a part takes 1 to 8 minutes on a quiet machine

hooks  time that the connector's hooks take of a step, with vLLM's scheduler and without a model
cost   the cost of moving: time to D's first token with blocks from P, minus the same with all blocks cached at D. With P's engine
       stopped it is compared with `drayctl bench` of the same pieces in the same round; with both engines live it competes with P.
       And what idle engines and agents use.

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
import functools  # noqa: E402
import json  # noqa: E402
import signal  # noqa: E402
import statistics  # noqa: E402
import time  # noqa: E402

import common as c  # noqa: E402

sys.path.insert(0, str(ROOT / "tests/engine"))

import model  # noqa: E402
from harness import DRAYCTL, LIMIT  # noqa: E402
from rig import BLOCK, Engine, prefill, prompts  # noqa: E402

ROUNDS = int(os.environ.get("DRAY_BENCH_ROUNDS", "5"))
LENGTHS = (64, 512, 2048)
FIVE = (64, 64, 512, 960, 2048)
PIECE = model.BYTES_A_TOKEN // model.LAYERS * BLOCK  # of one layer of one block
IDLE = 20  # seconds
seed = iter(range(1, 1 << 30))


def prompt(length):
    """A prompt that no engine has seen, with so many tokens before its last one.

    The last token is computed in any case. Without it, an engine would compute the whole last block of a prompt that it has.
    """
    return prompts(1, length + 1, seed=next(seed))[0]


# --- hooks ----------------------------------------------------------------------------------------

SCHEDULER = ("on_new_request", "get_num_new_matched_tokens", "update_state_after_alloc", "request_finished_all_groups",
             "update_connector_output", "build_connector_meta", "has_pending_push_work")
WORKER = ("start_load_kv", "wait_for_save", "get_transfer_results", "get_kv_connector_stats", "build_connector_worker_meta")


class Timed:
    """Adds up what the hooks of an engine's connectors take in each step."""

    def __init__(self, engine):
        self.engine, self.spent, self.inside = engine, 0.0, False
        for connector, hooks in ((engine.scheduler.connector, SCHEDULER), (engine.worker, WORKER)):
            for name in hooks:
                setattr(connector, name, self._timed(getattr(connector, name)))

    def _timed(self, hook):
        @functools.wraps(hook)
        def timed(*args, **how):
            if self.inside:
                return hook(*args, **how)
            self.inside = True
            began = time.perf_counter()
            try:
                return hook(*args, **how)
            finally:
                self.spent += time.perf_counter() - began
                self.inside = False
        return timed

    def step(self):
        """Microseconds of a step, with what was spent since the step before."""
        self.engine.step()
        spent, self.spent = self.spent, 0.0
        return spent * 1e6


def hooks(lab, records):
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

    agents = c.agents(lab, 2)
    for mode in ("pull", "push"):
        p, d = (Quick(f"{name}-{mode}", bare.dray(agent.socket, mode=mode)) for name, agent in zip("pd", agents))
        timed, steps = Timed(d), {"alone": [], "first": [], "load": []}
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
        for what, name, limit in (("alone", "a step without a load", 20), ("load", "a step with a load", 150),
                                  ("first", "the longest step of a load", None)):
            values = steps[what]
            records.add(f"hooks, {mode}: {name}", statistics.median(values), "us", target=("<=", limit) if limit else None,
                        spread=[statistics.quantiles(values, n=20)[0], statistics.quantiles(values, n=20)[-1]])


# --- engines --------------------------------------------------------------------------------------

@contextlib.contextmanager
def engines(lab):
    """P and D with an agent each."""
    agents = c.agents(lab, 2)
    made = [Engine(lab.tmp, name, agent.socket, options={"deadline": 4 * LIMIT}) for name, agent in zip("pd", agents)]
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
    if stopped:
        os.killpg(p.process.pid, signal.SIGSTOP)
    try:
        remote = first_tokens([d.start(one, 1, given) for one, given in zip(asked, params)], d)
        cached = first_tokens([d.start(one, 1) for one in asked], d)
    finally:
        os.killpg(p.process.pid, signal.SIGCONT)
    return [a - b for a, b in zip(remote, cached)]


def bare_transfer(agents, lengths):
    """Seconds that `drayctl bench` needs for the pieces of these prompts, one after the other in one session."""
    pieces = sum(-(-length // BLOCK) for length in lengths) * model.LAYERS
    done = subprocess.run([DRAYCTL, "bench", "--json", "--socket", agents[1].socket, "--owner", agents[0].socket, "--size", str(PIECE),
                           "--ops", str(min(pieces, 4096)), "--batch", "1", "--count", "3", "--memory", "512MiB", "--wait", "sleep"],
                          stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)["latency_ns"]["p50"] / 1e9


def cost(lab, records):
    with engines(lab) as (p, d, agents):
        for lengths in [(length,) for length in LENGTHS] + [FIVE]:
            what = "five at once" if len(lengths) > 1 else f"{lengths[0]} tokens"
            stopped, live, bench, smallest = [], [], [], []
            move(p, d, lengths)  # the engines' first steps of a size take longer
            for _ in range(ROUNDS):
                bench.append(bare_transfer(agents, lengths) * 1e3)
                stopped.append(max(move(p, d, lengths, True)) * 1e3)
                times = move(p, d, lengths)
                live.append(max(times) * 1e3)
                smallest.append(times[0] * 1e3)
            ceiling = statistics.median(bench)
            for name, values, target in (("P stopped", stopped, (1.5 * ceiling + 10) / ceiling), ("both live", live, 5)):
                ours = statistics.median(values)
                records.add(f"moving {what}, {name}", ours, "ms", ceiling_name="drayctl bench", ceiling=ceiling, ratio=ours / ceiling,
                            target=("<=", target), spread=[v / ceiling for v in values])
            if len(lengths) > 1:
                records.add("the smallest of five at once, both live", statistics.median(smallest), "ms")
        idle(p, d, agents, records)


def session_of(pid):
    """The processes of an engine."""
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            if stat.read_text().rsplit(")", 1)[1].split()[3] == str(pid):
                found.append(int(stat.parent.name))
    return found


def idle(p, d, agents, records):
    time.sleep(3)  # vLLM's workers spin for a second after each message
    pids = {"agents": [agent.process.pid for agent in agents], "engines": [pid for one in (p, d) for pid in session_of(one.process.pid)]}
    before, began = {what: c.cpu_seconds(*of) for what, of in pids.items()}, time.monotonic()
    time.sleep(IDLE)
    seconds = time.monotonic() - began
    for what, of in pids.items():
        records.add(f"idle: {what}, of a core for each engine", (c.cpu_seconds(*of) - before[what]) / seconds * 100 / 2, "%",
                    target=("<=", 0.3) if what == "agents" else None)


PARTS = {"hooks": hooks, "cost": cost}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", action="append", choices=PARTS)
    for part in parser.parse_args().only or PARTS:
        with c.bench(f"vllm_{part}") as (where, results):
            PARTS[part](where, results)
