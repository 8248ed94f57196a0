# SPDX-License-Identifier: Apache-2.0
"""For test_store_power.py, in a virtual machine that is about to lose its power: an agent whose store is on /dev/vda.

Prints `found N` when it has checked all objects there, of which the first CERTAIN must be among, then `certain N` again and again:
so many objects are on disk.
"""

import itertools
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(__file__))
sys.path.insert(1, os.path.join(os.path.dirname(__file__), "../../client/python"))
sys.path.append(os.path.join(os.path.dirname(__file__), ".."))

from dray import Status  # noqa: E402
from harness import Lab, until  # noqa: E402
from test_http import with_http  # noqa: E402
from test_store import User  # noqa: E402
from test_store_disk import DISK, counters, load, value_of  # noqa: E402

FOLDER, SIZE, BATCH = "/mnt/store", 20_000, 10


def key_of(n):
    return b"object %d" % n


def there(user):
    """The numbers of the objects of the first 100,000 keys."""
    found = []
    for first in range(0, 100_000, 1000):
        found += [first + i for i, has in enumerate(user.has(*(key_of(first + i) for i in range(1000)))) if has]
        if not found or found[-1] < first:
            break
    return found


def main(certain):
    subprocess.run(["mount", "/dev/vda", "/mnt"], check=True)
    os.makedirs(FOLDER, exist_ok=True)
    lab = Lab(alone=True)

    def new_agent(name, start, **how):
        agent = lab.agent(name, lab.hosts[0], **how)
        return agent.start() if start else agent

    agent = with_http(new_agent, lab, settings=DISK | {"store.disk_dir": FOLDER})
    with User(agent) as user:
        found = there(user)
        assert set(range(certain)) <= set(found), f"objects that were on disk are lost: {sorted(set(range(certain)) - set(found))[:10]}"
        for n in found:
            assert load(user, key_of(n)) == value_of(key_of(n), SIZE), f"object {n} is torn"
        print("found", len(found), flush=True)
        first = found[-1] + 1 if found else 0
        for n in itertools.chain(sorted(set(range(first)) - set(found)), itertools.count(first)):
            assert user.put(key_of(n), value_of(key_of(n), SIZE)) == Status.OK
            if n < first or n % BATCH:
                continue
            until(lambda: counters(agent)["dray_store_disk_pending_bytes"] == 0, "the objects on disk")
            assert counters(agent)["dray_store_disk_skipped_total"] == counters(agent)["dray_store_disk_down"] == 0
            print("certain", n + 1, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
