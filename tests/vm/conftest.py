# SPDX-License-Identifier: Apache-2.0
"""Rails of Soft-RoCE in the virtual machine: veth pairs with an rxe device at each end, and an agent at each end."""

import ipaddress
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "integration"))
sys.path.insert(1, str(HERE.parents[1] / "client/python"))
sys.path.append(str(HERE.parent))

import harness  # noqa: E402
from claims import pytest_collection, pytest_runtestloop  # noqa: E402, F401

# long limits: a slow emulator must not look like a dead peer, a lost answer or a hanging transfer
CALM = {"peer.heartbeat_limit": "20s", "transfer.slice_timeout": "20s", "peer.fence_timeout": "20s", "rdma.timeout": "2s",
        "transfer.deadline": f"{harness.LIMIT:.0f}s"}


def run(*argv):
    done = subprocess.run([str(a) for a in argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=harness.LIMIT)
    assert done.returncode == 0, f"{' '.join(map(str, argv))}: {done.stdout}"
    return done.stdout


def write(path, text):
    pathlib.Path(path).write_text(text)


class Rail:
    """A veth pair: side 0 and side 1, each with a netdev, an address and a device."""

    def __init__(self, number):
        self.number = number
        self.netdev = [f"ra{number}", f"rb{number}"]
        self.device = [f"rxa{number}", f"rxb{number}"]
        self.address = [f"10.90.{number}.1", f"10.90.{number}.2"]

    def make(self):
        run("ip", "link", "add", self.netdev[0], "type", "veth", "peer", "name", self.netdev[1])
        for side in (0, 1):
            dev = self.netdev[side]
            write(f"/proc/sys/net/ipv6/conf/{dev}/disable_ipv6", "1")
            write(f"/proc/sys/net/ipv4/conf/{dev}/accept_local", "1")
            write(f"/proc/sys/net/ipv4/conf/{dev}/rp_filter", "0")
            # jumbo frames, because the emulator's time depends on the number of packets
            run("ip", "link", "set", dev, "mtu", "9000", "up")
        for side, dev in enumerate(self.netdev):
            self.add_address(side)
            # incoming packets are delivered here; outgoing ones take the wire, although the address belongs to this machine
            run("ip", "rule", "add", "pref", "10", "iif", dev, "lookup", "local")
        for side in (0, 1):
            self.add_device(side)
        return self

    def add_address(self, side, address=None):
        address = address or self.address[side]
        run("ip", "address", "add", f"{address}/24", "dev", self.netdev[side])
        self.add_route(side, address)

    def add_route(self, side, address=None):
        """Adds the other side's route to this side's address."""
        run("ip", "route", "replace", address or self.address[side], "dev", self.netdev[1 - side], "table", "100")

    def add_device(self, side):
        run("rdma", "link", "add", self.device[side], "type", "rxe", "netdev", self.netdev[side])

    def gid_index(self, side):
        """Of its address. It changes when the address goes while something uses the GID, and comes back."""
        mapped = ipaddress.ip_address("::ffff:" + self.address[side])
        gids = pathlib.Path(f"/sys/class/infiniband/{self.device[side]}/ports/1/gids")
        return next(int(gid.name) for gid in sorted(gids.iterdir()) if ipaddress.ip_address(gid.read_text().strip()) == mapped)

    def link(self, up, side=0):
        run("ip", "link", "set", self.netdev[side], "up" if up else "down")
        if up:  # the routes were removed with the link
            for each in (0, 1):
                self.add_route(each)

    def netem(self, *how, side=0):
        run("tc", "qdisc", "replace", "dev", self.netdev[side], "root", "netem", *how)

    def calm(self, side=0):
        subprocess.run(["tc", "qdisc", "del", "dev", self.netdev[side], "root"], stderr=subprocess.DEVNULL)

    def remove(self):
        for device in self.device:
            subprocess.run(["rdma", "link", "delete", device], stderr=subprocess.DEVNULL, timeout=harness.LIMIT)
        subprocess.run(["ip", "link", "delete", self.netdev[0]], stderr=subprocess.DEVNULL, timeout=harness.LIMIT)
        for dev in self.netdev:
            subprocess.run(["ip", "rule", "del", "iif", dev, "lookup", "local"], stderr=subprocess.DEVNULL)


def route_by_wire():
    """Once per machine: moves the local table to the end, so that packets to own addresses leave by the wire."""
    rules = run("ip", "rule")
    if "lookup 100" in rules:
        return
    run("ip", "link", "set", "lo", "up")
    run("ip", "rule", "add", "pref", "15", "iif", "lo", "to", "127.0.0.0/8", "lookup", "local")
    run("ip", "rule", "add", "pref", "20", "lookup", "100")
    run("ip", "rule", "add", "pref", "32765", "lookup", "local")
    run("ip", "rule", "del", "pref", "0")


class Rdma:
    """The rails, and the agents at their ends."""

    def __init__(self, lab):
        route_by_wire()
        self.lab = lab
        self.rails = []

    def make(self, n):
        while len(self.rails) < n:
            self.rails.append(Rail(len(self.rails)).make())
        return self.rails[:n]

    def agent(self, side, rails, env=None, args=(), **settings):
        how = {"rdma.devices": ",".join(r.device[side] for r in rails), "agent.workers": 1, **CALM, **{k.replace("__", "."): v for k, v in settings.items()}}
        return self.lab.agent(f"side{side}", settings=how, env=env, args=args).start()

    def close(self):
        for rail in self.rails:
            rail.remove()


class VerbsFaults:
    """The words of tests/faults/verbs.c."""

    def __init__(self, path):
        self.words = harness.fault_words(path)
        self.environment = {"LD_PRELOAD": str(harness.BUILD / "tests/faults/verbs.so"), "VERBS_FAULT_FILE": str(path)}

    def gid_table_fails(self, error):
        self.words[:4] = struct.pack("=i", error)

    def registers_slowly(self, device, ms):
        uverbs, = (p.parent.name for p in pathlib.Path("/sys/class/infiniband_verbs").glob("*/ibdev") if p.read_text().strip() == device)
        self.words[4:12] = struct.pack("=ii", os.minor(os.stat(f"/dev/infiniband/{uverbs}").st_rdev), ms)


@pytest.fixture
def verbs_faults():
    with tempfile.NamedTemporaryFile() as file:
        yield VerbsFaults(pathlib.Path(file.name))


def listed(agent, what):
    return agent.ctl(what, "--json")[what]


def up(agent):
    return [r for r in listed(agent, "rails") if r["rail_state"] == "up"]


def registered(agent, rails=1):
    regions = listed(agent, "regions")
    return bool(regions) and all(r["rdma"].count(": registered") == rails for r in regions)


class Pair:
    """An agent on each side of n rails. env: the environment of each side's agent."""

    def __init__(self, lab, n, env=(None, None), **settings):
        self.lab, self.rails = lab, lab.make(n)
        self.agents = [lab.agent(side, self.rails, env=env[side], **settings) for side in (0, 1)]
        for agent in self.agents:
            harness.until(lambda agent=agent: len(up(agent)) == n, f"{n} rails")

    def sides(self, size, fill=None, here=None, **how):
        made = [harness.Side(self.agents[0], size, here, **how), harness.Side(self.agents[1], size, fill, **how)]
        for agent in self.agents:
            harness.until(lambda agent=agent: registered(agent, len(self.rails)), "registration")
        return made

    def stop(self):
        for agent in self.agents:
            agent.stop()
            agent.check_log()


@pytest.fixture(scope="module")
def pair(rdma_lab):
    """One rail."""
    made = Pair(rdma_lab, 1)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def pair2(rdma_lab):
    """Two rails."""
    made = Pair(rdma_lab, 2)
    yield made
    made.stop()


def sides_of(pair):
    """The fixture `sides` of the integration tests, over rdma."""
    made = []

    def make(size=harness.MIB, fill=None, here=None, **how):
        made.extend(pair.sides(size, fill, here, **how))
        return made[-2:]

    make.transport = "rdma"
    yield make
    for side in made:
        side.close()
    for agent in pair.agents:
        assert agent.running, f"agent {agent.name} died:\n{agent.tail()}"


@pytest.fixture
def sides(pair):
    yield from sides_of(pair)


@pytest.fixture(scope="session")
def rdma_lab():
    lab = harness.Lab(alone=True)
    LAB.append(lab)
    made = Rdma(lab)
    yield made
    made.close()
    lab.close("DRAY_KEEP" in os.environ)


LAB = []
REPEATED = ("test_operations[65536-ring]", "test_operations[65536-arena]", "test_operations[4097-arena]", "test_sixteen_sessions_on_four_rails",
            "test_peer_stopped[read]", "test_client_killed[read]", "test_peer_killed[read]", "test_former_holder_writes[two regions]",
            "test_four_rails", "test_reconnects_leak_nothing", "test_bad_wire[reordering]", "test_device_deleted_under_load",
            "test_one_side_without_rails[reader]", "test_drain[reader]", "test_memory_goes_back", "test_the_other_agent_is_killed", "test_mooncake_owner_gone[remove]",
            "test_an_output_arrives[67108864]", "test_import_metadata", "test_import_wrong_answers",
            "test_packets_of_rdma_are_lost[true]", "test_owner_is_killed[true]", "test_owner_is_stopped[false]",
            *(f"test_ends_while_devices_hold_its_reads[{how}]" for how in ("cancel", "deadline", "owner stopped")),
            "test_import_killed[read]", "test_import_cut_off[write]", *(f"test_import_ends[{k}]" for k in ("read-release", "read-remove", "read-close", "write-cancel", "write-release",
                                                                              "write-close")))


def pytest_collection_modifyitems(config, items):
    """Leaves out tests that differ little from others, because the emulator is slow; `make check-long` has the time."""
    if "DRAY_LONG" not in os.environ:
        items[:] = [i for i in items if i.name not in REPEATED]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Adds the agents' logs and paths of a failed test to its report."""
    report = (yield).get_result()
    for agent in LAB[0].agents if LAB else ():
        text = agent.new_text()
        if report.failed and text:
            report.sections.append((f"log of {agent.name}", "\n".join(text.splitlines()[-40:])))
        if report.failed and agent.running:
            report.sections.append((f"paths of {agent.name}", agent.ctl("paths", check=False).stdout))
