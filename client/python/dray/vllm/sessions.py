# SPDX-License-Identifier: Apache-2.0
"""Sessions of an engine's processes with the agent."""

from __future__ import annotations

from .. import errors
from ..client import Client

__all__ = ["connect", "connect_store"]


def connect(socket: str, engine_id: str, what: str, limit: float, notifications: bool = False, family: str = "vllm") -> Client:
    """A session of the engine's group in a family of groups. Waits for an agent that is not there, up to `limit` seconds."""
    try:
        return Client(socket, group=f"{family} {engine_id}"[:64], name=f"vllm {what}", notifications=notifications, patience=limit,
                      timeout=limit)
    except (errors.PeerUnreachable, errors.Timeout) as e:
        raise errors.PeerUnreachable(
            f"no agent has answered at {socket} within {limit:g} s (option 'deadline'): {e}",
            fix="Start drayd, or name its socket by the option 'socket'.", path=socket) from None


def connect_store(socket: str, engine_id: str, what: str, limit: float, space: str, family: str = "vllm") -> Client:
    """As connect(), with an agent that has a store in which this engine may use the name space."""
    client = connect(socket, engine_id, what, limit, family=family)
    try:
        client.store(space).exists([b"is there a store?"])
    except BaseException:
        client.close()
        raise
    return client
