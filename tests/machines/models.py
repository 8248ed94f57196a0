# SPDX-License-Identifier: Apache-2.0
"""The machines. Each function builds one; its docstring names the modelled machine and the published layout."""

from .builder import Machine

CX7, CX6, VF = 0x1021, 0x101B, 0x101E


def nic(m, path, numa, device=CX7):
    return m.pci(path, numa, vendor=0x15B3, device=device, kind=0x020000, driver="mlx5_core")


def roce(m, name, netdev, v4=None, v6=None, *, up=True, mtu=9000, first=0, **more):
    """A port with a GID table as the kernel fills it: link-local first, each address as RoCE v1 and v2."""
    addresses = [a for a in (m.local(netdev), v4, v6) if a]
    gids = [(first + 2 * i + k, a, kind, netdev) for i, a in enumerate(addresses) for k, kind in enumerate(("v1", "v2"))]
    m.rdma(name, netdev=netdev, guid=0xB83FD20300000000 + m.ifindex[netdev], gids=gids if up else (), state=4 if up else 1, **more)


def management(m, bridge=True):
    """The management interface, and the interfaces that a container runtime adds."""
    m.interface("eno1", speed=25000, pci=nic(m, ("pci0000:00", "0000:00:1c.0", "0000:04:00.0"), 0, CX6))
    m.address("eno1", "10.20.0.11/22")
    m.address("eno1", "fe80::11/64", scope=253)
    m.route("0.0.0.0/0", "eno1", "10.20.0.1", 100)
    if bridge:
        m.interface("docker0", kind="bridge")
        m.address("docker0", "172.17.0.1/16")
        m.interface("veth1", kind="veth", master="docker0")


def hgx_8x8(device=0x2330):
    """Two sockets, 8 H100 SXM and 8 ConnectX-7 of 400 Gb/s, each pair below one PCIe switch of its own (DGX H100 user guide,
    system topology); tables of 256 GIDs, as mlx5 has them. A management NIC beside them."""
    m = Machine()
    m.node(0, "0-55,112-167")
    m.node(1, "56-111,168-223")
    management(m)
    for i in range(8):
        numa, root = i // 4, 0x15 + 0x10 * i
        host, port, up = f"pci0000:{root:02x}", f"0000:{root:02x}:01.0", f"0000:{root + 1:02x}:00.0"
        m.gpu((host, port, up, f"0000:{root + 2:02x}:00.0", f"0000:{root + 4:02x}:00.0"), numa, device)
        pci = nic(m, (host, port, up, f"0000:{root + 2:02x}:01.0", f"0000:{root + 3:02x}:00.0"), numa)
        m.interface(f"eth{i}", mtu=9000, speed=400000, pci=pci)
        m.address(f"eth{i}", f"10.{100 + i}.0.11/16")
        roce(m, f"mlx5_{i}", f"eth{i}", f"10.{100 + i}.0.11", pci=pci, table=256)
    m.netns(True)
    m.listener("0.0.0.0", 50051)
    m.listener("10.20.0.11", 8998, inode=2)
    m.listener("127.0.0.1", 6443, inode=3)
    return m


def nvidia(m, count, *, opened=range(0), version="580.95.05", open_modules=True, root=0x15):
    """NVIDIA's driver as it appears without CUDA; opened: the GPUs whose device nodes the container has."""
    module = "NVIDIA UNIX Open Kernel Module for x86_64" if open_modules else "NVIDIA UNIX x86_64 Kernel Module"
    m.file("/proc/driver/nvidia/version", f"NVRM version: {module}  {version}  Release Build  (dvs-builder@host)\nGCC version:  gcc 13.3.0")
    for i in range(count):
        bdf = f"0000:{root + 0x10 * i + 4:02x}:00.0"
        m.file(f"/proc/driver/nvidia/gpus/{bdf}/information",
               f"Model: \t\t NVIDIA H200\nIRQ:   \t\t 500\nGPU UUID: \t GPU-0000000{i}-1111-2222-3333-444444444444\n"
               f"Video BIOS: \t 96.00.a5\nBus Type: \t PCIe\nBus Location: \t {bdf}\nDevice Minor: \t {i}\nGPU Excluded:\t No")
    for i in opened:
        m.file(f"/dev/nvidia{i}", "")
    if opened:
        m.file("/dev/nvidiactl", "")
        m.file("/dev/nvidia-uvm", "")


def libcuda(m, folder="/usr/lib/x86_64-linux-gnu", cached=True):
    """CUDA's driver library as the container toolkit mounts it, and the loader's cache with its name."""
    m.file(f"{folder}/libcuda.so.1", "\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0")
    if cached:
        m.file("/etc/ld.so.cache", f"glibc-ld.so.cache1.1\0libcuda.so.1\0{folder}/libcuda.so.1\0libc.so.6\0/usr/lib/libc.so.6\0")


def hgx_8x200():
    """A whole node: 8 H200 with the open kernel modules and everything that CUDA needs."""
    m = hgx_8x8(device=0x2335)
    nvidia(m, 8, opened=range(8))
    libcuda(m)
    return m


def closed_modules():
    """The same node with the closed kernel modules and nvidia-peermem, as in older installations; libcuda is in a folder that only
    LD_LIBRARY_PATH would name."""
    m = hgx_8x8()
    nvidia(m, 8, opened=range(8), version="535.161.08", open_modules=False)
    libcuda(m, "/usr/local/nvidia/lib64", cached=False)
    m.file("/sys/module/nvidia_peermem/refcnt", "0")
    return m


def half_of_the_gpus():
    """A container with four of eight GPUs, and neither nvidia-uvm nor libcuda."""
    m = hgx_8x8(device=0x2335)
    nvidia(m, 8, opened=range(4))
    del m.files["dev/nvidia-uvm"]
    return m


def two_rails_16():
    """16 NICs on two rails with address plans of their own and no route between them; eight GPUs share them, two switches a socket.
    Names beyond nine, so that sorting by text would put mlx5_10 before mlx5_2."""
    m = Machine()
    m.node(0, "0-31")
    m.node(1, "32-63")
    management(m)
    for i in range(16):
        numa, switch = i // 8, i // 4
        root = 0x10 + 0x20 * switch
        host, port, up = f"pci0000:{root:02x}", f"0000:{root:02x}:01.0", f"0000:{root + 1:02x}:00.0"
        if i % 2 == 0:
            m.gpu((host, port, up, f"0000:{root + 2:02x}:{8 + i % 4:02x}.0", f"0000:{root + 10 + i % 4:02x}:00.0"), numa)
        pci = nic(m, (host, port, up, f"0000:{root + 2:02x}:{i % 4:02x}.0", f"0000:{root + 3 + i % 4:02x}:00.0"), numa)
        rail = i % 2
        m.interface(f"rail{rail}_{i // 2}", mtu=9000, speed=200000, pci=pci)
        address = f"192.168.{10 * (rail + 1)}.{20 + i // 2}"
        m.address(f"rail{rail}_{i // 2}", f"{address}/24")
        roce(m, f"mlx5_{i}", f"rail{rail}_{i // 2}", address, pci=pci, rate="200 Gb/sec (4X HDR)")
    return m


def bonded_roce():
    """RoCE LAG: mlx5_bond_0 over both ports of one card, with the bond's netdev and a VLAN on it."""
    m = Machine()
    m.node(0, "0-15")
    one = nic(m, ("pci0000:3a", "0000:3a:00.0", "0000:3b:00.0"), 0, CX6)
    two = nic(m, ("pci0000:3a", "0000:3a:00.0", "0000:3b:00.1"), 0, CX6)
    m.interface("bond0", kind="bond", mtu=9000)
    m.interface("ens1f0", mtu=9000, speed=100000, pci=one, master="bond0")
    m.interface("ens1f1", mtu=9000, speed=100000, pci=two, master="bond0")
    m.interface("bond0.300", kind="vlan", lower="bond0", vlan=300, mtu=9000)
    m.address("bond0", "10.30.0.5/24")
    m.address("bond0.300", "10.31.0.5/24")
    m.route("0.0.0.0/0", "bond0", "10.30.0.1")
    m.rdma("mlx5_bond_0", pci=one, guid=0xB83FD203001122, netdev="bond0", rate="100 Gb/sec (4X EDR)",
           gids=[(0, m.local("bond0"), "v1", "bond0"), (1, m.local("bond0"), "v2", "bond0"), (2, "10.31.0.5", "v1", "bond0.300"),
                 (3, "10.31.0.5", "v2", "bond0.300"), (4, "10.30.0.5", "v1", "bond0"), (5, "10.30.0.5", "v2", "bond0")])
    return m


def infiniband_limited():
    """Native InfiniBand, NDR: one port is a full member of the default partition, one a limited member of all its partitions, and
    one is unknown to the subnet manager."""
    m = Machine()
    m.node(0, "0-15")
    management(m, bridge=False)
    for i, (pkeys, state) in enumerate((((0xFFFF, 0x8001), 4), ((0x7FFF, 0x0001), 4), ((0x7FFF,), 2))):
        pci = nic(m, ("pci0000:40", f"0000:40:0{i}.0", f"0000:4{i + 1}:00.0"), 0)
        m.interface(f"ib{i}", mtu=2044, up=state == 4, pci=pci)
        m.rdma(f"mlx5_{i}", pci=pci, guid=0xB83FD203000000 + i, protocol="ib", netdev=f"ib{i}", layer="InfiniBand", state=state,
               gids=[(0, f"fe80::b83f:d203:0:{i + 1}", "ib", None)], pkeys=pkeys, lid=7 + i, table=8)
    return m


def sriov_pod():
    """A pod with one virtual function, in the kernel's shared mode: the tables of all devices are in sysfs, and the GIDs of others
    give EINVAL. Its /sys has no GPU, but driver and device nodes show eight (container-engine-accelerators issue 580)."""
    m = Machine()
    m.interface("eth0", kind="veth", mtu=1450)
    m.address("eth0", "10.244.3.17/24")
    m.route("0.0.0.0/0", "eth0", "10.244.3.1")
    pci = nic(m, ("pci0000:15", "0000:15:01.0", "0000:17:00.2"), 0, VF)
    m.interface("net1", mtu=9000, speed=200000, pci=pci)
    m.address("net1", "10.56.217.9/16")
    m.rdma("mlx5_3", pci=pci, guid=0x3, netdev="net1", gids=[(3, "10.56.217.9", "v2", "net1")],
           foreign=[(0, "fe80::77", "v1", None), (1, "10.56.217.8", "v2", None)], virtual=True, rate="200 Gb/sec (4X HDR)")
    m.rdma("mlx5_0", guid=0x1, foreign=[(0, "fe80::78", "v1", None), (1, "10.56.0.1", "v2", None)], uverbs=False)
    for i in range(8):
        m.file(f"/proc/driver/nvidia/gpus/0000:{0x19 + i:02x}:00.0/information", "Model: H100")
        m.file(f"/dev/nvidia{i}", "")
    m.file("/dev/nvidiactl", "")
    m.file("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15")
    m.netns(True)
    return m


def ipv6_only():
    """A fabric without IPv4: only global IPv6 addresses, also on the management side."""
    m = Machine()
    m.node(0, "0-15")
    pci = nic(m, ("pci0000:3a", "0000:3a:00.0", "0000:3b:00.0"), 0)
    m.interface("eth0", mtu=9000, speed=200000, pci=pci)
    m.address("eth0", "2001:db8:7::11/64")
    m.address("eth0", f"{m.local('eth0')}/64", scope=253)
    m.route("::/0", "eth0", "fe80::1")
    roce(m, "mlx5_0", "eth0", None, "2001:db8:7::11", pci=pci)
    return m


def link_local_only():
    """Back-to-back cables without any address: there are only link-local GIDs, and they work on that link."""
    m = Machine()
    m.node(0, "0-15")
    pci = nic(m, ("pci0000:3a", "0000:3a:00.0", "0000:3b:00.0"), 0)
    m.interface("eth0", mtu=1500, speed=100000, pci=pci)
    m.address("eth0", f"{m.local('eth0')}/64", scope=253)
    roce(m, "mlx5_0", "eth0", pci=pci)
    return m


def no_rdma():
    """A plain virtual machine: one interface, no RDMA, no GPU."""
    m = Machine()
    m.interface("ens3", pci=m.pci(("pci0000:00", "0000:00:03.0"), -1, vendor=0x1AF4, device=0x1000, kind=0x020000, driver="virtio-pci"))
    m.address("ens3", "192.0.2.10/24")
    m.route("0.0.0.0/0", "ens3", "192.0.2.1")
    return m


def no_netdev_gids(up=True):
    """A cloud machine. The GIDs of its first device look public but have no netdev in this namespace; the second device has a
    private 10/8 address on a live netdev. Only the second device's GIDs work."""
    m = Machine()
    m.node(0, "0-15")
    for i in range(2):
        pci = nic(m, ("pci0000:3a", f"0000:3a:0{i}.0", f"0000:3{i + 11:x}:00.0"), 0)
        m.interface(f"eth{i}", mtu=9000, speed=100000, pci=pci, up=up)
        m.address(f"eth{i}", f"10.8.{i}.4/24")
        m.address(f"eth{i}", "169.254.3.4/16", scope=253)
        m.rdma(f"mlx5_{i}", pci=pci, guid=i + 1, netdev=f"eth{i}", rate="100 Gb/sec (4X EDR)",
               gids=[(0, m.local(f"eth{i}"), "v2", f"eth{i}"), (1, "203.0.113.9", "v2", None), (10, f"10.8.{i}.4", "v2", f"eth{i}"),
                     (2, "169.254.3.4", "v2", f"eth{i}")])
    return m


ALL = (hgx_8x8, hgx_8x200, closed_modules, half_of_the_gpus, two_rails_16, bonded_roce, infiniband_limited, sriov_pod, ipv6_only,
       link_local_only, no_rdma, no_netdev_gids)
