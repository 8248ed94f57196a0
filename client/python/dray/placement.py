# SPDX-License-Identifier: Apache-2.0
"""Placement: hints, the preferred segment, and the environment to launch an engine with."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, overload

from . import _arguments as arguments
from . import _library as lib
from . import _schema as s
from . import errors
from .events import SegmentChanged
from .pending import Pending

__all__ = ["Environment", "Hint", "Placement", "Segment"]

_TEXT_MAX = 256


class Hint(NamedTuple):
    """source: "explicit", "environment", "detected" or "client"; state: "unknown", "probing", "ready"
    or "lost"; score: higher is better; left: seconds until it expires. Values that only a newer agent
    knows are numbers as text."""

    segment: str
    source: str
    state: str
    score: int
    left: float
    unverified: bool
    node_local: bool


class Segment(NamedTuple):
    """segment: "" if none is preferred; preference: "none", "explicit", "environment", "hint" or
    "detected"; capacity, allocated: bytes, from a Mooncake master, 0: unknown; reason: for this
    segment, or for none."""

    segment: str
    preference: str
    state: str
    capacity: int
    allocated: int
    unverified: bool
    node_local: bool
    reason: str


class Environment(dict[str, str]):
    """Variables by name. notes: by name, the reason why a variable is left out."""

    def __init__(self, variables: Iterable[tuple[str, str]] = (),
                 notes: Iterable[tuple[str, str]] = ()) -> None:
        super().__init__(variables)
        self.notes = dict(notes)


def _name(table: Mapping[int, str], value: int) -> str:
    return table.get(value, str(value))


def _lines(what: str, address: int | None, length: int, separator: bytes) -> Iterator[tuple[str, str]]:
    """(name, rest) of each line."""
    data = ctypes.string_at(address, length) if address else b""
    for line in data.split(b"\n")[:-1]:
        name, found, rest = line.partition(separator)
        if not name or not found:
            raise errors.Protocol(f"a line of the agent's {what} has no name or no value")
        yield os.fsdecode(name), os.fsdecode(rest)


def _to_hint(c: Any) -> Hint:
    m = c.hint.contents
    return Hint(lib.text(m.segment), _name(s.HINT_SOURCE_NAMES, m.source),
                _name(s.SEGMENT_STATE_NAMES, m.state), m.score, m.left_ms / 1000,
                bool(m.flags & s.SEGMENT_FLAG_UNVERIFIED), bool(m.flags & s.SEGMENT_FLAG_NODE_LOCAL))


def _to_segment(c: Any) -> Segment:
    m = c.segment.contents
    return Segment(lib.text(m.segment), _name(s.PREFERENCE_NAMES, m.preference),
                   _name(s.SEGMENT_STATE_NAMES, m.state), m.capacity, m.allocated,
                   bool(m.flags & s.SEGMENT_FLAG_UNVERIFIED), bool(m.flags & s.SEGMENT_FLAG_NODE_LOCAL),
                   lib.text(m.reason))


def _to_environment(c: Any) -> Environment:
    m = c.env.contents
    return Environment(_lines("variables", m.variables, m.variables_length, b"="),
                       _lines("notes", m.notes, m.notes_length, b": "))


def to_event(e: Any) -> SegmentChanged:
    """For the client: an event of the library."""
    return SegmentChanged(lib.text(e.segment), _name(s.SEGMENT_STATE_NAMES, e.segment_old),
                          _name(s.SEGMENT_STATE_NAMES, e.segment_state),
                          bool(e.segment_flags & s.SEGMENT_FLAG_PREFERRED),
                          bool(e.segment_flags & s.SEGMENT_FLAG_UNVERIFIED),
                          bool(e.segment_flags & s.SEGMENT_FLAG_NODE_LOCAL), lib.text(e.message))


def _text(what: str, value: Any) -> bytes:
    data = arguments.text(what, value)
    if len(data) > _TEXT_MAX:
        raise errors.TooLarge(f"{what} has {len(data)} bytes, the limit is {_TEXT_MAX}",
                              fix="Pass a shorter text.")
    return data


class Placement:
    """A client's requests about placement.

    A scope is a model, an instance, a rank, or a key of the caller's own, of up to 256 bytes of UTF-8
    without control characters; empty: the whole node. These requests also work while the agent
    drains. They wait for the answer, or with wait=False return a Pending. errors.Unsupported: the
    agent is too old (data protocol 1.0).
    """

    @overload
    def hint(self, scope: str = "", *, wait: Literal[True] = True) -> Hint: ...

    @overload
    def hint(self, scope: str = "", *, wait: Literal[False]) -> Pending[Hint]: ...

    def hint(self, scope: str = "", *, wait: bool = True) -> Any:
        """The effective Hint of a scope; errors.NotFound if there is none.

        The strongest source is effective, then the highest score, then the newest.
        """
        return _ask(self, _to_hint, wait, lib.held.dray_hint_get_start, _text("scope", scope))

    def put_hint(self, scope: str, segment: str, score: int = 0, ttl: float | None = None, *,
                 wait: bool = True) -> Any:
        """Stores a hint: a segment (host:port) for a scope.

        It replaces the hint of clients with this uid for the scope, and expires after ttl seconds
        (None: the agent's default). A higher score is better.
        """
        if not segment:  # would forget the hint; an empty value is probably a variable that is not set
            raise errors.Invalid("the segment is empty", fix="forget_hint() forgets the hint of a scope.")
        return _put(self, scope, _text("segment", segment), score, ttl, wait)

    def forget_hint(self, scope: str = "", *, wait: bool = True) -> Any:
        """Forgets the hint of clients with this uid for a scope; errors.NotFound: there is none."""
        return _put(self, scope, None, 0, None, wait)

    @overload
    def preferred_segment(self, scope: str = "", *, wait: Literal[True] = True) -> Segment: ...

    @overload
    def preferred_segment(self, scope: str = "", *, wait: Literal[False]) -> Pending[Segment]: ...

    def preferred_segment(self, scope: str = "", *, wait: bool = True) -> Any:
        """The preferred Segment, by hints of the scope, then of the whole node.

        To have none is not an error: then preference is "none", and reason says why.
        """
        return _ask(self, _to_segment, wait, lib.held.dray_segment_get_start, _text("scope", scope))

    @overload
    def environment(self, profiles: str | Iterable[str] | None = None, *,
                    wait: Literal[True] = True) -> Environment: ...

    @overload
    def environment(self, profiles: str | Iterable[str] | None = None, *,
                    wait: Literal[False]) -> Pending[Environment]: ...

    def environment(self, profiles: str | Iterable[str] | None = None, *, wait: bool = True) -> Any:
        """The Environment to launch an engine with, a dict.

        profiles: names, in a list or separated by commas; None: those of the agent's configuration.
        """
        if profiles is not None and not isinstance(profiles, str):
            try:
                profiles = ",".join(profiles)
            except TypeError:
                raise errors.Invalid(f"profiles is {profiles!r}", fix="Pass names in a list, or a str.") from None
        return _ask(self, _to_environment, wait, lib.held.dray_env_get_start, _text("profiles", profiles or ""))


def _put(client: Any, scope: str, segment: bytes | None, score: int, ttl: float | None, wait: bool) -> Any:
    return _ask(client, None, wait, lib.held.dray_hint_put_start, _text("scope", scope), segment,
                arguments.number("score", score, (1 << 32) - 1),
                arguments.milliseconds("ttl", ttl, (1 << 64) - 1))


def _ask(client: Any, convert: Any, wait: bool, function: Any, *fields: Any) -> Any:
    pending: Pending[Any] = Pending(client, convert)
    return client._start(pending, wait, function, *fields)
