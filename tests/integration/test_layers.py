# SPDX-License-Identifier: Apache-2.0
"""scripts/layers: a small tree breaks each rule once, and the script must name that rule. Needs no agent."""
import os
import subprocess

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

TREE = {
    "lib/list.h": "",
    "agent/model/view.h": '#include "lib/list.h"\n',
    "agent/data/data.h": '#include "agent/model/view.h"\n',
    "agent/data/worker/worker.h": '#include "agent/data/data.h"\n',
    "agent/data/worker/worker.c": '#include "agent/data/worker/worker.h"\n#include "agent/data/worker/internal.h"\n',
    "agent/data/worker/internal.h": '#include "agent/data/worker/worker.h"\n',
    "agent/control/peer/peer.h": '#include "agent/data/data.h"\n',
    "agent/control/peer/fence.c": '#include "agent/control/peer/peer.h"\n',
    "agent/control/session/session.c": '#include "agent/control/peer/peer.h"\n',
    "agent/main.c": '#include "agent/control/peer/peer.h"\n',
}
TABLE = {
    "lib": "",
    "agent": "agent/control/peer",
    "agent/control/session": "agent/control/peer",
    "agent/control/peer": "agent/data",
    "agent/data/worker": "agent/data",
    "agent/data": "agent/model",
    "agent/model": "",
}


@pytest.fixture
def layers(tmp_path):
    """Writes the tree, with changes, and returns the names of the rules that fail."""
    def run(files=(), table=()):
        for path, text in {**TREE, **dict(files)}.items():
            os.makedirs(tmp_path / os.path.dirname(path), exist_ok=True)
            (tmp_path / path).write_text(text)
        rows = {**TABLE, **dict(table)}
        (tmp_path / "table").write_text("".join(f"{k} {v}\n" for k, v in rows.items() if v is not None))
        r = subprocess.run([os.path.join(ROOT, "scripts/layers"), "--root", tmp_path, "--table", tmp_path / "table"],
                           capture_output=True, text=True, check=False)
        failed = [line[len("not ok - "):] for line in r.stdout.splitlines() if line.startswith("not ok - ")]
        assert r.returncode == bool(failed), r.stdout + r.stderr
        return failed
    return run


def test_valid_tree(layers):
    assert layers() == []


def test_a_folder_without_a_row(layers):
    assert layers(table={"agent/model": None}) == ["each folder has a row in scripts/layers.table"]


def test_a_row_without_a_folder(layers):
    assert "each folder has a row in scripts/layers.table" in layers(table={"agent/store": ""})


def test_include_that_the_row_does_not_name(layers):
    assert layers(files={"agent/control/session/reply.c": '#include "agent/data/data.h"\n'}) == [
        "folders include what their row names"]


def test_row_names_a_folder_that_is_not_included(layers):
    assert layers(table={"agent/control/session": "agent/control/peer agent/data"}) == [
        "folders include what their row names"]


def test_the_data_plane_includes_the_control_plane(layers):
    assert layers(files={"agent/data/worker/turn.c": '#include "agent/control/session/session.h"\n',
                         "agent/control/session/session.h": ""},
                  table={"agent/data/worker": "agent/data agent/control/session"}) == [
        "rows name only rooms that their room may include"]


def test_the_control_plane_includes_a_second_header_of_the_data_plane(layers):
    assert layers(files={"agent/control/peer/link.c": '#include "agent/data/worker/worker.h"\n'},
                  table={"agent/control/peer": "agent/data agent/data/worker"}) == [
        "rows name only rooms that their room may include"]


def test_a_circle_of_folders(layers):
    assert layers(files={"agent/control/peer/notice.c": '#include "agent/control/session/session.h"\n',
                         "agent/control/session/session.h": ""},
                  table={"agent/control/peer": "agent/data agent/control/session"}) == ["no circle of folders"]


def test_two_files_of_a_folder_that_include_each_other(layers):
    assert layers(files={"agent/control/peer/fence.h": '#include "agent/control/peer/peer.h"\n',
                         "agent/control/peer/peer.c": '#include "agent/control/peer/fence.h"\n'}) == [
        "one direction inside a folder"]


def test_too_many_files_at_the_root_of_the_agent(layers):
    assert layers(files={f"agent/part{i}.c": "" for i in range(9)}) == ["few files at the roots of agent and ctl"]
