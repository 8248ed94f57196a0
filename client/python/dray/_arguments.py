# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments, and errors that name the argument, its value and the remedy."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from . import errors

_MS_MAX = (1 << 32) - 1


def milliseconds(what: str, seconds: float | None, most: int = _MS_MAX) -> int:
    """Milliseconds, rounded up. None: 0, which means the default in the library, so that a time of 0 is refused."""
    if seconds is None:
        return 0
    fix = "Pass seconds as a number above 0, or None for the default."
    try:
        value = float(seconds)
    except (TypeError, ValueError):
        raise errors.Invalid(f"{what} is {seconds!r}, not a number of seconds", fix=fix) from None
    if not value > 0:
        raise errors.Invalid(f"{what} is {seconds!r} s", fix=fix)
    if value * 1000 > most:
        raise errors.Invalid(f"{what} of {seconds!r} s is too long, the limit is {most // 1000} s", fix=fix)
    return math.ceil(value * 1000)


def timeout(seconds: float | None) -> float | None:
    """Checks a limit for waiting."""
    if seconds is None:
        return None
    try:
        value = float(seconds)
    except (TypeError, ValueError):
        value = math.nan
    if not value >= 0:
        raise errors.Invalid(f"timeout is {seconds!r}",
                             fix="Pass seconds as a number of at least 0, or None to wait without limit.")
    return value


def number(what: str, value: Any, most: int = (1 << 64) - 1) -> int:
    try:
        n = value.__index__()
    except AttributeError:
        raise errors.Invalid(f"{what} is {value!r}, not an integer",
                             fix=f"Pass an integer from 0 to {most}.") from None
    if not 0 <= n <= most:
        raise errors.Invalid(f"{what} is {value!r}", fix=f"Pass an integer from 0 to {most}.")
    return int(n)


def text(what: str, value: Any) -> bytes:
    """UTF-8 for the library."""
    if not isinstance(value, str):
        raise errors.Invalid(f"{what} is {value!r}, not a string", fix="Pass a str.")
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise errors.Invalid(f"{what} {value!r} is not valid Unicode", fix="Pass other text.") from None
    if b"\0" in data:
        raise errors.Invalid(f"{what} {value!r} has a NUL character", fix="Pass text without NUL.")
    return data


def path(what: str, value: Any) -> bytes:
    try:
        data = os.fsencode(value)
    except TypeError:
        raise errors.Invalid(f"{what} is {value!r}, not a path", fix="Pass a str or a pathlib.Path.") from None
    if b"\0" in data:
        raise errors.Invalid(f"{what} {value!r} has a NUL character", fix="Pass another path.")
    return data


def data(what: str, value: Any) -> bytes:
    """A copy of a bytes-like object."""
    if isinstance(value, (str, int)):
        raise errors.Invalid(f"{what} is {value!r}, not bytes", fix="Pass bytes: text.encode().")
    try:
        return bytes(value)
    except (TypeError, ValueError, BufferError):
        raise errors.Invalid(f"{what} is a {type(value).__name__}, not bytes",
                             fix="Pass a bytes-like object.") from None


def choice(what: str, table: Mapping[str, int], value: Any) -> int:
    """The value of a name, or the value itself."""
    if isinstance(value, str):
        if value in table:
            return table[value]
    elif isinstance(value, int) and value in table.values():
        return value
    names = ", ".join(map(repr, table))
    raise errors.Invalid(f"{what} is {value!r}", fix=f"Pass one of {names}.")
