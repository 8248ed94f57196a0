# SPDX-License-Identifier: Apache-2.0
"""dray.vllm.letters: messages between engines of mode 'push', cut into letters and joined again."""

import json
import random
import zlib

import pytest

from dray import errors
from dray.vllm import letters
from dray.vllm.letters import Announcement, Box, Refusal, Withdrawal

A, B = b"a" * 16, b"b" * 16


def announcement(blocks=((7, 8, 9, 0, 0, 0, 3), (5,))):
    return Announcement("t" * 16, "10.0.0.1:7411", "vllm d", 1 << 62, ("dray1:x", "dray1:y"), {"ranks": []}, blocks, 32, 100, 29.5, "auto")


def joined(box, sender, parts):
    """The messages that the letters complete, in order."""
    return [letters.read(data) for part in parts if (data := box.take(sender, part)) is not None]


@pytest.mark.parametrize("message", [announcement(), Withdrawal("t" * 16, 0), Refusal(5, "unsupported", "heads: 8 here, 4 there")])
def test_one_letter(message):
    parts = letters.write(message)
    assert len(parts) == 1 and joined(Box(), A, parts) == [message]


def long(seed, blocks=30000):
    numbers = random.Random(seed)
    return announcement((tuple(numbers.randrange(1 << 20) for _ in range(blocks)),))


def test_many_letters_in_any_order():
    one, two = long(1), long(2)
    parts = letters.write(one) + letters.write(two)
    assert len(parts) > 20 and max(map(len, parts)) <= letters.LETTER_MAX
    random.Random(3).shuffle(parts)
    assert {message.blocks for message in joined(Box(), A, parts)} == {one.blocks, two.blocks}


def test_letters_of_different_senders_are_not_joined():
    first, *rest = letters.write(long(1))
    box = Box()
    assert not joined(box, A, [first]) and not joined(box, B, rest)
    assert len(joined(box, A, rest)) == 1


def test_messages_without_their_end_are_bounded():
    box = Box()
    began = [letters.write(long(seed, 3000)) for seed in range(letters._OPEN_MAX + 1)]
    for parts in began:
        assert not joined(box, A, parts[:-1])
    assert not joined(box, A, began[0][-1:])  # forgotten
    assert len(joined(box, A, began[-1][-1:])) == 1


@pytest.mark.parametrize("letter", [b"", b"x" * 100, letters.write(announcement())[0][:16]])
def test_no_letter(letter):
    assert Box().take(A, letter) is None


def test_too_many_blocks():
    with pytest.raises(errors.TooLarge, match="announcement of a request has .* bytes, the limit is"):
        letters.write(long(1, 400000))


def damaged(**changes):
    data = Box().take(A, letters.write(announcement())[0])
    form = {**json.loads(zlib.decompress(data)), **changes}
    return zlib.compress(json.dumps(form).encode())


@pytest.mark.parametrize("changes", [
    {"kind": "Other"}, {"kind": None}, {"transfer_id": 5}, {"blocks": 5}, {"blocks": [[[1, 0, 1 << 30]]]}, {"blocks": [[[3, -2, 3]]]},
    {"blocks": [[[1, 1, 0]]]}, {"blocks": [[[1 << 64, 0, 1]]]}, {"blocks": [[[True, 1, 1.5]]]}, {"first": -1}, {"first": 100}, {"end": "x"}, {"tag": -1}, {"tag": 1 << 64},
    {"seconds": 0}, {"seconds": "1"}, {"seconds": float("inf")}, {"tokens": [5]}, {"tokens": None}, {"segment": None}])
def test_damaged(changes):
    with pytest.raises(ValueError, match="."):
        letters.read(damaged(**changes))


@pytest.mark.parametrize("data", [b"", b"no zlib", zlib.compress(b"5"), zlib.compress(b"\xff"), zlib.compress(b"[" * 100000),
                                  zlib.compress(bytes(9 << 20)), letters.write(announcement())[0][20:40]])
def test_no_message(data):
    with pytest.raises(ValueError, match="."):
        letters.read(data)


def test_another_version():
    with pytest.raises(errors.Version, match="version 2, this one reads 1"):
        letters.read(damaged(version=2))


def test_names_of_mailboxes():
    assert letters.mailbox_name("engine-0") == "vllm engine-0"
    for strange in ("x" * 200, "a\nb"):
        name = letters.mailbox_name(strange)
        assert len(name) < 128 and name.isprintable() and name != letters.mailbox_name(strange + "y")
