# SPDX-License-Identifier: Apache-2.0
"""Rails whose netdevs are ports of VRFs. Soft-RoCE receives nothing on such a netdev, so queue pairs are connected, and no bytes move."""

import pytest
from conftest import Rail, listed, run, write
from harness import MIB, Side, until
from test_doctor_peer import findings, wrong

ADDRESSES = {"ipv4": ["10.91.0.1/24", "10.91.0.2/24"], "ipv6": ["fd91::1/64", "fd91::2/64"]}


class VrfRail(Rail):
    """Each side is in a VRF of its own, with the routes that the kernel makes for its addresses."""

    def make(self):
        run("modprobe", "vrf")
        run("ip", "link", "add", self.netdev[0], "type", "veth", "peer", "name", self.netdev[1])
        for side, dev in enumerate(self.netdev):
            write(f"/proc/sys/net/ipv6/conf/{dev}/accept_dad", "0")
            run("ip", "link", "add", f"vrf{side}", "type", "vrf", "table", 1000 + side)
            run("ip", "link", "set", f"vrf{side}", "up")
            run("ip", "link", "set", dev, "master", f"vrf{side}", "up")
            for addresses in ADDRESSES.values():
                run("ip", "address", "add", addresses[side], "dev", dev)
            self.add_device(side)
        return self

    def remove(self):
        super().remove()
        for side in (0, 1):
            run("ip", "link", "delete", f"vrf{side}")


@pytest.fixture(scope="module")
def vrf_rail(rdma_lab):
    rail = VrfRail(90).make()
    yield rail
    rail.remove()


@pytest.mark.parametrize("family", ADDRESSES)
def test_reached_by_the_table_of_its_vrf(rdma_lab, vrf_rail, family):
    agents = [rdma_lab.agent(side, [vrf_rail], rdma__gid_family=family) for side in (0, 1)]
    with Side(agents[0], MIB) as here, Side(agents[1], MIB) as there:
        remote = here.reach(there)
        until(lambda: listed(agents[0], "paths"), "a path")
        (path,) = listed(agents[0], "paths")
        ends = [a.partition("/")[0] for a in ADDRESSES[family]]
        assert [path["gid"], path["to_gid"]] == ends
        assert path["reason"] == f"same subnet on {vrf_rail.netdev[0]}, {ends[1]}"
        here.client.write(here.region, remote, [(0, 0, 64)])
        until(lambda: listed(agents[0], "paths")[0]["state"] == "up", "queue pairs")
    for agent in agents:
        agent.stop()


@pytest.mark.parametrize("family", ADDRESSES)
def test_doctor_of_agents_in_vrfs(rdma_lab, vrf_rail, family):
    """The routes of agents that `ip vrf exec` has started are those of their VRFs."""
    hosts = [a.partition("/")[0] for a in ADDRESSES[family]]
    listen = [f"[{h}]:7411" if ":" in h else f"{h}:7411" for h in hosts]
    settings = {"rdma.devices": "none", "peer.allow_insecure": "true"}
    agents = [rdma_lab.lab.agent(f"vrf{side}", settings=settings, listen=[listen[side]], wrap=["ip", "vrf", "exec", f"vrf{side}"]).start()
              for side in (0, 1)]
    found = findings(agents[0], listen[1], status=1)
    assert [f[:3] for f in wrong(found)] == [("key", way, "warning") for way in ("to", "from")]
    routes = [f["text"].rpartition(" (")[0] for f in found if f["check"] == "route"]
    assert routes == [f"by {vrf_rail.netdev[side]}, from {host if family == 'ipv4' else f'[{host}]'}" for side, host in enumerate(hosts)]
    for agent in agents:
        agent.stop()
