# SPDX-License-Identifier: Apache-2.0
"""Encoder, prefill and decode at engines of their own, under load: E + PD, and E + P + D with both connectors in one deployment.

The driver sends a request through the engines as the routers of examples/vllm-epd and examples/vllm-pd do.
"""

import random
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import rig
import vision
from harness import LIMIT, until
from rig import PREFILL, nothing_left
from vision_engine import VisionEngine

pytestmark = pytest.mark.long
REQUESTS = 100
AT_ONCE = (4, 16)
SIZES = [(112, 112), (448, 56), (224, 168), (448, 448)]
LOADED = "vllm:dray_loaded_tokens"
CLEAR = 0.5  # as in test_ec_engines.py
WAIT = 8 * LIMIT  # for an answer, behind 15 other requests beside other work


def requests(seed):
    """[(prompt, images)], some with two images, and some with an image that was there before."""
    chance = random.Random(seed)
    found = []
    for number in range(REQUESTS):
        count = 1 + (number % 5 == 4)
        images = [[*chance.choice(SIZES), seed * 1000 + number * 2 + i] for i in range(count)]
        if number % 5 == 3:
            images = [chance.choice(found)[1][0]]
        found.append((vision.prompt(chance, len(images)), images))
    return found


LOADS = {at_once: requests(at_once) for at_once in AT_ONCE}


def engine(lab, name, ec=None, kv=None, **more):
    """ec: (connector, role, its options); kv: (role, its options)."""
    if ec:
        connector, role, options = ec
        more["ec_transfer_config"] = {"ec_connector": connector, "ec_role": role, "engine_id": name, "ec_buffer_size": 64 << 20,
                                      "ec_connector_extra_config": options}
        if connector.startswith("Dray"):
            more["ec_transfer_config"]["ec_connector_module_path"] = "dray.vllm"
    if kv:
        role, options = kv
        more["connector"] = {"kv_connector": "DrayConnector", "kv_connector_module_path": "dray.vllm", "kv_role": role, "engine_id": name,
                             "kv_load_failure_policy": "fail", "kv_connector_extra_config": options}
    return VisionEngine(lab.tmp, name, max_num_seqs=16, **more)


def at_once(count, function, items):
    """function() of each item, so many at a time, in the order of the items."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(function, items))


@pytest.fixture(scope="module")
def shared(lab):
    """What all transports have in common: two agents, E, E with files, D, and the answers of a single engine by load."""
    agents = [lab.agent(f"agent-epd-{n}", key=lab.key).start() for n in range(2)]
    near, far = ({"socket": str(agent.socket)} for agent in agents)
    folder = lab.tmp / "outputs"
    folder.mkdir()
    files = {"shared_storage_path": str(folder)}
    made = SimpleNamespace(
        agents=agents, near=near, far=far, files=files, e=engine(lab, "e", ("DrayECConnector", "ec_producer", near)),
        e_file=engine(lab, "e-file", ("ECExampleConnector", "ec_producer", files)),
        d=engine(lab, "d", kv=("kv_consumer", near), enable_prefix_caching=False))  # so that D loads all tokens of each request
    one = engine(lab, "one")
    engines = made.e, made.e_file, made.d, one
    try:
        for each in engines:
            each.ready()

        def ask(asked):
            prompt, images = asked
            return good(one.run(prompt, rig.TOKENS, images=images, logprobs=2, limit=WAIT), one)

        made.references = {load: at_once(4, ask, asked) for load, asked in LOADS.items()}
        one.stop()
        yield made
    finally:
        for each in engines:
            each.stop()
        for agent in agents:
            agent.stop()


@pytest.fixture(scope="module", params=["tcp", "local", "file"])
def deployment(lab, shared, request):
    """The engines of one transport. PD and P have another agent than E and D, unless outputs and blocks go through shared memory."""
    how = request.param
    here = shared.near if how == "local" else shared.far
    user = ("ECExampleConnector", "ec_consumer", shared.files) if how == "file" else ("DrayECConnector", "ec_consumer", {**here, "transport": how})
    made = SimpleNamespace(how=how, e=shared.e_file if how == "file" else shared.e, d=shared.d, references=shared.references,
                           agents=shared.agents, pd=engine(lab, f"pd-{how}", user), p=engine(lab, f"p-{how}", user, ("kv_producer", here)))
    try:
        made.pd.ready()
        made.p.ready()
        yield made
    finally:
        made.pd.stop()
        made.p.stop()


def good(answer, one):
    assert "error" not in answer and answer["reason"] != "error", (answer, one.tail())
    return answer


def encode(made, prompt, images):
    """ec_transfer_params for the next engine. The file connector needs none: it finds the files by their names."""
    offer = good(made.e.run(prompt, 1, images=images, limit=WAIT), made.e)["ec"]
    assert bool(offer and offer.get("dray")) == (made.how != "file"), offer
    return offer if made.how != "file" else None


def through_pd(made, asked):
    prompt, images = asked
    return good(made.pd.run(prompt, rig.TOKENS, ec=encode(made, prompt, images), images=images, logprobs=2, limit=WAIT), made.pd)


def through_p_and_d(made, asked):
    prompt, images = asked
    offer = encode(made, prompt, images)

    def prefill():
        """P offers no blocks if its step was shorter than the answer of its agent. It has the blocks when it is asked again."""
        return good(made.p.run(prompt, 1, PREFILL, ec=offer, images=images, limit=WAIT), made.p)["params"]

    params = until(prefill, "the blocks of P", WAIT)
    return good(made.d.run(prompt, rig.TOKENS, params, images=images, logprobs=2, limit=WAIT), made.d)


def tokens(load):
    """Of all prompts of a load, with those that stand for images."""
    return sum(len(prompt) + sum(width * height // 28**2 - 1 for width, height, _ in images) for prompt, images in LOADS[load])


@pytest.mark.parametrize("load", AT_ONCE)
@pytest.mark.parametrize("route", [through_pd, through_p_and_d], ids=["e-pd", "e-p-d"])
def test_images_under_load(deployment, route, load):
    """No request fails, no engine but E encodes, tokens are those of a single engine, and nothing is left."""
    made = deployment
    loaded = made.d.metrics(LOADED).get(LOADED, 0)
    answers = at_once(load, lambda asked: route(made, asked), LOADS[load])
    sure = 0
    for reference, answer in zip(made.references[load], answers, strict=True):
        rig.same_tokens(reference, answer, CLEAR)
        sure += rig.sure(reference, CLEAR) > 0
    assert sure > REQUESTS // 10, "hardly a token was compared"
    assert made.e.encoded and not made.pd.encoded and not made.p.encoded and not made.d.encoded
    if route is through_p_and_d:
        until(lambda: made.d.metrics(LOADED).get(LOADED, 0) == loaded + tokens(load), "D has loaded all tokens")
    nothing_left(*made.agents, pools=1)
