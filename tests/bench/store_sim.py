#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs all eviction policies over traces: store_sim.py OUT [ARGUMENT...]. Writes OUT/store-sim.md and OUT/store-sim.svg.

The arguments are those of store_sim (tests/bench/store_sim.c): --tuning, --share SHARE, recorded traces. These may also be
files of drayctl store --trace.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from matrix import COLORS, GREY

HEAD = """\
Computation that each policy saves, as a share of what a tier without limit would save; all requests together, mean of the
seeds. Then the least of value / lru of all seeds. The percentage is the capacity, as a share of what is in use at a time. Of
two tiers the lower one has this capacity and holds all objects; the upper one has a quarter of it.
"""

PLOT = """\
set terminal svg size 760,{height} dynamic font 'sans-serif,12' background rgb '#00000000'
set output '{path}'
set border 3 linecolor rgb '{grey}'
set tics textcolor rgb '{grey}' nomirror
set key textcolor rgb '{grey}' outside top center horizontal
set grid x linecolor rgb '{grey}' linewidth 0.3
set xlabel 'share of what a tier without limit saves' textcolor rgb '{grey}'
set xrange [0:1]
set yrange [{rows}.5:-0.5]
set ytics ({tics})
plot {lines}
{data}
"""


RECORDED = "# dray store trace 1\n"


def requests(lines):
    """(key, bytes, cost) of each request of a store's clients for an object, from the lines of drayctl store --trace.

    An object that was needed was found, or else computed and put. So what was found and what was put are the requests; a GET
    or EXISTS without the object is part of that PUT, if one follows.
    """
    for line in lines:
        if line.startswith("#"):
            continue
        words = line.split()
        if len(words) != 8 or not line.endswith("\n"):
            continue  # the last line of a recording that was killed
        _time, _space, operation, key, size, cost, result, _tier = words
        if operation in ("get", "read", "put") and result == "ok":
            yield key, int(size), max(int(cost), 1)


def readable(path, folder):
    """The file for store_sim: itself, or one with the requests of a recording of drayctl."""
    with path.open() as file:
        if file.readline() != RECORDED:
            return path
        made = pathlib.Path(tempfile.mkdtemp(dir=folder)) / path.name
        made.write_text("".join(f"{key} {size} {cost}\n" for key, size, cost in requests(file)))
        return made


def simulate(arguments, folder):
    """The output of store_sim, with the names of traces as they were given."""
    program = pathlib.Path(os.environ.get("DRAY_BUILD", "build")) / "tests/bench/store_sim"
    given = {str(readable(pathlib.Path(a), folder)) if pathlib.Path(a).is_file() else a: a for a in arguments}
    text = subprocess.run([program, *given], stdout=subprocess.PIPE, text=True, check=True).stdout
    rows = (line.split("\t") for line in text.splitlines())
    return "".join("\t".join([given.get(name, name), *rest]) + "\n" for name, *rest in rows)


def read(text):
    """{trace and number of tiers: {policy: [(saved, most) of each seed]}}, in the order of the text."""
    found = {}
    for line in text.splitlines():
        trace, tiers, _seed, policy, _hits, _evictions, saved, _total, most = line.split("\t")
        run = trace if tiers == "1" else f"{trace}, two tiers"
        found.setdefault(run, {}).setdefault(policy, []).append((float(saved), float(most)))
    return found


def share(runs):
    return sum(saved / most if most else 0 for saved, most in runs) / len(runs)


def least(policies):
    """The least value / lru of all seeds; None: LRU saves nothing."""
    pairs = zip(policies["value"], policies["lru"])
    ratios = [value[0] / lru[0] for value, lru in pairs if lru[0]]
    return min(ratios) if ratios else None


def table(found):
    names = list(next(iter(found.values())))
    yield "| trace | " + " | ".join(names) + " | value / lru |"
    yield "| --- |" + " ---: |" * (len(names) + 1)
    for trace, policies in found.items():
        ratio = least(policies)
        yield (f"| {trace} | " + " | ".join(f"{share(policies[n]):.3f}" for n in names) +
               f" | {'' if ratio is None else f'{ratio:.2f}'} |")


def draw(found, path):
    if not shutil.which("gnuplot"):
        print("store_sim: gnuplot is not installed (scripts/deps bench); no plot", file=sys.stderr)
        return
    lines, data = [], []
    for i, name in enumerate(next(iter(found.values()))):
        color = GREY if name == "lru" else COLORS[i % len(COLORS)]
        style = "pointtype 7 pointsize 0.8" if name == "value" else f"pointtype {i + 1} pointsize 0.7"
        lines.append(f"'-' using 1:2 with points {style} linecolor rgb '{color}' title '{name}'")
        data += [*(f"{share(policies[name]):.4f} {row}" for row, policies in enumerate(found.values())), "e"]
    labels = [trace.replace("%", "%%") for trace in found]
    tics = ", ".join(f"'{label}' {row}" for row, label in enumerate(labels))
    script = PLOT.format(path=path, grey=GREY, height=120 + 22 * len(found), rows=len(found) - 1, tics=tics,
                         lines=", ".join(lines), data="\n".join(data))
    subprocess.run(["gnuplot"], input=script, text=True, check=True)


def main():
    out = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        found = read(simulate(sys.argv[2:], folder))
    out.mkdir(parents=True, exist_ok=True)
    text = "\n".join([HEAD, *table(found), ""])
    (out / "store-sim.md").write_text(text)
    draw(found, out / "store-sim.svg")
    print(text)


if __name__ == "__main__":
    main()
