# SPDX-License-Identifier: Apache-2.0
"""The packages that `make deb` has written: lintian's opinion, their contents, and what they say of each other."""

import os
import re

import pytest
from packages import ROOT, VERSION, has_cuda, run


def field(file, name):
    return run("dpkg-deb", "--field", file, name).strip()


def test_names(debs):
    assert set(debs) == {"drayd", "drayctl", "libdray0", "libdray-dev", "python3-dray", *(["dray-cuda"] if has_cuda() else [])}
    assert {field(file, "Version") for file in debs.values()} == {VERSION}


# The check builds wheels and runs virtual machines beside lintian, which then takes minutes.
@pytest.mark.timeout(600)
def test_lintian(debs):
    """Without errors and warnings; no tag is overridden."""
    assert run("lintian", "--allow-root", "--fail-on=error,warning", *debs.values(), timeout=500) == ""
    assert not list((ROOT / "packaging/debian").glob("*lintian-overrides"))


def test_dependencies(debs):
    assert f"libdray0 (= {VERSION})" in field(debs["libdray-dev"], "Depends")
    assert f"libdray0 (= {VERSION})" in field(debs["python3-dray"], "Depends")
    assert "libdray" not in field(debs["drayd"], "Depends") + field(debs["drayctl"], "Depends"), "they contain what they need of it"
    # loaded when the agent meets a device
    assert "libibverbs1" in field(debs["drayd"], "Recommends") and "ibverbs" not in field(debs["drayd"], "Depends")


def test_configuration_file(debs, unpacked, tmp_path):
    """It sets nothing, and its examples are valid, each alone and all together; the key that one of them names is not there."""
    assert run("dpkg-deb", "--info", debs["drayd"], "conffiles").split() == ["/etc/dray/drayd.conf"]
    text = (unpacked / "etc/dray/drayd.conf").read_text()
    examples = re.findall(r"^#(\w+: \{.*\};)$", text, re.M)
    assert len(examples) >= 3 and not re.search(r"^[^#\n]", text, re.M)
    file = tmp_path / "drayd.conf"
    for lines in ([], *([example] for example in examples), examples):
        file.write_text("\n".join(lines))
        # without variables, of which it may not know some that begin with DRAY_
        shown = run("env", "-i", unpacked / "usr/sbin/drayd", "--config", file, "--check-config", check=False)
        errors = re.findall("drayd: .*", shown)
        assert errors == ["drayd: peer.key_file /etc/dray/key: No such file or directory"] * any("key_file" in line for line in lines), shown
        assert shown.count(str(file)) >= len(lines)


def test_units(unpacked, tmp_path):
    """systemd accepts the service and its sockets together."""
    units = unpacked / "lib/systemd/system"
    names = ["drayd.service", "drayd.socket", "drayd-control.socket"]
    assert sorted(os.listdir(units)) == sorted(names)
    for name in names:
        (tmp_path / name).write_text((units / name).read_text().replace("/usr/sbin/drayd", str(unpacked / "usr/sbin/drayd")))
    assert not run("systemd-analyze", "verify", "--man=no", *(tmp_path / name for name in names))


def test_sockets_stay_while_the_agent_restarts(unpacked):
    """systemd removes the folder of a stopped service, unless the unit says otherwise."""
    assert "RuntimeDirectoryPreserve=yes" in (unpacked / "lib/systemd/system/drayd.service").read_text()


def test_sockets_are_what_the_agent_expects(unpacked):
    defaults = run(unpacked / "usr/sbin/drayd", "--check-config")
    for name, section, listen in (("drayd", "data", "ListenSequentialPacket"), ("drayd-control", "control", "ListenStream")):
        text = (unpacked / f"lib/systemd/system/{name}.socket").read_text()
        path = re.search(rf'{section}:\s*\{{\s*socket = "(\S+)"', defaults)[1]
        assert f"{listen}={path}\n" in text and f"FileDescriptorName={section}\n" in text


@pytest.mark.parametrize("page", ["man1/drayctl.1", "man8/drayd.8", "man5/drayd.conf.5", "man7/dray.7", "man3/libdray.3", "man3/dray_submit.3"])
def test_manual(unpacked, page):
    assert (unpacked / f"usr/share/man/{page}.gz").exists()


def test_completions(unpacked):
    assert (unpacked / "usr/share/bash-completion/completions/drayctl").exists()
    assert (unpacked / "usr/share/zsh/vendor-completions/_drayctl").exists()


def test_examples_and_runbooks(unpacked):
    """All examples for the client libraries, and for Prometheus and Grafana the rules and the dashboard, as files that can be used without unpacking."""
    wanted = {"libdray-dev": [*ROOT.glob("examples/c/*"), *ROOT.glob("examples/store/*.c")],
              "python3-dray": [*ROOT.glob("examples/python/*.py"), *ROOT.glob("examples/store/*.py")],
              "drayd": [*ROOT.glob("packaging/monitoring/*")]}
    for package, files in wanted.items():
        folder = unpacked / f"usr/share/doc/{package}/examples"
        assert {f.name: f.read_bytes() for f in folder.iterdir()} == {f.name: f.read_bytes() for f in files}
    runbooks = unpacked / "usr/share/doc/drayd/runbooks"
    assert {f.name.removesuffix(".gz") for f in runbooks.iterdir()} == {f.name for f in ROOT.glob("docs/runbooks/*")}


def test_symbols_name_every_function(debs, unpacked):
    (library,) = unpacked.glob("usr/lib/*/libdray.so.0")
    exported = {line.split()[-1].split("@")[0] for line in run("nm", "-D", "--defined-only", library).splitlines()}
    listed = set(re.findall(r"^ (\S+)@", run("dpkg-deb", "--info", debs["libdray0"], "symbols"), re.M))
    assert exported == listed and "dray_submit" in listed


@pytest.mark.parametrize("static", [False, True])
def test_a_program_builds_against_the_development_package(unpacked, tmp_path, static):
    (folder,) = unpacked.glob("usr/lib/*/pkgconfig")
    env = dict(os.environ, PKG_CONFIG_LIBDIR=str(folder), PKG_CONFIG_SYSROOT_DIR=str(unpacked))
    flags = run("pkg-config", "--cflags", "--libs", *(["--static"] if static else []), "dray", env=env).split()
    assert run("pkg-config", "--modversion", "dray", env=env).strip() == VERSION
    program = tmp_path / "copy_blocks"
    run("gcc", "-o", program, ROOT / "examples/c/copy_blocks.c", *(["-Wl,-Bstatic", *flags, "-Wl,-Bdynamic"] if static else flags))
    assert ("libdray.so.0" in run("readelf", "--dynamic", program)) != static


def test_plugin_is_where_the_programs_look(unpacked):
    """They look for it in ../lib/dray, seen from their own folder."""
    if not has_cuda():
        pytest.skip("no CUDA toolkit")
    assert (unpacked / "usr/sbin/../lib/dray/dray-cuda.so").exists()
