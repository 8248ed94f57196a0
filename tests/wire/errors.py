# SPDX-License-Identifier: Apache-2.0
"""The errors of the protocol as one exception class."""

from . import codec as s

CODES = {row[0]: code for code, row in enumerate(s.ERRORS)}


class Error(Exception):
    """name: as in the schema. done: how a transfer ended, a Done."""

    done = None

    def __init__(self, error, message=""):
        """error: a code or a name."""
        self.code = CODES[error] if isinstance(error, str) else error
        self.name, self.message = s.error_name(self.code), message
        super().__init__(f"{self.name}: {message}")
