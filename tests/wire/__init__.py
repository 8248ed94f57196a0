# SPDX-License-Identifier: Apache-2.0
"""The data protocol for tests, in Python: independent of libdray, and able to break every rule.

codec.py, generated from the schema, packs and unpacks the messages of the data and the peer protocol.
"""
