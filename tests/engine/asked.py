# SPDX-License-Identifier: Apache-2.0
"""A batch that a connector has asked the store for."""


class Asked:
    """The test ends it, by its value or its failure. what: the keys or items."""

    def __init__(self, what):
        self.what, self.value, self.failure = what, None, None

    def done(self):
        return self.value is not None or self.failure is not None

    def lent(self):
        return not self.done()

    def error(self):
        return self.failure

    def result(self, timeout):
        return self.value
