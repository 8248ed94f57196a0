# SPDX-License-Identifier: Apache-2.0
"""Several runs of pytest share test files out: with DRAY_CLAIMS, a folder of theirs, each run takes the files that no other
run has claimed, and imports only those. A conftest.py imports the two hooks from here."""

import os
import pathlib

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session):
    """Leaves nothing to collect before the first test."""
    if "DRAY_CLAIMS" in os.environ and not session.config.option.collectonly:
        session.claimable, session.config.args = session.config.args, []


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    if not hasattr(session, "claimable"):
        return None
    items = claimed(session, pathlib.Path(os.environ["DRAY_CLAIMS"]))
    item = next(items, None)
    while item:
        following = next(items, None)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        item = following
    return True


def claimed(session, folder):
    """The tests of the files that this run claims. It claims a file when it has run the previous one; the longest files
    come first, because all runs wait for the last file. A file that cannot be imported is a failure among its tests."""
    collected = 0
    files = [file for given in session.claimable for file in pathlib.Path(given).glob("test_*.py")]
    for file in sorted(files, key=lambda file: -file.stat().st_size):
        try:
            (folder / file.stem).mkdir()
        except FileExistsError:
            continue
        items = session.perform_collect([str(file)])
        collected += len(items)
        session.testscollected = collected
        yield from items
