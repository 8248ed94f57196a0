# SPDX-License-Identifier: Apache-2.0
"""How much memory a process can have: what the kernel says of the host (proc(5), meminfo), and of the control groups that the process is in
(version 2: memory.max; version 1: memory.limit_in_bytes; see the kernel's Documentation/admin-guide/cgroup-v2.rst)."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

__all__ = ["free_memory"]

# of a version: limit, use, and how the page cache is called in memory.stat, which the kernel drops when a group is at its limit
_VERSION_2 = "memory.max", "memory.current", ("active_file", "inactive_file")
_VERSION_1 = "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")


def free_memory(root: str = "/") -> int | None:
    """Bytes; None: the kernel does not say it. root: where proc and sys are."""
    found = [*_host(pathlib.Path(root)), *_groups(pathlib.Path(root))]
    return min(found) if found else None


def _host(root: pathlib.Path) -> Iterator[int]:
    there = _numbers(root / "proc/meminfo")
    if "MemAvailable:" in there:
        yield (there["MemAvailable:"] + there.get("SwapFree:", 0)) << 10


def _groups(root: pathlib.Path) -> Iterator[int]:
    """What is free in each group that has a limit, from that of this process upwards."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            base, names = root / "sys/fs/cgroup", _VERSION_2
        elif "memory" in controllers.split(","):
            base, names = root / "sys/fs/cgroup/memory", _VERSION_1
        else:
            continue
        # in a container the path may be that of the host, of which the container sees nothing but its own group, at the base
        group = base / path.lstrip("/")
        for folder in (group, *group.parents):
            yield from _group(folder, *names)
            if folder == base:
                break


def _group(folder: pathlib.Path, limit: str, use: str, cached: tuple[str, ...]) -> Iterator[int]:
    most, used = _text(folder / limit).strip(), _text(folder / use).strip()
    if most.isdigit() and used.isdigit():
        stat = _numbers(folder / "memory.stat")
        yield max(0, int(most) - int(used) + sum(stat.get(name, 0) for name in cached))


def _numbers(path: pathlib.Path) -> dict[str, int]:
    lines = (line.split() for line in _text(path).splitlines())
    return {fields[0]: int(fields[1]) for fields in lines if len(fields) > 1 and fields[1].isdigit()}


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
