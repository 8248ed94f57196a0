# SPDX-License-Identifier: Apache-2.0
"""Becomes a program whose processes all end with it, and with the process that has started it.

    python guarded.py PROGRAM ARGUMENT...      as the leader of a process group

vLLM's processes below an engine's first one stay if that one is killed. A guard outside of the group waits for its end, and kills what is
left of the group.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys

PR_SET_PDEATHSIG = 1


def guard(leader):
    """leader: the pidfd of the group's leader."""
    group = os.getpgrp()
    os.setpgid(0, 0)  # a group that is stopped as a whole keeps its guard
    devnull = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):  # whoever reads what the program writes sees its end
        os.dup2(devnull, fd)
    select.select([leader], [], [])
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    assert os.getpgrp() == os.getpid(), "guarded.py does not lead a process group"
    starter = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != starter:
        sys.exit("the process that has started this one has ended")
    leader = os.pidfd_open(os.getpid())
    if os.fork() == 0:
        guard(leader)
        os._exit(0)
    os.execvp(sys.argv[1], sys.argv[1:])
