# SPDX-License-Identifier: Apache-2.0
"""Writes client/python/dray/errors.py: an exception class for each error code."""

import textwrap

from generator.text import banner

HEAD = '''"""One exception class for each error code: `region_unsealed` is errors.RegionUnsealed.

All derive from Error. Each docstring says what the error means and what to do.
"""

from ._error import Error

'''

TAIL = '''

BY_CODE: dict[int, type[Error]] = {
    c.code: c for c in Error.__subclasses__() if c.__module__ == __name__}
BY_NAME: dict[str, type[Error]] = {c.name: c for c in BY_CODE.values()}


def make(code: int, message: str = "", *, handle: int = 0, path: str | None = None) -> Error:
    """The exception for an error code, which may be negated."""
    known = BY_CODE.get(abs(code))
    if known:
        return known(message, handle=handle, path=path)
    return Error(message, handle=handle, path=path, code=abs(code))
'''


def quoted(text):
    return f"'{text}'" if '"' in text else f'"{text}"'


def write(schema):
    errors = [e for e in schema.errors if e["code"]]
    names = {e["code"]: e["name"].title().replace("_", "") for e in errors}
    listed = textwrap.fill(", ".join(map(quoted, ["BY_CODE", "BY_NAME", "Error", "make", *names.values()])), 96,
                           initial_indent="    ", subsequent_indent="    ")
    out = banner("#") + HEAD + f"__all__ = [\n{listed}]\n"
    for e in errors:
        text = textwrap.fill(f'"""{e["doc"]} {e["fix"]}"""', 96, initial_indent="    ", subsequent_indent="    ")
        out += f"\n\nclass {names[e['code']]}(Error):\n{text}\n\n    code = {e['code']}\n    name = {quoted(e['name'])}\n"
        fix = textwrap.wrap(e["fix"], 84, drop_whitespace=False)
        if len(fix) == 1:
            out += f"    fix = {quoted(e['fix'])}\n"
        else:
            out += "    fix = (" + "\n           ".join(map(quoted, fix)) + ")\n"
    return {"client/python/dray/errors.py": out + TAIL}
