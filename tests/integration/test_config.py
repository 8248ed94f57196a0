# SPDX-License-Identifier: Apache-2.0
"""Configuration from file, environment and command line."""

import os
import re
import subprocess

import pytest
from harness import DRAYD, LIMIT


@pytest.fixture
def drayd(lab):
    """Runs drayd with the text of a configuration file; returns its status, output and errors."""
    def run(text=None, *args, stdout=subprocess.PIPE, **env):
        argv = [DRAYD]
        if text is not None:
            run.file = lab.write("dray.conf", text)
            argv += ["--config", run.file]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("DRAY_")}
        done = subprocess.run([*argv, *args], text=True, stdout=stdout, stderr=subprocess.PIPE, timeout=LIMIT,
                              env={**clean, **env})
        assert "Sanitizer" not in done.stderr and "runtime error" not in done.stderr, done.stderr
        return done
    return run


def effective(done):
    """Values and origins in the output of --check-config, by key."""
    assert done.returncode == 0, done.stderr
    values, section = {}, ""
    for line in done.stdout.splitlines():
        if line.endswith(":"):
            section = line[:-1]
        elif "=" in line:
            key, value = line.strip().split(" = ", 1)
            values[f"{section}.{key}"] = value
    return values


def test_no_file(drayd):
    values = effective(drayd(None, "--check-config"))
    assert "default" in values["agent.workers"]
    assert values["data.socket"].startswith('"/run/dray/dray.sock"')
    assert len(values) > 50, "keys are missing in the output"


def test_precedence_and_origin(drayd):
    """The environment overrides the file, and the command line overrides both; each value has its origin."""
    text = 'agent: { state_dir = "/file"; workers = 3; };\nlog: { level = "debug"; };\n'
    values = effective(drayd(text, "--check-config", "--set", "agent.workers=5", DRAY_AGENT_STATE_DIR="/environment"))
    assert values["agent.state_dir"].startswith('"/environment"') and "DRAY_AGENT_STATE_DIR" in values["agent.state_dir"]
    assert values["agent.workers"].startswith("5") and "command line" in values["agent.workers"]
    assert values["log.level"].startswith('"debug"') and f"{drayd.file}:2" in values["log.level"]


def test_output_is_a_valid_file(drayd, lab):
    """The output of --check-config is a configuration file with the same values."""
    first = drayd(None, "--check-config", "--set", "limits.pool_bytes=17MiB", "--set", "peer.listen=127.0.0.1:0,[::1]:0")
    again = drayd(first.stdout, "--check-config")
    values = effective(again)
    assert values["limits.pool_bytes"].startswith('"17MiB"')
    assert values.keys() == effective(first).keys()


@pytest.mark.parametrize("text, line, words", [
    ("agent: {\n  statedir = \"/x\";\n};\n", 2, ["statedir", "agent.state_dir"]),
    ("agents: { };\n", 1, ["agents"]),
    ("\n\nlog: { level = \"loud\"; };\n", 3, ["log.level", "loud", "error", "warning", "debug"]),
    ("agent: { workers = 9; };\n", 1, ["agent.workers", "9", "0 to 8"]),
    ("agent: {\n workers = \"many\"; };\n", 2, ["agent.workers", "many"]),
    ("agent: { workers = 4294967297; };\n", 1, ["agent.workers", "4294967297"]),
    ("limits: {\n\n pool_bytes = 4294967296; };\n", 3, ["limits.pool_bytes", "4294967296"]),
    ("limits: { pool_bytes = 16G; };\n", 1, ["16G"]),
    ("limits: { pool_bytes = \"16 bananas\"; };\n", 1, ["limits.pool_bytes", "16 bananas"]),
    ("peer: { heartbeat = \"1\"; };\n", 1, ["peer.heartbeat"]),
    ("peer: { heartbeat = \"1ms\"; };\n", 1, ["peer.heartbeat", "50ms"]),
    ("data: { mode = 660; };\n", 1, ["data.mode", "0"]),
    ("peer: { listen = \"nowhere\"; };\n", 1, ["peer.listen", "nowhere"]),
    ("http: { listen = [\"localhost:7412\"]; };\n", 1, ["http.listen", "is a name", "127.0.0.1:7412"]),
    ("http: { probe_listen = [\"10.0.0.1\"]; };\n", 1, ["http.probe_listen", "port"]),
    ("http: { listen = [\"none\", \"[::1]:0\"]; };\n", 1, ["http.listen", "stand alone"]),
    ("ready: { require = [\"rmda\"]; };\n", 1, ["ready.require", "rmda", "rdma, tcp, segment:HOST:PORT"]),
    ("agent: { workers = ;\n", 1, []), ("agent: {\n", 2, []),
], ids=lambda v: v if isinstance(v, str) else "")
def test_file_errors(drayd, text, line, words):
    """An error names file, line, key, value and the allowed values."""
    done = drayd(text, "--check-config")
    assert done.returncode != 0
    assert f"{drayd.file}:{line}" in done.stderr or line == 2 and f"{drayd.file}:1" in done.stderr, done.stderr
    for word in words:
        assert word in done.stderr, f"{word!r} is not in: {done.stderr}"
    assert drayd(text).returncode != 0, "the agent starts with a file that --check-config refuses"


def test_all_errors_are_reported(drayd):
    """One run names every error of the file, the environment and the combination of keys, each with its place."""
    text = """agent: { workers = 9;
  statedir = "/x"; };
agents: { };
log: { level = "loud"; };
segment: { known = [ "nonsense" ]; };
data: { socket = "/run/dray/control.sock"; allow_uids = [ "root" ]; };
peer: { backoff_min = "0ms"; heartbeat = "3s"; };
rdma: { mtu = 300; gid_index = [ "x" ]; };
"""
    done = drayd(text, "--check-config", DRAY_DATA_MODE="660", DRAY_TCP_STREAMS="none")
    wanted = [(f"{drayd.file}:1", "agent.workers"), (f"{drayd.file}:2", "agent.statedir"), (f"{drayd.file}:3", "agents"),
              (f"{drayd.file}:4", "log.level"), (f"{drayd.file}:6", "data.allow_uids"), (f"{drayd.file}:7", "peer.backoff_min"),
              ("environment DRAY_DATA_MODE", "data.mode"), ("environment DRAY_TCP_STREAMS", "tcp.streams"),
              (f"{drayd.file}:7", "peer.heartbeat_limit"), (f"{drayd.file}:6", "control.socket"), (f"{drayd.file}:8", "rdma.mtu"),
              (f"{drayd.file}:5", "segment.known"), (f"{drayd.file}:8", "rdma.gid_index")]
    lines = done.stderr.splitlines()
    assert done.returncode == 1 and len(lines) == len(wanted), done.stderr
    for where, key in wanted:
        assert any(line.startswith(f"drayd: {where}: ") and key in line for line in lines), (where, key, done.stderr)


@pytest.mark.parametrize("key, words", [
    ("peer.key_file", ["/does/not/exist"]), ("data.group", ["there is no group no-such-group"]), ("control.group", ["there is no group"]),
    ("store.directory_password_file", ["/does/not/exist"])])
def test_what_a_configuration_names_is_missing(drayd, key, words):
    """The check ends as the start would."""
    value = "no-such-group" if key.endswith("group") else "/does/not/exist"
    settings = [f"{key}={value}", "store.directory=redis://127.0.0.1:1", "limits.store_bytes=16MiB"]
    args = [word for one in settings for word in ("--set", one)]
    for done in drayd(None, "--check-config", *args), drayd(None, *args):
        assert done.returncode == 1
        for word in [key, *words]:
            assert word in done.stderr, done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file to another user")
def test_check_by_another_user(drayd, tmp_path):
    """The key belongs to the agent's user. The check, which root runs, names it, and does not call the configuration wrong."""
    key = tmp_path / "key"
    key.write_text("ab" * 32)
    key.chmod(0o400)
    os.chown(key, 65534, 65534)
    checked, started = drayd(None, "--check-config", "--set", f"peer.key_file={key}"), drayd(None, "--set", f"peer.key_file={key}")
    assert checked.returncode == 0 and "belongs to uid 65534" in checked.stderr and "run the check as the agent's user" in checked.stderr
    assert started.returncode == 1 and "belongs to uid 65534" in started.stderr


def test_what_no_store_uses(drayd):
    done = drayd(None, "--check-config", "--set", "store.directory=redis://127.0.0.1:1", "--set", "store.directory_password_file=/none",
                 "--set", "store.segment_size=64MiB")
    assert done.returncode == 0 and "store.directory has no effect without limits.store_bytes" in done.stderr
    assert "segment_size" not in done.stderr, done.stderr
    done = drayd(None, "--check-config", "--set", "limits.store_bytes=64MiB", "--set", "limits.store_disk_bytes=2MiB")
    assert done.returncode == 0 and "has no effect without store.disk_dir" in done.stderr and "written to disk" not in done.stderr


def test_limits_beyond_the_machine(drayd, new_agent, lab):
    """The warnings name both numbers and the remedy. The store that fits has none."""
    store = {"limits.store_bytes": "512TiB", "store.disk_dir": lab.directory("disk"), "limits.store_disk_bytes": "1023TiB"}
    args = [word for key, value in store.items() for word in ("--set", f"{key}={value}")]
    memory = r"limits\.store_bytes is 512TiB, and this machine or container has \d+[KMGT]iB; lower it, or raise the memory"
    checked = drayd(None, "--check-config", *args)
    assert checked.returncode == 0 and re.search(memory, checked.stderr), checked.stderr
    assert re.search(r"limits\.store_disk_bytes is 1023TiB, and the file system of store\.disk_dir has \d+[KMGT]iB; lower it", checked.stderr)
    agent = new_agent(settings={"limits.store_bytes": "16TiB"})
    assert re.search("warning config: .*limits.store_bytes is .* has .*; lower it", agent.text())
    checked = drayd(None, "--check-config", "--set", "limits.store_bytes=64MiB")
    assert checked.returncode == 0 and not checked.stderr


@pytest.mark.parametrize("args, words", [
    (["--set", "agent.worker=1"], ["agent.worker", "agent.workers"]),
    (["--set", "agent.workers"], ["KEY=VALUE"]),
    (["--set", "log.level=loud"], ["log.level", "loud"]),
    (["--log-level", "loud"], ["--log-level", "loud"]),
    (["--sokcet", "/x"], ["--sokcet", "--socket"]),
    (["--config"], ["--config"]), (["--config", "/does/not/exist"], ["/does/not/exist"]), (["word"], ["word"])])
def test_command_line_errors(drayd, args, words):
    done = drayd(None, "--check-config", *args)
    assert done.returncode == 2 or args == ["--config", "/does/not/exist"] and done.returncode
    assert done.stdout == "" or "=" not in done.stdout
    for word in words:
        assert word in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) <= 3, "an error is one sentence, not the help"


def test_environment(drayd):
    done = drayd(None, "--check-config", DRAY_LOG_LEVEL="loud")
    assert done.returncode != 0 and "DRAY_LOG_LEVEL" in done.stderr
    # variables that Kubernetes sets for a Service named dray
    done = drayd(None, "--check-config", DRAY_PORT="tcp://10.0.0.1:7411", DRAY_SERVICE_HOST="10.0.0.1", DRAY_SERVICE_PORT="7411",
                 DRAY_PORT_7411_TCP="tcp://10.0.0.1:7411")
    assert done.returncode == 0, done.stderr
    done = drayd(None, "--check-config", DRAY_AGENT_WORKER="3")
    assert done.returncode == 0 and "DRAY_AGENT_WORKER" in done.stderr, "no warning about an unknown variable"


def test_good_values(drayd):
    text = '''
    // comments and all forms of value
    agent: { workers = 2; poll_time = "0us"; };
    data: { mode = 0600; allow_uids = [0, 1000]; group = ""; };
    peer: { listen = ["127.0.0.1:0", "[::1]:0"]; allow_insecure = false; heartbeat_limit = "10min"; };
    limits: { bytes_per_session = "16TiB"; pool_bytes = "0"; };
    tcp: { buffer = 65536; };
    '''
    values = effective(drayd(text, "--check-config"))
    assert "0600" in values["data.mode"]
    assert "::1" in values["peer.listen"] and "16TiB" in values["limits.bytes_per_session"]
    assert values["tcp.buffer"].startswith('"64KiB"')


def test_help_and_version(drayd):
    for flag in ("--help", "-h"):
        done = drayd(None, flag)
        assert done.returncode == 0 and "--check-config" in done.stdout and not done.stderr
        assert "agent.state_dir" in done.stdout
    done = drayd(None, "--version")
    assert done.returncode == 0 and done.stdout.startswith("drayd ")


def test_file_of_the_running_agent(new_agent, lab):
    file = lab.write("dray.conf", 'limits: { regions_per_session = 7; };\n')
    agent = new_agent(args=["--config", file])
    from test_quotas import region
    with agent.client() as client:
        for _ in range(7):
            region(client)
        from harness import expect
        expect("quota", region, client)


@pytest.mark.parametrize("argument", ["--check-config", "--help", "--version"])
def test_output_that_cannot_be_written(drayd, argument):
    with open("/dev/full", "w") as full:
        done = drayd(None, argument, stdout=full)
    assert (done.returncode, done.stderr) == (1, "drayd: cannot write to standard output: No space left on device\n")
