# SPDX-License-Identifier: Apache-2.0
"""The first hour: the lines of the README in an empty Debian 12, as a transcript with the time of each line, in build/check/first-hour.txt."""

import os
import re
import subprocess

import pytest
from packages import ROOT, folder_for_all, run
from test_installed import LONG, Root

pytestmark = [
    pytest.mark.skipif("DRAY_LONG" not in os.environ, reason="only in make check-long"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a Debian root with users"),
]
TELL = r"""
tell() { s=$(($(date +%s) - START)); printf '%02d:%02d $ %s\n' $((s / 60)) $((s % 60)) "$1"; }
cd /dray
"""


def lines():
    section = (ROOT / "README.md").read_text().split("## The first transfer")[1].split("\n## ")[0]
    return [line.strip() for line in re.search(r"(?:^    .*\n)+", section, re.M)[0].splitlines()]


def script(start, some):
    return f"START={start}\n{TELL}" + "".join(f"tell '{line}'\n{line}\n" for line in some) + "wait\ntell 'the end'\n"


def test_transcript():
    first, *others = lines()
    with folder_for_all() as folder:
        start = run("date", "+%s").strip()
        root = Root(folder / "root")
        root.apt("install", "git", "make", "ca-certificates")
        run("git", "clone", "--quiet", ROOT, root.folder / "dray")
        text = ""
        # packages come from the network; agents have one of their own, whose ports nobody else uses
        for some, net in (([first], True), (others, False)):
            done = subprocess.run([str(a) for a in root.argv("sh", "-euc", script(start, some), net=net)], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LONG)
            text += done.stdout
            assert done.returncode == 0, text[-4000:]
    out = ROOT / "build/check/first-hour.txt"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text)
    assert "compared at both ends" in text
    assert text.rstrip().endswith("$ the end")
