# SPDX-License-Identifier: Apache-2.0
"""What several runs of pytest make in one place, once."""

import contextlib
import fcntl


@contextlib.contextmanager
def alone(folder):
    """Another process that makes the same folder waits meanwhile."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
