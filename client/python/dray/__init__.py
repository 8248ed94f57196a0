# SPDX-License-Identifier: Apache-2.0
"""Client of dray, the data-movement agent beside an inference engine.

    with dray.Client(group="engine-0", notifications=True) as client:
        memory = dray.Memory(1 << 30)
        region = client.region(memory)
        token = str(region.export())  # travels in the engine's request metadata

        remote = client.import_token(token)     # there
        client.read(region, remote, [(0, 4096, 65536)]).result()

A layer over libdray, which comes with the package. It needs nothing else: arrays of numpy and tensors
of PyTorch are taken as they are.
"""

from . import cuda, errors, events
from ._checksum import checksum
from ._schema import TRANSPORT_NAMES
from .client import Client
from .errors import Error
from .events import (Confirmed, Connected, Disconnected, Draining, Dropped, LeaseEnded, Letter, MailboxLost,
                     Notification, Reconnected, RegionLost, RemoteLost, SegmentChanged)
from .handles import Region, Remote, Token
from .lease import Lease
from .mailbox import Mailbox
from .memory import Memory
from .pending import Done, Pending, Transfer
from .placement import Environment, Hint, Segment
from .session import Info
from .store import BlockLayout, Status, Store, StoreItem, StoreResult, StoreView, Tier
from .token import to_bytes as token_to_bytes
from .token import to_text as token_to_text

__version__ = "0.1.0"
__all__ = [
    "BlockLayout", "Client", "Confirmed", "Connected", "Disconnected", "Done", "Draining", "Dropped", "Environment", "Error",
    "Hint", "Info", "Lease", "LeaseEnded", "Letter", "Mailbox", "MailboxLost", "Memory", "Notification", "Pending",
    "Reconnected", "Region", "RegionLost",
    "Remote", "RemoteLost", "Segment", "SegmentChanged", "Status", "Store", "StoreItem", "StoreResult", "StoreView", "TRANSPORT_NAMES", "Tier", "Token", "Transfer",
    "checksum", "cuda", "errors", "events", "token_to_bytes", "token_to_text"]
