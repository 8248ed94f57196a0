# SPDX-License-Identifier: Apache-2.0
"""Completion in bash and zsh: the offered words, and the line after the Tab key is pressed."""

import json
import os
import pathlib
import pty
import re
import select
import shlex
import shutil
import subprocess
import sys

import pytest
from harness import BUILD, DRAYCTL, LIMIT

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from machines import models  # noqa: E402

BASH = BUILD / "drayctl.bash"
ZSH = BUILD / "_drayctl"

pytestmark = pytest.mark.skipif(not BASH.exists(), reason=f"{BASH} is not there")
needs_zsh = pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not there")


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """The directory of a recorded machine, and the names of its RDMA devices."""
    directory = tmp_path_factory.mktemp("machine")
    models.ipv6_only().write(directory)
    found = json.loads(subprocess.check_output([DRAYCTL, "detect", "--json", "--from-sysfs", directory], timeout=LIMIT))
    return directory, sorted(d["device"] for d in found["devices"])


def help_of(*verb):
    return subprocess.check_output([DRAYCTL, "help", *verb], text=True, timeout=LIMIT)


def words_in(text, pattern):
    return re.findall(rf"^  ({pattern})\b", text, re.M)


VERBS = words_in(help_of().split("Verbs:")[1].split("Options:")[0], "[a-z-]+") if DRAYCTL.exists() else []
EVERY = words_in(help_of().split("Options:")[1], "--[a-z-]+") if DRAYCTL.exists() else []


# --- words that bash offers -----------------------------------------------------------------------

def offered(*lines, breaks="=:", program="drayctl"):
    """COMPREPLY for each line with the cursor at its end; readline completes <default> and <dirnames>."""
    script = [f"COMP_WORDBREAKS=$' \\t\\n'{shlex.quote(breaks)}", f"source {shlex.quote(str(BASH))}",
              "compopt() { COMPREPLY+=(\"<$2>\"); }", "set -u"]
    for line in lines:
        words = [program, *re.findall(rf"[{breaks}]+|[^\s{breaks}]+" if breaks else r"\S+", line)]
        if line.endswith(" ") or not line:
            words.append("")
        script += [f"COMP_LINE={shlex.quote(f'{program} {line}')} COMP_POINT=${{#COMP_LINE}}",
                   f"COMP_WORDS=({shlex.join(words)}) COMP_CWORD={len(words) - 1}",
                   "_drayctl drayctl; printf '%s ' ${COMPREPLY[@]+\"${COMPREPLY[@]}\"}; echo"]
    done = subprocess.run(["bash", "--norc", "-c", "\n".join(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=LIMIT)
    assert done.returncode == 0 and not done.stderr, done.stderr
    rows = [row.split() for row in done.stdout.split("\n")[:-1]]
    assert len(rows) == len(lines)
    return rows


def test_bash_offers_what_help_lists():
    """Every verb offers its own and the global options, each once; an own option replaces a global one of the same name."""
    assert len(VERBS) > 10 and len(EVERY) > 5
    rows = offered("", "--", *(f"{verb} --" for verb in VERBS))
    assert rows[0] == VERBS and rows[1] == EVERY
    for verb, row in zip(VERBS, rows[2:]):
        assert sorted(row) == sorted(set(words_in(help_of(verb), "--[a-z-]+"))), verb


CASES = {
    # verbs
    "dra": "drain", "x": "", "--json ": VERBS, "--control /x ": VERBS, "--control=/x stat": "status", "-- dra": "drain",
    "--timeout 1s dra": "drain",
    # options, each offered once
    "--js": "--json", "--json --js": "", "status --json --pl": "--plain", "--json status --js": "", "-h --he": "",
    "--timeout=1s --ti": "", "bench --size 4 --si": "", "nonsense --js": "--json", "status -- --js": "", "status --wa": "",
    "status ": EVERY, "status --json ": [option for option in EVERY if option != "--json"],
    # drain has its own --timeout besides the global one
    "--timeout 1s drain --ti": "--timeout", "drain --timeout 1s --ti": "",
    # values
    "--control ": "<default>", "--control=": "<default>", "--control=/r": "<default>", "bench --socket /r": "<default>",
    "detect --from-sysfs ": "<dirnames>", "doctor --from-sysfs=/": "<dirnames>", "inject -f ": "<default>",
    "--timeout ": "", "--timeout=": "", "bench --ops ": "", "bench --ops=": "", "bench --size --": "",
    "bench --direction ": "read write", "bench --direction w": "write", "bench --direction=": "read write",
    "bench --direction=w": "write", "detect --family ip": "ipv4 ipv6", "--direction=": "", "--json=": "",
    "detect --gid-index mlx5_0:3 --wat": "--watch", "detect --gid-index=mlx5_0:3 --wat": "--watch",
    # arguments
    "help ": VERBS, "help dra": "drain", "help --json dra": "drain", "help drain --js": "--json", "help drain d": "",
    "status x": "",
}


def test_bash_cases():
    expected = {line: row if isinstance(row, list) else row.split() for line, row in CASES.items()}
    assert dict(zip(CASES, offered(*CASES))) == expected
    # Readline replaces the whole word if it does not split at =.
    assert offered("bench --direction=w", "--control=/x dra", "bench --direction w", breaks="") == \
        [["--direction=write"], ["drain"], ["write"]]


def test_bash_offers_present_values(machine, tmp_path):
    directory, devices = machine
    rows = offered(f"detect --from-sysfs {directory} --explain ", f"detect --from-sysfs={directory} --explain={devices[0][:-1]}",
                   f"detect --from-sysfs {tmp_path}/nowhere --explain ", program=str(DRAYCTL))
    assert rows == [devices, devices, []]


# --- pressing Tab ---------------------------------------------------------------------------------------

SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], f"source {shlex.quote(str(BASH))}"),
    "zsh": (["zsh", "-f", "-i"], "setopt nobeep; fpath=($PWD $fpath); autoload -Uz compinit; compinit -D -u"),
}


PROMPT = "type> "


class Typist:
    """
    A shell on a terminal, where `drayctl` prints its arguments, except in the calls of the completion.

    Each line is typed after the prompt has appeared, when the shell has switched the terminal to its line editor. While a
    program runs, or the shell starts, the kernel edits and echoes the input, and Tab completes nothing.
    """

    def __init__(self, shell, directory):
        argv, prepare = SHELLS[shell]
        program = directory / "drayctl"
        program.write_text(f"#!/bin/sh\ncase \"$*\" in *' --plain '*) exec {shlex.quote(str(DRAYCTL))} \"$@\"; esac\n"
                           "printf '<%s>' \"$@\"; echo '<end>'\n")
        program.chmod(0o755)
        (directory / "_drayctl").symlink_to(ZSH)
        (directory / "some").mkdir()
        (directory / "something.sock").touch()
        self.ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            argv, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, cwd=directory,
            env={**os.environ, "TERM": "dumb", "PATH": f"{directory}:{os.environ['PATH']}", "HOME": str(directory),
                 "INPUTRC": "/dev/null", "PS1": PROMPT})
        os.close(theirs)
        self.read(PROMPT)
        self.type(prepare)

    def read(self, *texts):
        """Reads the terminal until the texts have appeared, in order; returns all that it showed."""
        seen, at = "", 0
        for text in texts:
            while text not in seen[at:]:
                assert select.select([self.ours], [], [], LIMIT)[0], f"no {text!r}: {seen}"
                seen += os.read(self.ours, 4096).decode(errors="replace")
            at = seen.index(text, at) + len(text)
        return seen

    def type(self, line, *then):
        """Types a line and Enter; returns the terminal's output up to `then` and the next prompt."""
        os.write(self.ours, f"{line}\n".encode())
        return self.read(*then, PROMPT)

    def complete(self, text):
        """Types `drayctl TEXT`, Tab and Enter; returns the arguments that drayctl got."""
        seen = self.type(f"drayctl {text}\t", "<end>")
        return " ".join(re.findall(r"<(.*?)>", re.search(r"(?:<[^<>]*>)+<end>", seen)[0])[:-1])

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.ours)


@pytest.mark.parametrize("shell", ["bash", pytest.param("zsh", marks=needs_zsh)])
def test_pressing_tab(shell, tmp_path, machine):
    directory, (device, *_) = machine
    typist = Typist(shell, tmp_path)
    try:
        for before, after in {
            "doct": "doctor", "--json transf": "--json transfers", "--timeout 1s stat": "--timeout 1s status", "-- stat": "-- status",
            "detect --fam": "detect --family", "nonsense --js": "nonsense --json", "--jso": "--json",
            "--json bench --no": "--json bench --no-color",
            # Given options are not offered again, but drain has its own --timeout.
            "--json --js": "--json --js", "--json status --js": "--json status --js",
            "--timeout 1s drain --ti": "--timeout 1s drain --timeout", "--timeout 1s status --ti": "--timeout 1s status --ti",
            "drain --timeout 1s --ti": "drain --timeout 1s --ti", "status --wa": "status --wa",
            "bench --direction w": "bench --direction write", "bench --direction=w": "bench --direction=write",
            "bench --ops some": "bench --ops some", "--timeout=some": "--timeout=some",
            "--control some/../somet": "--control some/../something.sock",
            "bench --socket=somet": "bench --socket=something.sock",
            "help dra": "help drain", "help drain doc": "help drain doc",
            f"detect --from-sysfs {directory} --explain {device[:-1]}": f"detect --from-sysfs {directory} --explain {device}",
            f"--json detect --from-sysfs={directory} --explain={device[:-1]}":
                f"--json detect --from-sysfs={directory} --explain={device}",
        }.items():
            assert typist.complete(before) == after, before
        # Only the directory is offered; bash appends a slash, zsh a space.
        assert typist.complete("doctor --from-sysfs som").rstrip("/") == "doctor --from-sysfs some"
    finally:
        typist.close()


@needs_zsh
def test_zsh_offers_what_help_lists():
    """The specifications for _arguments of every verb contain the options in its help."""
    script = [f"_arguments() {{ print -r -- ${{${{(M)@:#--*}}%%[=\\[]*}} }}; _describe() {{ print -r -- ${{(P)4%%:*}} }}",
              f"words=(drayctl '') CURRENT=2; source {shlex.quote(str(ZSH))}; _drayctl_verbs"]
    script += [f"words=(drayctl {verb} '') CURRENT=3; _drayctl" for verb in VERBS]
    done = subprocess.run(["zsh", "-f", "-c", "\n".join(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=LIMIT)
    assert done.returncode == 0 and not done.stderr, done.stderr
    every, verbs, *rows = (row.split() for row in done.stdout.splitlines())
    assert every == EVERY and verbs == VERBS and len(rows) == len(VERBS)
    for verb, row in zip(VERBS, rows):
        assert sorted(row) == sorted(set(words_in(help_of(verb), "--[a-z-]+"))), verb
