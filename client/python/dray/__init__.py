# SPDX-License-Identifier: Apache-2.0
"""Client of dray, the data-movement agent beside an inference engine. Standard library only.

    with dray.Client(group="engine-0", notifications=True) as client:
        memory = dray.Memory(1 << 30)
        region = client.region(memory)
        token = str(region.export())  # travels in the engine's request metadata

        remote = client.import_token(token)     # there
        client.read(region, remote, [(0, 4096, 65536)]).result()
"""

from . import cuda, errors
from ._schema import Draining, Notification, RemoteLost
from .client import Client, Disconnected, Reconnected
from .errors import DrayError
from .handles import Done, Pending, Region, Remote, Token, Transfer
from .memory import Memory
from .placement import Environment, Hint, Segment, SegmentChanged
from .token import to_bytes as token_to_bytes
from .token import to_text as token_to_text

__version__ = "0.1.0"
__all__ = [
    "Client", "Disconnected", "Done", "Draining", "DrayError", "Environment", "Hint", "Memory",
    "Notification", "Pending", "Reconnected", "Region", "Remote", "RemoteLost", "Segment",
    "SegmentChanged", "Token", "Transfer", "cuda", "errors", "token_to_bytes", "token_to_text"]
