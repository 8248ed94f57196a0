# SPDX-License-Identifier: Apache-2.0
"""The error of each mistake that a program can make with the Python package: it names the object and the remedy."""

import contextlib
import errno
import os
import pathlib
import pickle
import socket
import subprocess
import sys

import dray
import pytest
from dray import _schema, errors
from harness import LIMIT, MIB, Side, noise


@pytest.fixture
def two(agent):
    with Side(agent, MIB, name="mine") as here, Side(agent, MIB, noise(MIB)) as there:
        here.remote, here.there = here.reach(there), there
        yield here


@contextlib.contextmanager
def raises(kind, *words, handle=None, path=None):
    """Expects an error of the class whose text has the words, and whose remedy is part of it."""
    with pytest.raises(kind) as caught:
        yield
    e = caught.value
    assert type(e) is kind and isinstance(e, dray.Error), e
    assert e.code == kind.code and e.name == kind.name and e.message and e.fix
    text = str(e)
    assert text.startswith(f"{e.name}: ") and e.fix in text, text
    for word in words:
        assert str(word) in text, f"{word!r} is not in: {text}"
    if handle is not None:
        assert e.handle == handle, e.handle
    if path is not None:
        assert e.path == str(path) and str(path) in text, text


# --- sockets --------------------------------------------------------------------------------------

def test_no_socket(tmp_path):
    path = tmp_path / "none.sock"
    with raises(errors.PeerUnreachable, "there is no socket at", "Start drayd", "DRAY_SOCKET", path=path):
        dray.Client(path)


def test_not_a_socket(tmp_path):
    path = tmp_path / "file"
    path.touch()
    with raises(errors.PeerUnreachable, "is a file, not a socket", "DRAY_SOCKET", path=path):
        dray.Client(path)


def test_nobody_listens(tmp_path):
    path = tmp_path / "old.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as old:
        old.bind(str(path))
    with raises(errors.PeerUnreachable, "no agent listens", "Start drayd", path=path):
        dray.Client(path)


def test_control_socket(agent):
    with raises(errors.Io, "not an agent's data socket", path=agent.control):
        dray.Client(agent.control)


def test_no_permission(agent):
    """A user who may not write to the socket."""
    if os.geteuid():
        pytest.skip("needs root, to become another user")
    code = "import dray, sys\ntry:\n dray.Client(sys.argv[1])\nexcept dray.Error as e:\n print(e.name, e.path, e)"
    path = agent.directory / "closed" / "dray.sock"
    for mode, word in ((0o700, "may not search the folder"), (0o755, "may not connect to the socket")):
        path.parent.mkdir(exist_ok=True)
        path.parent.chmod(mode)
        if not path.exists():
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
                server.bind(str(path))
            path.chmod(0o600)
        out = subprocess.check_output(
            ["setpriv", "--reuid=65534", "--clear-groups", sys.executable, "-c", code, path], text=True,
            env={**os.environ, "PYTHONPATH": str(pathlib.Path(dray.__file__).parents[1])})
        assert out.startswith(f"denied {path} denied: uid 65534 {word}") and "group" in out, out


def test_path_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("DRAY_SOCKET", str(tmp_path / "named.sock"))
    with raises(errors.PeerUnreachable, path=tmp_path / "named.sock"):
        dray.Client()


@pytest.mark.parametrize("how, words", [
    ({"socket": 7}, ("socket is 7", "pathlib.Path")), ({"socket": "a\0b"}, ("NUL",)),
    ({"group": 7}, ("group is 7", "str")), ({"group": "a\0b"}, ("group", "NUL")), ({"group": "\ud800"}, ("group", "Unicode")),
    ({"timeout": "soon"}, ("timeout is 'soon'",)), ({"timeout": -1}, ("timeout is -1",)),
    ({"ring_entries": 100}, ("ring_entries is 100", "power of two")), ({"ring_entries": 2.5}, ("ring_entries is 2.5",)),
    ({"arena_bytes": 1 << 30}, ("arena_bytes",)), ({"arena_bytes": -1}, ("arena_bytes is -1",)),
    ({"patience": float("nan")}, ("patience is nan",))])
def test_bad_options(agent, how, words):
    with raises(errors.Invalid, *words):
        dray.Client(**{"socket": agent.socket, **how})


@pytest.mark.parametrize("how", [{"group": "x" * 65}, {"name": "x" * 65}, {"socket": "/" + "x" * 200}])
def test_too_long_options(agent, how):
    with raises(errors.TooLarge, "is over"):
        dray.Client(**{"socket": agent.socket, **how})


# --- transfers ------------------------------------------------------------------------------------

def test_swapped(two):
    with raises(errors.Invalid, repr(two.region), repr(two.remote), "in each other's place", "the Region of this engine first"):
        two.client.read(two.remote, two.region, [(0, 0, 1)])


def test_two_regions(two):
    with raises(errors.Invalid, "the remote memory", repr(two.region), "not a Remote", handle=two.region.handle):
        two.client.write(two.region, two.region, [(0, 0, 1)])


@pytest.mark.parametrize("wrong", [None, 7, "region"])
def test_wrong_objects(two, wrong):
    with raises(errors.Invalid, f"a {type(wrong).__name__}, not a Region"):
        two.client.read(wrong, two.remote, [(0, 0, 1)])
    with raises(errors.Invalid, f"a {type(wrong).__name__}, not a Remote"):
        two.client.read(two.region, wrong, [(0, 0, 1)])


def test_memory_is_no_region(two):
    with raises(errors.Invalid, "a Memory, not a Region"):
        two.client.read(two.memory, two.remote, [(0, 0, 1)])


def test_objects_of_another_client(two):
    with raises(errors.Invalid, repr(two.there.region), "belongs to", handle=two.there.region.handle):
        two.client.read(two.there.region, two.remote, [(0, 0, 1)])
    with raises(errors.Invalid, repr(two.remote), "belongs to"):
        two.there.client.read(two.there.region, two.remote, [(0, 0, 1)])
    with raises(errors.Invalid, "belongs to"):
        two.client.read(two.region, two.remote, [(0, 0, 1)], wait_word=(two.there.region, 0, 1))


@pytest.mark.parametrize("op", [(MIB, 0, 1), (0, MIB, 1), (0, 0, MIB + 1), ((1 << 64) - 1, 0, 2)])
def test_range_outside(two, op):
    with raises(errors.Range, repr(two.region), repr(two.remote), "passes the end"):
        two.client.read(two.region, two.remote, [op]).result(LIMIT)


def test_empty_range(two):
    with raises(errors.Range, "is empty"):
        two.client.read(two.region, two.remote, [(0, 0, 0)]).result(LIMIT)


def test_no_time(two):
    """0 means the default in the library, so a time of 0 would become another one."""
    for what, call in (("ttl", lambda: two.region.export(ttl=0)), ("deadline", lambda: two.client.read(two.region, two.remote, [(0, 0, 1)], deadline=0)),
                       ("ttl", lambda: two.client.put_hint("scope", "127.0.0.1:1", ttl=0))):
        with raises(errors.Invalid, f"{what} is 0 s", "above 0"):
            call()


def test_not_allowed(two):
    remote = two.client.import_token(two.there.region.export(access="r"))
    with raises(errors.Denied):
        two.client.write(two.region, remote, [(0, 0, 1)]).result(LIMIT)


def test_removed_and_released(two):
    memory = dray.Memory(4096)
    region = two.client.region(memory, name="gone")
    region.remove()
    for call in (region.export, region.revoke, region.remove, lambda: two.client.read(region, two.remote, [(0, 0, 1)])):
        with raises(errors.NotFound, "<Region 'gone', removed, 4096 bytes, rw>", "client.region()"):
            call()
    two.remote.release()
    for call in (lambda: two.remote.notify(1), two.remote.release, lambda: two.client.read(two.region, two.remote, [(0, 0, 1)])):
        with raises(errors.NotFound, "<Remote, released, 1048576 bytes, rw> was released", "Import its token again"):
            call()


def test_closed_client(agent, two):
    two.client.close()
    client, token = two.client, two.there.region.export()
    for call in (lambda: client.read(two.region, two.remote, [(0, 0, 1)]), lambda: client.region(two.memory),
                 lambda: client.pool(4096), lambda: client.import_token(token), client.info, client.process,
                 client.reconnect, client.fileno, client.event, client.preferred_segment, two.region.export,
                 two.region.remove, two.remote.release, lambda: two.remote.notify(1)):
        with raises(errors.SessionClosed, "the client of", "is closed", "Make a new Client", path=agent.socket):
            call()
    assert not client.connected


@pytest.mark.parametrize("how, words", [
    ({"klass": "fast"}, ("klass is 'fast'", "'bulk'", "'latency'")), ({"deadline": "soon"}, ("deadline is 'soon'",)),
    ({"deadline": -1}, ("deadline is -1",)), ({"deadline": 1e12}, ("deadline", "too long")),
    ({"notify": 7}, ("notify is 7", "(tag, payload)")), ({"notify": ("a", b"")}, ("the tag of notify is 'a'",)),
    ({"notify": (1, "text")}, ("payload", "encode()")), ({"wait_word": 7}, ("wait_word is 7", "(region, offset, value)")),
    ({"set_word": (1, 2, 3)}, ("set_word", "not in a Region")), ({"wait_word": ("region", 0, 1 << 32)}, ("the value of wait_word",)),
    ({"set_word": ("region", "x", 1)}, ("the offset of set_word is 'x'",))])
def test_bad_arguments_of_transfers(two, how, words):
    for name in ("wait_word", "set_word"):
        if isinstance(how.get(name), tuple) and how[name][0] == "region":
            how = {name: (two.region, *how[name][1:])}
    with raises(errors.Invalid, *words):
        two.client.read(two.region, two.remote, [(0, 0, 1)], **how)
    two.client.read(two.region, two.remote, [(0, 0, 1)]).result(LIMIT)


def test_wrong_direction(two):
    with raises(errors.Invalid, "direction is 'sideways'", "'read'", "'write'"):
        two.client.transfer("sideways", two.region, two.remote, [(0, 0, 1)])


def test_too_much_in_flight(agent):
    with Side(agent, MIB, ring_entries=16) as here, Side(agent, MIB) as there:
        remote = here.reach(there)
        with raises(errors.Busy, "Wait for transfers to end"):
            for _ in range(100):
                here.client.read(here.region, remote, [(64, 0, 1)], wait_word=(here.region, 0, 1))
        here.memory.words()[0] = 1


def test_too_long_notification(two):
    with raises(errors.TooLarge, "4096"):
        two.client.write(two.region, two.remote, [(0, 0, 1)], notify=(1, bytes(4097)))
    with raises(errors.TooLarge, "4096"):
        two.remote.notify(1, bytes(4097))


# --- memory, regions and tokens -------------------------------------------------------------------

@pytest.mark.parametrize("size", [0, -1, 1 << 63, "big", 1.5])
def test_bad_sizes(agent, size):
    with raises(errors.Invalid, "size"):
        dray.Memory(size)
    with agent.client() as client, raises(errors.Range if size == 1 << 63 else errors.Invalid):
        client.pool(size)


def test_too_much_memory():
    with pytest.raises(errors.Error) as caught:
        dray.Memory(1 << 60)
    assert "memory of 1152921504606846976 bytes" in str(caught.value)


def test_no_descriptors_and_no_huge_pages(monkeypatch):
    """What this process lacks is not asked of the agent."""
    with pytest.raises(errors.NoMemory, match="in huge pages.*vm.nr_hugepages"):
        dray.Memory(1 << 45, huge=True)

    def no_fds(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", no_fds)
    with pytest.raises(errors.NoFds, match="Too many open files. .*ulimit -n"):
        dray.Memory(4096)


def test_bad_extents(two):
    pipe = os.pipe()
    closed = dray.Memory(4096)
    closed.close()
    for extents, kind, words in (
            (7, errors.Invalid, ("is a int", "Pass a Memory")), ([7], errors.Invalid, ("an extent is 7",)),
            ([("fd", 0, 1)], errors.Invalid, ("the descriptor of an extent is 'fd'",)),
            ([(two.memory, -1, 1)], errors.Invalid, ("the offset of an extent is -1",)),
            (closed, errors.Invalid, ("<Memory of 4096 bytes, descriptor -1> is closed",)),
            ([(two.memory, 0, MIB + 1)], errors.RegionTooSmall, ("the extent ends at",)),
            ([(pipe[0], 0, 4096)], errors.RegionKind, ("is not a memfd",))):
        with raises(kind, *words):
            two.client.region(extents)
    for fd in pipe:
        os.close(fd)
    unsealed = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, 4096)
    with raises(errors.RegionUnsealed, "F_SEAL_SHRINK"):
        two.client.region([(unsealed, 0, 4096)])
    os.close(unsealed)
    with raises(errors.Invalid, "access is 'x'", "'rw'"):
        two.client.region(two.memory, access="x")


@pytest.mark.parametrize("how, kind, word", [
    ({"offset": MIB}, errors.Range, "are not a range of"), ({"length": MIB + 1}, errors.Range, "are not a range of"),
    ({"offset": 1, "length": MIB}, errors.Range, "are not a range of"), ({"length": 0}, errors.Range, "are not a range of"),
    ({"offset": "x"}, errors.Invalid, "offset is 'x'"), ({"access": "x"}, errors.Invalid, "access is 'x'"),
    ({"ttl": -1}, errors.Invalid, "ttl is -1"), ({"audience": b"me"}, errors.Invalid, "audience has 2 bytes")])
def test_bad_exports(two, how, kind, word):
    with raises(kind, word):
        two.region.export(**how)


@pytest.mark.parametrize("token", ["", "dray1:", "dray1:!!!", "nonsense", "dray1:" + "A" * 1000, b"", bytes(300), "dray1:é", "a\0b"])
def test_bad_tokens(two, token):
    with raises(errors.TokenInvalid):
        two.client.import_token(token)


def test_token_of_a_wrong_type(two):
    with raises(errors.Invalid, "the token is a int"):
        two.client.import_token(7)
    with raises(errors.Invalid, "is not a Token"):
        two.region.revoke("dray1:abc")


def test_no_text_shows_a_token(two):
    """A token is a secret: no representation and no error shows it, only str()."""
    token = two.region.export()
    secret = str(token).removeprefix("dray1:")
    assert dray.Token(str(token)) == token == dray.Token(bytes(token)) and hash(token) == hash(dray.Token(token.data))
    assert dray.token_to_text(token.data) == str(token) and dray.token_to_bytes(str(token)) == token.data
    shown = [repr(token), repr([token]), f"{token!r}"]
    for bad in (secret, "dray1:" + secret[:-8] + "AAAAAAAA"):
        try:
            two.client.import_token(bad)
        except errors.Error as e:
            shown += [str(e), repr(e)]
    two.region.revoke(token)
    try:
        two.client.import_token(token)
    except errors.Error as e:
        shown += [str(e), repr(e)]
    assert not [text for text in shown if secret[:16] in text or token.data.hex()[16:48] in text], shown


# --- the classes ----------------------------------------------------------------------------------

def test_one_class_for_each_code():
    assert errors.BY_CODE.keys() == {code for code in range(1, len(_schema.ERRORS))}
    for code, (name, doc, fix) in enumerate(_schema.ERRORS):
        if code:
            known = errors.BY_CODE[code]
            assert (known.code, known.name, known.fix) == (code, name, fix)
            assert " ".join(known.__doc__.split()) == f"{doc} {fix}"
            assert errors.BY_NAME[name] is known and getattr(errors, known.__name__) is known and known.__name__ in errors.__all__


def test_code_of_a_newer_library():
    e = errors.make(-999, "something new")
    assert type(e) is dray.Error and e.code == 999 and str(e) == "unknown: something new"


def test_errors_are_pickled():
    e = errors.Busy("full", handle=7, path="/a", fix="Wait.")
    again = pickle.loads(pickle.dumps(e))
    assert type(again) is errors.Busy and (str(again), again.handle, again.path) == (str(e), 7, "/a")
