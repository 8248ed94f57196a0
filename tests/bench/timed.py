# SPDX-License-Identifier: Apache-2.0
"""What the hooks of connectors take of an engine's steps."""

import functools
import time


class Timed:
    """Adds up what hooks of an engine take in each step. hooks: (connector, names of its hooks)."""

    def __init__(self, engine, *hooks):
        self.engine, self.spent, self.inside = engine, 0.0, False
        for connector, names in hooks:
            for name in names:
                setattr(connector, name, self._timed(getattr(connector, name)))

    def _timed(self, hook):
        @functools.wraps(hook)
        def timed(*args, **how):
            if self.inside:
                return hook(*args, **how)
            self.inside = True
            began = time.perf_counter()
            try:
                return hook(*args, **how)
            finally:
                self.spent += time.perf_counter() - began
                self.inside = False
        return timed

    def step(self):
        """Microseconds of a step, with what was spent since the step before."""
        self.engine.step()
        spent, self.spent = self.spent, 0.0
        return spent * 1e6
