# SPDX-License-Identifier: Apache-2.0
"""Several runs of pytest share test files out: with DRAY_CLAIMS, a folder of theirs, each run takes the files that no other
run has claimed. Before pytest 8 it imports only those; later ones find the fixtures of a conftest.py in their first collection alone.
A conftest.py imports the two hooks from here."""

import os
import pathlib

import pytest

COLLECTS_LATE = pytest.version_tuple < (8,)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session):
    """Leaves nothing to collect before the first test, if whole folders are given."""
    folders = [pathlib.Path(given) for given in session.config.args]  # none: the conftest.py of another folder has left nothing
    claims = "DRAY_CLAIMS" in os.environ and not session.config.option.collectonly
    if claims and folders and all(f.is_dir() for f in folders):
        session.claimable = [file.resolve() for f in folders for file in f.glob("test_*.py")]
        if COLLECTS_LATE:
            session.config.args = []


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    if "DRAY_CLAIMS" not in os.environ or session.testsfailed or session.config.option.collectonly:
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
    files = {file: [] for file in getattr(session, "claimable", ())}
    for item in session.items:
        files.setdefault(item.path, []).append(item)
    collected = 0
    for file in sorted(files, key=lambda file: -file.stat().st_size):
        try:
            (folder / file.stem).mkdir()
        except FileExistsError:
            continue
        items = files[file]
        if COLLECTS_LATE and not items:
            items = session.perform_collect([str(file)])
            collected += len(items)
            session.testscollected = collected
        yield from items
