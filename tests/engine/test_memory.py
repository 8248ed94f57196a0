# SPDX-License-Identifier: Apache-2.0
"""Where the KV cache may lie: in shared memory, or elsewhere with a bounce buffer, whose room is limited."""

import itertools

import pytest
from bare import BLOCK, BYTES_A_TOKEN, dray, prompt
from harness import until

from dray import errors

PAGE = BLOCK * BYTES_A_TOKEN


def copying(agent, slots=40, **more):
    """A connector that does not get shared memory, and has a buffer of so many slots."""
    return dray(agent.socket, pool=False, bounce=True, bounce_size=slots * PAGE, **more)


def moved(p, d, length, seed=1, tokens=3, loaded=None):
    params = p.offer(prompt(length, seed))
    before = d.loaded()
    assert d.run(d.add(prompt(length, seed), tokens=tokens, params=params))[0] == "LENGTH"
    assert d.loaded() - before == (loaded or length)
    p.idle()
    d.idle()


@pytest.mark.parametrize("order", ["LBHNC", "LBNHC", "BLHNC"])
@pytest.mark.parametrize(("at_p", "at_d"), [(True, True), (True, False), (False, True)])
def test_bounce(bare, agents, at_p, at_d, order):
    p = bare("p", copying(agents[0]) if at_p else dray(agents[0].socket), order=order)
    d = bare("d", copying(agents[1]) if at_d else dray(agents[1].socket), order="LBHNC")
    moved(p, d, 5 * BLOCK + 7)
    moved(d, p, 3 * BLOCK, seed=2)


def test_larger_than_the_buffer_at_d(bare, agents):
    """A load that does not fit is read in pieces."""
    p, d = bare("p", dray(agents[0].socket)), bare("d", copying(agents[1], slots=6, role="kv_consumer"))
    moved(p, d, 12 * BLOCK + 5)


def test_pieces_before_the_window(bare, agents):
    """Layers that look at a window need nothing of the first pieces of a long load."""
    p = bare("p", dray(agents[0].socket), window=BLOCK)
    d = bare("d", copying(agents[1], slots=5, role="kv_consumer"), window=BLOCK)
    moved(p, d, 12 * BLOCK + 5, loaded=12 * BLOCK + 4)


def test_larger_than_the_buffer_at_p(bare, agents, caplog):
    """Such a request is not offered; the next one is."""
    p, d = bare("p", copying(agents[0], slots=6, role="kv_producer")), bare("d", dray(agents[1].socket))
    assert p.run(p.add(prompt(6 * BLOCK, 1), params={"do_remote_decode": True})) == ("LENGTH", None)
    assert "the bounce buffer has 5 slots, and too few are free" in caplog.text
    moved(p, d, 4 * BLOCK)


def test_slots_are_free_again(bare, agents):
    """Many requests in turn use the same few slots, at both engines, also those that are aborted."""
    p, d = bare("p", copying(agents[0], slots=8)), bare("d", copying(agents[1], slots=8))
    for seed in range(8):
        if seed % 2:
            params = p.offer(prompt(3 * BLOCK, seed))
            request = d.add(prompt(3 * BLOCK, seed), params=params)
            d.step()
            d.abort(request)
            d.idle()  # its right may be acquired only now
            p.idle()
        else:
            moved(p, d, 3 * BLOCK, seed)


def test_prefix_that_is_cached_at_d(bare, agents):
    """Only what is missing goes through the buffer."""
    p, d = bare("p", copying(agents[0])), bare("d", copying(agents[1]))
    moved(p, d, 2 * BLOCK)
    text = prompt(2 * BLOCK, 1) + prompt(2 * BLOCK, 9)
    before = d.loaded()
    assert d.run(d.add(text, tokens=2, params=p.offer(text)))[0] == "LENGTH"
    assert d.loaded() - before == 2 * BLOCK


def test_agent_of_d_dies_with_a_bounce_buffer(bare, agents):
    p, d = bare("p", copying(agents[0])), bare("d", copying(agents[1]), policy="recompute")
    params = p.offer(prompt(100, 1))
    agents[1].kill()
    try:
        assert d.run(d.add(prompt(100, 1), params=params))[0] == "LENGTH"
        assert d.loaded() == 0
    finally:
        agents[1].start()
    p.idle()

    seeds = itertools.count(2)  # a prompt that D has computed is not loaded

    def works():
        text, before = prompt(100, next(seeds)), d.loaded()
        d.run(d.add(text, params=p.offer(text)))
        return d.loaded() - before == 100
    until(works, "loads after the restart")


def test_refused_without_bounce(bare, agents):
    with pytest.raises(errors.Unsupported, match="model.layers.0.attn is not in memory that the connector has made.*bounce"):
        bare("p", dray(agents[0].socket, pool=False))


def test_buffer_that_is_too_small(bare, agents):
    with pytest.raises(errors.Invalid, match=f"'bounce_size' is {PAGE} bytes, and a block of this model needs {PAGE}"):
        bare("p", copying(agents[0], slots=1))
