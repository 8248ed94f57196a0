# SPDX-License-Identifier: Apache-2.0
"""Images encoded by one real engine and used by another: tokens equal those of a single engine, and the other one encodes nothing."""

import random
from functools import partial

import pytest
import rig
import vision
from harness import LIMIT, until
from rig import nothing_left
from vision_engine import VisionEngine

pytestmark = pytest.mark.long
TOKENS = 6
# The outputs of an encoder arrive bit by bit as they were, and PD computes all blocks itself. So engines differ less than
# with blocks of another engine, and with the limit of those tests hardly a token of this model would be compared.
CLEAR = 0.5
sure = partial(rig.sure, clear=CLEAR)
same_tokens = partial(rig.same_tokens, clear=CLEAR)


class Encoding(VisionEngine):
    """role: None for one without a connector."""

    def __init__(self, lab, name, agent=None, role=None, connector="DrayECConnector", **options):
        self.offers = connector == "DrayECConnector"
        ec = {"ec_transfer_config": {
            "ec_connector": connector, "ec_connector_module_path": "dray.vllm", "ec_role": role, "engine_id": name,
            "ec_buffer_size": 16 << 20, "ec_connector_extra_config": {"socket": str(agent.socket), **options}}} if role else {}
        super().__init__(lab.tmp, name, **ec)


@pytest.fixture(scope="module", params=["tcp", "local", "store"])
def engines(lab, request):
    store = request.param == "store"
    settings = {"limits.store_bytes": "256MiB", "limits.store_bytes_per_owner": "256MiB"} if store else {}
    agents = [lab.agent(f"agent-ec-{n}", key=lab.key, settings=settings).start() for n in range(2 if request.param == "tcp" else 1)]
    how = {"connector": "DrayECStoreConnector"} if store else {}
    e = Encoding(lab, "e", agents[0], "ec_producer", **how)
    pd = Encoding(lab, "pd", agents[-1], "ec_consumer", **(how or {"transport": request.param}))
    one = Encoding(lab, "one")
    try:
        yield e.ready(), pd.ready(), one.ready(), agents
    finally:
        for engine in (e, pd, one):
            engine.stop()
        for agent in agents:
            agent.stop()


def ask(seed, sizes):
    """(prompt, images) with text around images of such sizes in pixels."""
    return vision.prompt(random.Random(seed), len(sizes)), [[width, height, seed * 100 + i] for i, (width, height) in enumerate(sizes)]


def encode(e, prompt, images):
    answer = e.run(prompt, 1, images=images)
    assert "error" not in answer and bool(answer.get("ec")) == e.offers, (answer, e.tail())
    return answer["ec"]


def route(e, pd, prompt, images):
    return pd.run(prompt, TOKENS, ec=encode(e, prompt, images), images=images, logprobs=2)


@pytest.mark.parametrize("name, sizes", [("one", [(112, 112)]), ("wide", [(448, 56)]), ("large", [(448, 448)]), ("two", [(84, 140), (280, 168)])])
def test_tokens_of_a_single_engine(engines, name, sizes):
    """Each twice: the second time from caches."""
    e, pd, one, agents = engines
    checked = 0
    before = pd.encoded
    for seed in range(1, 9):
        prompt, images = ask(seed * 10 + len(name), sizes)
        reference = one.run(prompt, TOKENS, images=images, logprobs=2)
        assert "error" not in reference, (reference, one.tail())
        for _ in range(2):
            answer = route(e, pd, prompt, images)
            assert "error" not in answer, (answer, pd.tail())
            same_tokens(reference, answer)
        checked += sure(reference) > 0
    assert checked and pd.encoded == before
    assert not pd.metrics().get("vllm:dray_ec_failures_total", pd.metrics().get("vllm:dray_ec_failures"))
    nothing_left(*agents, pools=1)


def test_tokens_depend_on_the_image(engines):
    """The check of this file would notice the outputs of another image."""
    one = engines[2]
    different = 0
    for seed in range(50, 58):
        prompt, images = ask(seed, [(112, 112)])
        first = one.run(prompt, TOKENS, images=images, logprobs=2)
        other = one.run(prompt, TOKENS, images=[[112, 112, 7777]], logprobs=2)
        n = min(sure(first), sure(other))
        different += first["tokens"][:n] != other["tokens"][:n]
    assert different


def test_eight_at_once(engines):
    e, pd, one, agents = engines
    before = pd.encoded
    asked = [ask(100 + i, [(112, 56 * (1 + i % 4))] * (1 + i % 2)) for i in range(8)]
    references = [one.run(prompt, TOKENS, images=images, logprobs=2) for prompt, images in asked]
    offers = [w.get(timeout=4 * LIMIT)["ec"] for w in [e.start(prompt, 1, images=images) for prompt, images in asked]]
    waits = [pd.start(prompt, TOKENS, ec=offer, images=images, logprobs=2) for (prompt, images), offer in zip(asked, offers)]
    for reference, wait in zip(references, waits):
        same_tokens(reference, wait.get(timeout=4 * LIMIT))
    assert pd.encoded == before
    nothing_left(*agents, pools=1)


def test_a_dead_encoder(engines):
    """The last test of this file for these engines. PD encodes the image itself, unless its output is in a store."""
    e, pd, one, agents = engines
    prompt, images = ask(200, [(112, 112)])
    reference = one.run(prompt, TOKENS, images=images, logprobs=2)
    offer = encode(e, prompt, images)
    e.kill()
    until(lambda: all(s["group"] != "vllm-ec e" for s in agents[0].ctl("sessions", "--json")["sessions"]), "the agent sees that E is dead")
    before = pd.encoded
    same_tokens(reference, pd.run(prompt, TOKENS, ec=offer, images=images, logprobs=2))
    assert len(pd.encoded) == len(before) + e.offers
    until(lambda: pd.run([5, 6, 7], 1).get("reason") == "length", "text at PD")
    nothing_left(*agents, pools=1)
