# SPDX-License-Identifier: Apache-2.0
"""python3 -m machines.build NAME DIR (in tests/): writes a machine, for drayctl detect --from-sysfs DIR."""

import sys

from . import models


def main():
    known = {f.__name__: f for f in models.ALL}
    if len(sys.argv) != 3 or sys.argv[1] not in known:
        print(__doc__, "Names:", ", ".join(known), file=sys.stderr)
        return 2
    known[sys.argv[1]]().write(sys.argv[2])
    return 0


if __name__ == "__main__":
    sys.exit(main())
