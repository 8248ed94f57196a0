# SPDX-License-Identifier: Apache-2.0
"""What happens to a request when something dies, stops or expires: by the engine's policy it is recomputed or fails.

The tests share their engines; the last ones kill them. At the end each mode prints a table: what failed, how the load ended,
and how long that and the answer took for each policy. What lies between the two is D's computing if it recomputes.
"""

import os
import queue
import re
import signal
import time

import pytest
from harness import LIMIT, Lab, until
from rig import Engine, blocks_free, nothing_left, prefill, prompts, push, push_params, sure, transfers

DEADLINE = 12.0
LEASE = 4.0
LENGTH = 128  # few, so that a slow machine computes them well before the deadline
CHUNK = 64  # tokens that P computes in a step
pytestmark = pytest.mark.long


class Rig:
    """P, and a D for each policy, with an agent for P and one for both D."""

    def __init__(self, lab, mode):
        self.mode, self.rows = mode, []
        self.since, self.before = 0.0, 0  # when the request was sent or the failure began, and how many loads of D had failed then
        self.agent_p, self.agent_d = (lab.agent(f"agent-{name}-{mode}", host, key=lab.key, listen=(host.v4,)).start()
                                      for name, host in zip("pd", lab.hosts))
        self.folder, self.options = lab.tmp, {"deadline": DEADLINE, "lease": LEASE, "mode": mode}
        self.start_p()
        self.d = {policy: Engine(lab.tmp, f"{policy}-{mode}", self.agent_d.socket, policy=policy, options=self.options)
                  for policy in ("recompute", "fail")}
        self.seed = 100

    def start_p(self):
        self.p = Engine(self.folder, f"p-{self.mode}", self.agent_p.socket, options=self.options, max_num_batched_tokens=CHUNK)

    @property
    def engines(self):
        return [self.p, *self.d.values()]

    def offered(self):
        """A prompt, its tokens at P alone, and P's parameters for D."""
        prompt, reference = self.clear(self.p, LENGTH)
        return prompt, reference, prefill(self.p, prompt)["params"]

    def ask(self, policy, prompt, params):
        """The queue of D's answer to a request."""
        self.since, self.before = time.monotonic(), len(self.reasons(policy))
        return self.d[policy].start(prompt, 1, params)

    def loaded(self, policy):
        """True if a request from P to D is served, and its blocks were loaded."""
        prompt, reference, params = self.offered()
        before = self.d[policy].metrics().get("vllm:dray_loaded_tokens", 0)
        answer = self.d[policy].run(prompt, 1, params)
        if self.d[policy].metrics().get("vllm:dray_loaded_tokens", 0) - before != LENGTH:
            return False
        assert answer["tokens"] == reference["tokens"]
        return True

    def clear(self, engine, length):
        """A prompt whose first token is not a matter of rounding, which depends on the chunks, with the answer of this engine alone."""
        while True:
            prompt = self.prompt(length)
            reference = engine.run(prompt, 1, logprobs=2)
            if sure(reference):
                return prompt, reference

    def prompt(self, length=LENGTH):
        self.seed += 1
        return prompts(1, length, seed=self.seed)[0]

    def writing(self, policy):
        """A prompt that P is writing to D while it computes the rest: its answer at the other D, and the queues of both answers."""
        other = next((d for name, d in self.d.items() if name != policy), self.p)
        prompt, reference = self.clear(other, 24 * CHUNK)
        before = transfers(self.agent_p)
        self.before = len(self.reasons(policy))
        waits = push(self.p, self.d[policy], self.agent_p, prompt, 1)
        until(lambda: transfers(self.agent_p) > before, "the first chunk")
        self.since = time.monotonic()
        return reference, *waits

    def loading(self, policy):
        """A prompt whose blocks D has begun to read: its tokens, and the queue of D's answer."""
        other = next(d for name, d in self.d.items() if name != policy)  # which computes the prompt in the same chunks as D
        prompt, reference = self.clear(other, 16 * CHUNK)
        waits = self.ask(policy, prompt, prefill(self.p, prompt)["params"])
        until(lambda: not waits.empty() or self.agent_d.ctl("status", "--json")["counters"]["dray_transfers_in_flight"], "the load")
        self.since = time.monotonic()
        return reference, waits

    def reasons(self, policy):
        """Why loads of D have failed, in order."""
        return re.findall(r"blocks were not loaded: (\w+)", self.d[policy].log.read_text(errors="replace"))

    def ends(self, policy, waits, reference):
        """Waits for D's answer. waits: its queue."""
        failed = None
        while True:
            try:
                answer = waits.get(timeout=0.02)
            except queue.Empty:
                answer = None
            reasons = self.reasons(policy)
            if failed is None and len(reasons) > self.before:
                failed = time.monotonic() - self.since
            if answer is not None:
                break
            assert time.monotonic() - self.since < 4 * LIMIT, self.d[policy].tail()
        seconds = time.monotonic() - self.since
        self.rows.append((os.environ["PYTEST_CURRENT_TEST"].partition("::")[2].partition("[")[0], policy, reasons[-1] if failed else "-",
                          "recomputed" if answer.get("tokens") and answer.get("reason") != "error" else "error", failed, seconds))
        if policy == "recompute":
            assert answer["tokens"] == reference["tokens"], self.d[policy].tail()
        else:
            assert answer.get("reason") == "error" or "error" in answer, answer

    def recovers(self, policy):
        """Requests are served again, and nothing is left of those before."""
        until(lambda: self.loaded(policy), "requests from P to D", 4 * LIMIT)
        for engine in self.engines:
            blocks_free(engine)
        nothing_left(self.agent_p, self.agent_d)


@pytest.fixture(scope="module")
def lab():
    """Two hosts, if namespaces are allowed, with an agent each. The engines are on this machine: they use Unix sockets."""
    made = Lab()
    yield made
    made.close("DRAY_KEEP" in os.environ)


@pytest.fixture(scope="module", params=["pull", "push"])
def rig(lab, request):
    made = Rig(lab, request.param)
    try:
        for engine in made.engines:
            engine.ready()
        for policy in made.d:
            made.recovers(policy)  # what happens at the first request of an engine takes time
        yield made
        for name, policy, reason, how, failed, seconds in made.rows:
            print(f"| {made.mode} | {name} | {policy} | {reason} | {'' if failed is None else f'{failed:.1f} s'} | {how} | {seconds:.1f} s |")
    finally:
        for engine in made.engines:
            engine.stop()
        made.agent_p.kill()
        made.agent_d.kill()


POLICIES = pytest.mark.parametrize("policy", ["recompute", "fail"])


@POLICIES
def test_expired(rig, policy):
    prompt, reference, params = rig.offered()
    blocks_free(rig.p)  # by expiry, because nobody asks for them
    rig.ends(policy, rig.ask(policy, prompt, params), reference)
    rig.recovers(policy)


@POLICIES
def test_another_layout(rig, policy):
    if rig.mode == "push":
        pytest.skip("D announces its own layout: tests/engine/test_push_steps.py")
    prompt, reference, params = rig.offered()
    params["dray"]["layout"]["model"]["dtype"] = "float16"
    rig.ends(policy, rig.ask(policy, prompt, params), reference)
    assert "dtype: bfloat16 here, float16 at the other engine" in rig.d[policy].tail()
    rig.recovers(policy)


@POLICIES
def test_parameters_of_another_connector(rig, policy):
    prompt, reference, _ = rig.offered()
    rig.ends(policy, rig.ask(policy, prompt, {"do_remote_prefill": True, "remote_block_ids": [[1]]}), reference)
    assert {"pull": "have no key 'dray'", "push": "do not say where blocks are announced"}[rig.mode] in rig.d[policy].tail()


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
        rig.ends(policy, rig.ask(policy, prompt, params), reference)
    finally:
        rig.agent_d.start()
    rig.recovers(policy)


@POLICIES
def test_agent_of_p_is_stopped(rig, policy):
    prompt, reference, params = rig.offered()
    rig.agent_p.signal(signal.SIGSTOP)
    try:
        rig.ends(policy, rig.ask(policy, prompt, params), reference)
    finally:
        rig.agent_p.signal(signal.SIGCONT)
    rig.recovers(policy)


@POLICIES
def test_agent_of_p_is_killed(rig, policy):
    prompt, reference, params = rig.offered()
    rig.agent_p.kill()
    try:
        rig.ends(policy, rig.ask(policy, prompt, params), reference)
        blocks_free(rig.p)  # although its agent is away
    finally:
        rig.agent_p.start()
    rig.recovers(policy)


@pytest.fixture
def pulling(rig):
    if rig.mode != "pull":
        pytest.skip("D reads in mode 'pull'")
    return rig


@POLICIES
def test_agent_of_p_is_drained(pulling, policy):
    rig = pulling
    prompt, reference, params = rig.offered()
    rig.agent_p.ctl("drain", "--timeout", "1s")
    try:
        rig.ends(policy, rig.ask(policy, prompt, params), reference)
        blocks_free(rig.p)
    finally:
        rig.agent_p.restart()
    rig.recovers(policy)


@POLICIES
def test_network_is_cut(lab, pulling, policy):
    lab.need_namespaces()
    rig = pulling
    prompt, reference, params = rig.offered()
    lab.hosts[1].link(False)
    try:
        rig.ends(policy, rig.ask(policy, prompt, params), reference)
    finally:
        lab.hosts[1].link(True)
    rig.recovers(policy)


def while_d_loads(rig, policy, fail, mend):
    """fail() happens to a load in flight. mend() is called if the load was faster, and then another one is tried."""
    while True:
        reference, waits = rig.loading(policy)
        fail()
        until(lambda: not waits.empty() or len(rig.reasons(policy)) > rig.before, "the end of the load")
        if len(rig.reasons(policy)) > rig.before:
            break
        mend()
        until(lambda: rig.loaded(policy), "requests from P to D", 4 * LIMIT)
    rig.ends(policy, waits, reference)


@POLICIES
def test_agent_of_p_is_killed_while_d_loads(pulling, policy):
    rig = pulling
    try:
        while_d_loads(rig, policy, rig.agent_p.kill, rig.agent_p.start)
        blocks_free(rig.p)
    finally:
        if not rig.agent_p.running:
            rig.agent_p.start()
    rig.recovers(policy)


@POLICIES
def test_agent_of_p_is_stopped_while_d_loads(pulling, policy):
    rig = pulling

    def go_on():
        rig.agent_p.signal(signal.SIGCONT)

    try:
        while_d_loads(rig, policy, lambda: rig.agent_p.signal(signal.SIGSTOP), go_on)
    finally:
        go_on()
    rig.recovers(policy)


@POLICIES
def test_agent_of_d_is_killed_while_it_loads(pulling, policy):
    rig = pulling
    try:
        while_d_loads(rig, policy, rig.agent_d.kill, rig.agent_d.start)
        for engine in rig.engines:
            blocks_free(engine)
    finally:
        if not rig.agent_d.running:
            rig.agent_d.start()
    rig.recovers(policy)


@POLICIES
def test_network_is_cut_while_d_loads(lab, pulling, policy):
    lab.need_namespaces()
    rig, link = pulling, lab.hosts[1].link
    try:
        while_d_loads(rig, policy, lambda: link(False), lambda: link(True))
    finally:
        link(True)
    rig.recovers(policy)


@POLICIES
def test_p_and_its_agent_are_killed_while_d_loads(pulling, policy):
    rig = pulling

    def kill():
        rig.p.kill()
        rig.agent_p.kill()

    def start():
        rig.agent_p.start()
        rig.start_p()
        rig.p.ready()

    try:
        while_d_loads(rig, policy, kill, start)
        blocks_free(rig.d[policy])
        nothing_left(rig.agent_d)
    finally:
        if not rig.agent_p.running:
            start()
    rig.recovers(policy)


# --- while P writes -------------------------------------------------------------------------------

@pytest.fixture
def pushing(rig):
    if rig.mode != "push":
        pytest.skip("P writes in mode 'push'")
    return rig


@POLICIES
def test_used_transfer_id(pushing, policy):
    rig = pushing
    for_p, for_d = push_params(rig.p, rig.agent_p)
    prompt, other = rig.prompt(), rig.prompt()
    first = next(d for name, d in rig.d.items() if name != policy)
    waits = first.start(prompt, 1, for_d)
    reference = rig.p.run(prompt, 1, for_p)
    assert waits.get(timeout=4 * LIMIT)["tokens"] == reference["tokens"]
    assert rig.p.run(other, 1, for_p)["params"] is None
    waits = rig.ask(policy, other, for_d)
    # an engine without requests does not read its letters
    until(lambda: rig.p.run(other, 1) and "its transfer_id has been used" in rig.d[policy].tail(), "the refusal")
    rig.ends(policy, waits, rig.p.run(other, 1))
    rig.recovers(policy)


@POLICIES
def test_unknown_transfer_id(pushing, policy):
    rig, prompt = pushing, pushing.prompt()
    _, for_d = push_params(rig.p, rig.agent_p)
    reference = rig.p.run(prompt, 1)
    rig.ends(policy, rig.ask(policy, prompt, for_d), reference)
    assert f"has not written the blocks within {DEADLINE:g} s" in rig.d[policy].tail()
    rig.recovers(policy)


@POLICIES
def test_transfer_id_that_can_be_guessed(pushing, policy):
    rig, prompt = pushing, pushing.prompt()
    for_p, _ = push_params(rig.p, rig.agent_p, "1")
    assert rig.p.run(prompt, 1, for_p)["params"] is None
    assert "others could guess it" in rig.p.tail()


@POLICIES
def test_no_such_engine(pushing, policy):
    rig, prompt = pushing, pushing.prompt()
    _, for_d = push_params(rig.p, rig.agent_p)
    reference = rig.p.run(prompt, 1)
    rig.ends(policy, rig.ask(policy, prompt, {**for_d, "remote_engine_id": "another one"}), reference)
    assert "has had no mailbox of engine 'another one'" in rig.d[policy].tail()


@POLICIES
def test_aborted_at_p_while_it_writes(pushing, policy):
    rig = pushing
    reference, p_answers, d_answers = rig.writing(policy)
    rig.p.send(abort=p_answers.name)
    p_answers.get(timeout=LIMIT)
    rig.ends(policy, d_answers, reference)
    assert "the request has ended before its prompt was computed" in rig.d[policy].tail()
    rig.recovers(policy)


@POLICIES
def test_aborted_at_d_while_p_writes(pushing, policy):
    rig = pushing
    _, p_answers, d_answers = rig.writing(policy)
    rig.d[policy].send(abort=d_answers.name)
    d_answers.get(timeout=LIMIT)
    assert p_answers.get(timeout=4 * LIMIT)["tokens"]
    rig.recovers(policy)


@POLICIES
def test_agent_of_p_is_killed_while_it_writes(pushing, policy):
    rig = pushing
    reference, p_answers, d_answers = rig.writing(policy)
    rig.agent_p.kill()
    try:
        rig.ends(policy, d_answers, reference)
        p_answers.get(timeout=4 * LIMIT)
        blocks_free(rig.p)
    finally:
        rig.agent_p.start()
    rig.recovers(policy)


@POLICIES
def test_agent_of_d_is_killed_while_p_writes(pushing, policy):
    rig = pushing
    reference, p_answers, d_answers = rig.writing(policy)
    rig.agent_d.kill()
    try:
        rig.ends(policy, d_answers, reference)
        p_answers.get(timeout=4 * LIMIT)
        for engine in rig.engines:
            blocks_free(engine)
    finally:
        rig.agent_d.start()
    rig.recovers(policy)


@POLICIES
def test_agent_of_d_is_stopped_while_p_writes(pushing, policy):
    rig = pushing
    reference, p_answers, d_answers = rig.writing(policy)
    rig.agent_d.signal(signal.SIGSTOP)
    try:
        rig.ends(policy, d_answers, reference)
        p_answers.get(timeout=4 * LIMIT)
    finally:
        rig.agent_d.signal(signal.SIGCONT)
    rig.recovers(policy)


@POLICIES
def test_agent_of_p_is_drained_while_it_writes(pushing, policy):
    rig = pushing
    reference, p_answers, d_answers = rig.writing(policy)
    rig.agent_p.ctl("drain", "--timeout", "1s")
    try:
        rig.ends(policy, d_answers, reference)
        p_answers.get(timeout=4 * LIMIT)
    finally:
        rig.agent_p.restart()
    rig.recovers(policy)


def test_d_is_killed_while_p_writes(pushing):
    rig = pushing
    _, p_answers, d_answers = rig.writing("fail")
    rig.d.pop("fail").kill()
    assert p_answers.get(timeout=4 * LIMIT)["tokens"]
    rig.recovers("recompute")


def test_p_is_killed_while_it_writes(pushing):
    rig = pushing
    reference, _, d_answers = rig.writing("recompute")
    rig.p.kill()
    rig.ends("recompute", d_answers, reference)
    blocks_free(rig.d["recompute"])
    nothing_left(rig.agent_d)


def test_p_is_killed(rig):
    if rig.p.process.poll() is not None:
        pytest.skip("P was killed while it wrote")
    offers = [rig.offered() for _ in rig.d for _ in range(2)]
    rig.p.kill()
    until(lambda: not rig.agent_p.ctl("sessions", "--json")["sessions"], "the end of P's sessions")
    for policy, (prompt, reference, params) in zip(rig.d, offers):
        rig.ends(policy, rig.ask(policy, prompt, params), reference)
    rig.agent_p.kill()
    for policy, (prompt, reference, params) in zip(rig.d, offers[len(rig.d):]):
        rig.ends(policy, rig.ask(policy, prompt, params), reference)
    for engine in rig.d.values():
        blocks_free(engine)
    nothing_left(rig.agent_d)
