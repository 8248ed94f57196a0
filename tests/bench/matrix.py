# SPDX-License-Identifier: Apache-2.0
"""Presents bench_matrix.py's results in docs/benchmarks.md: tables, and a plot of throughput over block size for each transport.

The plots are SVG by gnuplot: the same results give the same files. Their background is transparent, and the grey of their text
is readable on white and on black.
"""

import shutil
import statistics
import subprocess
import sys

GREY = "#808080"
COLORS = ("#3b7dd8", "#2f9e63", "#c2741b", "#a355c9", "#c9433f")  # readable on black and on white


def size(n):
    """A size in drayctl's form: 64 B, 4 KiB."""
    for unit in ("B", "KiB", "MiB"):
        if n < 1024 or unit == "MiB":
            return f"{n} {unit}"
        n //= 1024


def compared(run, of):
    return [c for c in run["ceilings"] if c["of"] == of]


def throughput(run):
    return compared(run, "bytes_per_second")[0]


def ratio(ceiling):
    """The ratio to a ceiling, with more digits for small values than drayctl's JSON has."""
    return ceiling["ratio"] if ceiling["ratio"] >= 0.01 else ceiling["dray"] / ceiling["ceiling"]


def is_latency(run):
    return run["batch"] == run["ops"] == run["sessions"] == 1 and run["size"] <= 1 << 20


def by_size(runs):
    """{operations: {size: run}} of one session that waits adaptively; of two such runs, the one with more transfers in flight."""
    found = {}
    for r in runs:
        if r["sessions"] == 1 and r["wait"] == "adaptive":
            best = found.setdefault(r["ops"], {}).get(r["size"])
            if not best or r["batch"] > best["batch"]:
                found[r["ops"]][r["size"]] = r
    return found


def throughput_table(runs, figure):
    columns = by_size(runs)
    ops = sorted(columns)
    yield "| block | " + " | ".join(f"{n:,} a transfer, GB/s | of the ceiling" for n in ops) + " |"
    yield "| ---: |" + " ---: | ---: |" * len(ops)
    for s in sorted({s for c in columns.values() for s in c}):
        cells = []
        for n in ops:
            t = throughput(columns[n][s]) if s in columns[n] else None
            cells += [figure(t["dray"] / 1e9), figure(ratio(t))] if t else ["", ""]
        yield f"| {size(s)} | " + " | ".join(cells) + " |"


def latency_table(runs, figure):
    yield "| block | client | p50, us | p99, us | p99.9, us | beside | ceiling, us | ratio |"
    yield "| ---: | --- | ---: | ---: | ---: | --- | ---: | ---: |"
    for r in sorted(filter(is_latency, runs), key=lambda r: (r["size"], r["wait"])):
        for c in compared(r, "latency_ns"):
            latency = [figure(r["latency_ns"][q] / 1e3) for q in ("p50", "p99", "p999")]
            yield (f"| {size(r['size'])} | {r['wait']} | " + " | ".join(latency) +
                   f" | {NAMES[c['name']]} | {figure(c['ceiling'] / 1e3)} | {figure(c['ratio'])} |")


def sessions_table(runs, figure):
    shapes = {(r["size"], r["ops"]) for r in runs if r["sessions"] > 1}
    yield "| block | a transfer | sessions | GB/s | of the ceiling | p50, us | p99, us | fairness |"
    yield "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for r in sorted(runs, key=lambda r: (r["size"], r["ops"], r["sessions"])):
        if (r["size"], r["ops"]) in shapes and r["wait"] == "adaptive" and not is_latency(r):
            t = throughput(r)
            yield (f"| {size(r['size'])} | {r['ops']:,} | {r['sessions']} | {figure(t['dray'] / 1e9)} | {figure(ratio(t))} | "
                   f"{figure(r['latency_ns']['p50'] / 1e3)} | {figure(r['latency_ns']['p99'] / 1e3)} | {r['fairness']:.3f} |")


NAMES = {"memcpy": "memcpy, one thread", "socket_loop": "bare socket loop", "memory_echo": "shared-memory ping-pong",
         "eventfd_echo": "eventfd ping-pong", "tcp_echo": "TCP request and answer"}

TEXT = """\
`drayctl bench --ceiling`: WRITE with several block sizes, operations per transfer, sessions and ways to wait, {rounds} interleaved rounds
for each figure. Operations are scattered, so that none can be merged. The ceiling of throughput is
{ceiling}.
It submits no requests and waits for none, so with one small operation per transfer the ratio shows the cost of a request.
Latency is that of one transfer at a time, from submission to completion, beside a bare round trip{carries}. With
`DRAY_BENCH_FULL=1` the JSON has every combination."""

CEILINGS = {"local": ("memcpy of the same blocks in the same order in one thread", ", which carries no bytes"),
            "tcp": ("a bare loop of send and recv over loopback between the same memories, with as many streams",
                    " that carries the same bytes")}


def section(transport, runs, figure, plot):
    """Yields the lines of one transport's section."""
    ceiling, carries = CEILINGS[transport]
    yield f"## Throughput and latency: {transport}\n"
    yield TEXT.format(rounds=max(r["rounds"] for r in runs), ceiling=ceiling, carries=carries) + "\n"
    if plot:
        yield f"![Throughput over block size, transport {transport}]({plot})\n"
    yield from throughput_table(runs, figure)
    yield ""
    yield from latency_table(runs, figure)
    if any(r["sessions"] > 1 for r in runs):
        yield ""
        yield from sessions_table(runs, figure)
    yield ""


# --- plots ----------------------------------------------------------------------------------------

PLOT = """\
set terminal svg size 760,440 fixed font "sans-serif,12" noenhanced linewidth 1.5
set output "{path}"
set title "transport {transport}: throughput over block size" textcolor rgb "{grey}"
set border 3 linecolor rgb "{grey}"
set tics textcolor rgb "{grey}" nomirror
set grid linecolor rgb "{grey}" linewidth 0.4 dashtype 3
set logscale x 4
set xtics rotate by 30 right ({tics})
set ylabel "GB/s" textcolor rgb "{grey}"
set yrange [0:*]
set xrange [{low}:{high}]
set key below textcolor rgb "{grey}"
plot {lines}
{data}
"""


def series(runs):
    """(title, {size: GB/s}, is it the ceiling) of each line. The ceiling hardly depends on the number of operations per transfer, so
    it is one line: the medians over all numbers."""
    columns = by_size(runs)
    ceilings = {}
    for n in sorted(columns):
        yield (f"{n:,} operation{'s' * (n > 1)} a transfer", {s: throughput(r)["dray"] / 1e9 for s, r in columns[n].items()}, False)
        for s, r in columns[n].items():
            ceilings.setdefault(s, []).append(throughput(r)["ceiling"] / 1e9)
    name = NAMES[throughput(runs[0])["name"]]
    yield f"ceiling: {name}", {s: statistics.median(v) for s, v in ceilings.items()}, True


def draw(transport, runs, path):
    """Draws the plot. False if gnuplot is not installed; then an earlier plot stays unchanged."""
    if not shutil.which("gnuplot"):
        print("report: gnuplot is not installed (scripts/deps bench); no plots", file=sys.stderr)
        return False
    lines, data = [], []
    for i, (title, points, ceiling) in enumerate(series(runs)):
        color = GREY if ceiling else COLORS[i % len(COLORS)]
        style = "with lines dashtype 2" if ceiling else "with linespoints pointtype 7 pointsize 0.4"
        lines.append(f"'-' using 1:2 {style} linecolor rgb '{color}' title '{title}'")
        data += [*(f"{s} {value:.6g}" for s, value in sorted(points.items())), "e"]
    sizes = sorted({r["size"] for r in runs})
    script = PLOT.format(path=path, transport=transport, grey=GREY, tics=", ".join(f'"{size(s)}" {s}' for s in sizes),
                         low=sizes[0], high=sizes[-1] * 1.01, lines=", ".join(lines), data="\n".join(data))
    subprocess.run(["gnuplot"], input=script, text=True, check=True)
    return True
