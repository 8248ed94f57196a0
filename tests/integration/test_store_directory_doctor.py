# SPDX-License-Identifier: Apache-2.0
"""drayctl doctor says whether the server in store.directory can be used, also of an agent that has nothing to do there."""

import json
import signal
import subprocess

import pytest
from harness import DRAYCTL, LIMIT, until
from test_ctl import conform, schema_of
from test_store import counters
from test_store_directory import certificates, new_redis  # noqa: F401
from test_store_peers import STORE


def finding(control, timeout=f"{LIMIT:.0f}s"):
    """The finding about the directory, or None."""
    done = subprocess.run([DRAYCTL, "--control", control, "--timeout", timeout, "doctor", "--json"], stdout=subprocess.PIPE, text=True, timeout=2 * LIMIT)
    assert done.returncode in (0, 1, 2)
    found = json.loads(done.stdout)
    conform(found, schema_of("doctor"))
    about = [f for f in found["findings"] if f["check"] == "store directory"]
    assert len(about) <= 1
    return about[0] if about else None


@pytest.fixture
def member(new_agent):
    """An agent with an empty store and this directory."""
    def make(url, **settings):
        settings = {k.replace("__", "."): v for k, v in settings.items()}
        return new_agent(args=["--allow-insecure"], settings=STORE | {"store.lend": "true", "store.directory": url, "store.directory_timeout": "10s"} | settings)
    return make


def is_warned(agent, *words):
    found = finding(agent.control)
    assert found["severity"] == "warning" and "store.peers" in found["fix"], found
    assert all(word in found["text"] for word in words), found


def test_replica_and_killed(new_redis, member):  # noqa: F811
    """An idle agent has not noticed that its server takes no changes any more; it notices the end of the connection by itself."""
    redis = new_redis()
    agent = member(redis.url)
    where = redis.url.removeprefix("redis://")
    assert (finding(agent.control)["severity"], finding(agent.control)["text"]) == ("ok", f"{where} takes commands")
    redis.command("REPLICAOF", "127.0.0.1", "1")
    assert counters(agent)["dray_store_directory_down"] == 0
    is_warned(agent, where, "replica")
    redis.command("REPLICAOF", "NO", "ONE")
    until(lambda: finding(agent.control)["severity"] == "ok", "the primary")
    assert redis.command("KEYS", "*check*") == []
    redis.kill()
    until(lambda: counters(agent)["dray_store_directory_down"] == 1, "the end of the connection")
    is_warned(agent, where)


def test_stopped(new_redis, member):  # noqa: F811
    """A server that does not answer is one after the time of a call, and does not keep drayctl waiting."""
    redis = new_redis()
    agent = member(redis.url)
    assert finding(agent.control)["severity"] == "ok"
    redis.signal(signal.SIGSTOP)
    found = finding(agent.control, "3s")
    assert found["severity"] == "warning" and "does not answer" in found["text"], found
    redis.signal(signal.SIGCONT)
    until(lambda: finding(agent.control)["severity"] == "ok", "an answer")


def test_password(new_redis, member, lab):  # noqa: F811
    """A password that the server does not accept, and none."""
    redis = new_redis(password="right")
    is_warned(member(redis.url), "store.directory_password_file")
    wrong = member(redis.url, store__directory_password_file=lab.write("wrong", "wrong", 0o600))
    is_warned(wrong, "store.directory_password_file")
    right = member(redis.url, store__directory_password_file=lab.write("right", "right", 0o600))
    assert finding(right.control)["severity"] == "ok"


def test_rights(new_redis, member, lab):  # noqa: F811
    """The user lacks the right to a command. The agent goes on: what it needs now may be allowed."""
    redis = new_redis()
    redis.command("ACL", "SETUSER", "reader", "on", ">pass", "~dray:*", "-@all", "+time", "+set", "+get", "+zrevrangebyscore")
    agent = member(redis.url.replace("//", "//reader@"), store__directory_password_file=lab.write("password", "pass", 0o600))
    is_warned(agent, "may not use a command", "zrem")
    assert counters(agent)["dray_store_directory_down"] == 0
    redis.command("ACL", "SETUSER", "reader", "+zrem")
    assert finding(agent.control)["severity"] == "ok"


def test_without_a_command(new_redis, member, lab):  # noqa: F811
    redis = new_redis(options=["include", lab.write("renamed", 'rename-command ZREM ""\n')])
    is_warned(member(redis.url), redis.url.removeprefix("redis://"), "does not take a command", "unknown command")


def test_tls(new_redis, member, lab):  # noqa: F811
    """A certificate of a CA that the agent does not have, and one of the right CA."""
    folder = certificates(lab.directory("tls"))
    redis = new_redis(tls=["tls-cert-file", folder / "server.pem", "tls-key-file", folder / "server.key", "tls-ca-cert-file", folder / "ca.pem", "tls-auth-clients", "no"])
    is_warned(member(redis.url, store__directory_ca_file=folder / "other.pem"), "certificate", "store.directory_ca_file")
    assert finding(member(redis.url, store__directory_ca_file=folder / "ca.pem").control)["severity"] == "ok"


def test_nothing_to_check(agent, tmp_path):
    """An agent without a directory, and no agent, are no findings."""
    assert finding(agent.control) is None
    assert finding(tmp_path / "none") is None
