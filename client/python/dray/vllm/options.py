# SPDX-License-Identifier: Apache-2.0
"""The connector's options: kv_connector_extra_config of the engine, read once into a typed object."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from .. import errors
from . import checks

__all__ = ["DEFAULT_NAME", "Options"]

DEFAULT_NAME = "dray"

TRANSPORTS = ("auto", "rdma", "tcp", "local")
MODES = ("pull", "push")
LAYOUTS = ("block", "engine")
AGENTS = ("auto", "private", "external")
POOL_DEVICES = ("auto", "cpu", "cuda")


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
    ask the engine for blocks that are contiguous over all layers; "engine": take its own layout. secret_file: with
    the secret by which encoders prove their offers to consumers; pool_device: where the pool of encoder outputs lies, "auto": on the engine's
    device; both of DrayECConnector alone.
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
    secret_file: str | None = None
    pool_device: str = "auto"

    @classmethod
    def parse(cls, config: Mapping[str, Any], where: str = checks.WHERE, connector: str = "DrayConnector",
              names: Collection[str] = ()) -> Options:
        """Checks the options. errors.Invalid names the option, its value and what is allowed.

        where: the key of the engine's configuration that has them. names: of those that this connector has; empty: those of
        DrayConnector.
        """
        known = {name: check for name, check in _CHECKS.items() if (name in names if names else name not in _OF_ENCODERS)}
        values = checks.read(config, known, connector, where)
        options = cls(**values)
        for name in ("bounce", "name"):
            if options.mode == "push" and name in values and values[name] != getattr(cls, name):
                raise errors.Invalid(f"{where} sets {name!r} to {values[name]!r}, which works with the mode 'pull' only",
                                     fix=f"Set 'mode' to 'pull', or leave {name!r} out.")
        if "bounce_size" in values and not options.bounce:
            raise errors.Invalid(f"{where} sets bounce_size without bounce", fix="Set bounce to true, or leave bounce_size out.")
        if options.socket and options.agent == "private":
            raise errors.Invalid(f"{where} names a socket, and asks for a private agent",
                                 fix="Leave one of 'socket' and 'agent' out.")
        return options

    def path_error(self, used: str, where: str) -> errors.Error | None:
        """Why the transport `used` to reach `where` is not what the user has chosen; None if it is."""
        if self.transport not in ("auto", used):
            named = f"option 'transport' is {self.transport!r}"
        elif self.transport == "auto" and self.devices and used == "tcp":
            named = f"option 'devices' is {', '.join(self.devices)!r}"
        else:
            return None
        return errors.Unsupported(f"{named}, and {where} is reached over {used}",
                                  fix="Leave the option out, or see `drayctl rails` and `drayctl peers` at both agents.")


def _devices(name: str, value: Any) -> tuple[str, ...]:
    listed = value.split(",") if isinstance(value, str) else value
    if not isinstance(listed, (list, tuple)) or not listed or not all(isinstance(one, str) and one.strip() for one in listed):
        raise checks.invalid(name, value, "it to names of RDMA devices, with * and ?, such as [\"mlx5_0\"], or leave it out")
    return tuple(one.strip() for one in listed)


def _name(name: str, value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"dray[A-Za-z0-9._-]{0,28}", value):
        raise checks.invalid(name, value, "it to 'dray' and up to 28 letters, digits, '.', '_' and '-', such as 'dray-tcp'")
    return value


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "mode": checks.one_of(*MODES), "transport": checks.one_of(*TRANSPORTS), "agent": checks.one_of(*AGENTS), "socket": checks.path,
    "key_file": checks.path, "devices": _devices, "deadline": checks.seconds, "lease": checks.seconds, "name": _name, "pool": checks.flag,
    "bounce": checks.flag, "bounce_size": checks.size, "layout": checks.one_of(*LAYOUTS), "secret_file": checks.path,
    "pool_device": checks.one_of(*POOL_DEVICES)}
_OF_ENCODERS = ("secret_file", "pool_device")
