# SPDX-License-Identifier: Apache-2.0
"""Real engines beside real agents: one process for each, and requests that go through P and then D, as a router sends them."""

import contextlib
import itertools
import json
import os
import pathlib
import queue
import random
import secrets
import signal
import subprocess
import sys
import threading

import model
from harness import LIBRARY, LIMIT, ROOT, until

START_LIMIT = 20 * LIMIT  # seconds until an engine is ready, three of which may start at once beside other work
KV_BYTES = 640 << 20
BLOCK = 32
TOKENS = 6  # that a request generates
# Difference of log probabilities above which the choice of a token is not a matter of rounding. Engines that compute a prompt in other
# chunks, or have a part of it from before, have differed where it was 0.63.
CLEAR = 1.0


def guarded(*program):
    """Arguments of a Python program that leads a process group, whose processes all end with it, and with this process."""
    return [sys.executable, str(pathlib.Path(__file__).with_name("guarded.py")), sys.executable, *program]


def engine_environment():
    """Environment of an engine, whatever this process has."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "DRAY_"))},
        "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "INFO", "DRAY_LIBRARY": str(LIBRARY),
        "PYTHONPATH": str(ROOT / "client/python")}


class Engine:
    """A vLLM engine. socket: of its agent; None: without DrayConnector. role: as in kv_role. variables: of its environment.

    session: it has a session of its own. The kernel may divide the processors between sessions first.
    """

    program = pathlib.Path(__file__).with_name("engine.py")
    numbers = itertools.count()

    def __init__(self, folder, name, socket=None, role="kv_both", options=(), policy="fail", connector=None, variables=(),
                 session=False, **arguments):
        self.name, self.log = name, pathlib.Path(folder) / f"{name}.log"
        self.answers, self.waiting = queue.Queue(), {}
        config = {
            "model": str(model.make(ROOT / "build/engine-model")), "skip_tokenizer_init": True, "dtype": "bfloat16",
            "max_model_len": 4096, "max_num_batched_tokens": 4096, "max_num_seqs": 64, "block_size": BLOCK,
            "kv_cache_memory_bytes": KV_BYTES, "enforce_eager": True, "disable_log_stats": False, "seed": 0, **arguments}
        if connector or socket:
            config["kv_transfer_config"] = connector or {
                "kv_connector": "DrayConnector", "kv_connector_module_path": "dray.vllm", "kv_role": role, "engine_id": name,
                "kv_load_failure_policy": policy, "kv_connector_extra_config": {"socket": str(socket), **dict(options)}}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                guarded(str(self.program), json.dumps(config)), stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=log, env={**engine_environment(), **dict(variables)}, text=True,
                **{"start_new_session": True} if session else {"process_group": 0})
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            answer = json.loads(line)
            waits = self.waiting.pop(answer.get("id"), None) if "id" in answer else None
            (waits or self.answers).put(answer)
        for waits in [self.answers, *self.waiting.values()]:
            waits.put({"error": "the engine has ended"})

    def tail(self, lines=40):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def ready(self):
        answer = self.answers.get(timeout=START_LIMIT)
        assert "ready" in answer, f"{self.name}: {answer}\n{self.tail(80)}"
        return self

    def send(self, **what):
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def start(self, prompt, tokens=1, params=None, **more):
        """Starts a request, and returns its queue with the one answer."""
        name = f"{self.name}-{next(self.numbers)}"
        waits = self.waiting[name] = queue.Queue()
        waits.name = name
        self.send(id=name, prompt=prompt, max_tokens=tokens, params=params, **more)
        return waits

    def run(self, prompt, tokens=1, params=None, limit=4 * LIMIT, **more):
        return self.start(prompt, tokens, params, **more).get(timeout=limit)

    def metrics(self, prefix="vllm:"):
        self.send(metrics=prefix)
        return self.answers.get(timeout=LIMIT)["metrics"]

    @contextlib.contextmanager
    def stopped(self):
        """The engine's processes stand still inside. They would look for work without a pause for a second after an answer."""
        os.killpg(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self.process.pid, signal.SIGCONT)

    def kill(self):
        """Kills the engine with all of its processes."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                pass
        self.kill()


def prompts(count, length, seed=0, shared=0):
    """Random prompts, the first `shared` tokens of which are the same."""
    randoms = random.Random(seed)
    head = [randoms.randrange(3, model.VOCABULARY) for _ in range(shared)]
    return [head + [randoms.randrange(3, model.VOCABULARY) for _ in range(length - shared)] for _ in range(count)]


PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}


def prefill(p, prompt):
    """The answer of P to a request that D is to continue.

    P offers no blocks if its step was shorter than the answer of its agent, which takes long on a machine that builds beside
    the test. Then the request is sent again.
    """
    def offered():
        first = p.run(prompt, 1, PREFILL)
        assert "error" not in first, (first, p.tail())
        return first if first["params"] else None

    return until(offered, f"the blocks of {p.name}")


def push_params(p, agent, transfer_id=None):
    """Parameters for P and for D of a router that starts both. agent: P's."""
    transfer_id = transfer_id or secrets.token_hex(16)
    host, _, port = agent.listen[0].rpartition(":")
    return {**PREFILL, "transfer_id": transfer_id}, {
        "do_remote_prefill": True, "do_remote_decode": False, "transfer_id": transfer_id, "remote_engine_id": p.name,
        "remote_host": host, "remote_port": int(port)}


def push(p, d, agent, prompt, tokens, **more):
    """One request at P and D at once. Returns the queues of both answers."""
    for_p, for_d = push_params(p, agent)
    return p.start(prompt, 1, for_p), d.start(prompt, tokens, for_d, **more)


def route(p, d, prompt, tokens, **more):
    """One request through P and then D. Returns both answers."""
    first = prefill(p, prompt)
    return first, d.run(prompt, tokens, first["params"], **more)


def sure(reference, clear=CLEAR):
    """How many tokens at the beginning are not a matter of rounding."""
    return next((i for i, gap in enumerate(reference["gaps"]) if gap < clear), TOKENS)


def with_references(engine, candidates, count, clear=CLEAR):
    """[(prompt, answer of this engine alone)] of `count` prompts whose first tokens are not a matter of rounding.

    Which prompts these are depends on the processor, so that there should be many candidates. Only as many as needed are tried.
    """
    found = []
    for at in range(0, len(candidates), 2 * count):
        waits = [(prompt, engine.start(prompt, TOKENS, logprobs=2)) for prompt in candidates[at:at + 2 * count]]
        answers = [(prompt, w.get(timeout=LIMIT * 4)) for prompt, w in waits]
        found += [pair for pair in answers if sure(pair[1], clear)]
        if len(found) >= count:
            return found[:count]
    raise AssertionError(f"the first tokens of {len(candidates) - len(found)} in {len(candidates)} prompts are a matter of rounding")


def until_sure(one_round):
    """Calls one_round(seed) with other seeds until a first token of the references that it returns is not a matter of rounding."""
    for seed in range(20):
        if any(map(sure, one_round(seed))):
            return
    raise AssertionError("the first tokens of 20 rounds are a matter of rounding")


def same_tokens(reference, answer, clear=CLEAR):
    """The tokens are equal up to the first one that was a matter of rounding."""
    n = sure(reference, clear)
    assert answer["tokens"][:n] == reference["tokens"][:n], (reference, answer)


def nothing_left(*agents, pools=0):
    """Waits until nothing of any request is left at the agents. pools: of encoders, each of which stays exported to another agent."""
    for agent in agents:
        def left(agent=agent):
            sessions = agent.ctl("sessions", "--json")["sessions"]
            return not any(s["remotes"] > pools or s["tokens"] > pools for s in sessions) and not agent.ctl("leases", "--json")["leases"] and \
                not agent.ctl("status", "--json")["counters"]["dray_transfers_in_flight"]
        until(left, f"nothing left at {agent.name}")


def transfers(agent):
    return agent.ctl("status", "--json")["counters"]["dray_transfers_accepted_total"]


def labels(agent):
    """Of the transfers that ended last."""
    return [t["label"] for t in agent.ctl("transfers", "--recent", "--json")["ended_transfers"]]


def letters(agent):
    return sum(box["delivered"] for box in agent.ctl("mailboxes", "--json")["mailboxes"])


def blocks_free(engine):
    """The engine counts its blocks when it has ended a request, so that it gets one each time."""
    until(lambda: engine.run(prompts(1, 40)[0], 1) and not engine.metrics().get("vllm:kv_cache_usage_perc"),
          f"the blocks of {engine.name}", 2 * LIMIT)
