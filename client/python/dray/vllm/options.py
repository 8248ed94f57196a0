# SPDX-License-Identifier: Apache-2.0
"""The connector's options: kv_connector_extra_config of the engine, read once into a typed object."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from .. import errors

__all__ = ["DEFAULT_NAME", "Options"]

DEFAULT_NAME = "dray"

TRANSPORTS = ("auto", "rdma", "tcp", "local")
MODES = ("pull", "push")
LAYOUTS = ("block", "engine")
AGENTS = ("auto", "private", "external")
_WHERE = "kv_connector_extra_config"


@dataclass(frozen=True)
class Options:
    """What the user has chosen.

    transport: the only transport that may carry blocks; "auto": the best one that both agents have.
    socket: of the agent; None: $DRAY_SOCKET, then the default place. agent: "external": only one that is
    configured or at the default place; "private": one of the package dray-agent, for this engine alone;
    "auto": a private one if there is no other. key_file, devices: key and RDMA devices of a private
    agent. deadline: seconds after which a
    load of blocks has ended, and after which a start gives up waiting for the agent. lease: seconds
    for which P keeps the blocks of a finished request for a D that has not asked for them. mode: "pull":
    D reads blocks when P has computed all of them; "push": P writes them as soon as they are computed. name: of this
    connector among several ones of the engine, which is also the key of its part of kv_transfer_params.
    pool: False if another child of MultiConnector allocates the KV cache. bounce: copy blocks through host
    memory if the KV cache cannot be shared; bounce_size: bytes of that memory, for each rank. layout: "block":
    ask the engine for blocks that are contiguous over all layers; "engine": take its own layout.
    """

    transport: str = "auto"
    socket: str | None = None
    agent: str = "auto"
    key_file: str | None = None
    devices: tuple[str, ...] = ()
    deadline: float = 30.0
    lease: float = 60.0
    mode: str = "pull"
    name: str = DEFAULT_NAME
    pool: bool = True
    bounce: bool = False
    bounce_size: int = 256 << 20
    layout: str = "block"

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> Options:
        """Checks the options. errors.Invalid names the option, its value and what is allowed."""
        known = {field.name: field for field in fields(cls)}
        values: dict[str, Any] = {}
        for name, value in config.items():
            if name not in known:
                close = difflib.get_close_matches(str(name), known, 1)
                raise errors.Invalid(
                    f"{_WHERE} has an unknown option {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""),
                    fix=f"Options of DrayConnector: {', '.join(sorted(known))}.")
            values[name] = _CHECKS[name](name, value)
        options = cls(**values)
        for name in ("bounce", "name"):
            if options.mode == "push" and name in values and values[name] != getattr(cls, name):
                raise errors.Invalid(f"{_WHERE} sets {name!r} to {values[name]!r}, which works with the mode 'pull' only",
                                     fix=f"Set 'mode' to 'pull', or leave {name!r} out.")
        if "bounce_size" in values and not options.bounce:
            raise errors.Invalid(f"{_WHERE} sets bounce_size without bounce", fix="Set bounce to true, or leave bounce_size out.")
        if options.socket and options.agent == "private":
            raise errors.Invalid(f"{_WHERE} names a socket, and asks for a private agent",
                                 fix="Leave one of 'socket' and 'agent' out.")
        return options


def _invalid(name: str, value: object, allowed: str) -> errors.Invalid:
    return errors.Invalid(f"option {name!r} of {_WHERE} is {value!r}", fix=f"Set {allowed}.")


def _one_of(*allowed: str) -> Callable[[str, Any], str]:
    def check(name: str, value: Any) -> str:
        if value not in allowed:
            raise _invalid(name, value, f"it to one of {', '.join(map(repr, allowed))}")
        return str(value)

    return check


def _devices(name: str, value: Any) -> tuple[str, ...]:
    listed = value.split(",") if isinstance(value, str) else value
    if not isinstance(listed, (list, tuple)) or not listed or not all(isinstance(one, str) and one.strip() for one in listed):
        raise _invalid(name, value, "it to names of RDMA devices, with * and ?, such as [\"mlx5_0\"], or leave it out")
    return tuple(one.strip() for one in listed)


def _path(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise _invalid(name, value, "it to the path of a file, or leave it out")
    return value


def _seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 86400 or math.isnan(value):
        raise _invalid(name, value, "it to a number of seconds above 0, at most 86400")
    return float(value)


def _name(name: str, value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"dray[A-Za-z0-9._-]{0,28}", value):
        raise _invalid(name, value, "it to 'dray' and up to 28 letters, digits, '.', '_' and '-', such as 'dray-tcp'")
    return value


def _size(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= 1 << 40:
        raise _invalid(name, value, f"it to a number of bytes above 0, at most {1 << 40}")
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _invalid(name, value, "it to true or false")
    return value


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "mode": _one_of(*MODES), "transport": _one_of(*TRANSPORTS), "agent": _one_of(*AGENTS), "socket": _path, "key_file": _path,
    "devices": _devices, "deadline": _seconds, "lease": _seconds, "name": _name, "pool": _flag, "bounce": _flag, "bounce_size": _size,
    "layout": _one_of(*LAYOUTS)}
