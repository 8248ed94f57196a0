# SPDX-License-Identifier: Apache-2.0
"""drayctl env, exec, segments, hints and wait for segments, against a fake agent that has only a control socket."""

import contextlib
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios

import pytest
from harness import BUILD, DRAYCTL, LIMIT, until

FAKE = BUILD / "tests/integration/fake_control"

pytestmark = pytest.mark.skipif(not FAKE.exists() or not DRAYCTL.exists(), reason=f"{FAKE} is not there")

HOSTILE = [
    "", "plain", "a b", " both ends ", "it's", "''", "say \"it's\"", "\\", "\\\\n", "a\\", "it's $HOME", "$(touch owned)", "`id`",
    "${X:-y}", "~", "a=~/b", "-leading", "--all=x", "*", "?[a-z]*", "{a,b}", "a;b", "a&&b|c>d<e", "(sub)", "#hash", "a #hash", "!!",
    "%s%n", "café — 🐎", "bell\a esc\x1b[31m", "\ttab", "[fd00::1]:50053", "=mlx5_0:1,mlx5_1:1",
]


class Fake:
    """fake_control.c, with a record of its calls."""

    def __init__(self, directory):
        self.path = directory / "control.sock"
        self.calls, self.rest = [], b""
        self.process = subprocess.Popen([FAKE, self.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._until(["done"])

    def _line(self):
        while b"\n" not in self.rest:
            assert select.select([self.process.stdout], [], [], LIMIT)[0], f"no further call; calls so far: {self.calls}"
            got = os.read(self.process.stdout.fileno(), 1 << 16)
            assert got, "the fake ended"
            self.rest += got
        line, self.rest = self.rest.split(b"\n", 1)
        return json.loads(line)

    def _until(self, wanted):
        while (line := self._line()) != wanted:
            self.calls.append(line)

    def be(self, **what):
        self.process.stdin.write(json.dumps(what).encode() + b"\n")
        self.process.stdin.flush()
        self._until(["done"])

    def called(self, member):
        """Waits for the next call of a method."""
        while True:
            line = self._line()
            self.calls.append(line)
            if line[0] == member:
                return line

    def variables(self, *rows):
        self.be(records={"ListEnvironment": [dict(zip(("profile", "name", "value"), row), reason="as it is") for row in rows]})

    def segments(self, *rows):
        self.be(records={"ListSegments": [dict({"segment": "10.0.0.2:50053", "state": "ready", "verified": True, "preferred": True,
                                                "reason": "it answers"}, **row) for row in rows]})

    def changed(self):
        self.be(signal=["SegmentChanged", "10.0.0.2:50053", "probing", "ready", "it answers"])

    def command(self, *argv):
        return [str(DRAYCTL), "--control", str(self.path), *map(str, argv)]

    def run(self, *argv, status=0, env=None, **how):
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("MOONCAKE", "MC_", "DRAY_", "V_"))} | (env or {})
        done = subprocess.run(self.command(*argv), stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=LIMIT, env=environ, **how)
        out, err = done.stdout.decode(), done.stderr.decode()
        assert done.returncode == status, f"exit {done.returncode}: {err}{out}"
        return out, err

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def fake(tmp_path):
    f = Fake(tmp_path)
    yield f
    f.close()


def python(*code):
    return [sys.executable, "-c", "\n".join(code)]


# --- env ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("shell", ["sh", "bash", "dash"])
def test_values_survive_every_shell(fake, shell, tmp_path):
    names = [f"V_{i}" for i in range(len(HOSTILE))]
    fake.variables(*(("dray", n, v) for n, v in zip(names, HOSTILE)))
    show = " ".join(python("import json, os", f"print(json.dumps([os.environ[n] for n in {names!r}]))")[:2]) + " " + \
        shlex.quote(python("import json, os", f"print(json.dumps([os.environ[n] for n in {names!r}]))")[2])
    clean = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "LC_ALL": "C.UTF-8", "ASAN_OPTIONS": "detect_leaks=0"}
    drayctl = shlex.join(fake.command("env"))
    (tmp_path / "env").write_text(fake.run("env", "--format", "dotenv")[0])
    for script in (f'eval "$({drayctl})"; {show}', f"set -a; . {tmp_path}/env; set +a; {show}"):
        done = subprocess.run([shell, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=LIMIT, env=clean, cwd=tmp_path)
        assert json.loads(done.stdout) == HOSTILE and not done.stderr
    done = subprocess.run(fake.command("exec", "--", *python("import json, os", f"print(json.dumps([os.environ[n] for n in {names!r}]))")),
                          stdout=subprocess.PIPE, timeout=LIMIT, env=clean)
    assert json.loads(done.stdout) == HOSTILE
    assert not (tmp_path / "owned").exists()


def test_arguments_survive_a_shell(fake):
    fake.variables(("dray", "A", "1"))
    out, err = fake.run("env", "--format", "args", status=2)
    assert not out and "mooncake-owner" in err
    fake.be(records={"ListEnvironment": [{"profile": "mooncake-owner", "name": f"--x{i}", "value": v, "argument": True}
                                         for i, v in enumerate(HOSTILE)] + [{"profile": "dray", "name": "A", "value": "1"}]})
    out, err = fake.run("env", "--format", "args")
    assert len(out.splitlines()) == 1 and not err
    for shell in ("sh", "bash", "dash"):
        show = shlex.join(python("import json, sys", "print(json.dumps(sys.argv[1:]))"))
        done = subprocess.run([shell, "-c", f"eval {shlex.quote(show + ' ' + out)}"], stdout=subprocess.PIPE, timeout=LIMIT)
        assert json.loads(done.stdout) == [f"--x{i}={v}" for i, v in enumerate(HOSTILE)]
    # Arguments are not variables, and a note says so.
    out, err = fake.run("env")
    assert out == "export A=1\n" and len(err.splitlines()) == len(HOSTILE) and "--format args" in err


def test_formats_and_omitted_variables(fake):
    fake.be(records={"ListEnvironment": [
        {"profile": "dray", "name": "DRAY_SOCKET", "value": "/run/dray/dray.sock"},
        {"profile": "nccl", "name": "NCCL_IB_GID_INDEX", "left_out": True, "reason": "no one index\x1b is right"},
        {"profile": "nccl", "name": "NCCL_IB_HCA", "value": "=mlx5_0:1"},
        {"profile": "ucx", "name": "BROKEN", "value": "a\nb"},
        {"profile": "mooncake", "name": "DRAY_SOCKET", "value": "/run/dray/dray.sock"}]})
    out, err = fake.run("env", "--profile", "dray,nccl,ucx")
    assert fake.called("ListEnvironment") == ["ListEnvironment", ["dray", "nccl", "ucx"]]
    assert out == "export DRAY_SOCKET=/run/dray/dray.sock\nexport NCCL_IB_HCA='=mlx5_0:1'\n"
    assert err == "drayctl: NCCL_IB_GID_INDEX is omitted: no one index\\x1b is right\n" \
                  "drayctl: BROKEN is omitted: its value contains a newline\n"
    out, err = fake.run("env", "--format", "dotenv")
    assert fake.called("ListEnvironment") == ["ListEnvironment", []]
    assert out == "DRAY_SOCKET=/run/dray/dray.sock\nNCCL_IB_HCA==mlx5_0:1\n" and "BROKEN" in err
    out, err = fake.run("env", "--format", "json")
    found = json.loads(out)
    assert found["variables"] == {"DRAY_SOCKET": "/run/dray/dray.sock", "NCCL_IB_HCA": "=mlx5_0:1"} and not err
    assert [row["name"] for row in found["left_out"]] == ["NCCL_IB_GID_INDEX", "BROKEN"] and found["arguments"] == []
    assert len(json.loads(fake.run("env", "--json")[0])["variables"]) == 5
    assert len(fake.run("env", "--plain")[0].splitlines()) == 5


def test_set_variables_are_kept(fake):
    fake.variables(("dray", "V_A", "new"), ("dray", "V_B", "same"), ("dray", "V_C", "c"))
    given = {"V_A": "old", "V_B": "same", "V_AA": "x"}
    out, err = fake.run("env", env=given)
    assert out == "export V_C=c\n"
    assert err == "drayctl: V_A is omitted: it is set already, and --override was not given\n"
    assert fake.run("env", "--override", env=given) == ("export V_A=new\nexport V_C=c\n", "")
    assert "V_A" not in json.loads(fake.run("env", "--format=json", env=given)[0])["variables"]
    # A variable with an empty value is set.
    assert "V_A" in fake.run("env", env={"V_A": ""})[1]
    show = python("import os", "print([os.environ.get(n) for n in ('V_A', 'V_B', 'V_C')])")
    assert fake.run("exec", "--", *show, env=given)[0] == "['old', 'same', 'c']\n"
    assert fake.run("exec", "--override", "--", *show, env=given) == ("['new', 'same', 'c']\n", "")


@pytest.mark.parametrize("name", ["A-B", "A;id", "", "1A", "A B", "x=y"])
def test_invalid_names_are_refused(fake, name):
    fake.variables(("dray", name, "v"))
    for argv in (["env"], ["env", "--format=json"], ["exec", "true"]):
        out, err = fake.run(*argv, status=1)
        assert not out and "types of the interface" in err


def test_unknown_profiles(fake):
    fake.be(errors={"ListEnvironment": ["org.freedesktop.DBus.Error.InvalidArgs", "unknown profile \"x\"; there are dray"]})
    assert "there are dray" in fake.run("env", "--profile", "x", status=2)[1]
    # --on-timeout=start does not cover errors of usage.
    for more in ([], ["--on-timeout=start"], ["--wait-ready=1h"]):
        assert "there are dray" in fake.run("exec", *more, "--profile", "x", "true", status=2)[1]
    for wrong in ("a,,b", ",", "a,", ""):
        assert "--profile" in fake.run("env", "--profile", wrong, status=2)[1]


# --- exec ---------------------------------------------------------------------------------------------

def test_the_command_inherits_everything(fake):
    """The command gets argv with any bytes, descriptors, signal mask and dispositions, and stdin, but no descriptor of drayctl."""
    fake.variables(("dray", "V_A", "1"))
    odd = [b"", b"a b", b"\xff\xfe", b"--profile", b"x", b"--", b"-h", b"it's", b"*"]
    show = python("import json, os, signal, sys",
                  "fds = sorted(int(n) for n in os.listdir('/proc/self/fd'))",
                  "alive = [n for n in fds if os.path.exists(f'/proc/self/fd/{n}')]",
                  "status = dict(l.split(':\\t') for l in open('/proc/self/status').read().splitlines() if ':\\t' in l)",
                  "print(json.dumps([[os.fsencode(a).hex() for a in sys.argv[1:]], alive, status['SigBlk'], status['SigIgn'],",
                  "                  sys.stdin.read(), os.getpid(), os.environ['V_A']]))")
    r, w = os.pipe()

    def before():
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)

    def told(argv):
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[r], preexec_fn=before) as p:
            out = json.loads(p.communicate(b"from stdin", timeout=LIMIT)[0])
            assert out.pop(5) == p.pid
        return out

    os.environ["V_A"] = "1"
    try:
        plain = told([*show, *odd])
    finally:
        del os.environ["V_A"]
    wrapped = told([*fake.command("exec", "--"), *show, *odd])
    assert wrapped == plain and [bytes.fromhex(a) for a in wrapped[0]] == odd and r in wrapped[1]
    os.close(r)
    os.close(w)


def test_search_for_the_command(fake, tmp_path):
    fake.variables()
    (tmp_path / "plain").write_text("echo script $1 $#")
    (tmp_path / "plain").chmod(0o755)
    (tmp_path / "secret").write_text("")
    (tmp_path / "dir").mkdir()
    path = {"PATH": f"{tmp_path / 'none'}:{tmp_path}:/usr/bin:/bin"}
    assert fake.run("exec", "plain", "a b", "c", env=path)[0] == "script a b 2\n"
    assert fake.run("exec", tmp_path / "plain")[0] == "script 0\n"
    assert fake.run("exec", "--", "sh", "-c", "exit 7", env=path, status=7)
    assert "command not found" in fake.run("exec", "nosuch", env=path, status=127)[1]
    assert "command not found" in fake.run("exec", "", env=path, status=127)[1]
    assert "command not found" in fake.run("exec", tmp_path / "none/x", status=127)[1]
    assert "command not found" in fake.run("exec", tmp_path / "plain/x", status=127)[1]
    assert fake.run("exec", "/", status=126) and fake.run("exec", tmp_path / "dir", status=126)
    assert "Permission denied" in fake.run("exec", tmp_path / "secret", status=126)[1]
    assert "Permission denied" in fake.run("exec", "secret", env=path, status=126)[1]
    # The error comes before the wait.
    assert fake.run("exec", "--wait-ready=1h", "nosuch", env=path, status=127)
    assert "exec needs a command" in fake.run("exec", status=2)[1] and fake.run("exec", "--", status=2)
    assert "--wait-ready soon" in fake.run("exec", "--wait-ready=soon", "true", status=2)[1]
    assert "fail|start" in fake.run("exec", "--on-timeout", "later", "true", status=2)[1]


def test_without_an_agent(fake, tmp_path):
    fake.close()
    show = python("import os", "print(os.environ.get('V_A'))")
    assert "no agent" in fake.run("exec", "--", *show, status=3)[1]
    out, err = fake.run("exec", "--on-timeout=start", "--", *show, env={"V_A": "mine"})
    assert out == "mine\n" and "starting without a preferred segment: no agent" in err
    out, err = fake.run("exec", "--wait-ready=150ms", "--", *show, status=124)
    assert not out and "within 150 ms: no agent" in err and len(err.splitlines()) == 1
    assert fake.run("exec", "--wait-ready=150ms", "--on-timeout=start", "--", *show)[0] == "None\n"


def test_arguments_are_not_added(fake):
    fake.be(records={"ListEnvironment": [{"profile": "mooncake-owner", "name": "--port", "value": "1", "argument": True}]})
    assert "--format args prints them" in fake.run("exec", "true", status=2)[1]


VARIABLES = (("vllm-mooncake", "MOONCAKE_PREFERRED_SEGMENT", "10.0.0.2:50053"), ("vllm-mooncake", "MC_GID_INDEX", "3"))
SHOW = python("import os", "print(os.environ.get('MOONCAKE_PREFERRED_SEGMENT'), os.environ.get('MC_GID_INDEX'), flush=True)")


@contextlib.contextmanager
def waiting(fake, *argv, command=(), status=0, out="", err="", **how):
    with subprocess.Popen(fake.command("exec", *argv, "--", *(command or SHOW)), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, **how) as p:
        try:
            yield p
            got = p.communicate(timeout=LIMIT)
        finally:
            p.kill()
    assert p.returncode == status and got[0] == out and err in got[1], f"{p.returncode} {got}"


def test_waits_for_the_preferred_segment(fake):
    fake.variables()
    fake.segments()
    with waiting(fake, "--wait-ready=1h", out="10.0.0.2:50053 3\n") as p:
        fake.called("ListSegments")
        # segments that are not preferred, not ready, or not verified
        for row in ({"preferred": False}, {"state": "probing"}, {"verified": False}, {"state": "lost"}):
            fake.segments(row)
            fake.changed()
            fake.called("ListSegments")
            assert p.poll() is None
        fake.variables(*VARIABLES)
        fake.segments({"preferred": False, "segment": "a:1"}, {})
        fake.changed()


def test_waits_until_the_agent_runs(fake):
    fake.variables(*VARIABLES)
    fake.segments({})
    fake.be(state="draining")
    with waiting(fake, "--wait-ready=1h", out="10.0.0.2:50053 3\n") as p:
        fake.called("GetAll")
        assert p.poll() is None
        fake.be(state="running", signal=["StateChanged", "draining", "running"])


def test_wait_works_without_a_signal(fake):
    """An agent sends no signal when a probe confirms the known state, so drayctl must poll."""
    fake.variables(*VARIABLES)
    fake.segments({"verified": False})
    with waiting(fake, "--wait-ready=1h", out="10.0.0.2:50053 3\n"):
        fake.called("ListSegments")
        fake.segments({})


@pytest.mark.parametrize("end", ["kill", "drop"])
def test_agent_starts_late_and_ends(fake, tmp_path, end):
    fake.close()
    (tmp_path / "again").mkdir()
    with waiting(fake, "--wait-ready=1h", out="10.0.0.2:50053 3\n") as p:
        first = Fake(tmp_path)
        try:
            first.segments({"state": "probing"})
            first.called("ListSegments")
            if end == "drop":
                first.be(drop=True)
                first.called("ListSegments")
        finally:
            first.close()
        assert p.poll() is None
        second = Fake(tmp_path)
        try:
            second.variables(*VARIABLES)
            second.segments({})
            p.wait(LIMIT)
        finally:
            second.close()


@pytest.mark.parametrize("row, why", [
    ({"state": "probing", "reason": "connection refused"}, "segment 10.0.0.2:50053 is probing: connection refused"),
    ({"preferred": False}, "no segment is preferred"),
    ({"verified": False}, "segment 10.0.0.2:50053 is ready from before the agent's start"),
])
def test_timeouts(fake, row, why):
    fake.variables(*VARIABLES)
    fake.segments(row)
    with waiting(fake, "--wait-ready=1500ms", status=124, err=f"no preferred segment was ready within 1.5 s: {why}"):
        pass
    # The other variables are still set.
    with waiting(fake, "--wait-ready=1500ms", "--on-timeout=start", out="None 3\n", err=why):
        pass
    mine = os.environ | {"MOONCAKE_PREFERRED_SEGMENT": "mine:1"}
    with waiting(fake, "--wait-ready=1500ms", "--on-timeout=start", out="mine:1 3\n", err=why, env=mine):
        pass


def test_agent_does_not_answer(fake):
    fake.be(hang=True)
    with waiting(fake, "--wait-ready=300ms", status=124, err="did not answer"):
        pass


@pytest.mark.parametrize("kind", ["kv", "ec"])
def test_transfer_config(fake, tmp_path, kind):
    fake.variables()
    for name in ("vllm", "python3.12", "numactl", "other"):
        (tmp_path / name).write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        (tmp_path / name).chmod(0o755)
    text = '{"kv_connector": "it\'s", "kv_role": "kv_both"}'

    def told(*argv, status=0):
        out, err = fake.run("exec", option, text, "--", tmp_path / argv[0], *argv[1:], status=status)
        return out.splitlines(), err

    option = f"--{kind}-transfer-config"
    added = [option, text]
    for argv in (["vllm", "serve", "model", "--port", "1"], ["python3.12", "-u", "-m", "vllm.entrypoints.openai.api_server", "--x"],
                 ["python3.12", "-mvllm.entrypoints.openai.api_server"], ["numactl", "-N0", "/usr/bin/vllm", "serve", "m"]):
        assert told(*argv) == (argv[1:] + added, "")
    for own in ([option, "{}"], [f"{option}={{}}"], [f"{option}.kv_role", "x"], [f"--{kind}_transfer_config={{}}"]):
        out, err = told("vllm", "serve", "m", *own)
        assert out == ["serve", "m", *own] and "the command already has" in err and "which stays" in err
    assert told("vllm", "serve", "m", f"{option}s")[0][-2:] == added
    check_config_files(tmp_path, kind, lambda *argv, **how: told("vllm", "serve", *argv, **how), added)
    for argv in (["vllm", "bench"], ["vllm"], ["other", "serve"], ["python3.12", "x.py", "-m", "pytest"]):
        out, err = told(*argv, status=2)
        assert not out and "needs vllm serve" in err
    for wrong, why in (("[]", "not a JSON object"), ("3", "not a JSON object"), ("{", "not valid JSON"), ("", "not valid JSON"),
                       ('{"a": 1, "a": 2}', "duplicate"), ("{} x", "not valid JSON"), ("[" * 5000, "not valid JSON")):
        out, err = fake.run("exec", option, wrong, "--", tmp_path / "vllm", "serve", status=2)
        assert option in err and why in err and len(err.splitlines()) == 1


def check_config_files(folder, kind, told, added):
    """An argument in the file of vLLM's --config stays, in each spelling. A file without it does not matter."""
    file = folder / "vllm.yaml"
    for has, text in ((True, f"{kind}-transfer-config: {{a: 1}}\n"), (True, f"model: m\n'{kind}_transfer_config': '{{}}'\n"),
                      (True, f"{kind}-transfer-config.kv_role: x\n"), (False, f"model: m # {kind}-transfer-config: 1\n"), (False, ""),
                      (False, f"other:\n  {kind}-transfer-config: 1\n"), (False, "- list\n")):
        file.write_text(text)
        for argv in (["--config", file], [f"--config={file}"]):
            out, err = told(*argv)
            assert out == ["serve", *map(str, argv), *([] if has else added)], text
            assert not has or f"{file} already has a {added[0]}, which stays" in err
    assert "cannot open /nonexistent" in told("--config", "/nonexistent", status=1)[1]
    file.write_text("a: [")
    assert "line 2" in told("--config", file, status=1)[1]


def test_transfer_config_of_a_profile(fake, tmp_path):
    """exec adds the arguments of the profile vllm-dray, unless the command has them; an option takes precedence."""
    value = '{"kv_connector": "DrayConnector"}'
    fake.be(records={"ListEnvironment": [{"profile": "vllm-dray", "name": "--kv-transfer-config", "value": value, "argument": True},
                                         {"profile": "vllm-dray", "name": "--ec-transfer-config", "argument": True, "left_out": True, "reason": "no role"}]})
    (tmp_path / "vllm").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "vllm").chmod(0o755)

    def told(*options, own=()):
        out, err = fake.run("exec", "--profile", "vllm-dray", *options, "--", tmp_path / "vllm", "serve", *own)
        return out.splitlines(), err

    out, err = told()
    assert out == ["serve", "--kv-transfer-config", value] and "--ec-transfer-config is omitted: no role" in err
    out, err = told(own=["--kv-transfer-config={}"])
    assert out == ["serve", "--kv-transfer-config={}"] and "which stays" in err
    assert told("--kv-transfer-config", '{"mine": 1}')[0] == ["serve", "--kv-transfer-config", '{"mine": 1}']
    assert told("--ec-transfer-config", "{}")[0] == ["serve", "--kv-transfer-config", value, "--ec-transfer-config", "{}"]
    assert "needs vllm serve" in fake.run("exec", "--profile", "vllm-dray", "--", "/bin/true", status=2)[1]


# --- signals and terminals -----------------------------------------------------------------------------

@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_the_wait(fake, number):
    fake.segments({"state": "probing"})
    with waiting(fake, "--wait-ready=1h", status=-number) as p:
        fake.called("ListSegments")
        p.send_signal(number)


class Terminal:
    """Starts drayctl on its own terminal, as a shell does."""

    def __init__(self, argv):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execv(argv[0], argv)
        self.text = b""

    def until(self, wanted):
        def look():
            with contextlib.suppress(OSError):
                if select.select([self.fd], [], [], 0)[0]:
                    self.text += os.read(self.fd, 4096)
            return wanted in self.text
        until(look, f"{wanted} on the terminal")

    def type(self, keys):
        os.write(self.fd, keys)

    def resize(self, rows, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def status(self):
        def look():
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            return (status,) if pid else None
        return until(look, "the end")[0]

    def close(self):
        os.close(self.fd)


@contextlib.contextmanager
def terminal(*argv):
    t = Terminal([str(a) for a in argv])
    try:
        yield t
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(t.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(t.pid, 0)
        t.close()


def test_control_c_during_the_wait(fake):
    fake.segments({"state": "probing"})
    with terminal(*fake.command("exec", "--wait-ready=1h", "--", "cat")) as t:
        fake.called("ListSegments")
        t.type(b"\x03")
        assert os.WTERMSIG(t.status()) == signal.SIGINT


def test_the_command_has_the_terminal(fake):
    """The command is the foreground process: it gets SIGWINCH, control-C and SIGTERM, and reads the input."""
    fake.variables(("dray", "V_A", "mine"))
    fake.segments({})
    program = python("import os, signal, sys",
                     "say = lambda *a: print(*a, flush=True)",
                     "does = {signal.SIGWINCH: lambda: say('size', *os.get_terminal_size()),",
                     "        signal.SIGINT: lambda: say('interrupted'),",
                     "        signal.SIGTERM: lambda: (say('told to end'), os._exit(9))}",
                     # The signals are blocked: if a signal came just before signal.pause(), pause() would wait for the next one.
                     "signal.pthread_sigmask(signal.SIG_BLOCK, does)",
                     "say('tty', os.isatty(0), os.isatty(1), os.environ['V_A'], os.getpid(), os.tcgetpgrp(0) == os.getpgrp())",
                     "say('read', sys.stdin.readline())",
                     "while True: does[signal.sigwait(does)]()")
    with terminal(*fake.command("exec", "--wait-ready", "--", *program)) as t:
        t.until(f"tty True True mine {t.pid} True".encode())
        t.type(b"typed\n")
        t.until(b"read typed")
        t.resize(33, 77)
        t.until(b"size 77 33")
        t.type(b"\x03")
        t.until(b"interrupted")
        os.kill(t.pid, signal.SIGTERM)
        t.until(b"told to end")
        assert os.WEXITSTATUS(t.status()) == 9


# --- segments, hints, wait ------------------------------------------------------------------------------

def test_segments(fake):
    assert fake.run("segments")[0] == "no segments\n"
    fake.segments({"capacity": 17179869184, "local": True}, {"segment": "b:1", "state": "lost", "preferred": False})
    out, _ = fake.run("segments")
    assert "10.0.0.2:50053" in out and "lost" in out and "GiB" in out
    assert len(fake.run("segments", "--plain")[0].splitlines()) == 2
    fake.be(records={"ListCandidates": [{"rank": 1, "segment": "b:1", "preference": "hint", "state": "ready", "chosen": True,
                                         "reason": "score 7"}]})
    out, _ = fake.run("segments", "--explain", "--scope", "llama")
    assert fake.called("ListCandidates") == ["ListCandidates", "llama"] and "score 7" in out
    fake.run("segments", "--explain")
    assert fake.called("ListCandidates") == ["ListCandidates", ""]
    assert "--explain" in fake.run("segments", "--scope", "x", status=2)[1]


def test_hints(fake):
    assert fake.run("hints")[0] == "no hints\n"
    fake.be(records={"ListHints": [{"scope": "llama", "segment": "a:1", "source": "client", "uid": 7, "counts": True}]})
    assert "llama" in fake.run("hints")[0]
    assert fake.run("hints", "--set", "llama=70b=10.0.0.2:50053", "--score", "7", "--ttl", "1h")[0] == "llama=70b=10.0.0.2:50053\n"
    assert fake.called("SetHint") == ["SetHint", "llama=70b", "10.0.0.2:50053", 7, 3600000]
    fake.run("hints", "--set", "=[fd00::1]:50053")
    assert fake.called("SetHint") == ["SetHint", "", "[fd00::1]:50053", 0, 0]
    assert fake.run("hints", "--forget", "llama=70b")[0] == "2 hints forgotten\n"
    assert fake.called("ForgetHints") == ["ForgetHints", "llama=70b", "", False]
    fake.run("hints", "--forget", "llama=a:1", "--plain")
    assert fake.called("ForgetHints") == ["ForgetHints", "llama", "a:1", False]
    fake.run("hints", "--forget=")
    assert fake.called("ForgetHints") == ["ForgetHints", "", "", False]
    fake.run("hints", "--forget-all")
    assert fake.called("ForgetHints") == ["ForgetHints", "", "", True]
    fake.be(unread=True)
    assert fake.run("hints", "--forget-all")[0] == "2 hints forgotten, and those of the database, which cannot be read yet\n"
    for wrong in (["--set", "llama"], ["--set", "llama=host"], ["--set", "llama=host:0"], ["--set", "x" * 257 + "=a:1"], ["--score", "1"],
                  ["--set=x=a:1", "--score=-1"], ["--set=x=a:1", "--ttl=1ms"], ["--ttl", "1h"], ["--set=x=a:1", "--forget-all"],
                  ["--forget=x", "--forget-all"]):
        assert len(fake.run("hints", *wrong, status=2)[1].splitlines()) == 1
    fake.be(errors={"SetHint": ["org.freedesktop.DBus.Error.AccessDenied", "not for you"]})
    assert "not for you" in fake.run("hints", "--set", "x=a:1", status=4)[1]


@pytest.mark.parametrize("argv, before, after", [
    (["segment=10.0.0.2:50053"], {"state": "probing"}, {}),
    (["segment=10.0.0.2:50053", "state=lost"], {}, {"state": "lost"}),
    (["state=lost", "segment=10.0.0.2:50053"], {"state": "probing"}, {"state": "lost", "verified": False}),
    (["segment=local"], {"local": False}, {"local": True}),
    (["segment=own"], {"local": True, "state": "lost"}, {"local": True}),
    (["segment=preferred"], {"preferred": False}, {}),
    (["segment=10.0.0.2:50053"], {"segment": "other:1"}, {}),
])
def test_wait_for_a_segment(fake, argv, before, after):
    fake.segments(before)
    with subprocess.Popen(fake.command("wait", *argv, "--timeout", "1h"), stdout=subprocess.PIPE, text=True) as p:
        fake.called("ListSegments")
        fake.changed()
        fake.called("ListSegments")
        assert p.poll() is None
        fake.segments({"segment": "x:1", "preferred": False}, after)
        fake.changed()
        out = p.communicate(timeout=LIMIT)[0]
    assert p.returncode == 0 and out == f"10.0.0.2:50053\t{after.get('state', 'ready')}\n"


def test_wait_for_a_segment_fails(fake):
    assert "segment a:1 is not known" in fake.run("wait", "segment=a:1", "--timeout=1500ms", status=1)[1]
    assert "no segment on this node is known" in fake.run("wait", "segment=local", "--timeout=1500ms", status=1)[1]
    fake.segments({"state": "probing", "reason": "refused"})
    assert "is probing: refused" in fake.run("wait", "segment=preferred", "--timeout=1500ms", status=1)[1]
    assert json.loads(fake.run("wait", "segment=preferred", "state=probing", "--json")[0]) == \
        {"reached": "probing", "segment": "10.0.0.2:50053"}
    for wrong in (["state=ready"], ["segment=x"], ["segment=a:1", "state=up"], ["preferred"], ["segment=a:1", "--for", "live"]):
        assert len(fake.run("wait", *wrong, status=2)[1].splitlines()) == 1


def test_interrupted_wait(fake):
    with subprocess.Popen(fake.command("wait", "segment=a:1"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
        fake.called("ListSegments")

        def blocks_the_signal():
            mask = re.search(r"SigBlk:\s*(\w+)", pathlib.Path(f"/proc/{p.pid}/status").read_text())[1]
            return int(mask, 16) >> (signal.SIGTERM - 1) & 1
        # drayctl now waits, so the signal ends it with a message.
        until(blocks_the_signal)
        p.send_signal(signal.SIGTERM)
        err = p.communicate(timeout=LIMIT)[1]
    assert p.returncode == 1 and "interrupted: segment a:1 is not known" in err
