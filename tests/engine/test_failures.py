# SPDX-License-Identifier: Apache-2.0
"""What happens to a request when something dies, stops or expires: by the engine's policy it is recomputed or fails.

The tests share their engines; the last one kills P.
"""

import os
import signal

import pytest
from harness import LIMIT, until
from rig import Engine, nothing_left, prefill, prompts

TOKENS = 3
DEADLINE = 5.0
LEASE = 4.0
LENGTH = 512


class Rig:
    def __init__(self, lab):
        self.agent_p, self.agent_d = (lab.agent(name, key=lab.key).start() for name in ("agent-p", "agent-d"))
        options = {"deadline": DEADLINE, "lease": LEASE}
        self.p = Engine(lab.tmp, "p", self.agent_p.socket, options=options)
        self.d = {policy: Engine(lab.tmp, policy, self.agent_d.socket, policy=policy, options=options)
                  for policy in ("recompute", "fail")}
        self.seed = 100

    @property
    def engines(self):
        return [self.p, *self.d.values()]

    def offered(self):
        """A prompt, its tokens at P alone, and P's parameters for D."""
        self.seed += 1
        prompt, = prompts(1, LENGTH, seed=self.seed)
        reference = self.p.run(prompt, 1)
        return prompt, reference, prefill(self.p, prompt)["params"]

    def loaded(self, policy):
        """True if a request from P to D is served, and its blocks were loaded."""
        prompt, reference, params = self.offered()
        before = self.d[policy].metrics().get("vllm:dray_loaded_tokens", 0)
        answer = self.d[policy].run(prompt, 1, params)
        if self.d[policy].metrics().get("vllm:dray_loaded_tokens", 0) - before != LENGTH:
            return False
        assert answer["tokens"] == reference["tokens"]
        return True

    def ends(self, policy, answer, reference):
        if policy == "recompute":
            assert answer["tokens"] == reference["tokens"], self.d[policy].tail()
        else:
            assert answer.get("reason") == "error" or "error" in answer, answer

    def recovers(self, policy):
        """Requests are served again, and nothing is left of those before."""
        until(lambda: self.loaded(policy), "requests from P to D", 4 * LIMIT)
        for engine in self.engines:
            self.blocks_free(engine)
        nothing_left(self.agent_p, self.agent_d)

    def blocks_free(self, engine):
        """The engine counts its blocks when it has ended a request, so that it gets one each time."""
        until(lambda: engine.run(prompts(1, 40)[0], 1) and not engine.metrics().get("vllm:kv_cache_usage_perc"),
              f"the blocks of {engine.name}", 2 * LIMIT)


@pytest.fixture(scope="module")
def rig(lab):
    made = Rig(lab)
    try:
        for engine in made.engines:
            engine.ready()
        for policy in made.d:
            made.recovers(policy)  # what happens at the first request of an engine takes time
        yield made
    finally:
        for engine in made.engines:
            engine.stop()


POLICIES = pytest.mark.parametrize("policy", ["recompute", "fail"])


@POLICIES
def test_expired(rig, policy):
    prompt, reference, params = rig.offered()
    rig.blocks_free(rig.p)  # by expiry, because nobody asks for them
    rig.ends(policy, rig.d[policy].run(prompt, 1, params), reference)
    rig.recovers(policy)


@POLICIES
def test_another_layout(rig, policy):
    prompt, reference, params = rig.offered()
    params["dray"]["layout"]["model"]["dtype"] = "float16"
    rig.ends(policy, rig.d[policy].run(prompt, 1, params), reference)
    assert "dtype: bfloat16 here, float16 at the other engine" in rig.d[policy].tail()
    rig.recovers(policy)


@POLICIES
def test_parameters_of_another_connector(rig, policy):
    prompt, reference, _ = rig.offered()
    answer = rig.d[policy].run(prompt, 1, {"do_remote_prefill": True, "remote_block_ids": [[1]]})
    rig.ends(policy, answer, reference)
    assert "have no key 'dray'" in rig.d[policy].tail()


@POLICIES
def test_aborted_at_d(rig, policy):
    prompt, _, params = rig.offered()
    request = rig.d[policy].start(prompt, 1000, params)
    rig.d[policy].send(abort=request.name)
    request.get(timeout=LIMIT)
    rig.recovers(policy)


@POLICIES
def test_agent_of_d_is_restarted(rig, policy):
    prompt, reference, params = rig.offered()
    rig.agent_d.kill()
    try:
        rig.ends(policy, rig.d[policy].run(prompt, 1, params), reference)
    finally:
        rig.agent_d.start()
    rig.recovers(policy)


@POLICIES
def test_agent_of_p_is_stopped(rig, policy):
    prompt, reference, params = rig.offered()
    rig.agent_p.signal(signal.SIGSTOP)
    try:
        rig.ends(policy, rig.d[policy].run(prompt, 1, params), reference)
    finally:
        rig.agent_p.signal(signal.SIGCONT)
    rig.recovers(policy)


@POLICIES
def test_agent_of_p_is_killed(rig, policy):
    prompt, reference, params = rig.offered()
    rig.agent_p.kill()
    try:
        rig.ends(policy, rig.d[policy].run(prompt, 1, params), reference)
        rig.blocks_free(rig.p)  # although its agent is away
    finally:
        rig.agent_p.start()
    rig.recovers(policy)


def test_p_is_killed(rig):
    offers = [rig.offered() for _ in rig.d]
    os.killpg(rig.p.process.pid, signal.SIGKILL)
    for policy, (prompt, reference, params) in zip(rig.d, offers):
        rig.ends(policy, rig.d[policy].run(prompt, 1, params), reference)
    for engine in rig.d.values():
        rig.blocks_free(engine)
    nothing_left(rig.agent_d)
