# SPDX-License-Identifier: Apache-2.0
"""Engines whose layers look at a window: D has all blocks that its first token looks at, wherever the prompt ends in a block."""

import json
import pathlib

import model
import pytest
from harness import ROOT
from rig import BLOCK, TOKENS, Engine, nothing_left, prompts, route, same_tokens, with_references

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def engines(lab):
    """P and D with the usual weights in a model that looks at 64 tokens."""
    usual, folder = pathlib.Path(model.make(ROOT / "build/engine-model")).resolve(), lab.tmp / "model"
    folder.mkdir()
    for file in usual.iterdir():
        (folder / file.name).symlink_to(file)
    config = json.loads((usual / "config.json").read_text())
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps({
        **config, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 2 * BLOCK}))
    agents = [lab.agent(name, key=lab.key).start() for name in ("agent-p", "agent-d")]
    made = [Engine(lab.tmp, name, agent.socket, model=str(folder)) for name, agent in zip(("p", "d"), agents, strict=True)]
    try:
        yield [engine.ready() for engine in made], agents
    finally:
        for engine in made:
            engine.stop()


@pytest.mark.parametrize("length", [4 * BLOCK - 1, 4 * BLOCK, 300])
def test_tokens_of_one_engine(engines, length):
    (p, d), agents = engines
    loaded = "vllm:dray_loaded_tokens"
    for prompt, reference in with_references(p, prompts(40, length, seed=length), 3):
        before = d.metrics().get(loaded, 0)
        first, answer = route(p, d, prompt, TOKENS)
        assert first["params"]["dray"]["layout"]["groups"] == [["attention, window 64", BLOCK]]
        same_tokens(reference, answer)
        assert d.metrics()[loaded] - before == length - 1
    nothing_left(*agents)
