# SPDX-License-Identifier: Apache-2.0
"""An engine for tests of the environment: prints its port, and then for each line of its input what a probe of that session returns.

    python environment_calls.py NAME METADATA

It runs unmodified with Mooncake and with `python -m dray.mooncake`.
"""

import os
import sys

from mooncake.engine import TransferEngine

output = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # Mooncake prints to its output
engine = TransferEngine()
assert engine.initialize(*sys.argv[1:3], "tcp", "") == 0
print(engine.get_rpc_port(), file=output, flush=True)
for line in sys.stdin:
    print(engine.send_probe(line.strip()), file=output, flush=True)
