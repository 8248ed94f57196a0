# SPDX-License-Identifier: Apache-2.0
"""drayctl detect and doctor: recorded machines, this kernel's objects compared with ip and ss, --watch, and the agent's use of them."""

import contextlib
import errno
import json
import os
import pathlib
import re
import select
import signal
import socket
import struct
import subprocess
import sys

import pytest

from harness import DRAYCTL, LIMIT, golden, until
from test_ctl import conform, schema_of

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from machines import models  # noqa: E402

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "data/machines"


def ctl(*argv, prefix=(), status=0, **how):
    done = subprocess.run([*prefix, DRAYCTL, *map(str, argv)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=LIMIT,
                          **how)
    assert done.returncode == status, f"exit {done.returncode}: {done.stderr}{done.stdout}"
    return done.stdout if status == 0 else done.stdout + done.stderr


# --- recorded machines ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    built = {}
    for model in models.ALL:
        built[model.__name__] = tmp_path_factory.mktemp(model.__name__)
        model().write(built[model.__name__])
    return built


def detect(directory, *argv):
    found = json.loads(ctl("detect", "--json", "--from-sysfs", directory, *argv))
    conform(found, schema_of("detect"))
    return found


@pytest.mark.parametrize("name", [m.__name__ for m in models.ALL])
def test_machine_matches_golden(machines, name):
    """The whole JSON output equals a reviewed file. DRAY_GOLDEN=write rewrites the file."""
    found = detect(machines[name])
    found["took_ns"] = 0
    text = json.dumps(found, indent=1, sort_keys=True) + "\n"
    golden = GOLDEN / f"{name}.json"
    if os.environ.get("DRAY_GOLDEN") == "write":
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()
    findings = json.loads(subprocess.run([DRAYCTL, "doctor", "--json", "--from-sysfs", machines[name]], stdout=subprocess.PIPE,
                                         timeout=LIMIT).stdout)
    conform(findings, schema_of("doctor"))


def test_json_matches_golden(machines):
    directory = machines["ipv6_only"]
    golden("json/detect.json", re.sub(r'("took_ns": )\d+', r"\g<1>0", ctl("detect", "--json", "--from-sysfs", directory)))
    done = subprocess.run([DRAYCTL, "doctor", "--json", "--from-sysfs", directory], stdout=subprocess.PIPE, text=True, timeout=LIMIT)
    golden("json/doctor.json", done.stdout)


def best(found, device, port=1):
    p = next(p for d in found["devices"] if d["device"] == device for p in d["ports"] if p["port"] == port)
    return next((g for g in p["gids"] if g["index"] == p["best_gid"]), None)


def preferred(found):
    return [[r["device"] for r in g["rnics"] if r["preferred"]] for g in found["gpus"]]


def test_each_gpu_has_its_own_nic(machines):
    found = detect(machines["hgx_8x8"])
    assert preferred(found) == [[f"mlx5_{i}"] for i in range(8)]
    assert all(g["rnics"][0]["distance"] == "PIX" for g in found["gpus"])
    assert {r["distance"] for g in found["gpus"] for r in g["rnics"][1:]} == {"NODE", "SYS"}
    assert found["advertise"] == "10.20.0.11"
    assert [a["link"] for a in found["addresses"] if not a["rejected"]][-1] == "docker0"


def test_gpus_at_equal_distance_spread(machines):
    found = detect(machines["two_rails_16"])
    taken = [d for one in preferred(found) for d in one]
    assert len(taken) == len(set(taken)) == 8
    assert [d["device"] for d in found["devices"]][2:11:8] == ["mlx5_2", "mlx5_10"]
    all_of_them = detect(machines["two_rails_16"], "--rnics-per-gpu", 2)
    assert [len(one) for one in preferred(all_of_them)] == [2] * 8
    assert sorted(d for one in preferred(all_of_them) for d in one) == sorted(f"mlx5_{i}" for i in range(16))


def test_bond_uses_its_own_address(machines):
    assert best(detect(machines["bonded_roce"]), "mlx5_bond_0")["address"] == "10.30.0.5"


def test_no_gid_without_a_netdev(machines):
    """A private GID with a live netdev is preferred to a public-looking GID without a netdev here, and to a link-local one."""
    found = detect(machines["no_netdev_gids"])
    assert [best(found, f"mlx5_{i}")["address"] for i in range(2)] == ["10.8.0.4", "10.8.1.4"]
    assert all(best(found, f"mlx5_{i}")["index"] == 10 for i in range(2))


def test_pod_with_a_virtual_function(machines):
    found = detect(machines["sriov_pod"])
    assert found["hidden_gpus"] == 8 and not found["gpus"] and "hidden" in found["notes"][0]["text"]
    assert best(found, "mlx5_3")["address"] == "10.56.217.9" and best(found, "mlx5_0") is None
    assert [p["gids_unmapped"] for d in found["devices"] for p in d["ports"]] == [2, 2]
    assert found["devices"][1]["virtual_function"]
    out = ctl("doctor", "--from-sysfs", machines["sriov_pod"], status=1)
    assert "8 GPUs of the driver are not in this /sys" in out and "mlx5_0/1: the port belongs to other network namespaces" in out


def test_gpus_from_the_driver(machines):
    found = detect(machines["hgx_8x200"])
    assert [g["uuid"][:12] for g in found["gpus"]] == [f"GPU-0000000{i}" for i in range(8)]
    assert all(g["name"] == "NVIDIA H200" and g["dma_buf"] for g in found["gpus"])
    assert found["gpu_driver"]["version"] == "580.95.05" and found["gpu_driver"]["libcuda_loads"]
    assert "driver 580.95.05 with the open kernel modules" in ctl("detect", "--from-sysfs", machines["hgx_8x200"])
    half = detect(machines["half_of_the_gpus"])["gpu_driver"]
    assert [g["node"] for g in half["gpus"]] == ["yes"] * 4 + ["not here"] * 4 and half["nvidia_uvm"] == "not here"
    assert not any(g["dma_buf"] for g in detect(machines["closed_modules"])["gpus"])
    assert "GPU-" not in ctl("detect", "--plain", "--from-sysfs", machines["hgx_8x200"])
    # GPUs that are hidden from /sys are listed, too
    assert "0000:19:00.0  H100" in ctl("detect", "--from-sysfs", machines["sriov_pod"])


def test_limited_pkeys_are_reported(machines):
    out = ctl("doctor", "--from-sysfs", machines["infiniband_limited"], status=1)
    assert re.search(r"warning\s+pkey mlx5_1/1: .*limited member", out) and "pkey mlx5_0" not in out
    assert "no subnet manager" in out


@pytest.mark.parametrize("node_type, layer", [(4, "Ethernet"), (7, "Unspecified")], ids=["iwarp", "efa"])
def test_devices_of_other_fabrics_are_no_fault(tmp_path, node_type, layer):
    """Their GIDs are no addresses, so giving the interface an address would not help."""
    m = models.no_rdma()
    m.rdma("iw0", guid=1, protocol="iw", node_type=node_type, netdev="ens3", layer=layer, gids=[(0, "200:0:2::", "v1", None)])
    m.write(tmp_path)
    found = json.loads(ctl("doctor", "--json", "--from-sysfs", tmp_path))["findings"]
    assert {f["severity"] for f in found if f["check"] in ("gid", "mtu")} == {"info"}
    (gid,) = [f for f in found if f["check"] == "gid"]
    assert (gid["about"], gid["text"]) == ("iw0", "the device is neither InfiniBand nor RoCE: transfers do not use it")


def test_address_families_and_fixed_gids(machines):
    six = detect(machines["ipv6_only"])
    assert best(six, "mlx5_0")["address"] == "2001:db8:7::11" and six["advertise"] == "2001:db8:7::11"
    only = best(detect(machines["link_local_only"]), "mlx5_0")
    assert only["class"] == "link_local" and "link-local" in only["reason"]
    hgx = machines["hgx_8x8"]
    assert best(detect(hgx, "--family", "ipv6"), "mlx5_0")["address"] == "10.100.0.11"  # a routable GID is preferred to one of the requested family
    pinned = detect(hgx, "--gid-index", "mlx5_0:1,mlx5_1/1:2")
    assert [best(pinned, f"mlx5_{i}")["index"] for i in range(3)] == [1, 2, 3]
    assert "fixed by configuration" in best(pinned, "mlx5_0")["reason"]
    some = detect(hgx, "--only", "mlx5_[0-3]", "--without", "mlx5_2")
    assert [d["device"] for d in some["devices"]] == ["mlx5_0", "mlx5_1", "mlx5_3"]
    (note,) = [n["text"] for n in some["notes"] if "excluded" in n["text"]]
    assert note.count("mlx5_") == 5
    # many excluded devices leave room for other notes
    notes = [n["text"] for n in detect(machines["two_rails_16"], "--only", "mlx5_0", "--gid-index", "a:1,b:1")["notes"]]
    assert notes[0].endswith(", and 3 more") and notes[1:] == [f"GID index {n}:1: there is no device {n}" for n in "ab"]


def test_listeners_of_the_node(machines):
    found = detect(machines["hgx_8x8"], "--node-addresses", "10.20.0.11,192.0.2.77")
    assert [(x["address"], x["port"], x["match"], x["node_address"]) for x in found["listeners"]] == [
        ("127.0.0.1", 6443, "loopback", False), ("10.20.0.11", 8998, "address", True), ("0.0.0.0", 50051, "wildcard", True)]


def test_explain(machines):
    out = ctl("detect", "--from-sysfs", machines["hgx_8x8"], "--explain", "mlx5_3/1")
    assert "GPU 0000:49:00.0: PIX, preferred" in out and "fe80::" in out and out.index("10.103.0.11") < out.index("fe80::")
    assert "did you mean mlx5_3" in ctl("detect", "--from-sysfs", machines["hgx_8x8"], "--explain", "mlx_3", status=1)
    for port in ("9", "1x", "", "257"):
        out = ctl("detect", "--from-sysfs", machines["hgx_8x8"], "--explain", f"mlx5_3/{port}", status=1)
        assert out == f"drayctl: mlx5_3 has no port {port}; drayctl detect lists all\n"


@pytest.mark.parametrize("damage", ["cut", "empty", "noise", "lying length"])
def test_damaged_dumps(machines, tmp_path, damage):
    """With damaged dumps, detect reports everything else, and notes the errors."""
    models.hgx_8x8().write(tmp_path)
    for dump in (tmp_path / "netlink").iterdir():
        raw = dump.read_bytes()
        dump.write_bytes({"cut": raw[:len(raw) // 2 + 3], "empty": b"", "noise": os.urandom(500),
                          "lying length": b"\xff\xff\xff\x7f" + raw[4:]}[damage])
    found = detect(tmp_path)
    assert len(found["gpus"]) == 8
    assert damage == "empty" or {n["about"] for n in found["notes"]} >= {"links", "devices"}


def test_a_scan_that_fails(tmp_path):
    """A dump that failed is an error with a remedy, not a machine without devices."""
    models.hgx_8x8().write(tmp_path)
    # NLMSG_ERROR, and the request's header
    (tmp_path / "netlink/rdma_dev").write_bytes(struct.pack("=IHHIIi16x", 36, 2, 0, 0, 0, -errno.EMFILE))
    out = ctl("detect", "--from-sysfs", tmp_path, status=1)
    assert "devices: the netlink request \"rdma_dev\" failed: Too many open files; raise the limit" in out
    found = json.loads(ctl("doctor", "--json", "--from-sysfs", tmp_path, status=2))
    conform(found, schema_of("doctor"))
    finding, = found["findings"]
    assert (finding["severity"], finding["check"]) == ("error", "scan") and "raise the limit" in finding["fix"]


# --- usage errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize("argv, says", [
    (["detect", "--gid-index", "mlx5_0"], "write DEVICE:INDEX"), (["detect", "--gid-index", "mlx5_0:256"], "INDEX at most 255"), (["detect", "--gid-index", "mlx5_0/0:1"], "write DEVICE:INDEX"),
    (["detect", "--family", "inet"], "ipv4"), (["detect", "--only", "a,,b"], "empty"), (["detect", "--node-addresses", "host"], "is not an address"),
    (["detect", "--rnics-per-gpu", "-1"], "--rnics-per-gpu"), (["detect", "--watch", "--explain", "x"], "one of them"),
    (["detect", "--watch", "--from-sysfs", "/"], "recorded"), (["detect", "extra"], "extra"), (["detect", "--expain", "x"], "--explain"),
    (["detect", "--explain", "x", "--json"], "--json"), (["doctor", "--register", "much"], "--register"), (["detcet"], "detect"),
])
def test_usage_errors(argv, says):
    assert says in ctl(*argv, status=2)


def test_no_such_machine(tmp_path):
    assert "No such file" in ctl("detect", "--from-sysfs", tmp_path / "none", status=1)
    assert "sys/" in ctl("doctor", "--from-sysfs", tmp_path, status=1)


def test_full_disk():
    with open("/dev/full", "w", encoding="ascii") as full:
        for verb in ("detect", "doctor"):
            done = subprocess.run([DRAYCTL, verb, "--json"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=LIMIT)
            assert done.returncode == 1 and "No space left" in done.stderr


# --- this kernel ------------------------------------------------------------------------------------

SETUP = """
ip link set lo up
ip link add br0 type bridge
ip link add pod0 type veth peer name eth0
ip link add pod1 type veth peer name eth1
ip link set pod0 master br0
ip link set br0 up
ip link set pod0 up
ip link set eth0 up mtu 1400
ip addr add 10.7.0.2/24 dev eth0
ip addr add 169.254.7.7/16 dev eth0 scope link
ip addr add 2001:db8::2/64 dev eth0 nodad
ip addr add 172.17.0.1/16 dev br0
ip addr add 10.9.9.9/32 dev lo scope host
ip route add default via 10.7.0.1 dev eth0 metric 50
ip route add 192.0.2.0/24 via 10.7.0.3
ip route add blackhole 198.51.100.0/24
"""


@pytest.fixture
def here():
    """A network namespace for ip, ss and drayctl, with interfaces, addresses and routes of every kind that this kernel supports."""
    wrap = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    keeper = subprocess.Popen([*wrap, "sh", "-c", "echo; exec sleep 1000"], stdout=subprocess.PIPE)
    if not keeper.stdout.readline():
        pytest.skip("no network namespaces here")
    enter = ["nsenter", f"--target={keeper.pid}", "--net", *([] if os.geteuid() == 0 else ["--user"]), "--"]
    try:
        subprocess.run([*enter, "sh", "-e"], input=SETUP, text=True, check=True, timeout=LIMIT)
        yield enter
    finally:
        keeper.kill()
        keeper.communicate()


def tell_json(here, *argv):
    return json.loads(subprocess.run([*here, *argv], stdout=subprocess.PIPE, check=True, timeout=LIMIT).stdout)


def test_against_ip(here):
    found = json.loads(ctl("detect", "--json", prefix=here))
    conform(found, schema_of("detect"))
    links = {x["ifname"]: x for x in tell_json(here, "ip", "-j", "-d", "link")}
    assert {x["name"] for x in found["links"]} == set(links)
    names = {x["ifindex"]: x["name"] for x in found["links"]}
    for x in found["links"]:
        ip = links[x["name"]]
        assert (x["ifindex"], x["mtu"], x["mac"]) == (ip["ifindex"], ip["mtu"], ip["address"])
        assert x["info_kind"] == ip.get("linkinfo", {}).get("info_kind", "")
        assert names.get(x["master"]) == ip.get("master")
        assert x["up"] == ("UP" in ip["flags"] and "LOWER_UP" in ip["flags"])
    assert {x["name"]: x["kind"] for x in found["links"]} == {"lo": "loopback", "br0": "bridge", "pod0": "veth", "eth0": "veth",
                                                            "pod1": "veth", "eth1": "veth"}
    theirs = {(x["ifname"], a["local"], a["prefixlen"], a["scope"]) for x in tell_json(here, "ip", "-j", "addr") for a in x["addr_info"]}
    assert {(a["link"], a["address"], a["prefix"], a["scope"]) for a in found["addresses"]} == theirs
    routes = {(r["dst"], r.get("gateway", ""), r.get("dev", ""), r.get("metric", 0), r.get("type", "unicast"))
              for r in tell_json(here, "ip", "-j", "-d", "route")}
    ours = {("default" if not r["prefix"] else r["destination"] + f"/{r['prefix']}", r["gateway"], r["link"], r["metric"], r["type"])
            for r in found["routes"] if r["family"] == "ipv4"}
    assert ours == routes


def test_address_to_advertise(here):
    found = json.loads(ctl("detect", "--json", prefix=here))
    assert found["advertise"] == "10.7.0.2"
    order = [a["address"] for a in found["addresses"] if not a["rejected"]]
    assert order == ["10.7.0.2", "2001:db8::2", "172.17.0.1"]
    why = {a["address"]: a["reason"] for a in found["addresses"]}
    assert "default route" in why["10.7.0.2"] and "link-local" in why["169.254.7.7"] and "loopback" in why["10.9.9.9"]
    assert "containers" in why["172.17.0.1"]


LISTEN = """
import socket, sys, time
kept = []
for family, address, port, only in ((2, "10.7.0.2", 4001, 0), (2, "0.0.0.0", 4002, 0), (10, "::", 4003, 0), (10, "::", 4004, 1),
                                    (2, "127.0.0.1", 4005, 0), (10, "2001:db8::2", 4006, 0)):
    s = socket.socket(family)
    if family == 10:
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
    s.bind((address, port))
    s.listen()
    kept.append(s)
print("ready", flush=True)
time.sleep(1000)
"""


def test_against_ss(here):
    with subprocess.Popen([*here, sys.executable, "-c", LISTEN], stdout=subprocess.PIPE, text=True) as listening:
        try:
            assert listening.stdout.readline() == "ready\n"
            found = json.loads(ctl("detect", "--json", "--owners", "--node-addresses", "10.7.0.2,2001:db8::2", prefix=here))["listeners"]
            ss = subprocess.run([*here, "ss", "-H", "-tln"], stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT).stdout
            theirs = sorted(int(line.split()[3].rsplit(":", 1)[1]) for line in ss.splitlines())
            assert [x["port"] for x in found] == theirs == [4001, 4002, 4003, 4004, 4005, 4006]
            assert [x["match"] for x in found] == ["address", "wildcard", "wildcard", "wildcard", "loopback", "address"]
            assert [x["dual"] for x in found] == [False, False, True, False, False, False]
            assert [x["node_address"] for x in found] == [True, True, True, True, False, True]
            assert {x["process"] for x in found} == {pathlib.Path(f"/proc/{listening.pid}/comm").read_text().strip()}
        finally:
            listening.kill()


NAMED = """
import ctypes, socket, sys, time
ctypes.CDLL(None).prctl(15, bytes.fromhex(sys.argv[1]))
s = socket.create_server(("10.7.0.2", 4001))
print("ready", flush=True)
time.sleep(1000)
"""


def test_name_of_a_process_has_any_bytes(here):
    """It does not control the terminal, and the JSON is valid."""
    with subprocess.Popen([*here, sys.executable, "-c", NAMED, b"\x1b[2J\xff\nend".hex()], stdout=subprocess.PIPE, text=True) as listening:
        try:
            assert listening.stdout.readline() == "ready\n"
            assert "\\x1b[2J\\xff\\nend" in ctl("detect", "--owners", prefix=here)
            found = json.loads(ctl("detect", "--json", "--owners", prefix=here))["listeners"]
            assert [x["process"] for x in found] == ["\x1b[2J\u00ff\nend"]
        finally:
            listening.kill()


class Watch:
    """A running drayctl detect --watch."""

    def __init__(self, here, *argv):
        self.process = subprocess.Popen([*here, DRAYCTL, "detect", "--watch", *argv], stdout=subprocess.PIPE)
        self.pipe, self.rest = self.process.stdout.fileno(), b""

    def line(self, limit=LIMIT):
        """Returns the next line; None at the limit or at the end."""
        while b"\n" not in self.rest:
            if not select.select([self.pipe], [], [], limit)[0]:
                return None
            got = os.read(self.pipe, 65536)
            if not got:
                return None
            self.rest += got
        line, self.rest = self.rest.split(b"\n", 1)
        return line.decode()

    def line_with(self, *words):
        seen = []
        while (line := self.line()) is not None:
            seen.append(line)
            if all(w in line for w in words):
                return
        raise AssertionError(f"no line with {words}: {seen}")


@contextlib.contextmanager
def watching(here, *argv):
    watch = Watch(here, *argv)
    try:
        yield watch
    finally:
        watch.process.kill()
        watch.process.wait()


def test_watch(here):
    with watching(here) as watch:
        watch.line_with("rtnetlink")
        for command, words in (("ip addr add 10.7.0.77/24 dev eth0", ("eth0", "10.7.0.77/24", "appeared")),
                               ("ip link set eth1 up", ()), ("ip link set pod1 up", ("eth1", "down -> up")),
                               ("ip route add 203.0.113.0/24 via 10.7.0.9", ("route", "203.0.113.0/24", "appeared")),
                               ("ip addr del 10.7.0.77/24 dev eth0", ("10.7.0.77/24", "is gone")),
                               ("ip link add name odd type bridge", ("odd", "appeared", "bridge")),
                               ("ip link del odd", ("odd is gone",))):
            subprocess.run([*here, *command.split()], check=True, timeout=LIMIT)
            if words:
                watch.line_with(*words)
        watch.process.send_signal(signal.SIGTERM)
        assert watch.process.wait(LIMIT) == 0


def test_watch_as_json(here):
    with watching(here, "--json") as watch:
        # --watch does not report its start, so addresses are added until one is reported
        for i in range(500):
            subprocess.run([*here, "ip", "addr", "del" if i % 2 else "add", "10.7.0.99/24", "dev", "eth0"], check=True, timeout=LIMIT)
            line = watch.line(0.05)
            if line and "10.7.0.99" in json.loads(line)["change"]:
                return
    raise AssertionError("new addresses were not reported")


def test_watch_ends_when_its_reader_closes(here):
    with watching(here) as watch:
        watch.line_with("rtnetlink")
        watch.process.stdout.close()
        assert watch.process.wait(LIMIT) == 0


# --- doctor -----------------------------------------------------------------------------------------


WITHOUT_IPC_LOCK = ("setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to drop its capabilities")


def memlock(limits, register, *how):
    """doctor's finding for a process with these limits on locked memory."""
    done = subprocess.run(["prlimit", f"--memlock={limits}", *how, DRAYCTL, "doctor", "--json", "--register", register],
                          stdout=subprocess.PIPE, timeout=LIMIT)
    finding, = [f for f in json.loads(done.stdout)["findings"] if f["check"] == "memlock"]
    assert done.returncode in (1, 2) or finding["severity"] == "ok"
    return finding


@needs_root
def test_doctor_memlock():
    """doctor reports a low limit on locked memory for a process without CAP_IPC_LOCK."""
    finding = memlock("8388608:8388608", "64GiB", *WITHOUT_IPC_LOCK)
    assert finding["severity"] in ("warning", "error") and "8 MiB" in finding["text"] and "memlock" in finding["fix"]


@needs_root
def test_doctor_memlock_compares_the_hard_limit():
    """The agent raises its soft limit to the hard one."""
    finding = memlock("65536:8388608", "4MiB", *WITHOUT_IPC_LOCK)
    assert finding["severity"] == "ok" and "8 MiB" in finding["text"]


def test_doctor_memlock_in_a_user_namespace():
    """Root of a user namespace, as of a rootless container, has CAP_IPC_LOCK there, which does not lift the limit."""
    wrap = ["unshare", "--user", "--map-root-user"]
    if subprocess.run([*wrap, "true"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("user namespaces are not allowed here")
    finding = memlock("8388608:8388608", "64GiB", *wrap)
    assert finding["severity"] in ("warning", "error") and "8 MiB" in finding["text"]


def findings(directory, check):
    out = subprocess.run([DRAYCTL, "doctor", "--json", "--from-sysfs", directory], stdout=subprocess.PIPE, timeout=LIMIT).stdout
    return [(f["severity"], f["about"], f["text"]) for f in json.loads(out)["findings"] if f["check"] == check]


def finding(directory, check):
    one, = findings(directory, check)
    return one


def test_doctor_uverbs(tmp_path):
    models.hgx_8x8().write(tmp_path)
    assert finding(tmp_path, "uverbs")[0] == "ok"
    (tmp_path / "dev/infiniband/uverbs3").unlink()
    severity, about, text = finding(tmp_path, "uverbs")
    assert (severity, about) == ("error", "mlx5_3") and "uverbs3 is not here" in text


def test_doctor_mtu(machines):
    assert finding(machines["hgx_8x8"], "mtu")[0] == "ok"
    severity, about, text = finding(machines["link_local_only"], "mtu")
    assert (severity, about) == ("warning", "mlx5_0/1") and "1024" in text and "1500" in text


def test_doctor_gid_and_address(machines):
    assert finding(machines["hgx_8x8"], "gid")[0] == finding(machines["hgx_8x8"], "address")[0] == "ok"
    assert "link-local" in finding(machines["link_local_only"], "gid")[2]
    assert finding(machines["link_local_only"], "address")[0] == "warning"


def test_doctor_gid_of_a_netdev_that_is_down(tmp_path):
    """Also if the port has GIDs of other namespaces, the reason is that of its own."""
    models.no_netdev_gids(up=False).write(tmp_path)
    assert {text for _, _, text in findings(tmp_path, "gid")} == {"the port has no usable GID: rejected: its netdev is down"}


def test_doctor_ports(machines):
    assert finding(machines["hgx_8x8"], "port")[0] == "ok"
    assert ("warning", "mlx5_2/1") in [f[:2] for f in findings(machines["infiniband_limited"], "port")]


def test_doctor_gpu_direct(tmp_path):
    models.hgx_8x8().write(tmp_path)
    assert finding(tmp_path, "gpu-direct")[0] == "warning"
    (tmp_path / "sys/module/nvidia_peermem").mkdir(parents=True)
    severity, _, text = finding(tmp_path, "gpu-direct")
    assert severity == "warning" and "nvidia-peermem is not used" in text
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15\n")
    assert finding(tmp_path, "gpu-direct")[0] == "ok" and "DMA-BUF" in finding(tmp_path, "gpu-direct")[2]


def test_doctor_gpus(machines):
    assert [finding(machines["hgx_8x200"], c)[0] for c in ("gpu-nodes", "gpu-driver", "gpu-direct")] == ["ok"] * 3
    nodes, half = findings(machines["half_of_the_gpus"], "gpu-nodes")
    assert nodes[:2] == ("warning", "nvidia-uvm") and "is not here" in nodes[2]
    assert half[0] == "info" and "4 of the driver's 8 GPUs" in half[2]
    assert finding(machines["half_of_the_gpus"], "gpu-driver")[:2] == ("warning", "")
    assert "the loader does not look" in finding(machines["closed_modules"], "gpu-driver")[2]
    assert "closed kernel modules" in finding(machines["closed_modules"], "gpu-direct")[2]
    assert "no device node" in finding(machines["hgx_8x8"], "gpu-nodes")[2]
    assert not findings(machines["no_rdma"], "gpu-nodes") and not findings(machines["no_rdma"], "gpu-driver")


# --- CUDA: the fake plug-in ---------------------------------------------------------------------------

FAKE_GPU = DRAYCTL.parent / "tests/gpu/dray-fake-gpu.so"


def with_gpus(verb, *argv, plugin=FAKE_GPU, **env):
    done = subprocess.run([DRAYCTL, verb, "--gpu-plugin", plugin, *argv], stdout=subprocess.PIPE, text=True, timeout=LIMIT,
                          env={**os.environ, **env})
    return done.stdout


def test_cuda_devices():
    found = json.loads(with_gpus("detect", "--json", FAKE_GPU_DEVICES="3"))
    conform(found, schema_of("detect"))
    cuda = found["cuda"]
    assert cuda["plugin"] == str(FAKE_GPU) and not cuda["reason"] and len(cuda["devices"]) == 3
    assert [d["peers"][i] for i, d in enumerate(cuda["devices"])] == ["self"] * 3
    assert {p for d in cuda["devices"] for p in d["peers"]} & {"nvlink", "pcie"}
    text = with_gpus("detect", FAKE_GPU_DEVICES="3")
    assert cuda["devices"][2]["uuid"] in text and "cuda_ipc cuda_vmm" in text and cuda["driver"] in text


def cuda_findings(*argv, **env):
    found = json.loads(with_gpus("doctor", "--json", *argv, **env))
    conform(found, schema_of("doctor"))
    return {f["check"]: (f["severity"], f["text"]) for f in found["findings"] if f["check"] in ("gpu-plugin", "gpu-peers")}


def test_doctor_with_cuda():
    found = cuda_findings()
    assert found["gpu-plugin"][0] == "ok" and found["gpu-peers"][0] == "ok"
    apart = cuda_findings(FAKE_GPU_PEERS="0", FAKE_GPU_DEVICES="3")["gpu-peers"]
    assert apart[0] == "warning" and "3 of 3 pairs" in apart[1]
    assert "gpu-peers" not in cuda_findings(FAKE_GPU_DEVICES="1")
    severity, text = cuda_findings(FAKE_GPU_FAIL="open")["gpu-plugin"]
    assert severity == "warning" and text
    assert cuda_findings(plugin="none") == {}


def test_no_cuda(tmp_path):
    """Without CUDA, detect prints one line and succeeds."""
    assert f"CUDA: not used: the CUDA plug-in {tmp_path}/none.so is not there" in with_gpus("detect", plugin=tmp_path / "none.so")
    (tmp_path / "bad.so").write_text("no library")
    assert "CUDA: not used: the CUDA plug-in cannot be loaded" in with_gpus("detect", plugin=tmp_path / "bad.so")
    assert "--gpu-plugin none" in json.loads(with_gpus("detect", "--json", plugin="none"))["cuda"]["reason"]
    assert "CUDA" not in with_gpus("detect", plugin="none")


def test_doctor_kernel_and_huge_pages(tmp_path):
    models.no_rdma().write(tmp_path)
    assert [f[0] for f in findings(tmp_path, "kernel")] == ["info"]
    assert finding(tmp_path, "huge-pages")[0] == "ok"
    (tmp_path / "proc/sys/kernel/osrelease").write_text("5.10.0-30-amd64\n")
    assert [f[0] for f in findings(tmp_path, "kernel")] == ["warning", "warning", "info", "info"]
    (tmp_path / "proc/sys/kernel/osrelease").write_text("6.18.44\n")
    assert [f[0] for f in findings(tmp_path, "kernel")] == ["ok"]
    (tmp_path / "proc/meminfo").write_text("HugePages_Total:    8\nHugePages_Free:     0\n")
    assert finding(tmp_path, "huge-pages")[0] == "warning"
    (tmp_path / "proc/meminfo").write_text("HugePages_Total:    0\nHugePages_Free:     0\n")
    assert finding(tmp_path, "huge-pages")[0] == "info"


def test_doctor_forms():
    text, plain = (subprocess.run([DRAYCTL, "doctor", *form], stdout=subprocess.PIPE, text=True, timeout=LIMIT).stdout
                   for form in ((), ("--plain",)))
    assert len(text.splitlines()) == len(plain.splitlines()) >= 6
    assert all(line.count("\t") == 4 for line in plain.splitlines())


# --- the agent --------------------------------------------------------------------------------------


def segment_of(agent):
    return agent.ctl("status", "--json")["segment"]


def test_agent_follows_addresses(lab, new_agent):
    """With a listener on all addresses, the advertised address changes when a better one appears, and back when it disappears."""
    if not lab.namespaces:
        pytest.skip("needs a network namespace of its own")
    agent = new_agent(listen=["0.0.0.0"], settings={"peer.allow_insecure": "true"})
    host = agent.host
    address, port = segment_of(agent).rsplit(":", 1)
    assert address == host.v4
    better = "10.76.0.1"  # of two equal addresses the lower one is preferred
    host.run("ip", "addr", "add", f"{better}/24", "dev", "dray0")
    try:
        until(lambda: segment_of(agent) == f"{better}:{port}")
        assert f"advertising {better}:{port} instead of {address}:{port}" in agent.log.read_text()
    finally:
        host.run("ip", "addr", "del", f"{better}/24", "dev", "dray0")
    until(lambda: segment_of(agent) == f"{address}:{port}")


def test_agent_excludes_interfaces(lab, new_agent):
    if not lab.namespaces:
        pytest.skip("needs a network namespace of its own")
    agent = new_agent(listen=["0.0.0.0"], settings={"peer.allow_insecure": "true", "peer.exclude_interfaces": "dray*"})
    assert segment_of(agent).startswith("127.0.0.1:")


def test_agent_names_nodes_that_do_not_exist(new_agent):
    agent = new_agent(settings={"agent.numa_nodes": "0,63"})
    until(lambda: "warning agent: agent.numa_nodes: node 63 does not exist, or has no CPU that the agent may use, ignoring it" in agent.text())
    assert "numa_nodes: node 0" not in agent.text()


def test_agent_lists_rails(agent):
    out = agent.ctl("rails", "--json")
    conform(out, schema_of("rails"))


@pytest.mark.parametrize("setting, says", [
    ("rdma.gid_index=mlx5_0", "write DEVICE:INDEX"), ("rdma.mtu=300", "300 is not a path MTU"), ("agent.numa_nodes=zero", "not a NUMA node"), ("node.addresses=node-1", "not an address"),
    ("rdma.gid_family=inet", "ipv4"), ("rdma.rnics_per_gpu=99", "64"),
])
def test_agent_refuses_settings(setting, says):
    drayd = DRAYCTL.parent / "drayd"
    done = subprocess.run([drayd, "--check-config", "--set", setting], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=LIMIT)
    assert done.returncode != 0 and says in done.stdout and setting.split("=")[0] in done.stdout
