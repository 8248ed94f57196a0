# SPDX-License-Identifier: Apache-2.0
"""The images that `make image` has written, and an agent from each under the restrictions of a pod: a user that is not root, a read-only root
file system, no capabilities, no new privileges, namespaces of its own."""

import calendar
import contextlib
import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import time

import pytest
from packages import DEBS, LIMIT, ROOT, VERSION, agent, client, first_child, run, transferred

ELF = b"\x7fELF"


def regular_files(root):
    return [f for f in root.rglob("*") if f.is_file() and not f.is_symlink()]


def test_size_and_user(image):
    name, file, root, config = image
    assert sum(f.stat().st_size for f in regular_files(root)) < 40e6
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", config["config"]["User"])
    labels = config["config"]["Labels"]
    assert labels["org.opencontainers.image.version"] == VERSION and labels["org.opencontainers.image.title"] == name
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0" and labels["org.opencontainers.image.created"] == config["created"]


def test_only_the_programs_can_be_started(image):
    """No shell and no other program; nothing gives privileges; no file belongs to the agent."""
    name, _, root, config = image
    found = {f.relative_to(root).as_posix() for f in regular_files(root) if f.read_bytes()[:4] == ELF and "/lib" not in f.as_posix()}
    assert found == {"usr/sbin/drayd", "usr/bin/drayctl"}
    assert not [f for f in regular_files(root) if f.read_bytes()[:2] == b"#!"]
    assert not [f for f in root.rglob("*") if f.lstat().st_mode & (stat.S_ISUID | stat.S_ISGID)]
    assert not [f for f in regular_files(root) if f.stat().st_mode & stat.S_IWOTH]
    assert (root / "usr/lib/dray/dray-cuda.so").exists() == (name == "dray-cuda")
    if os.geteuid() == 0:
        assert {f.relative_to(root).as_posix() for f in root.rglob("*") if f.lstat().st_uid} == {"run/dray", "var/lib/dray"}


def test_every_library_is_needed_and_there(image):
    """Each file that can be loaded is needed by another, is one that the programs load themselves, or belongs to RDMA."""
    _, _, root, _ = image
    where = [f for f in regular_files(root) if f.read_bytes()[:4] == ELF]
    needed = set()
    for file in where:
        needed |= set(re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "--dynamic", file)))
    there = {f.name for f in root.glob("usr/lib/*-linux-gnu/*.so*")}
    assert needed <= there
    for name in there - needed:
        assert re.match(r"ld-linux|libibverbs|lib(efa|mana|mlx4|mlx5)\.so", name), f"no program needs {name}"


def test_bill_of_materials(image):
    """The same inside and beside the image. It lists every package of a library, and has the digests of our programs."""
    name, file, root, _ = image
    text = (root / "usr/share/sbom/dray.spdx.json").read_text()
    assert text == file.with_name(file.name.removesuffix(".tar") + ".spdx.json").read_text()
    bill = json.loads(text)
    assert bill["spdxVersion"] == "SPDX-2.3" and bill["dataLicense"] == "CC0-1.0"
    packages = {p["name"]: p for p in bill["packages"]}
    assert len(packages) == len(bill["packages"]) and packages[name]["versionInfo"] == VERSION
    assert {"libc6", "libssl3", "libsystemd0", "libibverbs1"} <= set(packages)
    assert set(packages) == {name, *os.listdir(root / "var/lib/dpkg/status.d")} and set(packages) - {name} <= set(os.listdir(root / "usr/share/doc"))
    for package in set(packages) - {name}:
        assert packages[package]["versionInfo"] == run("dpkg-query", "-W", "-f=${Version}", package)
    digests = {f["fileName"][2:]: c["checksumValue"] for f in bill["files"] for c in f["checksums"] if c["algorithm"] == "SHA256"}
    assert {"usr/sbin/drayd", "usr/bin/drayctl"} <= set(digests)
    for path, value in digests.items():
        assert run("sha256sum", root / path).split()[0] == value
    idents = {e["SPDXID"] for kind in ("packages", "files") for e in bill[kind]}
    assert {r["relatedSpdxElement"] for r in bill["relationships"]} == idents


def test_another_build_has_the_same_digest(image, tmp_path):
    name, file, root, config = image
    build = ROOT / os.environ.get("DRAY_BUILD", "build")
    files = [build / f for f in ("drayd", "drayctl", *(["dray-cuda.so"] if name == "dray-cuda" else []))]
    epoch = calendar.timegm(time.strptime(config["created"], "%Y-%m-%dT%H:%M:%SZ"))
    revision = config["config"]["Labels"].get("org.opencontainers.image.revision", "")
    run(sys.executable, ROOT / "packaging/image/build.py", tmp_path, name, VERSION, revision, *files, env=dict(os.environ, SOURCE_DATE_EPOCH=str(epoch)))
    assert (tmp_path / file.name).read_bytes() == file.read_bytes()


def test_archive_has_what_docker_loads(image):
    """Docker before release 25 reads manifest.json and knows nothing of index.json."""
    name, file, _, _ = image
    with tarfile.open(file) as archive:
        (loaded,) = json.load(archive.extractfile("manifest.json"))
        assert loaded["RepoTags"] == [f"{name}:{VERSION}"]
        assert {loaded["Config"], *loaded["Layers"]} <= set(archive.getnames())


# --- in a pod --------------------------------------------------------------------------------------

class Pod:
    """Starts programs of the image as a container runtime does for a pod that is `restricted`. The folders are volumes of the pod."""

    def __init__(self, root, config, folder):
        self.config, self.folder = config["config"], folder
        uid, gid = map(int, self.config["User"].split(":"))
        if os.geteuid() != 0:
            as_user = []
        else:
            as_user = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
        for name in ("run", "state"):
            (folder / name).mkdir()
            if as_user:
                os.chown(folder / name, uid, gid)
        env = [word for line in self.config["Env"] for word in ("--setenv", *line.split("=", 1))]
        self.prefix = [*as_user, "bwrap", "--unshare-all", "--as-pid-1", "--die-with-parent", "--new-session", "--uid", uid, "--gid", gid,
                       "--cap-drop", "ALL", "--clearenv", *env, "--ro-bind", root, "/", "--proc", "/proc", "--dev", "/dev",
                       "--bind", folder / "run", "/run/dray", "--bind", folder / "state", "/var/lib/dray", "--remount-ro", "/"]

    def run(self, *argv):
        """Runs a program of the image in a container of its own."""
        return run(*self.prefix, *argv)

    def probe(self, pid, *argv):
        """Runs a program of the image in the container whose first process is pid, as the kubelet does for probes."""
        return run(*self.inside(pid, "mount", "pid", "net", "ipc", "uts"), *argv)

    def inside(self, pid, *namespaces):
        """The command prefix that enters namespaces of that container as its user."""
        uid, gid = self.config["User"].split(":")
        return ["nsenter", "--target", pid, "--user", *(f"--{name}" for name in namespaces), f"--setuid={uid}", f"--setgid={gid}"]

    @contextlib.contextmanager
    def agent(self):
        def ready():
            deadline = time.monotonic() + LIMIT
            while not (self.folder / "run/control.sock").exists():
                assert time.monotonic() < deadline, "the agent has no control socket"
                time.sleep(0.01)

        with agent([*self.prefix, *self.config["Entrypoint"]], ready, self.folder / "log") as process:
            pid = first_child(process.pid)
            self.probe(pid, "/usr/bin/drayctl", "wait", "--timeout", f"{LIMIT}s")
            yield pid


@pytest.fixture
def pod(image):
    if not shutil.which("bwrap"):
        pytest.fail("bwrap is not installed: make deps")
    _, _, root, config = image
    folder = root.parent / "pod"
    folder.mkdir()
    yield Pod(root, config, folder)
    shutil.rmtree(folder)


def test_transfer_in_a_pod(image, pod):
    """Two clients outside the container move bytes by the agent inside it. They see the same user ids, as the containers of a pod do."""
    with pod.agent() as pid:
        status = dict(re.findall(r"^(\w+):\s+(.*)$", pathlib.Path(f"/proc/{pid}/status").read_text(), re.M))
        assert "0" not in status["Uid"].split() + status["Gid"].split()
        assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"
        assert {int(status[f"Cap{kind}"], 16) for kind in ("Eff", "Prm", "Inh", "Amb")} == {0}
        mounts = [line.split() for line in pathlib.Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
        (root,) = [m for m in mounts if m[4] == "/"]
        assert "ro" in root[5].split(",")
        transferred(client(pod.folder / "run/dray.sock", *pod.inside(pid)))
        pod.probe(pid, "/usr/bin/drayctl", "health")
        pod.probe(pid, "/usr/bin/drayctl", "health", "--live")
    assert not (pod.folder / "run/dray.sock").exists()
    assert os.listdir(pod.folder / "state")


def test_nothing_else_can_be_written(pod):
    """A state directory on the root file system is refused with the reason."""
    done = subprocess.run([str(a) for a in (*pod.prefix, *pod.config["Entrypoint"], "--state-dir", "/tmp/state")], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT)
    assert done.returncode and "/tmp/state" in done.stdout and "Read-only file system" in done.stdout


def test_libraries_load_in_the_container(image, pod):
    """The loader of the image finds what the RDMA drivers and the CUDA plug-in need."""
    name, _, root, _ = image
    drivers = [f for f in root.glob("usr/lib/*/libibverbs/*.so")]
    assert len(drivers) > 10 and any("mlx5" in f.name for f in drivers)
    (loader,) = root.glob("usr/lib/*/ld-linux-*")
    for file in [*drivers, *root.glob("usr/lib/dray/*.so")]:
        text = pod.run("/" + loader.relative_to(root).as_posix(), "--list", "/" + file.relative_to(root).as_posix())
        assert "libc.so.6 => /" in text and "not found" not in text


def test_image_and_packages_contain_the_same_programs(image, unpacked):
    _, _, root, _ = image
    assert DEBS.exists()
    for program in ("usr/sbin/drayd", "usr/bin/drayctl"):
        text = [run(folder / program, "--version") for folder in (root, unpacked)]
        assert text[0] == text[1]
