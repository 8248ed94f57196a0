# SPDX-License-Identifier: Apache-2.0
"""Compares `drayctl detect --json` on Soft-RoCE with rdma, ibv_devinfo and /sys, also after changes."""

import ipaddress
import json
import os
import pathlib
import re
import subprocess
import time

import pytest

DRAYCTL = pathlib.Path(os.environ.get("DRAY_BUILD", "build")).resolve() / "drayctl"
LIMIT = 30  # seconds after which a wait fails: the kernel fills GID tables asynchronously
PORT = pathlib.Path("/sys/class/infiniband/rxe0/ports/1")


def run(*argv):
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout


def detect(*prefix):
    found = [d for d in json.loads(run(*prefix, DRAYCTL, "detect", "--json"))["devices"] if d["device"] == "rxe0"]
    assert len(found) == 1
    return found[0]


def port(*prefix):
    (p,) = detect(*prefix)["ports"]
    return p


def best(p):
    for g in p["gids"]:
        if g["index"] == p["best_gid"]:
            return g
    return None


def until(holds, *prefix):
    """Polls the port until a condition holds; returns the port. prefix: command that enters another network namespace."""
    end = time.monotonic() + LIMIT
    while True:
        p = port(*prefix)
        if holds(p):
            return p
        assert time.monotonic() < end, f"the condition did not hold within {LIMIT} s: {json.dumps(p)}"
        time.sleep(0.05)


def best_is(address):
    return lambda p: best(p) is not None and best(p)["address"] == address


@pytest.fixture(scope="module", autouse=True)
def rxe():
    run("ip", "link", "add", "d0", "type", "dummy")
    run("ip", "addr", "add", "10.9.0.1/24", "dev", "d0")
    run("ip", "link", "set", "d0", "up")
    run("rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "d0")
    until(best_is("10.9.0.1"))
    yield
    run("rdma", "link", "delete", "rxe0")
    run("ip", "link", "delete", "d0")


def test_device_matches_rdma():
    (want,) = json.loads(run("rdma", "-j", "-d", "dev", "show", "rxe0"))
    got = detect()
    assert got["node_guid"] == want["node_guid"]
    assert got["system_guid"] == want["sys_image_guid"]
    assert got["firmware"] == want.get("fw", "")
    assert got["node_type"] == 1 and want["node_type"] == "ca"
    assert got["protocol"] == "roce"
    assert got["driver"] == "rxe"
    assert got["opens"] == "yes"


def test_port_matches_rdma():
    (want,) = json.loads(run("rdma", "-j", "-d", "link", "show", "rxe0/1"))
    got = port()
    assert got["port"] == want["port"]
    assert got["state"] == want["state"]
    assert got["physical_state"] == want["physical_state"]
    assert got["netdev"] == want["netdev"]
    assert got["ifindex"] == want["netdev_index"]


def test_port_matches_ibv_devinfo():
    text = run("ibv_devinfo", "-v", "-d", "rxe0")
    got = port()

    def value(key):
        return re.search(rf"{key}:\s+(\S+)", text).group(1)

    assert got["active_mtu"] == int(value("active_mtu"))
    assert got["max_mtu"] == int(value("max_mtu"))
    assert got["link_layer"] == value("link_layer")
    assert got["gid_table"] == int(value("gid_tbl_len"))
    assert got["lanes"] == int(value("active_width").rstrip("X"))
    gids = {}
    for index, gid, kind in re.findall(r"GID\[\s*(\d+)\]:\s+([0-9a-f:.]+), (RoCE v\d)", text):
        gids[int(index)] = (ipaddress.ip_address(gid), kind)
    assert gids
    assert {g["index"]: (ipaddress.ip_address(g["gid"]), g["type"]) for g in got["gids"]} == gids


def test_port_matches_sysfs():
    got = port()
    number, name = (PORT / "state").read_text().split(": ")
    assert (number, got["state"]) == ("4", name.strip())
    assert f"{got['rate'] / 1e9:g} Gb/sec ({got['lanes']}X" in (PORT / "rate").read_text()
    assert [k["value"] for k in got["pkeys"]] == [int((PORT / "pkeys/0").read_text(), 16)]
    assert got["gid_table"] == len(list((PORT / "gids").iterdir()))
    for g in got["gids"]:
        assert ipaddress.ip_address((PORT / f"gids/{g['index']}").read_text().strip()) == \
            ipaddress.ip_address(g["gid"])
        assert (PORT / f"gid_attrs/types/{g['index']}").read_text().strip() == g["type"]
        assert (PORT / f"gid_attrs/ndevs/{g['index']}").read_text().strip() == g["netdev"]


def test_gids_are_proved_by_address_handles():
    assert {g["proof"] for g in port()["gids"]} == {"ok"}


def test_best_gid_follows_addresses():
    run("ip", "addr", "add", "fd00:9::1/64", "dev", "d0", "nodad")
    p = until(lambda p: any(g["address"] == "fd00:9::1" for g in p["gids"]))
    assert best(p)["address"] == "10.9.0.1"
    run("ip", "addr", "del", "10.9.0.1/24", "dev", "d0")
    until(best_is("fd00:9::1"))
    run("ip", "addr", "del", "fd00:9::1/64", "dev", "d0")
    p = until(lambda p: best(p) is None or best(p)["class"] == "link_local")
    assert best(p) is None or "link-local" in best(p)["reason"]
    run("ip", "addr", "add", "10.9.0.1/24", "dev", "d0")
    until(best_is("10.9.0.1"))


def test_flap():
    run("ip", "link", "set", "d0", "down")
    p = until(lambda p: p["state"] == "DOWN")
    assert p["best_gid"] is None
    assert all("down" in g["reason"] for g in p["gids"] if g["rejected"])
    run("ip", "link", "set", "d0", "up")
    p = until(lambda p: p["state"] == "ACTIVE" and best_is("10.9.0.1")(p))
    assert best(p)["proof"] == "ok"


@pytest.fixture
def pod():
    """A network namespace with a macvlan on d0, whose index there is that of d1 here."""
    run("modprobe", "macvlan")
    run("ip", "netns", "add", "pod")
    run("ip", "link", "add", "link", "d0", "name", "mv0", "index", "77", "type", "macvlan", "mode", "bridge")
    run("ip", "link", "set", "mv0", "netns", "pod")
    run("ip", "-n", "pod", "addr", "add", "10.9.0.0/24", "dev", "mv0")
    run("ip", "-n", "pod", "link", "set", "mv0", "up")
    run("ip", "link", "add", "d1", "index", "77", "type", "dummy")
    run("ip", "link", "set", "d1", "up")
    yield ("ip", "netns", "exec", "pod")
    run("ip", "link", "delete", "d1")
    run("ip", "netns", "delete", "pod")


def test_gids_of_other_namespaces_are_not_used(pod):
    """Namespaces share devices: the kernel gives each of them the GIDs of all, with the index of the netdev in its own namespace."""
    p = until(lambda p: any(g["address"] == "10.9.0.0" for g in p["gids"]))
    assert best(p)["address"] == "10.9.0.1"
    assert {g["address"] for g in p["gids"] if g["netdev"] == "d1"} == set()
    (other,) = [g for g in p["gids"] if g["address"] == "10.9.0.0"]
    assert other["rejected"] and "no netdev in this network namespace" in other["reason"]
    assert p["gids_unmapped"] == sum(not g["netdev"] for g in p["gids"])
    assert best(until(best_is("10.9.0.0"), *pod))["netdev"] == "mv0"
