# SPDX-License-Identifier: Apache-2.0
"""The part "store-beside" of bench_vllm.py: prompts that the store has, by DrayStoreConnector and by connectors of other stores, in one run.

One engine computes a prompt and saves its blocks, a second one loads them, and then has them in its own cache. All engines, and the
processes of the stores, are on this machine. A store whose packages cannot be installed, or whose connector does not load here, is left out.
"""

import contextlib
import itertools
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time

import common as c
import serving
from harness import LIMIT, ROOT, until
from rig import Engine, engine_environment, prompts

LENGTH = 2048
WARM = 3  # rounds, after which an object was written to each block, and the engines have made steps of each size
STORE_BYTES = 4 << 30
LIMITS = {"limits.store_bytes": str(STORE_BYTES), "limits.store_bytes_per_owner": str(STORE_BYTES)}
PAUSE, LONGEST = 0.25, 16.0  # seconds for the saves of a prompt, at first and at most
seeds = itertools.count(1 << 40)


def connector(name, **options):
    return {"kv_connector": name, "kv_role": "kv_both", "kv_load_failure_policy": "recompute", "kv_connector_extra_config": options}


def kept(agent, name):
    """The kv_transfer_config of an engine whose blocks the agent's store keeps."""
    return {"kv_connector_module_path": "dray.vllm", "engine_id": name,
            **connector("DrayStoreConnector", socket=str(agent.socket), weights="those of the bench")}


@contextlib.contextmanager
def dray(lab):
    agent, = c.agents(lab, 1, **LIMITS)
    try:
        yield lambda name: {"connector": kept(agent, name)}
    finally:
        agent.stop()


@contextlib.contextmanager
def mooncake(lab):
    """A master of Mooncake 0.3.13, and a part of the store in the process of each engine."""
    made = subprocess.run([ROOT / "scripts/mooncake-env"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    if made.returncode:
        raise c.CannotRun("Mooncake cannot be installed")
    packages = next(pathlib.Path(made.stdout.strip()).parents[1].glob("lib/python*/site-packages"))
    port = serving.free_port()
    config = lab.tmp / "mooncake.json"
    config.write_text(json.dumps({"metadata_server": "P2PHANDSHAKE", "master_server_address": f"127.0.0.1:{port}", "protocol": "tcp",
                                  "global_segment_size": STORE_BYTES // 2, "local_buffer_size": 512 << 20}))
    master = subprocess.Popen([packages / "mooncake/mooncake_master", f"--rpc_port={port}", f"--metrics_port={serving.free_port()}"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              env={**os.environ, "LD_LIBRARY_PATH": str(packages / "mooncake")})
    folders = ROOT / "client/python", ROOT / "tests/engine/mooncake_cpu", packages
    try:
        until(lambda: not socket.socket().connect_ex(("127.0.0.1", port)), "Mooncake's master to listen")
        yield lambda name: {"connector": {"engine_id": name, **connector("MooncakeStoreConnector", lookup_rpc_port=name)},
                            "variables": {"PYTHONPATH": ":".join(map(str, folders)), "MOONCAKE_CONFIG_PATH": str(config)}}
    finally:
        master.kill()
        master.wait()


def first(engine, asked):
    answer = engine.run(asked, 1)
    if "error" in answer or answer["reason"] == "error":
        raise c.CannotRun(f"a request has failed: {answer}\n{engine.tail(15)}")
    return answer


def rounds(saving, loading, count):
    """[(seconds to the first token of a prompt that is computed, loaded, and in the engine's own cache)]"""
    found, pause = [], PAUSE
    while len(found) < WARM + count:
        asked, = prompts(1, LENGTH + 1, seed=next(seeds))
        computed = first(saving, asked)
        ends = time.monotonic() + pause
        while time.monotonic() < ends:
            first(saving, prompts(1, 20, seed=next(seeds))[0])  # some connectors go on with their saves in steps
        loaded, cached = first(loading, asked), first(loading, asked)
        if loaded["cached"] >= LENGTH:
            found.append(tuple(one["first"] for one in (computed, loaded, cached)))
        elif (pause := 2 * pause) > LONGEST:
            raise c.CannotRun(f"{loaded['cached']} of {LENGTH} tokens were loaded, {pause / 2:g} s after they were computed\n{loading.tail(15)}")
    return found[WARM:]


def measured(lab, name, store, count):
    with store(lab) as how:
        made = [Engine(lab.tmp, f"{name}-{which}", **how(f"{name}-{which}")) for which in ("saves", "loads")]
        try:
            return rounds(*(engine.ready() for engine in made), count)
        finally:
            for engine in made:
                engine.stop()


STORES = {"DrayStoreConnector": dray, "MooncakeStoreConnector": mooncake}


def beside(lab, records, count):
    """Milliseconds that a prompt from the store takes longer to its first token than one in the engine's own cache; and its part of computing."""
    found = {}
    for name, store in STORES.items():
        try:
            found[name] = measured(lab, name.lower(), store, count)
        except (c.CannotRun, AssertionError) as e:
            if store is dray:
                raise
            print(f"  {name}: not measured: {e}", file=sys.stderr, flush=True)
    costs = {name: [(loaded - cached) * 1e3 for _, loaded, cached in one] for name, one in found.items()}
    parts = {name: [loaded / computed for computed, loaded, _ in one] for name, one in found.items()}
    mine = costs.pop("DrayStoreConnector")
    ours = statistics.median(mine)
    for name, values in costs.items():
        theirs = statistics.median(values)
        records.add(f"moving {LENGTH} tokens from the store", ours, "ms", ceiling_name=name, ceiling=theirs, ratio=ours / theirs,
                    spread=[value / theirs for value in mine])
    for name, values in parts.items():
        records.add(f"first token, of computing, {name}", statistics.median(values), "", spread=values)
