# SPDX-License-Identifier: Apache-2.0
"""Several runs of pytest share test files out: with DRAY_CLAIMS, a folder of theirs, each run takes the files that no other
run has claimed. A conftest.py imports pytest_runtestloop from here."""

import os
import pathlib

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    if "DRAY_CLAIMS" not in os.environ or session.testsfailed or session.config.option.collectonly:
        return None
    items = claimed(session.items, pathlib.Path(os.environ["DRAY_CLAIMS"]))
    item = next(items, None)
    while item:
        following = next(items, None)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        item = following
    return True


def claimed(items, folder):
    """The tests of the files that this run claims. It claims a file when it has run the previous one; the longest files
    come first, because all runs wait for the last file."""
    mine = {}
    for item in sorted(items, key=lambda item: -item.path.stat().st_size):
        name = item.path.stem
        if name not in mine:
            try:
                (folder / name).mkdir()
                mine[name] = True
            except FileExistsError:
                mine[name] = False
        if mine[name]:
            yield item
