# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the GPU memory tests: engines (engine.c), lists of operations, cases and their report.

With the fake plug-in the same cases run without a GPU: its memory is files, and threads copy.
"""

import contextlib
import json
import os
import pathlib
import random
import select
import subprocess
import sys
import time
import traceback
from array import array

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / p) for p in ("tests/gpu", "tests/bench", "tests/integration", "tests", "client/python")]

import harness  # noqa: E402

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
LIMIT = 60  # seconds in which an engine must answer
ENGINE = harness.BUILD / "tests/gpu/engine"
FAKE = harness.BUILD / "tests/gpu/dray-fake-gpu.so"
SIMULATED = harness.BUILD / "tests/gpu/simulated"  # a driver library for the engines beside it


class Skip(Exception):
    """The case cannot run here; has the reason."""


class EngineError(Exception):
    def __init__(self, text, code):
        super().__init__(text)
        self.code = code


class Engine:
    """engine.c in a process; runs one command at a time."""

    def __init__(self, agent=None, prefix=(), fake=None):
        """fake: the folder for fake GPU memory."""
        # setpriv: the kernel kills the engine if the test run is killed
        driver = [f"LD_LIBRARY_PATH={SIMULATED}", f"FAKE_GPU_FOLDER={fake}"] if fake else []
        self.process = subprocess.Popen([*prefix, "setpriv", "--pdeathsig=KILL", "env", *driver, str(ENGINE)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.rest = b""
        if agent:
            self.ask("connect", agent.socket)

    def tell(self, *words):
        self.process.stdin.write((" ".join(map(str, words)) + "\n").encode())
        self.process.stdin.flush()

    def hear(self, limit=LIMIT):
        while b"\n" not in self.rest:
            if not select.select([self.process.stdout], [], [], limit)[0]:
                raise AssertionError(f"an engine has not answered in {limit} s")
            more = os.read(self.process.stdout.fileno(), 1 << 16)
            if not more:
                raise AssertionError(f"an engine ended with {self.process.wait()}")
            self.rest += more
        line, self.rest = self.rest.split(b"\n", 1)
        answer = json.loads(line)
        if "error" in answer:
            raise EngineError(answer["error"], answer["code"])
        return answer

    def ask(self, *words, limit=LIMIT):
        self.tell(*words)
        return self.hear(limit)

    def alloc(self, kind, size, device=0):
        return self.ask("alloc", kind, size, device)["memory"]

    def region(self, *extents):
        """Of (memory, offset, length)."""
        return self.ask("region", *(":".join(map(str, e)) for e in extents))["region"]

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def kill(self):
        """Sends SIGKILL; returns the time of death in CLOCK_MONOTONIC."""
        pidfd = os.pidfd_open(self.process.pid)
        self.process.kill()
        harness.wait_exit(pidfd)
        died = time.monotonic_ns()
        os.close(pidfd)
        self.process.wait()
        return died


class Side:
    """A region of an engine in memory of one kind."""

    def __init__(self, engine, kind, size, device=0):
        self.engine, self.size, self.memory = engine, size, None
        if kind == "pool":
            self.region = engine.ask("pool", size)["region"]
        else:
            self.memory = engine.alloc(kind, size, device)
            self.region = engine.region((self.memory, 0, size))

    def export(self):
        return self.engine.ask("export", self.region)["token"]

    def reach(self, other):
        """(remote, transport)"""
        answer = self.engine.ask("import", other.export())
        return answer["remote"], answer["transport"]

    def close(self):
        self.engine.ask("remove", self.region)
        if self.memory is not None:
            self.engine.ask("free", self.memory)


class Suite:
    """One run: the machine's GPUs, agents and engines, and the results of the cases."""

    def __init__(self, fake=False, only=()):
        self.fake, self.only = fake, [word.lower() for word in only]
        self.lab = harness.Lab(alone=True)
        self.engines, self.lists = [], {}
        self.counts = {"ok": 0, "not ok": 0, "skip": 0}
        self.seed = random.Random(1).getrandbits(32)
        self.gpus = []
        self.agents = []

    def look(self):
        """Finds the GPUs; returns the reason if there are none, otherwise ''."""
        for path in (ENGINE, *((FAKE, SIMULATED) if self.fake else ())):
            if not path.exists():
                return f"{path} is not built"
        engine = Engine(fake=self.fake and self.lab.tmp)
        try:
            self.gpus = engine.ask("devices")["devices"]
        except EngineError as e:
            return str(e)
        finally:
            engine.close()
        return ""

    # --- cases ---

    def wanted(self, name):
        return not self.only or any(word in name.lower() for word in self.only)

    @contextlib.contextmanager
    def case(self, name):
        """A case, with a line in the report. A failure is reported, and the next case runs."""
        began = time.monotonic()
        try:
            yield
        except Skip as e:
            self.tell("skip", name, str(e))
        except Exception as e:  # any exception is a failure of this case
            self.tell("not ok", name, f"{time.monotonic() - began:.1f} s")
            text = str(e) if isinstance(e, (EngineError, AssertionError)) else traceback.format_exc()
            self.say(text)
            for agent in self.agents:
                self.say(f"log of {agent.name}:\n{agent.new_text()[-3000:]}")
        else:
            self.tell("ok", name, f"{time.monotonic() - began:.1f} s")

    def tell(self, result, name, note):
        self.counts[result] += 1
        number = sum(self.counts.values())
        how = f"ok {number} - {name} # SKIP {note}" if result == "skip" else f"{result} {number} - {name} ({note})"
        print(how, flush=True)

    def say(self, text):
        for line in text.splitlines():
            print(f"# {line}", flush=True)

    # --- agents and engines ---

    def agent(self, name="agent", wrap=(), env=None, key=None, **settings):
        defaults = {"agent.workers": 1, "log.level": "info"}
        if self.fake:
            defaults["gpu.plugin"] = FAKE
        defaults.update(word.split("=", 1) for word in os.environ.get("DRAY_BENCH_GPU_SETTINGS", "").split())
        agent = self.lab.agent(name, settings={**defaults, **settings}, wrap=wrap, env=env, key=key or self.lab.key)
        self.agents.append(agent)
        return agent.start()

    def drop(self, agent):
        """Stops an agent, which must exit with status 0 and a clean log."""
        self.agents.remove(agent)
        agent.stop()

    def engine(self, agent=None, prefix=()):
        engine = Engine(agent, prefix, self.fake and self.lab.tmp)
        self.engines.append(engine)
        return engine

    def close_engines(self):
        for engine in self.engines:
            engine.close()
        self.engines.clear()

    def clear(self):
        """Ends the agents and engines that a part has left."""
        for engine in self.engines:
            engine.process.kill()
        self.close_engines()
        for agent in self.agents:
            agent.kill()
        self.agents.clear()

    def close(self):
        self.close_engines()
        for agent in list(self.agents):
            with self.case(f"{agent.name} ends well"):
                self.drop(agent)
        self.lab.close()

    def device(self, n):
        """Returns the number of the n-th usable GPU; raises Skip if there are fewer."""
        if n >= len(self.gpus):
            raise Skip(f"there are {len(self.gpus)} GPUs")
        return n

    # --- operations ---

    def ops(self, ops):
        """Writes a list of operations to a file; returns its path."""
        data = array("Q", [word for op in ops for word in op]).tobytes()
        if data not in self.lists:
            path = self.lab.tmp / f"ops{len(self.lists)}"
            path.write_bytes(data)
            self.lists[data] = path
        return self.lists[data]

    def new_seed(self):
        self.seed += 1
        return self.seed

    def move(self, here, there, remote, direction, ops, *, batch=4096, depth=4, latency=False, transport=None):
        """Fills both sides, runs the operations, and checks every byte of both. Returns the engine's answer."""
        seeds = {side: self.new_seed() for side in (here, there)}
        source, target = (here, there) if direction == "write" else (there, here)
        for side in (here, there):
            side.engine.tell("fill", side.region, seeds[side])
            if here.engine is there.engine:
                side.engine.hear()
        if here.engine is not there.engine:
            here.engine.hear()
            there.engine.hear()
        path = self.ops(ops)
        ran = here.engine.ask("run", here.region, remote, direction, path, len(ops), batch, depth,
                              *(["latency"] if latency else []))
        if transport:
            assert ran["transport"] == transport, f"the transport was {ran['transport']} instead of {transport}"
        target.engine.ask("check", target.region, seeds[target], seeds[source], path, "here" if target is here else "there")
        return ran


def in_a_row(ops, side):
    """The same pieces, but one after another on one side (0: here, 1: there) in the order of the list."""
    return [(i * op[2], op[1], op[2]) if side == 0 else (op[0], i * op[2], op[2]) for i, op in enumerate(ops)]


def scattered(size, total, seed=1):
    """Operations between all pieces of `size` bytes of two memories of `total` bytes, in random order."""
    rng = random.Random(seed)
    here, there = list(range(total // size)), list(range(total // size))
    rng.shuffle(here)
    rng.shuffle(there)
    return [(a * size, b * size, size) for a, b in zip(here, there)]
