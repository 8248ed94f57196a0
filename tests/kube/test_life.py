# SPDX-License-Identifier: Apache-2.0
"""The injected sidecar with the settings of its container, in the order in which a kubelet starts and ends it."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
import yaml
from kube import ROOT
from test_inject import inject

BUILD = ROOT / os.environ.get("DRAY_BUILD", "build")
LIMIT = 60
TRANSFERS = 64
SIZE = 16 << 20
POD = 'kind: Pod\nmetadata: {annotations: {dray.dev/inject: "true"}}\nspec: {containers: [{name: engine}]}\n'
PORTS = {"7411": 0, "7412": 1, "7413": 2}
ENGINE = f"""
import sys, dray
with dray.Client(socket=sys.argv[1]) as a, dray.Client(socket=sys.argv[1]) as b:
    theirs, ours = dray.Memory({SIZE}), dray.Memory({SIZE})
    theirs.view[:] = b"x" * {SIZE}
    word = dray.Memory(4096)
    gate = a.region(word)
    region = a.region(ours)
    remote = a.import_token(str(b.region(theirs).export()))
    waiting = [a.read(region, remote, [(0, 0, {SIZE})], wait_word=(gate, 0, 1)) for _ in range({TRANSFERS})]
    print("submitted", flush=True)
    sys.stdin.readline()
    word.view[:4] = (1).to_bytes(4, "little")
    for transfer in waiting:
        transfer.result({LIMIT})
    a.read(region, remote, [(0, 0, {SIZE})]).result({LIMIT})
    print("moved", bytes(ours.view) == b"x" * {SIZE}, flush=True)
"""

# Its transfers wait when the agent is killed, and it tries a transfer again until one ends well.
ENGINE_THAT_RETRIES = f"""
import sys, time, dray
def end(transfer):
    try:
        transfer.result({LIMIT})
        return "ok"
    except dray.Error as e:
        return e.name
with dray.Client(socket=sys.argv[1]) as a, dray.Client(socket=sys.argv[1]) as b:
    theirs, ours, word = dray.Memory({SIZE}), dray.Memory({SIZE}), dray.Memory(4096)
    theirs.view[:] = b"x" * {SIZE}
    gate, region, source = a.region(word), a.region(ours), b.region(theirs)
    remote = a.import_token(str(source.export()))
    waiting = [a.read(region, remote, [(0, 0, {SIZE})], wait_word=(gate, 0, 1)) for _ in range({TRANSFERS})]
    print("submitted", flush=True)
    print("ended", *sorted(map(end, waiting)), flush=True)
    sys.stdin.readline()
    for _ in range({LIMIT} * 10):
        try:
            a.read(region, a.import_token(str(source.export())), [(0, 0, {SIZE})]).result({LIMIT})
            break
        except dray.Error:
            time.sleep(0.1)
    print("moved", bytes(ours.view) == b"x" * {SIZE}, flush=True)
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start programs as other users")


def free_ports(n):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(n)]
        return [str(s.getsockname()[1]) for s in sockets]


class Pod:
    """What the kubelet makes of the sidecar: folders of root that all may write to, a Secret that root's group may read, user and variables."""

    def __init__(self, container, folder):
        self.container, self.folder = container, folder
        self.paths = {"/run/dray": folder / "run", "/var/lib/dray": folder / "state", "/etc/dray/keys": folder / "keys", "/etc/dray/config": folder / "config"}
        for path in self.paths.values():
            path.mkdir()
            path.chmod(0o777)
        (folder / "keys/key").write_text("0123456789abcdef" * 2)
        (folder / "keys/key").chmod(0o440)
        (folder / "config/drayd.conf").write_text('limits: { store_bytes = "16MiB"; };\nlog: { level = "error"; };\n')
        self.ports = free_ports(len(PORTS))
        env = {e["name"]: e["value"] if "value" in e else "127.0.0.1" for e in container["env"]}
        # without a mount namespace, the paths of the container are in the folder
        self.env = {name: self.here(value) for name, value in env.items()} | {
            "DRAY_AGENT_STATE_DIR": str(self.paths["/var/lib/dray"]), "DRAY_DATA_SOCKET": str(folder / "run/dray.sock"),
            "DRAY_CONTROL_SOCKET": str(folder / "run/control.sock"), "DRAY_PEER_LISTEN": f"127.0.0.1:{self.ports[0]}"}
        security = container["securityContext"]
        self.user = ["setpriv", f"--reuid={security['runAsUser']}", f"--regid={security['runAsGroup']}", "--clear-groups", "--no-new-privs",
                     "--inh-caps=-all", "--bounding-set=" + ",".join(["-all", *(f"+{c.lower()}" for c in security["capabilities"].get("add", []))])]

    def here(self, text):
        for path, place in self.paths.items():
            text = text.replace(path, str(place))
        for port, i in PORTS.items():
            text = text.replace(f":{port}", f":{self.ports[i]}")
        return text

    def drayd(self, log):
        return self.start(BUILD / "drayd", *map(self.here, self.container["args"]), stdout=log, stderr=log)

    def start(self, *argv, **how):
        return subprocess.Popen([*self.user, *argv], env={"PATH": os.environ["PATH"], **self.env}, **how)

    def drayctl(self, *argv, **how):
        return self.start(BUILD / "drayctl", *argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how)

    def setting(self, key):
        return json.loads(self.drayctl("config", "explain", key, "--json").communicate(timeout=LIMIT)[0])["value"]

    def probe(self, name):
        """The status of an httpGet, or None if nothing listens."""
        get = self.container[name]["httpGet"]
        (port,) = [p["containerPort"] for p in self.container["ports"] if p["name"] == get["port"]]
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{self.ports[PORTS[str(port)]]}{get['path']}", timeout=LIMIT).status
        except urllib.error.HTTPError as e:
            return e.code
        except OSError:
            return None

    def until(self, name, status):
        deadline = time.monotonic() + LIMIT
        while self.probe(name) != status:
            assert time.monotonic() < deadline, f"{name} is {self.probe(name)}: {(self.folder / 'log').read_text()}"
            time.sleep(0.02)


@pytest.fixture
def base():
    """A folder that other users can enter."""
    folder = pathlib.Path(subprocess.run(["mktemp", "-d", "/tmp/dray-life-XXXXXX"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip())
    folder.chmod(0o755)
    yield folder
    subprocess.run(["rm", "-rf", folder], check=True)


@pytest.mark.parametrize(("capabilities", "config", "store"), [("", "", "0"), ("IPC_LOCK", "dray-config", "16MiB")])
def test_life_of_a_sidecar(base, capabilities, config, store, tmp_path):
    """It is ready before the engine starts, and has the settings of its ConfigMap. No transfer of the engine is lost while the pod ends,
    and the agent ends with 0 after the engine."""
    (tmp_path / "parameters").write_text(yaml.safe_dump({"capabilities": capabilities, "configMap": config}))
    container = yaml.safe_load(inject(POD, "--parameters", tmp_path / "parameters"))["spec"]["initContainers"][0]
    pod = Pod(container, base)
    with (base / "log").open("w") as log:
        agent = pod.drayd(log)
    engine = hook = None
    try:
        pod.until("startupProbe", 200)
        pod.until("readinessProbe", 200)
        log_text = (base / "log").read_text()  # an unknown variable would be a warning
        assert " warning " not in log_text and " error " not in log_text, log_text
        assert (pod.setting("limits.store_bytes"), pod.setting("log.level")) == (store, "info"), "the environment takes precedence"
        libraries = {**os.environ, "PYTHONPATH": str(ROOT / "client/python")}
        engine = subprocess.Popen(["setpriv", "--reuid=2000", "--regid=2000", "--clear-groups", sys.executable, "-c", ENGINE, base / "run/dray.sock"],
                                  env=libraries, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert engine.stdout.readline() == "submitted\n"

        hook = pod.drayctl(*container["lifecycle"]["preStop"]["exec"]["command"][1:])  # the pod begins to end
        assert hook.stderr.readline() == "waiting: 2 sessions left\n"
        assert (pod.probe("livenessProbe"), pod.probe("readinessProbe")) == (200, 200)
        engine.stdin.write("go\n")
        engine.stdin.flush()
        assert engine.stdout.readline() == "moved True\n"
        assert engine.wait(LIMIT) == 0
        out, err = hook.communicate(timeout=LIMIT)
        assert (hook.returncode, out) == (0, "drained\n"), err
        assert (pod.probe("livenessProbe"), pod.probe("readinessProbe")) == (200, 503)
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(LIMIT) == 0
    finally:
        for process in (engine, hook, agent):
            if process and process.poll() is None:
                process.kill()
                process.wait()
    assert not (base / "run/dray.sock").exists()


def test_out_of_memory(base, tmp_path):
    """The kernel kills the agent, and the kubelet starts it again in the same folders: each transfer ends once, and the engine goes on."""
    container = yaml.safe_load(inject(POD))["spec"]["initContainers"][0]
    pod = Pod(container, base)
    processes = []

    def start_agent():
        with (base / "log").open("a") as log:
            processes.append(pod.drayd(log))
        pod.until("readinessProbe", 200)
        return processes[-1]

    try:
        agent = start_agent()
        engine = subprocess.Popen(["setpriv", "--reuid=2000", "--regid=2000", "--clear-groups", sys.executable, "-c", ENGINE_THAT_RETRIES,
                                   base / "run/dray.sock"], env={**os.environ, "PYTHONPATH": str(ROOT / "client/python")},
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        processes.append(engine)
        assert engine.stdout.readline() == "submitted\n"
        agent.kill()  # as the kernel does beyond the memory limit of the container
        assert agent.wait(LIMIT) == -signal.SIGKILL
        word, *ended = engine.stdout.readline().split()
        assert word == "ended" and len(ended) == TRANSFERS and "ok" not in ended, ended
        pod.until("livenessProbe", None)
        again = start_agent()
        engine.stdin.write("go\n")
        engine.stdin.flush()
        assert engine.stdout.readline() == "moved True\n" and engine.wait(LIMIT) == 0
        again.send_signal(signal.SIGTERM)
        assert again.wait(LIMIT) == 0
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
