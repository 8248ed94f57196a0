# SPDX-License-Identifier: Apache-2.0
"""One exception class for each error of the protocol, made from the schema's table.

`region_unsealed` is errors.RegionUnsealed; all derive from errors.DrayError. Each docstring says what
the error means and what to do.
"""

from . import _schema


class DrayError(Exception):
    """Base of all errors of dray. A code that this client does not know raises this class."""

    code = 0
    name = "unknown"
    fix = ""

    def __init__(self, message="", code=None):
        self.message = message or (self.__doc__ if self.code else "")
        if code is not None:
            self.code = code
        super().__init__(f"{self.name}: {self.message}")


def _classes():
    for code, (name, doc, fix) in enumerate(_schema.ERRORS):
        if code:
            class_name = name.title().replace("_", "")
            yield code, type(class_name, (DrayError,), {
                "__doc__": f"{doc} {fix}", "__module__": __name__,
                "code": code, "name": name, "fix": fix})


BY_CODE = dict(_classes())
BY_NAME = {c.name: c for c in BY_CODE.values()}
globals().update({c.__name__: c for c in BY_CODE.values()})
__all__ = ["DrayError", "BY_CODE", "BY_NAME", "make", *(c.__name__ for c in BY_CODE.values())]


def make(code, message=""):
    """The exception for an error code."""
    known = BY_CODE.get(code)
    return known(message) if known else DrayError(message, code)
