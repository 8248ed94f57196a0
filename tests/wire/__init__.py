# SPDX-License-Identifier: Apache-2.0
"""The data protocol for tests, in Python: independent of libdray, and able to break every rule.

codec.py, generated from the schema, packs and unpacks the messages of the data and the peer protocol. A Client is a session
whose parts are all public: a test can send any bytes, fill the ring and the arena by hand, and pretend that an answer
belongs to another request.
"""

from .client import ACCESS, Client, Done, Pending, Region, Remote, Token, Transfer, token_bytes
from .errors import Error

__all__ = ["ACCESS", "Client", "Done", "Error", "Pending", "Region", "Remote", "Token", "Transfer",
           "token_bytes"]
