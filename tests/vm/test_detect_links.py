# SPDX-License-Identifier: Apache-2.0
"""Compares `drayctl detect --json` with ip, for kinds of interfaces that common build kernels lack."""

import json
import os
import pathlib
import subprocess

import pytest

DRAYCTL = pathlib.Path(os.environ.get("DRAY_BUILD", "build")).resolve() / "drayctl"

SETUP = """
link add dm0 type dummy
link add bnd0 type bond mode active-backup
link add dm1 type dummy
link add dm2 type dummy
link set dm1 master bnd0
link set dm2 master bnd0
link set dm0 up
link set bnd0 up
link add link bnd0 name bnd0.7 type vlan id 7
link set bnd0.7 up
link add mv0 link dm0 type macvlan mode bridge
link set mv0 up
link add brd0 type bridge
link add vx0 type vxlan id 9 dstport 4789
link set vx0 master brd0
link set brd0 up
addr add 10.40.0.1/24 dev bnd0
addr add 10.41.0.1/24 dev bnd0.7
addr add 10.42.0.1/24 dev mv0
addr add 172.18.0.1/16 dev brd0
addr add 10.44.0.1/24 dev vx0
addr add 2001:db8:40::1/64 dev bnd0 nodad
link set vx0 up
route add default via 10.40.0.254
"""
NAMES = ["mv0", "bnd0.7", "bnd0", "brd0", "vx0", "dm0", "dm1", "dm2"]


def run(*argv, **how):
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True, **how).stdout


@pytest.fixture(scope="module", autouse=True)
def links():
    run("ip", "-batch", "-", input=SETUP)
    yield
    for name in NAMES:
        run("ip", "link", "del", name)


def detect():
    return json.loads(run(DRAYCTL, "detect", "--json"))


def test_links_match_ip():
    want = {x["ifname"]: x for x in json.loads(run("ip", "-j", "-d", "link"))}
    got = {x["name"]: x for x in detect()["links"]}
    assert set(got) == set(want)
    names = {x["ifindex"]: n for n, x in got.items()}
    for name in NAMES:
        ip, ours = want[name], got[name]
        assert (ours["ifindex"], ours["mtu"], ours["mac"]) == (ip["ifindex"], ip["mtu"], ip["address"])
        assert ours["info_kind"] == ip["linkinfo"]["info_kind"]
        assert names.get(ours["master"]) == ip.get("master")
        assert names.get(ours["lower"]) == ip.get("link")
    assert got["bnd0.7"]["vlan"] == want["bnd0.7"]["linkinfo"]["info_data"]["id"] == 7
    assert {n: got[n]["kind"] for n in NAMES} == {
        "mv0": "macvlan", "bnd0.7": "vlan", "bnd0": "bond", "brd0": "bridge", "vx0": "tunnel", "dm0": "dummy", "dm1": "dummy",
        "dm2": "dummy"}


def test_addresses_match_ip():
    want = {(x["ifname"], a["local"], a["prefixlen"], a["scope"]) for x in json.loads(run("ip", "-j", "addr")) for a in x["addr_info"]}
    assert {(a["link"], a["address"], a["prefix"], a["scope"]) for a in detect()["addresses"]} == want


def test_address_to_advertise():
    """Order of preference: the default route's bond, VLAN and macvlan, IPv6, overlay, the containers' bridge."""
    order = [a["address"] for a in detect()["addresses"] if not a["rejected"] and a["link"] in NAMES]
    assert order == ["10.40.0.1", "10.41.0.1", "10.42.0.1", "2001:db8:40::1", "10.44.0.1", "172.18.0.1"]
