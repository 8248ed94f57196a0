#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the messages of this version of the protocols as files, for replay.

tests/data/corpus-MAJOR.MINOR/PROTOCOL-MESSAGE-VARIANT.bin: what a peer of that version sends. Later
versions must go on reading it, so a corpus that exists is never written again. Run this when the
schema of a new minor version is settled, before a release.

tests/fuzz/corpus/{data,peer}_decode/: the same as seeds, with some that are refused.
"""

import pathlib
import sys

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from wire import codec  # noqa: E402


def messages(protocol):
    for line in (ROOT / f"tests/data/golden/{protocol}.hex").read_text().splitlines():
        if not line.startswith("#"):
            name, variant, raw = line.split()
            yield name, variant, bytes.fromhex(raw)


def longer(raw):
    """The same with a tail, as a later minor version would send it."""
    length = int.from_bytes(raw[12:16], "little") + 8
    return raw[:5] + bytes([raw[5] + 1]) + raw[6:12] + length.to_bytes(4, "little") + raw[16:] + b"\xa5" * 8


def write(path, raw):
    if not path.exists() or path.read_bytes() != raw:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)


def bad(raw):
    yield "short", raw[:-1]
    yield "magic", b"X" + raw[1:]
    yield "major", raw[:4] + b"\x7f" + raw[5:]
    yield "flags", raw[:8] + b"\x01" + raw[9:]
    yield "length", raw[:12] + b"\xff\xff\xff\xff" + raw[16:]
    yield "type", raw[:6] + b"\xff\x7f" + raw[8:]
    yield "ones", raw[:24] + b"\xff" * (len(raw) - 24)


def main():
    version = {"data": f"{codec.MAJOR}.{codec.MINOR}", "peer": f"{codec.PEER_MAJOR}.{codec.PEER_MINOR}"}
    for protocol in ("data", "peer"):
        seeds = ROOT / f"tests/fuzz/corpus/{protocol}_decode"
        corpus = ROOT / f"tests/data/corpus-{version[protocol]}"
        known = {p.name for p in corpus.glob(f"{protocol}-*.bin")}
        for name, variant, raw in messages(protocol):
            write(seeds / f"{name}-{variant}", raw)
            if not known:
                write(corpus / f"{protocol}-{name}-{variant}.bin", raw)
                if variant == "full":
                    write(corpus / f"{protocol}-{name}-longer.bin", longer(raw))
        for what, raw in bad(next(messages(protocol))[2]):
            write(seeds / f"bad-{what}", raw)


if __name__ == "__main__":
    main()
