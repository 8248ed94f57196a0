# SPDX-License-Identifier: Apache-2.0
"""Placement: hints, the preferred segment, and the environment to launch an engine with."""

import os
from collections import namedtuple

from . import _schema as s
from . import errors
from .handles import ms

_MINOR = 1  # minor version of the data protocol since which agents answer these requests
_TEXT_MAX = 256

# source: "explicit", "environment", "detected" or "client"; state: "unknown", "probing", "ready" or
# "lost"; left: seconds until it expires. Values that only a newer agent knows are numbers as text.
Hint = namedtuple("Hint", "segment source state score left unverified node_local")

# segment: "" if none is preferred; preference: "none", "explicit", "environment", "hint" or
# "detected"; capacity, allocated: bytes, from a Mooncake master, 0: unknown.
Segment = namedtuple("Segment", """
    segment preference state capacity allocated unverified node_local reason""")

# Event: the state of a segment, or the preferred segment, changed. An empty segment with preferred:
# there is no preferred segment any more. The agent merges changes that were not read in time: only
# the last change of each segment comes.
SegmentChanged = namedtuple("SegmentChanged", """
    segment old new preferred unverified node_local reason""")


class Environment(dict):
    """Variables by name. notes: by name, the reason why a variable is left out."""

    def __init__(self, variables=(), notes=()):
        super().__init__(variables)
        self.notes = dict(notes)


def _name(table, value):
    return table.get(value, str(value))


def _flag(flags, bit):
    return bool(flags & bit)


def _lines(what, data, separator):
    """(name, rest) of each line."""
    if data and not data.endswith(b"\n") or b"\0" in data:
        raise errors.Protocol(f"the agent's {what} are not lines of text")
    for line in data.split(b"\n")[:-1]:
        name, found, rest = line.partition(separator)
        if not name or not found:
            raise errors.Protocol(f"a line of the agent's {what} has no name or no value")
        yield os.fsdecode(name), os.fsdecode(rest)


def _to_hint(m, fds):
    return Hint(m.segment, _name(s.HINT_SOURCE_NAMES, m.source),
                _name(s.SEGMENT_STATE_NAMES, m.state), m.score, m.left_ms / 1000,
                _flag(m.flags, s.SEGMENT_FLAG_UNVERIFIED),
                _flag(m.flags, s.SEGMENT_FLAG_NODE_LOCAL))


def _to_segment(m, fds):
    return Segment(m.segment, _name(s.PREFERENCE_NAMES, m.preference),
                   _name(s.SEGMENT_STATE_NAMES, m.state), m.capacity, m.allocated,
                   _flag(m.flags, s.SEGMENT_FLAG_UNVERIFIED),
                   _flag(m.flags, s.SEGMENT_FLAG_NODE_LOCAL), m.reason)


def _to_environment(m, fds):
    return Environment(_lines("variables", m.variables, b"="), _lines("notes", m.notes, b": "))


def to_event(m):
    """For the client: converts SEGMENT_CHANGED to an event."""
    return SegmentChanged(m.segment, _name(s.SEGMENT_STATE_NAMES, m.old),
                          _name(s.SEGMENT_STATE_NAMES, m.new),
                          _flag(m.flags, s.SEGMENT_FLAG_PREFERRED),
                          _flag(m.flags, s.SEGMENT_FLAG_UNVERIFIED),
                          _flag(m.flags, s.SEGMENT_FLAG_NODE_LOCAL), m.reason)


class Placement:
    """A client's requests about placement.

    A scope is a model, an instance, a rank, or a key of the caller's own, of up to 256 bytes;
    empty: the whole node. These requests also work while the agent drains. errors.Unsupported: the
    agent is too old (data protocol 1.0).
    """

    def hint(self, scope="", *, wait=True):
        """The effective Hint of a scope; errors.NotFound if there is none.

        The strongest source is effective, then the highest score, then the newest.
        """
        return self._ask(s.pack_hint_get, _to_hint, wait, scope=scope)

    def put_hint(self, scope, segment, score=0, ttl=None, *, wait=True):
        """Stores a hint: a segment (host:port) for a scope.

        It replaces the hint of clients with this uid for the scope, and expires after ttl seconds
        (None: the agent's default). A higher score is better.
        """
        if not segment:  # would forget the hint; an empty value is probably a variable that is not set
            raise errors.Invalid(
                "the segment is empty; forget_hint() forgets the hint of a scope")
        return self._put(scope, segment, score, ttl, wait)

    def forget_hint(self, scope="", *, wait=True):
        """Forgets the hint of clients with this uid for a scope; errors.NotFound: there is none."""
        return self._put(scope, "", 0, None, wait)

    def preferred_segment(self, scope="", *, wait=True):
        """The preferred Segment, by hints of the scope, then of the whole node.

        To have none is not an error: then preference is "none", and reason says why.
        """
        return self._ask(s.pack_segment_get, _to_segment, wait, scope=scope)

    def environment(self, profiles=None, *, wait=True):
        """The Environment to launch an engine with, a dict.

        profiles: names, in a list or separated by commas; None: those of the agent's configuration.
        """
        if profiles is not None and not isinstance(profiles, str):
            profiles = ",".join(profiles)
        return self._ask(s.pack_env_get, _to_environment, wait, profiles=profiles or "")

    def _put(self, scope, segment, score, ttl, wait):
        try:
            ttl_ms = ms(ttl)
        except (ValueError, OverflowError) as e:
            raise errors.Invalid(f"ttl: {e}") from e
        if not 0 <= score < 1 << 32:
            raise errors.Invalid(f"the score {score} is not from 0 to {(1 << 32) - 1}")
        if ttl_ms >= 1 << 64:
            raise errors.Invalid(f"ttl of {ttl} s is too long")
        return self._ask(s.pack_hint_put, lambda m, fds: None, wait, scope=scope, segment=segment,
                         score=score, ttl_ms=ttl_ms)

    def _ask(self, pack, convert, wait, **fields):
        self.ready()
        if self.hello.minor < _MINOR:
            raise errors.Unsupported("the agent is too old for hints, segments and environment "
                                     "(data protocol 1.0); upgrade it")
        try:
            for what, text in fields.items():
                if isinstance(text, str) and len(text.encode()) > _TEXT_MAX:
                    raise errors.TooLarge(f"{what} has {len(text.encode())} bytes, "
                                          f"the limit is {_TEXT_MAX}")
            pending = self.request(pack, convert=convert, wait=False, **fields)
        except ValueError as e:
            raise errors.Invalid(str(e)) from e
        return pending.result(self.timeout) if wait else pending
