# SPDX-License-Identifier: Apache-2.0
"""scripts/c-reference: each mistake in a header or in a manual page of libdray is named. Needs no agent."""

import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAST = "#ifdef __cplusplus\n}\n"  # what is inserted before it is declared last
NEW = "/*\n * Does something new.\n *\n * Errors:\n * -DRAY_E_BUSY: too much of it.\n */\nDRAY_API int dray_new(struct dray *d);\n\n"


@pytest.fixture
def reference(tmp_path):
    """A copy of the headers, schema files and pages; runs the script on it and returns what it says."""
    for path in ("client/dray.h", "client/dray_errors.h", "schema/errors.yaml", "schema/data.yaml"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    shutil.copytree(ROOT / "client/man", tmp_path / "client/man")

    def run(*args):
        done = subprocess.run([ROOT / "scripts/c-reference", "--root", tmp_path, *args], capture_output=True, text=True)
        assert done.returncode == bool(done.stdout + done.stderr), done
        return (done.stdout + done.stderr).splitlines()

    run.root = tmp_path
    run.header = tmp_path / "client/dray.h"
    return run


def edit(path, old, new):
    text = path.read_text()
    assert text.count(old) >= 1, f"{old!r} is not in {path.name}"
    path.write_text(text.replace(old, new, 1))


def test_the_pages_are_current(reference):
    assert reference("--check") == []


def test_a_function_without_a_page(reference):
    edit(reference.header, LAST, NEW + LAST)
    assert reference("--check") == ["client/man/dray_new.3 is missing", "client/man/libdray.3 is out of date"]
    assert reference() == []
    assert reference("--check") == []
    page = (reference.root / "client/man/dray_new.3").read_text()
    for text in ('.Fn dray_new "struct dray *d"', ".Nd does something new", "DRAY_E_BUSY", "Too much of it.", "DRAY_E_OUT_OF_ORDER"):
        assert text in page


def test_a_page_that_is_out_of_date(reference):
    edit(reference.header, "Opens a session with the agent of this node.", "Opens a session.")
    assert reference("--check") == ["client/man/dray_connect.3 is out of date", "client/man/libdray.3 is out of date"]


def test_a_page_that_was_edited(reference):
    edit(reference.root / "client/man/dray_wait.3", "Waits for a request", "Waits for an answer")
    assert reference("--check") == ["client/man/dray_wait.3 is out of date"]


def test_a_page_of_a_function_that_is_gone(reference):
    (reference.root / "client/man/dray_gone.3").write_text("")
    assert reference("--check") == ["client/man/dray_gone.3 has no function or type"]
    assert reference() == [] and not (reference.root / "client/man/dray_gone.3").exists()


def test_the_meaning_of_a_code_changes_in_the_schema(reference):
    edit(reference.root / "schema/errors.yaml", "Memory could not be allocated.", "There is no memory.")
    assert "client/man/dray_cancel.3 is out of date" in reference("--check")


MISTAKES = {
    "function": ("DRAY_API int dray_new(struct dray *d);\n", "client/dray.h: dray_new has no comment"),
    "no errors": ("/* Does something new. */\nDRAY_API int dray_new(struct dray *d);\n", "dray_new: the comment has no Errors"),
    "struct": ("struct dray_new {\n\tint a; /* one */\n};\n", "client/dray.h: dray_new has no comment"),
    "member": ("/* New. */\nstruct dray_new {\n\tint a; /* one */\n\tint b;\n};\n", "client/dray.h: dray_new: b has no comment"),
    "value": ("/* New. */\nenum dray_new {\n\tDRAY_A = 1, /* one */\n\tDRAY_B = 2\n};\n", "client/dray.h: dray_new: DRAY_B has no comment"),
    "code": (NEW.replace("_E_BUSY", "_E_BUSIER"), "dray_new: DRAY_E_BUSIER is not an error of the schema"),
    "form": (NEW.replace("-DRAY_E_BUSY", "busy"), "dray_new: this line of Errors is not understood: busy: too much of it."),
    "list over two lines": (NEW.replace("-DRAY_E_BUSY:", "-DRAY_E_QUOTA,\n *     -DRAY_E_BUSY:"),
                            "dray_new: this line of Errors is not understood: -DRAY_E_QUOTA,"),
    "nested": ("/* New. */\nstruct dray_new {\n\tstruct {\n\t\tint a; /* one */\n\t} b; /* two */\n};\n",
               "client/dray.h: dray_new: its members are not understood: one on each line, none nested"),
    "include": (NEW.replace("Errors:", "Errors: dray_old()"),
                "dray_new: Errors names dray_old, which is neither a function nor a request of the schema"),
    "twice": (NEW + NEW, "client/dray.h: dray_new is declared twice"),
    "variable": ("/* New. */\nextern int dray_new;\n", "client/dray.h: this declaration is not understood: extern int dray_new;"),
}


@pytest.mark.parametrize("text, message", MISTAKES.values(), ids=MISTAKES)
def test_mistake_in_a_header(reference, text, message):
    edit(reference.header, LAST, text + LAST)
    assert reference("--check") == [f"c-reference: {message}"]


def test_an_overview_without_its_generated_part(reference):
    edit(reference.root / "client/man/libdray.3", "scripts/c-reference writes this part: end", "")
    assert reference("--check") == ["c-reference: client/man/libdray.3: the lines for the part of scripts/c-reference are missing"]
