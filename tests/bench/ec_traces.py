# SPDX-License-Identifier: Apache-2.0
"""Traces of requests for encoder outputs, made by a recipe and a seed. A request is (identifier, embeddings, seconds to encode).

Sizes and costs are those of tests/unit/store_traces.c. The policies' constants were chosen by the first seeds; figures and tests
use the second ones.
"""

import bisect
import itertools
import random

TUNING, CHECKING = (1000, 1001), (7, 77, 777)


class Zipf:
    """Ranks from 0, of which rank i has a weight of (i + 1)^-exponent."""

    def __init__(self, chance, n, exponent):
        self._random, self._sums = chance, list(itertools.accumulate((i + 1) ** -exponent for i in range(n)))

    def next(self):
        return bisect.bisect_left(self._sums, self._random.random() * self._sums[-1])


class Maker:
    """most: embeddings of the largest output."""

    def __init__(self, seed, most):
        self.random, self.most, self._numbers = random.Random(seed), most, itertools.count()

    def output(self):
        n = self.random.random()
        rows = min(self.most, int(64 * 2 ** (8 * n * n * n + 0.5 * self.random.random())))
        return f"image-{next(self._numbers)}", rows, (3000 + rows * (20 + 0.004 * rows)) / 1e6


def popular(make, count, outputs=1000, exponent=0.8, change=1500, once=0.0, scans=0):
    """Popular outputs; now and then a new one takes the place of one of them. once: share of outputs that come once. scans: of
    so many requests one is followed by 200 new outputs, such as those of an evaluation."""
    zipf, known = Zipf(make.random, outputs, exponent), [make.output() for _ in range(outputs)]
    while count > 0:
        count -= 1
        if make.random.random() < once:
            yield make.output()
            continue
        yield known[zipf.next()]
        if not make.random.randrange(change):
            known[make.random.randrange(outputs // 10)] = make.output()
        if scans and not make.random.randrange(scans):
            for _ in range(200):
                yield make.output()
                count -= 1


def conversations(make, count, at_once=100, turns=6):
    """Each turn of a conversation sends its images again, and sometimes one more. Their prompts differ before the images, or
    their KV blocks are gone."""
    live = [[] for _ in range(at_once)]
    while count > 0:
        chat = make.random.randrange(at_once)
        if not live[chat] or make.random.random() < 1 / turns:
            live[chat] = [make.output()]
        elif make.random.random() < 0.3 and len(live[chat]) < 8:
            live[chat].append(make.output())
        yield from live[chat]
        count -= len(live[chat])


def mixed(make, count):
    """Conversations, popular outputs, and some that come once."""
    chats, known = conversations(make, count, 40), popular(make, count, once=0.3, scans=2000)
    while count > 0:
        for _ in range(make.random.randrange(1, 6)):
            yield next(chats if make.random.random() < 0.4 else known)
            count -= 1


RECIPES = {
    "popular": popular,
    "popular, fast change": lambda make, count: popular(make, count, change=20),
    "popular and half once": lambda make, count: popular(make, count, once=0.5),
    "popular and scans": lambda make, count: popular(make, count, once=0.2, scans=1500),
    "conversations": conversations,
    "mixed": mixed,
}


def trace(name, seed, count, most=16384):
    """The requests of a recipe."""
    return list(itertools.islice(RECIPES[name](Maker(seed, most), count), count))
