# SPDX-License-Identifier: Apache-2.0
"""dray.vllm.protocol: kv_transfer_params between engines, as a router passes them on, and reports of several workers."""

import copy
import json

import pytest

from dray import errors
from dray.vllm import layout as lay
from dray.vllm import protocol, ranks

GROUPS = (lay.Group("attention", 16),)
RANK = lay.describe([lay.Tensor("layers.0", 0, 0, (12, 4, 16, 8), (512, 128, 8, 1), 2, 4, 0, 4)], GROUPS, rank=0, blocks=12,
                    length=12 * 1024)
OFFER = protocol.Offer("r1", "engine-p", lay.EngineLayout({"dtype": "bfloat16"}, GROUPS, (RANK,)), ((3, 4, 5),), 40, ("dray1:x",))


def params():
    return json.loads(json.dumps(protocol.offer_params(OFFER, "10.0.0.1:7411", 1)))


def accept(form):
    return lay.EngineLayout.from_json(form), (0,)


def test_through_a_router():
    sent = params()
    assert protocol.read_offer(sent, accept) == (OFFER, (0,))
    assert protocol.wants_prefill(sent) and not protocol.wants_decode(sent)
    assert (sent["remote_host"], sent["remote_port"], sent["remote_block_ids"]) == ("10.0.0.1", 7411, [[3, 4, 5]])
    assert protocol.offered_tokens(sent) == ["dray1:x"]


def test_refusals_are_remembered_without_their_requests():
    """Each request of an engine that does not fit raises the same error, which keeps no frames of the requests before."""
    def refuse(layout):
        raise errors.Unsupported("it differs")

    peers, depths = ranks.Peers(refuse), set()
    for _ in range(4):
        with pytest.raises(errors.Unsupported) as refused:
            peers.check(params()["dray"]["layout"])
        depths.add(len(refused.traceback))
    assert len(depths) == 1


def test_what_a_request_wants():
    assert protocol.wants_decode({"do_remote_decode": True, "do_remote_prefill": False})
    assert not protocol.wants_decode(None) and not protocol.wants_prefill(None) and not protocol.wants_prefill({})


@pytest.mark.parametrize(("path", "value", "error", "words"), [
    (("dray",), None, errors.Invalid, "have no key 'dray', but"), (("dray", "version"), 2, errors.Version, "version 2"),
    (("dray", "tokens"), [], errors.Invalid, "0 rights"), (("dray", "tokens"), None, errors.Invalid, "damaged"),
    (("dray", "tokens"), [5], errors.Invalid, "damaged"),
    (("dray", "num_tokens"), 0, errors.Invalid, "0 tokens"), (("dray", "num_tokens"), "40", errors.Invalid, "'40' tokens"),
    (("dray", "layout"), 5, errors.Invalid, "description of its KV cache is damaged"),
    (("remote_block_ids",), [[3], [4]], errors.Invalid, "2 groups"), (("remote_block_ids",), "x", errors.Invalid, "damaged"),
    (("remote_block_ids",), [[3, -1]], errors.Invalid, "block numbers"), (("remote_block_ids",), None, errors.Invalid, "damaged")])
def test_damaged(path, value, error, words):
    sent = at = params()
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = value
    with pytest.raises(error, match=words):
        protocol.read_offer(sent, accept)
    assert all(isinstance(token, str) for token in protocol.offered_tokens(sent))


def test_reports_of_two_workers():
    one = protocol.WorkerMetadata({0: "a"}, {"r1": 1}, {})
    two = protocol.WorkerMetadata({1: "b"}, {"r1": 1, "r2": 1}, {"r3": 1})
    joined = copy.deepcopy(one).aggregate(two)
    assert joined == protocol.WorkerMetadata({0: "a", 1: "b"}, {"r1": 2, "r2": 1}, {"r3": 1})


ROUTED = {"do_remote_prefill": True, "transfer_id": "t" * 16, "remote_engine_id": "engine-p", "remote_host": "::1", "remote_port": 7411}


def test_where_blocks_are_announced():
    """By a router that starts both engines, and by one that copies P's answer."""
    assert protocol.read_target(ROUTED) == protocol.Target("t" * 16, "engine-p", "[::1]:7411", None)
    answer = json.loads(json.dumps(protocol.push_params("engine-p", "r1", "t" * 16, "10.0.0.1:7411", b"\1" * 16, 2)))
    assert protocol.wants_prefill(answer) and answer["tp_size"] == 2
    assert protocol.read_target(answer) == protocol.Target("t" * 16, "engine-p", "10.0.0.1:7411", b"\1" * 16)


@pytest.mark.parametrize(("name", "value"), [
    ("transfer_id", None), ("transfer_id", ""), ("remote_engine_id", 5), ("remote_host", None), ("remote_port", 0), ("remote_port", "x"),
    ("remote_port", None), ("remote_port", float("inf")), ("dray", {"agent": "no hex"}), ("dray", 5)])
def test_target_is_damaged(name, value):
    with pytest.raises(errors.Invalid, match="do not say where blocks are announced"):
        protocol.read_target({**ROUTED, name: value})


def test_engines_of_different_modes():
    with pytest.raises(errors.Unsupported, match="'push' here, 'pull' at the other engine"):
        protocol.read_target(params())
    with pytest.raises(errors.Unsupported, match="'pull' here, 'push' at the other engine"):
        protocol.read_offer(protocol.push_params("engine-p", "r1", "t" * 16, "10.0.0.1:7411", b"\1" * 16, 2), accept)


def test_notifications_of_a_push():
    arrival = protocol.Arrival(1, 2, 4, 0, True, 1 << 40)
    assert protocol.Arrival.unpack(arrival.pack()) == arrival
    assert protocol.Arrival.unpack(b"something else") is None
