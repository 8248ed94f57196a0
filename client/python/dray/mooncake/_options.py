# SPDX-License-Identifier: Apache-2.0
"""Mooncake's environment variables that are honoured, read once for each engine."""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["Options"]

_PORTS = (15000, 17000)
_EPHEMERAL = range(32768, 61000)  # ports that the kernel gives to connections


@dataclass(frozen=True)
class Options:
    """seconds: that a transfer may take. connect_seconds: for reaching the port of a session.

    ports: first and last one that a session may have. ipv6: names of hosts mean IPv6 addresses. any_uid: processes of
    other uids at the same agent may use registered memory, too. segment: of the agent, by which engines that have Mooncake
    linked in reach managed buffers; "": they do not. bind: address by which others reach the session's port, if they find it by a
    metadata server; "": that of the name, or of the agent. cluster: part of all keys of that server.
    """

    seconds: float = 30.0
    connect_seconds: float = 5.0
    ports: tuple[int, int] = _PORTS
    ipv6: bool = False
    any_uid: bool = False
    segment: str = ""
    bind: str = ""
    cluster: str = ""

    @classmethod
    def of_environment(cls) -> Options:
        """MC_TRANSFER_TIMEOUT, MC_HANDSHAKE_CONNECT_TIMEOUT, MC_MIN_RPC_PORT, MC_MAX_RPC_PORT, MC_USE_IPV6,
        MC_TCP_BIND_ADDRESS, MC_METADATA_CLUSTER_ID, DRAY_MOONCAKE_ANY_UID, DRAY_MOONCAKE_SEGMENT.

        A value out of range counts as not set, as with Mooncake.
        """
        return cls(seconds=max(5, _number("MC_TRANSFER_TIMEOUT", 30, range(1, 1 << 31))),
                   connect_seconds=_number("MC_HANDSHAKE_CONNECT_TIMEOUT", 5, range(1, 3600)),
                   ports=_ports(), ipv6="MC_USE_IPV6" in os.environ, any_uid=os.environ.get("DRAY_MOONCAKE_ANY_UID") == "1",
                   segment=os.environ.get("DRAY_MOONCAKE_SEGMENT", ""), bind=os.environ.get("MC_TCP_BIND_ADDRESS", ""),
                   cluster=os.environ.get("MC_METADATA_CLUSTER_ID", ""))


def _number(name: str, default: int, valid: range) -> int:
    try:
        value = int(os.environ.get(name, default))
    except ValueError:
        return default
    return value if value in valid else default


def _ports() -> tuple[int, int]:
    valid = range(1024, 65536)
    first = _number("MC_MIN_RPC_PORT", _number("MC_MIN_PRC_PORT", _PORTS[0], valid), valid)
    last = _number("MC_MAX_RPC_PORT", _number("MC_MAX_PRC_PORT", _PORTS[1], valid), valid)
    if first > last or first in _EPHEMERAL or last in _EPHEMERAL:
        return _PORTS
    return first, last
