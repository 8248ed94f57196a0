# SPDX-License-Identifier: Apache-2.0
"""The packages in a clean Debian 12: installed from an older version, upgraded, used, removed and purged; and the packages for arm64. Only
`make check-long` runs these, because they fetch Debian's packages and unpack them."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest
from packages import DEBS, ROOT, TRANSFER, VERSION, agent, folder_for_all, run, transferred

pytestmark = [
    pytest.mark.skipif("DRAY_LONG" not in os.environ, reason="only in make check-long"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a Debian root with users"),
]
LONG = 1200
OLDER = f"{VERSION}~older"
CONFIGURATION = "etc/dray/drayd.conf"


def fetched(*argv):
    """Runs a program that fetches packages. Without a mirror the test is skipped, and fails where CI is set."""
    done = subprocess.run([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LONG)
    if done.returncode and re.search(r"Could not (resolve|connect)|Failed to fetch|Unable to locate package \S+:arm64", done.stdout):
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"Debian's packages cannot be fetched:\n{done.stdout[-2000:]}")
    assert done.returncode == 0, done.stdout
    return done.stdout


class Root:
    """A Debian root, and programs in it. They share the process ids of this machine, because an agent refuses callers whose ids it cannot see."""

    def __init__(self, folder):
        self.folder = folder
        fetched("mmdebstrap", "--quiet", "--variant=minbase", "bookworm", folder)
        self.apt("update")

    def argv(self, *argv, net=False):
        return ["bwrap", "--bind", self.folder, "/", "--dev", "/dev", "--proc", "/proc", "--ro-bind", "/etc/resolv.conf", "/etc/resolv.conf",
                "--unshare-ipc", *([] if net else ["--unshare-net"]), "--die-with-parent", "--clearenv",
                "--setenv", "PATH", "/usr/sbin:/usr/bin", "--setenv", "DEBIAN_FRONTEND", "noninteractive", *argv]

    def run(self, *argv, **how):
        return run(*self.argv(*argv), **how)

    def apt(self, *argv):
        # without keeping the user's own configuration file this would ask
        return fetched(*self.argv("apt-get", "-q", "-y", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confold", *argv, net=True))

    def install(self, files):
        shutil.rmtree(self.folder / "packages", ignore_errors=True)
        (self.folder / "packages").mkdir()
        for file in files:
            shutil.copy(file, self.folder / "packages")
        return self.apt("install", *(f"/packages/{file.name}" for file in files))

    def state(self, package):
        return self.run("dpkg-query", "-W", "-f=${db:Status-Abbrev} ${Version}", package, check=False).strip()

    def agent(self):
        """The agent as the unit starts it: the user dray, without capabilities."""
        shutil.rmtree(self.folder / "run/dray", ignore_errors=True)
        self.run("systemd-tmpfiles", "--create", "dray.conf")
        as_user = ["setpriv", "--reuid=dray", "--regid=dray", "--init-groups", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
        return agent(self.argv(*as_user, "/usr/sbin/drayd"), lambda: self.run("drayctl", "wait", "--timeout", "120s"), self.folder.parent / "log")

    def transfer(self):
        library = transferred(self.run("python3", "-I", "-c", TRANSFER, "/run/dray/dray.sock"))
        assert re.fullmatch(r"/usr/lib/\S+-linux-gnu/libdray\.so\.0", library)

    def agent_id(self):
        return re.search(r'"agent_id": "(\w+)"', self.run("drayctl", "status", "--json"))[1]


@pytest.fixture(scope="module")
def root():
    with folder_for_all() as folder:
        yield Root(folder / "root")


@pytest.fixture(scope="module")
def older(debs, tmp_path_factory):
    """The same packages as an older version, which has another configuration file."""
    out = tmp_path_factory.mktemp("older")
    files = []
    for name, file in debs.items():
        tree = out / name
        run("dpkg-deb", "-R", file, tree)
        control = tree / "DEBIAN/control"
        control.write_text(re.sub(rf"(Version: |\(= ){re.escape(VERSION)}\b", rf"\g<1>{OLDER}", control.read_text()))
        if name == "drayd":
            with (tree / CONFIGURATION).open("a") as conf:
                conf.write("# the older default\n")
        files.append(out / f"{name}_{OLDER}.deb")
        run("dpkg-deb", "--root-owner-group", "-Znone", "-b", tree, files[-1])
    return files


def test_life_of_the_packages(root, debs, older):
    """Install, use, upgrade, use, remove, purge."""
    root.install(older)
    assert {root.state(name) for name in debs} == {f"ii  {OLDER}"}
    user = (root.folder / "etc/passwd").read_text()
    assert re.search(r"^dray:[^:]*:\d+:\d+:[^:]*:/var/lib/dray:\S*nologin$", user, re.M)
    state = root.folder / "var/lib/dray"
    uid = int(re.search(r"^dray:[^:]*:(\d+)", user, re.M)[1])
    assert (state.stat().st_mode & 0o7777, state.stat().st_uid) == (0o700, uid)
    wanted = root.folder / "etc/systemd/system"
    assert (wanted / "multi-user.target.wants/drayd.service").is_symlink()
    assert not (wanted / "sockets.target.wants/drayd.socket").exists(), "the administrator decides about socket activation"
    with root.agent():
        root.transfer()
        ident = root.agent_id()

    with (root.folder / CONFIGURATION).open("a") as conf:
        conf.write('log: { level = "debug"; };\n')
    edited = (root.folder / CONFIGURATION).read_text()
    root.install(debs.values())
    assert {root.state(name) for name in debs} == {f"ii  {VERSION}"}
    assert (root.folder / CONFIGURATION).read_text() == edited, "an edited file stays"
    with root.agent():
        root.transfer()
        assert root.agent_id() == ident, "the upgrade keeps the state"
        assert "debug" in root.run("drayctl", "config")

    root.apt("remove", *debs)
    assert root.state("drayd").startswith("rc") and root.state("drayctl").startswith("un") or "no packages" in root.state("drayctl")
    assert not (root.folder / "usr/sbin/drayd").exists()
    assert (root.folder / CONFIGURATION).exists() and os.listdir(state)

    (root.folder / "etc/dray/key").write_text("the administrator's")
    root.apt("purge", "drayd")
    assert "no packages found" in root.state("drayd")
    assert not (root.folder / CONFIGURATION).exists() and not state.exists()
    assert (root.folder / "etc/dray/key").exists(), "files of the administrator stay"
    assert (root.folder / "etc/passwd").read_text() == user, "the user stays, so that no other gets its number"
    left = run("find", root.folder, "-xdev", "-name", "*dray*", "-not", "-path", "*/packages/*", "-not", "-path", "*/proc/*").split()
    assert {pathlib.Path(f).relative_to(root.folder).as_posix() for f in left} <= {"etc/dray"}


def test_a_default_configuration_is_replaced_by_an_upgrade(root, debs, older, unpacked):
    (root.folder / "etc/dray/key").unlink(missing_ok=True)
    root.install(older)
    assert "older default" in (root.folder / CONFIGURATION).read_text()
    root.install(debs.values())
    assert (root.folder / CONFIGURATION).read_text() == (unpacked / CONFIGURATION).read_text()
    root.apt("purge", *debs)
    assert not (root.folder / "etc/dray").exists()


def test_another_build_gives_the_same_packages(debs):
    """make deb in another folder; SOURCE_DATE_EPOCH is that of the first."""
    epoch = run("dpkg-parsechangelog", "-l", DEBS / "dray/debian/changelog", "-S", "Timestamp").strip()
    with_variant = [f"VARIANT={os.environ['DRAY_BUILD'].removeprefix('build/')}"] if os.environ.get("DRAY_BUILD", "build") != "build" else []
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    out = ROOT / "build/deb-again"
    try:
        run("make", *with_variant, "deb", f"DEB={out.relative_to(ROOT)}", cwd=ROOT, env=dict(env, SOURCE_DATE_EPOCH=epoch), timeout=LONG)
        for file in debs.values():
            assert (out / file.name).read_bytes() == file.read_bytes(), file.name
    finally:
        shutil.rmtree(out, ignore_errors=True)


# --- arm64 -----------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def arm64():
    """The packages for arm64 by name."""
    fetched("env", "-u", "MAKEFLAGS", "-u", "MFLAGS", "-u", "MAKELEVEL", "make", "-C", ROOT, "deb-arm64")
    return {f.name.split("_")[0]: f for f in (ROOT / "build/deb-arm64").glob("*.deb") if "-dbgsym_" not in f.name}


def test_arm64_packages(arm64, debs, tmp_path):
    """The same packages but the plug-in, whose files are for arm64. Those for every architecture have the same bytes as here."""
    assert set(arm64) == set(debs) - {"dray-cuda"}
    for name, file in arm64.items():
        run("dpkg-deb", "-x", file, tmp_path / name)
        if name == "python3-dray":
            continue
        assert run("dpkg-deb", "--field", file, "Architecture").strip() == "arm64"
        here, there = ({re.sub(r" \(.*?\)", "", d) for d in run("dpkg-deb", "--field", f, "Depends").strip().split(", ")} for f in (debs[name], file))
        assert here == there
        for path in (tmp_path / name).rglob("*"):
            if path.is_file() and path.read_bytes()[:4] == b"\x7fELF":
                assert "AArch64" in run("readelf", "--file-header", path)
    (symbols,) = {run("dpkg-deb", "--info", kind["libdray0"], "symbols") for kind in (debs, arm64)}
    assert "dray_submit" in symbols


def test_lintian_of_arm64(arm64):
    assert run("lintian", "--allow-root", "--fail-on=error,warning", *arm64.values()) == ""


def test_arm64_library_runs(arm64, tmp_path):
    """The library of the package, under qemu-user with Debian's C library and Python for arm64 (tests/wheel/arm64)."""
    fetched(ROOT / "tests/wheel/arm64")
    for name in ("libdray0", "python3-dray"):
        run("dpkg-deb", "-x", arm64[name], tmp_path)
    (library,) = tmp_path.glob("usr/lib/*/libdray.so.0")
    text = run("qemu-aarch64", "-L", ROOT / "build/arm64", "-E", f"LD_LIBRARY_PATH={library.parent}",
               "-E", f"PYTHONPATH={tmp_path}/usr/lib/python3/dist-packages", ROOT / "build/arm64/usr/bin/python3.11", "-c", "import dray, platform; dray.Memory(4096); print(dray.__version__, platform.machine())")
    assert text.split() == [VERSION, "aarch64"]
