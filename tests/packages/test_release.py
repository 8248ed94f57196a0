# SPDX-License-Identifier: Apache-2.0
"""Release notes from the changelog, and the site."""

import json
import subprocess

import pytest
from packages import ROOT, VERSION

CHANGES = """# Changelog

## Unreleased

- later

## 1.10.0 (2027-01-02)

- ten

## 1.1.0

- one
"""


def notes(*words):
    return subprocess.run([ROOT / "scripts/release-notes", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("words", "text"), [(["--released", "1.1.0"], "# dray 1.1.0\n\n- one\n"),
                                             (["--released", "1.10.0"], "# dray 1.10.0\n\n- ten\n"),
                                             (["1.10.0"], "# dray, not released yet, after 1.10.0\n\n- later\n")])
def test_notes(tmp_path, words, text):
    (tmp_path / "changes").write_text(CHANGES)
    assert notes(*words, tmp_path / "changes").stdout == text


def test_no_notes(tmp_path):
    (tmp_path / "changes").write_text("# Changelog\n")
    done = notes("1.0.0", tmp_path / "changes")
    assert done.returncode == 1 and "has neither a section" in done.stderr
    (tmp_path / "changes").write_text(CHANGES)
    done = notes("--released", "1.11.0", tmp_path / "changes")
    assert done.returncode == 1 and "rename the section Unreleased" in done.stderr
    assert notes().returncode == 2 and notes().stderr.startswith("usage: ")


def test_notes_of_this_tree():
    assert notes(VERSION, ROOT / "CHANGELOG.md").stdout.startswith("# dray")


def test_the_search_knows_the_pages():
    """The index that the pages' search reads. `make site` has checked the links."""
    parts = json.loads((ROOT / "build/site/html/search/search_index.json").read_text())["docs"]
    found = [p["location"] for p in parts if "doctor --peer" in p["text"]]
    assert any(place.startswith("docs/operation.html#") for place in found)
