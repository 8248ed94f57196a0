# SPDX-License-Identifier: Apache-2.0
"""DrayConnector as a child of vLLM's MultiConnector: beside OffloadingConnector, and beside another DrayConnector."""

import pytest
from bare import BLOCK, dray, multi, prompt
from host_offloading import CONFIG as OFFLOADING

from dray import errors

AGENTS = 3
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


def test_twice_with_itself(bare, sockets):
    p = bare("p", multi(dray(sockets[0]), dray(sockets[2], name="dray-b")))
    d = bare("d", multi(dray(sockets[1]), dray(sockets[1], name="dray-b")))
    params = moved(p, d, parts=BOTH)
    assert {"dray", "dray-b", "do_remote_prefill", "remote_block_ids"} <= params.keys()
    moved(d, p, seed=2, parts=BOTH)


def test_without_the_first_ones_part(bare, sockets):
    """The blocks are offered by the second connector only: the first one leaves the request to it."""
    p = bare("p", multi(dray(sockets[0]), dray(sockets[2], name="dray-b")))
    d = bare("d", multi(dray(sockets[1]), dray(sockets[1], name="dray-b")))
    text = prompt(100, 3)
    params = p.offer(text, BOTH)
    del params["dray"]
    assert d.run(d.add(text, params=params))[0] == "LENGTH"
    assert d.loaded() == 100
    p.idle()  # the right that nobody has asked for ends by expiry
    d.idle()


def test_another_order_at_d(bare, sockets):
    """Parts are found by name, not by position."""
    p = bare("p", multi(dray(sockets[0]), dray(sockets[2], name="dray-b")))
    d = bare("d", multi(dray(sockets[1], name="dray-b"), dray(sockets[1])))
    moved(p, d, parts=BOTH)


def test_a_single_one_at_d(bare, sockets):
    p = bare("p", multi(dray(sockets[0]), dray(sockets[2], name="dray-b")))
    d = bare("d", dray(sockets[1], name="dray-b"))
    moved(p, d, parts=BOTH)


def test_same_name_twice(bare, sockets):
    with pytest.raises(errors.Invalid, match="two DrayConnectors with the name 'dray'.*option 'name'"):
        bare("p", multi(dray(sockets[0]), dray(sockets[2])))


@pytest.mark.parametrize("first", [True, False])
def test_beside_offloading(bare, sockets, first):
    def both(socket):
        children = [dray(socket), OFFLOADING]
        return multi(*(children if first else reversed(children)))
    p, d = bare("p", both(sockets[0])), bare("d", both(sockets[1]))
    moved(p, d)
    moved(p, d, seed=4)


def test_another_child_owns_the_pool(bare, sockets):
    """Without shared memory the cache is refused, with the reason and the remedy."""
    with pytest.raises(errors.Unsupported, match="is not in memory that the connector has made.*bounce"):
        bare("p", multi(OFFLOADING, dray(sockets[0], pool=False)))
