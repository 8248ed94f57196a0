# SPDX-License-Identifier: Apache-2.0
"""Outputs of encoders over Soft-RoCE: all sizes arrive, by RDMA alone."""

import hashlib

import pytest
from conftest import Pair
from ec_sides import ROW, Consumer, Encoder
from harness import MIB, noise

SIZES = [2 << 10, 6 << 10, 64 << 10, 1000 << 10, 8 * MIB, 64 * MIB]
POOL = 72 * MIB


@pytest.fixture(scope="module")
def engines(pair: Pair):
    e, pd = Encoder(pair.agents[0].socket, POOL), Consumer(pair.agents[1].socket, POOL, "rdma")
    yield e, pd
    e.close()
    pd.close()


def moved(agent):
    """(transport, bytes) of the transfers that have ended."""
    return [(one["transport"], one["bytes"]) for one in agent.ctl("transfers", "--recent", "--json")["ended_transfers"]]


@pytest.mark.parametrize("size", SIZES)
def test_an_output_arrives(pair, engines, size):
    e, pd = engines
    output, outputs, before = noise(size), {f"of {size}": size // ROW}, len(moved(pair.agents[1]))
    params = e.encode(f"r{size}", outputs, lambda n: output)
    assert pd.load(f"r{size}", outputs, params)[0] == [hashlib.sha256(output).hexdigest()]
    ended = moved(pair.agents[1])[before:]
    assert {transport for transport, _ in ended} == {"rdma"} and sum(n for _, n in ended) > size
    pd.ends()
    e.ends()


def test_several_outputs_of_one_request(pair, engines):
    e, pd = engines
    outputs = {f"one of {rows}": rows for rows in (2, 37, 1024, 5)}
    made = {n * ROW: noise(n * ROW, n) for n in outputs.values()}
    params = e.encode("several", outputs, made.__getitem__)
    assert pd.load("several", outputs, params)[0] == [hashlib.sha256(made[n * ROW]).hexdigest() for n in outputs.values()]
    assert moved(pair.agents[1])[-1][0] == "rdma"
    pd.ends()
    e.ends()
