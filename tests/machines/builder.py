# SPDX-License-Identifier: Apache-2.0
"""Writes a recorded machine in the form of netdetect/source/source.h: sys/, proc/, dev/, and netlink dumps as the kernel sends them."""

import ipaddress
import os
import socket
import struct

NLM_F_MULTI, NLMSG_DONE = 2, 3
RTM_NEWLINK, RTM_NEWADDR, RTM_NEWROUTE = 16, 20, 24
SOCK_DIAG_BY_FAMILY = 20
IFF_UP, IFF_LOOPBACK, IFF_RUNNING, IFF_LOWER_UP = 0x1, 0x8, 0x40, 0x10000
# include/uapi/rdma/rdma_netlink.h
NLDEV = 5
CMD_GET, CMD_PORT_GET, CMD_SYS_GET, CMD_RES_GET = 1, 5, 6, 9


def _find(name):
    """The number of an attribute, from the kernel's header: counts the lines of the enum."""
    number = -1
    inside = False
    with open("/usr/include/rdma/rdma_netlink.h", encoding="ascii") as f:
        for line in f:
            word = line.strip().split(",")[0].split(" ")[0]
            if line.startswith("enum rdma_nldev_attr"):
                inside = True
            elif inside and word.startswith("RDMA_NLDEV_") and "," in line:
                number += "=" not in line.split("/*")[0]  # the entry with an explicit value repeats UNSPEC
                if word == name:
                    return number
    raise KeyError(name)


DEV_INDEX, DEV_NAME, PORT_INDEX = (_find(f"RDMA_NLDEV_ATTR_{n}") for n in ("DEV_INDEX", "DEV_NAME", "PORT_INDEX"))
CAP_FLAGS, FW_VERSION, NODE_GUID = (_find(f"RDMA_NLDEV_ATTR_{n}") for n in ("CAP_FLAGS", "FW_VERSION", "NODE_GUID"))
SYS_IMAGE_GUID, LID, SM_LID = (_find(f"RDMA_NLDEV_ATTR_{n}") for n in ("SYS_IMAGE_GUID", "LID", "SM_LID"))
PORT_STATE, PORT_PHYS, NODE_TYPE = (_find(f"RDMA_NLDEV_ATTR_{n}") for n in ("PORT_STATE", "PORT_PHYS_STATE", "DEV_NODE_TYPE"))
RES_SUMMARY, RES_ENTRY = (_find(f"RDMA_NLDEV_ATTR_RES_SUMMARY{n}") for n in ("", "_ENTRY"))
RES_NAME, RES_CURR = (_find(f"RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_{n}") for n in ("NAME", "CURR"))
NDEV_INDEX, NDEV_NAME = (_find(f"RDMA_NLDEV_ATTR_NDEV_{n}") for n in ("INDEX", "NAME"))
DEV_PROTOCOL, NETNS_MODE = _find("RDMA_NLDEV_ATTR_DEV_PROTOCOL"), _find("RDMA_NLDEV_SYS_ATTR_NETNS_MODE")


def attr(kind, data):
    if isinstance(data, str):
        data = data.encode() + b"\0"
    raw = struct.pack("=HH", len(data) + 4, kind) + data
    return raw + bytes(-len(raw) % 4)


def u8(v):
    return struct.pack("=B", v)


def u16(v):
    return struct.pack("=H", v)


def u32(v):
    return struct.pack("=I", v)


def u64(v):
    return struct.pack("=Q", v)


def message(kind, payload):
    raw = struct.pack("=IHHII", len(payload) + 16, kind, NLM_F_MULTI, 1, 0) + payload
    return raw + bytes(-len(raw) % 4)


class Machine:
    """Methods add the parts of the machine; write() writes it to a directory."""

    def __init__(self):
        self.files, self.links, self.directories = {}, {}, set()
        self.dumps = {n: b"" for n in ("link", "addr", "route", "rdma_dev", "rdma_port", "rdma_res", "rdma_sys", "listen")}
        self.ifindex, self.rdma_index = {}, 0
        self.file("/proc/sys/kernel/osrelease", "6.8.0-45-generic")
        self.file("/proc/meminfo", "MemTotal: 2113000000 kB\nHugePages_Total:    1024\nHugePages_Free:     1024\n")
        self.directories.add("sys/class/net")
        self.interface("lo", kind="loopback")
        self.address("lo", "127.0.0.1/8", scope=254)
        self.address("lo", "::1/128", scope=254)

    # --- files --------------------------------------------------------------------------------------

    def file(self, path, text):
        self.files[path.lstrip("/")] = text

    def link(self, path, target):
        """A symbolic link; the target is also a path of the machine."""
        self.links[path.lstrip("/")] = target.lstrip("/")

    def write(self, directory):
        for path in self.directories:
            os.makedirs(os.path.join(directory, path), exist_ok=True)
        for path, text in self.files.items():
            full = os.path.join(directory, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as f:
                f.write(text + "\n")
        for path, target in self.links.items():
            full = os.path.join(directory, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            os.symlink(os.path.relpath(os.path.join(directory, target), os.path.dirname(full)), full)
        os.makedirs(os.path.join(directory, "netlink"), exist_ok=True)
        for name, raw in self.dumps.items():
            if raw:
                with open(os.path.join(directory, "netlink", name), "wb") as f:
                    f.write(raw + message(NLMSG_DONE, u32(0)))

    # --- PCI and NUMA -------------------------------------------------------------------------------

    def node(self, number, cpus):
        self.file(f"/sys/devices/system/node/node{number}/cpulist", cpus)
        self.file(f"/sys/devices/system/node/node{number}/meminfo", f"Node {number} MemTotal: {1 << 30} kB")

    def pci(self, path, numa, *, vendor, device, kind, driver=None):
        """path: functions from the host bridge down, such as ("pci0000:15", "0000:15:01.0", "0000:17:00.0")."""
        where = "/sys/devices/" + "/".join(path)
        for i in range(2, len(path)):  # the bridges above
            above = "/sys/devices/" + "/".join(path[:i])
            if f"{above}/class".lstrip("/") not in self.files:
                self.file(f"{above}/class", "0x060400")
                self.file(f"{above}/numa_node", str(numa))
                self.link(f"/sys/bus/pci/devices/{path[i - 1]}", above)
        self.file(f"{where}/class", f"0x{kind:06x}")
        self.file(f"{where}/vendor", f"0x{vendor:04x}")
        self.file(f"{where}/device", f"0x{device:04x}")
        self.file(f"{where}/numa_node", str(numa))
        self.link(f"/sys/bus/pci/devices/{path[-1]}", where)
        if driver:
            self.directories.add(f"sys/bus/pci/drivers/{driver}")
            self.link(f"{where}/driver", f"/sys/bus/pci/drivers/{driver}")
        return where

    def gpu(self, path, numa, device=0x2330):
        """By default an H100 SXM."""
        return self.pci(path, numa, vendor=0x10DE, device=device, kind=0x030200, driver="nvidia")

    # --- interfaces ---------------------------------------------------------------------------------

    def interface(self, name, *, kind="", mtu=1500, up=True, master=None, lower=None, vlan=None, pci=None, speed=None):
        index = self.ifindex[name] = len(self.ifindex) + 1
        flags = (IFF_UP if up is not None else 0) | (IFF_RUNNING | IFF_LOWER_UP if up else 0)
        loopback = kind == "loopback"
        body = attr(3, name) + attr(4, u32(65536 if loopback else mtu)) + attr(1, bytes([2, 0, 0, 0, index >> 8, index & 255]))
        body += attr(16, u8(6 if up else 2))
        if master:
            body += attr(10, u32(self.ifindex[master]))
        if lower:
            body += attr(5, u32(self.ifindex[lower]))
        if kind and not loopback:
            data = attr(2, attr(1, u16(vlan))) if vlan else b""
            body += attr(18, attr(1, kind) + data)
        head = struct.pack("=BBHiII", 0, 0, 772 if loopback else 1, index, flags | (IFF_LOOPBACK if loopback else 0), 0)
        self.dumps["link"] += message(RTM_NEWLINK, head + body)
        if pci:
            self.link(f"/sys/class/net/{name}/device", pci)
            self.file(f"/sys/class/net/{name}/speed", str(speed if up and speed else -1))

    def local(self, name):
        """The link-local address that the kernel makes of the interface's MAC."""
        return f"fe80::ff:fe00:{self.ifindex[name]:x}"

    def address(self, name, text, scope=0):
        a = ipaddress.ip_interface(text)
        family = socket.AF_INET if a.version == 4 else socket.AF_INET6
        body = attr(1, a.ip.packed) + (attr(2, a.ip.packed) if a.version == 4 else b"") + attr(8, u32(0x80))
        self.dumps["addr"] += message(RTM_NEWADDR, struct.pack("=BBBBI", family, a.network.prefixlen, 0x80, scope,
                                                             self.ifindex[name]) + body)
        if scope == 0:
            self.route(a.network, name)

    def route(self, network, name, gateway=None, metric=0):
        n = ipaddress.ip_network(network)
        family = socket.AF_INET if n.version == 4 else socket.AF_INET6
        body = attr(15, u32(254)) + (attr(1, n.network_address.packed) if n.prefixlen else b"") + attr(4, u32(self.ifindex[name]))
        if gateway:
            body += attr(5, ipaddress.ip_address(gateway).packed)
        if metric:
            body += attr(6, u32(metric))
        self.dumps["route"] += message(RTM_NEWROUTE, struct.pack("=BBBBBBBBI", family, n.prefixlen, 0, 0, 254, 2, 0, 1, 0) + body)

    def listener(self, address, port, uid=0, inode=1):
        a = ipaddress.ip_address(address)
        source = a.packed + bytes(16 - len(a.packed))
        family = socket.AF_INET if a.version == 4 else socket.AF_INET6
        head = struct.pack("=BBBB", family, 10, 0, 0) + struct.pack(">HH", port, 0) + source + bytes(16) + bytes(4 + 8)
        self.dumps["listen"] += message(SOCK_DIAG_BY_FAMILY, head + struct.pack("=IIIII", 0, 0, 0, uid, inode))

    # --- RDMA ---------------------------------------------------------------------------------------

    def netns(self, shared):
        self.dumps["rdma_sys"] += message(NLDEV << 10 | CMD_SYS_GET, attr(NETNS_MODE, u8(shared)))

    def rdma(self, name, *, pci=None, guid, protocol="roce", firmware="28.39.1002", netdev=None, layer="Ethernet", state=4,
             rate="400 Gb/sec (4X NDR)", gids=(), foreign=(), table=16, pkeys=(0xFFFF,), board="MT_0000000838", lid=0, uverbs=True,
             virtual=False, node_type=1):
        """gids: (index, address, "v1"|"v2"|"ib", netdev). foreign: GIDs of another network namespace, in the same form."""
        index = self.rdma_index
        self.rdma_index += 1
        where = f"/sys/class/infiniband/{name}"
        port = f"{where}/ports/1"
        dev = attr(DEV_INDEX, u32(index)) + attr(DEV_NAME, name)
        self.dumps["rdma_dev"] += message(NLDEV << 10 | CMD_GET, dev + attr(FW_VERSION, firmware) + attr(NODE_GUID, u64(guid)) +
                                          attr(SYS_IMAGE_GUID, u64(guid)) + attr(NODE_TYPE, u8(node_type)) + attr(DEV_PROTOCOL, protocol))
        body = dev + attr(PORT_INDEX, u32(1)) + attr(CAP_FLAGS, u64(0x4010000)) + attr(PORT_STATE, u8(state))
        body += attr(PORT_PHYS, u8(5 if state == 4 else 3))
        if layer == "InfiniBand":
            body += attr(LID, u32(lid)) + attr(SM_LID, u32(1))
        if netdev:
            body += attr(NDEV_INDEX, u32(self.ifindex[netdev])) + attr(NDEV_NAME, netdev)
        self.dumps["rdma_port"] += message(NLDEV << 10 | CMD_PORT_GET, body)
        entries = b"".join(attr(RES_ENTRY, attr(RES_NAME, n) + attr(RES_CURR, u64(v))) for n, v in (("pd", 1), ("cq", 2), ("qp", 1)))
        self.dumps["rdma_res"] += message(NLDEV << 10 | CMD_RES_GET, dev + attr(RES_SUMMARY, entries))
        if pci:
            self.link(f"{where}/device", pci)
            if virtual:
                self.file(f"{pci}/physfn/class", "0x020000")
        self.file(f"{where}/board_id", board)
        self.file(f"{port}/link_layer", layer)
        self.file(f"{port}/rate", rate)
        for i in range(table):
            self.file(f"{port}/gids/{i}", ":".join(["0000"] * 8))
        for i, address, kind, ndev in (*gids, *foreign):
            a = ipaddress.ip_address(address)
            raw = bytes(10) + b"\xff\xff" + a.packed if a.version == 4 else a.packed
            self.file(f"{port}/gids/{i}", ":".join(raw[k:k + 2].hex() for k in range(0, 16, 2)))
            if (i, address, kind, ndev) in foreign:
                # a directory cannot be read as a file; the kernel fails with EINVAL for a GID of another namespace
                self.directories.add(f"{port}/gid_attrs/types/{i}".lstrip("/"))
                continue
            self.file(f"{port}/gid_attrs/types/{i}", {"v1": "IB/RoCE v1", "v2": "RoCE v2", "ib": "IB/RoCE v1"}[kind])
            if ndev:
                self.file(f"{port}/gid_attrs/ndevs/{i}", ndev)
        for i, value in enumerate(pkeys):
            self.file(f"{port}/pkeys/{i}", f"0x{value:04x}")
        if uverbs:
            self.file(f"/sys/class/infiniband_verbs/uverbs{index}/ibdev", name)
            self.file(f"/dev/infiniband/uverbs{index}", "")
