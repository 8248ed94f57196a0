# SPDX-License-Identifier: Apache-2.0
"""DrayConnector as a child of vLLM's MultiConnector: beside OffloadingConnector, and beside another DrayConnector."""

import pytest
from bare import BLOCK, dray, multi, prompt
from host_offloading import CONFIG as OFFLOADING

from dray import errors

@pytest.fixture(scope="module")
def agents(lab):
    started = [lab.agent(name, key=lab.key).start() for name in ("agent-p", "agent-d", "agent-q")]
    yield [agent.socket for agent in started]
    for agent in started:
        agent.stop()


BOTH = ("dray", "dray-b")


def moved(p, d, length=5 * BLOCK + 7, seed=1, parts=("dray",)):
    """The blocks of a request go from P to D. Returns P's parameters."""
    params = p.offer(prompt(length, seed), parts)
    before = d.loaded()
    assert d.run(d.add(prompt(length, seed), tokens=3, params=params))[0] == "LENGTH"
    assert d.loaded() - before == length
    p.idle()
    d.idle()
    return params


def test_twice_with_itself(bare, agents):
    p = bare("p", multi(dray(agents[0]), dray(agents[2], name="dray-b")))
    d = bare("d", multi(dray(agents[1]), dray(agents[1], name="dray-b")))
    params = moved(p, d, parts=BOTH)
    assert {"dray", "dray-b", "do_remote_prefill", "remote_block_ids"} <= params.keys()
    moved(d, p, seed=2, parts=BOTH)


def test_without_the_first_ones_part(bare, agents):
    """The blocks are offered by the second connector only: the first one leaves the request to it."""
    p = bare("p", multi(dray(agents[0]), dray(agents[2], name="dray-b")))
    d = bare("d", multi(dray(agents[1]), dray(agents[1], name="dray-b")))
    text = prompt(100, 3)
    params = p.offer(text, BOTH)
    del params["dray"]
    assert d.run(d.add(text, params=params))[0] == "LENGTH"
    assert d.loaded() == 100
    p.idle()  # the right that nobody has asked for ends by expiry
    d.idle()


def test_another_order_at_d(bare, agents):
    """Parts are found by name, not by position."""
    p = bare("p", multi(dray(agents[0]), dray(agents[2], name="dray-b")))
    d = bare("d", multi(dray(agents[1], name="dray-b"), dray(agents[1])))
    moved(p, d, parts=BOTH)


def test_a_single_one_at_d(bare, agents):
    p = bare("p", multi(dray(agents[0]), dray(agents[2], name="dray-b")))
    d = bare("d", dray(agents[1], name="dray-b"))
    moved(p, d, parts=BOTH)


def test_same_name_twice(bare, agents):
    with pytest.raises(errors.Invalid, match="two DrayConnectors with the name 'dray'.*option 'name'"):
        bare("p", multi(dray(agents[0]), dray(agents[2])))


@pytest.mark.parametrize("first", [True, False])
def test_beside_offloading(bare, agents, first):
    def both(socket):
        children = [dray(socket), OFFLOADING]
        return multi(*(children if first else reversed(children)))
    p, d = bare("p", both(agents[0])), bare("d", both(agents[1]))
    moved(p, d)
    moved(p, d, seed=4)


def test_another_child_owns_the_pool(bare, agents):
    """Without shared memory the cache is refused, with the reason and the remedy."""
    with pytest.raises(errors.Unsupported, match="is not in memory that the connector has made.*bounce"):
        bare("p", multi(OFFLOADING, dray(agents[0], pool=False)))
