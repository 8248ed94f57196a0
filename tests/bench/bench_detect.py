#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""drayctl detect, process start included: a recorded machine of 8 GPUs and 8 RNICs, and this kernel with 1,000 interfaces and 10,000 addresses."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import common as c

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from machines import models  # noqa: E402

PAIRS_OF_VETH, ADDRESSES = 500, 10


def took_ms(*argv):
    since = c.now()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return (c.now() - since) * 1e3


def recorded(records):
    with tempfile.TemporaryDirectory() as where:
        models.hgx_8x8().write(where)
        ours = sorted(took_ms(c.harness.DRAYCTL, "detect", "--json", "--from-sysfs", where) for _ in range(c.PAIRS))
        records.add("8 GPUs and 8 RNICs, whole scan", ours[len(ours) // 2], "ms", target=("<=", 50), spread=ours)


def namespace(pairs=PAIRS_OF_VETH):
    """Makes a network namespace with that many veth pairs and 10 addresses at each end; yields how to enter it."""
    root = os.geteuid() == 0
    keeper = subprocess.Popen(["unshare", "--net", *([] if root else ["--user", "--map-root-user"]), "sh", "-c", "echo; exec sleep 1000"],
                              stdout=subprocess.PIPE)
    if not keeper.stdout.readline():
        raise c.CannotRun("no network namespaces here")
    enter = ["nsenter", f"--target={keeper.pid}", "--net", *([] if root else ["--user"]), "--"]
    links = "".join(f"link add a{i} type veth peer name b{i}\n" for i in range(pairs))
    addresses = "".join(f"addr add 10.{i >> 8}.{i & 255}.{n * 20 + 1 + k}/32 dev {'ab'[k]}{i}\n"
                        for i in range(pairs) for k in (0, 1) for n in range(ADDRESSES))
    subprocess.run([*enter, "ip", "-batch", "-"], input=links + addresses, text=True, check=True)
    return keeper, enter


def live(records):
    keeper, enter = namespace()
    try:
        found = json.loads(subprocess.run([*enter, c.harness.DRAYCTL, "detect", "--json"], stdout=subprocess.PIPE, check=True).stdout)
        n = len(found["links"]), len(found["addresses"])
        if n[0] < 2 * PAIRS_OF_VETH or n[1] < 2 * PAIRS_OF_VETH * ADDRESSES:
            raise c.CannotRun(f"only {n[0]} interfaces and {n[1]} addresses")
        ours, theirs, ratio, spread = c.pairs(lambda: took_ms(*enter, "ip", "-j", "addr"),
                                              lambda: took_ms(*enter, c.harness.DRAYCTL, "detect", "--json"))
        records.add("1,000 interfaces, 10,000 addresses", ours, "ms", target=("<=", 250))
        records.add("1,000 interfaces, 10,000 addresses, beside ip", ours, "ms", ceiling_name="ip -j addr", ceiling=theirs, ratio=ratio,
                    spread=spread)
        if c.which("rdma") and subprocess.run(["rdma", "link"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0:
            ours, theirs, ratio, spread = c.pairs(lambda: took_ms("rdma", "-j", "link"),
                                                  lambda: took_ms(c.harness.DRAYCTL, "detect", "--json"))
            records.add("this machine", ours, "ms", ceiling_name="rdma -j link", ceiling=theirs, ratio=ratio, spread=spread)
    finally:
        keeper.kill()
        keeper.communicate()


def followed(records):
    """Measures the time from the end of a command that takes a link up or down to the line of --watch."""
    keeper, enter = namespace(pairs=1)
    try:
        with subprocess.Popen([*enter, c.harness.DRAYCTL, "detect", "--watch"], stdout=subprocess.PIPE, text=True) as watch:
            watch.stdout.readline()
            subprocess.run([*enter, "ip", "link", "set", "b0", "up"], check=True)
            values = []
            for i in range(2 * c.PAIRS):
                subprocess.run([*enter, "ip", "link", "set", "a0", "down" if i % 2 else "up"], check=True)
                since = c.now()
                while "a0 up" not in (line := watch.stdout.readline()) and "a0 down" not in line:
                    if not line:
                        raise c.CannotRun("drayctl detect --watch ended")
                values.append((c.now() - since) * 1e3)
            watch.terminate()
        values.sort()
        records.add("a link goes up or down, until --watch prints it", values[len(values) // 2], "ms", target=("<=", 10), spread=values)
    finally:
        keeper.kill()
        keeper.communicate()


with c.bench("detect") as (lab, records):
    recorded(records)
    live(records)
    followed(records)
