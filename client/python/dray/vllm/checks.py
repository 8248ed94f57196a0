# SPDX-License-Identifier: Apache-2.0
"""Checks of options: each takes the name of an option and its value, and returns the value in its type, or raises errors.Invalid."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from typing import Any

from .. import errors

__all__ = ["WHERE", "flag", "invalid", "one_of", "path", "read", "seconds", "size"]

WHERE = "kv_connector_extra_config"


def read(config: Mapping[str, Any], checks: Mapping[str, Callable[[str, Any], Any]], connector: str, where: str = WHERE) -> dict[str, Any]:
    """The checked values of a configuration, `where` it is. errors.Invalid names the option, its value and what is allowed."""
    values: dict[str, Any] = {}
    for name, value in config.items():
        if name not in checks:
            close = difflib.get_close_matches(str(name), checks, 1)
            raise errors.Invalid(
                f"{where} has an unknown option {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""),
                fix=f"Options of {connector}: {', '.join(sorted(checks))}.")
        values[name] = checks[name](name, value)
    return values


def invalid(name: str, value: object, allowed: str) -> errors.Invalid:
    return errors.Invalid(f"option {name!r} of the connector is {value!r}", fix=f"Set {allowed}.")


def one_of(*allowed: str) -> Callable[[str, Any], str]:
    def check(name: str, value: Any) -> str:
        if value not in allowed:
            raise invalid(name, value, f"it to one of {', '.join(map(repr, allowed))}")
        return str(value)

    return check


def path(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise invalid(name, value, "it to the path of a file, or leave it out")
    return value


def seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 86400 or math.isnan(value):
        raise invalid(name, value, "it to a number of seconds above 0, at most 86400")
    return float(value)


def size(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= 1 << 40:
        raise invalid(name, value, f"it to a number of bytes above 0, at most {1 << 40}")
    return value


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise invalid(name, value, "it to true or false")
    return value
