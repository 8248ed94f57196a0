# SPDX-License-Identifier: Apache-2.0
"""Runs a program, and the processes that it starts, with `mooncake` resolved to dray.mooncake.

    python -m dray.mooncake PROGRAM.py ARGUMENTS...
    python -m dray.mooncake -m MODULE ARGUMENTS...
    python -m dray.mooncake COMMAND ARGUMENTS...
"""

from __future__ import annotations

import os
import pathlib
import site
import sys

SHIM = str(pathlib.Path(__file__).parent / "shim")


def environment() -> dict[str, str]:
    """With the package `mooncake` of dray before an installed one."""
    rest = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder and folder != SHIM]
    package = str(pathlib.Path(__file__).parents[2])
    if package not in (*rest, *site.getsitepackages(), site.getusersitepackages()):
        rest.append(package)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([SHIM, *rest])}


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print((__doc__ or "").strip())
        return 0 if arguments else 2
    is_python = arguments[0].startswith("-") or arguments[0].endswith(".py")
    command = [sys.executable, *arguments] if is_python else arguments
    try:
        os.execvpe(command[0], command, environment())
    except OSError as e:
        print(f"dray.mooncake: {command[0]} cannot be run: {e.strerror}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
