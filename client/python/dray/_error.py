# SPDX-License-Identifier: Apache-2.0
"""The base class of all errors of the package; errors.py has a subclass for each code."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .pending import Done


class Error(Exception):
    """Base of all errors of dray. A code that this version does not know raises this class itself.

    code, name: as in the list of error codes. message: which object is concerned, and why. fix: what
    to do. handle: of the region, remote or request that the error is about; 0: none. path: of the
    socket or file that the error is about; None: none. done: for a transfer that ended with this
    error, how it ended.
    """

    code: int = 0
    name: str = "unknown"
    fix: str = ""
    handle: int = 0
    path: str | None = None
    done: Done | None = None

    def __init__(self, message: str = "", *, fix: str | None = None, handle: int = 0,
                 path: str | None = None, code: int | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        if fix is not None:
            self.fix = fix
        self.message = message or (self.__doc__ or "" if self.code else "")
        self.handle, self.path = handle, path

    def __str__(self) -> str:
        text = f"{self.name}: {self.message}"
        if not self.fix or self.fix == "Nothing." or self.fix in self.message:
            return text
        return f"{text.rstrip('.')}. {self.fix}"
