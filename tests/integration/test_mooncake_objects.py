# SPDX-License-Identifier: Apache-2.0
"""drayctl segments --object: where Mooncake's masters have an object, with made-up masters and with a real one."""

import contextlib
import http.server
import json
import select
import subprocess
import threading

import dray
import mooncake_rig as rig
from harness import DRAYCTL, LIMIT, noise, until
from mooncake_rig import mooncake_python
from test_ctl import conform, schema_of

HOST = "127.0.0.1"


def find(agent, key):
    out = agent.ctl("segments", "--object", key, "--json")
    conform(out, schema_of("replicas"))
    return out["replicas"]


def refused(agent, key, exit_status, words):
    done = agent.ctl("segments", "--object", key, check=False)
    assert done.returncode == exit_status and words in done.stderr, (done.returncode, done.stderr)


def replica(endpoint, address=4096, size=10):
    return {"size_": size, "buffer_address_": address, "protocol_": "tcp", "transport_endpoint_": endpoint}


class Master:
    """A made-up master: `objects` has answers by key, (status, body); a body None is never sent."""

    def __init__(self, host):
        self.objects, self.asked, self.end = {}, [], threading.Event()
        master = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                page, _, key = self.path.partition("?key=")
                if page != "/query_key":
                    status, body = 200, b'{"segments":[]}'
                else:
                    master.asked.append(key)
                    status, body = master.objects.get(key, (404, b"OBJECT_NOT_FOUND"))
                if body is None:
                    master.end.wait(2 * LIMIT)
                    return
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("", 0), Handler, bind_and_activate=False)
        self.server.daemon_threads = True
        self.server.socket.close()
        self.server.socket = host.socket()
        self.server.socket.settimeout(None)
        self.server.socket.bind((HOST, 0))
        self.server.socket.listen()
        self.url = f"http://{HOST}:{self.server.socket.getsockname()[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end.set()
        self.server.shutdown()
        self.server.server_close()


def test_no_masters(agent):
    refused(agent, "k", 1, "mooncake.masters")


def test_masters(lab, new_agent):
    """Replicas of all masters; and which of several failures is told."""
    host = lab.hosts[0]
    with Master(host) as one, Master(host) as two:
        agent = new_agent(settings={"mooncake.masters": f"{one.url},{two.url}"})
        refused(agent, "k", 1, "has no such object")
        assert one.asked == ["k"] and two.asked == ["k"]
        one.objects["k"] = 200, json.dumps({"success": True, "data": [replica("10.0.0.2:15000"), replica("10.0.0.3:15000", size=7)]}).encode()
        assert find(agent, "k") == [
            {"segment": "10.0.0.2:15000", "address": 4096, "length": 10, "protocol": "tcp", "master": one.url},
            {"segment": "10.0.0.3:15000", "address": 4096, "length": 7, "protocol": "tcp", "master": one.url}]
        two.objects["k"] = 200, b"".join(json.dumps(replica(f"10.0.0.{n}:1")).encode() + b"\n" for n in (4, 5))
        assert sorted(r["segment"] for r in find(agent, "k")) == ["10.0.0.2:15000", "10.0.0.3:15000", "10.0.0.4:1", "10.0.0.5:1"]
        # a master that fails does not hide what another one has, but it does hide that nobody has it
        two.objects["k"] = 500, b"Internal error!"
        assert len(find(agent, "k")) == 2
        one.objects.clear()
        refused(agent, "k", 1, f"{two.url}: HTTP status 500")
        one.objects["k"] = 404, b'{"success":false,"error_code":-703,"error_message":"REPLICA_IS_NOT_READY"}'
        refused(agent, "k", 4, "is being written")
        one.objects["k"], two.objects["k"] = two.objects["k"], one.objects["k"]
        refused(agent, "k", 4, "is being written")
        del one.objects["k"]
        refused(agent, "k", 4, "is being written")
        # a standby does not know, its leader does
        for first, second in (one, two), (two, one):
            first.objects["k"] = 503, b"not the leader"
            second.objects.pop("k", None)
            refused(agent, "k", 1, "has no such object")
            second.objects["k"] = 500, b"Internal error!"
            refused(agent, "k", 1, "HTTP status 500")
            second.objects["k"] = 503, b"not the leader"
            refused(agent, "k", 4, "not the leader")
        del one.objects["k"]
        two.objects["k"] = 200, b'{"success":true,"data":[{"size_":0}]}'
        refused(agent, "k", 1, "size_ is not a whole number above zero")
        two.objects["k"] = 200, b" " * (1 << 20)
        refused(agent, "k", 1, "more than")
        for key in ("", "a b", "a&b", "a\n", "k" * 2000):
            refused(agent, key, 2, "key")


def test_silent_master(lab, new_agent):
    """A master that says nothing costs mooncake.timeout; a caller that leaves, or an agent that ends, costs nothing."""
    with Master(lab.hosts[0]) as one:
        one.objects["k"] = 200, None
        agent = new_agent(settings={"mooncake.masters": one.url, "mooncake.timeout": "300ms", "mooncake.interval": "1h"})
        refused(agent, "k", 1, "300ms")
        agent = new_agent("second", settings={"mooncake.masters": one.url, "mooncake.timeout": "1min", "mooncake.interval": "1h"})
        one.asked.clear()
        with subprocess.Popen([DRAYCTL, "--control", agent.control, "segments", "--object", "k"], stderr=subprocess.DEVNULL) as caller:
            until(lambda: one.asked, "the master to be asked")
            caller.kill()
        one.objects["other"] = 200, json.dumps(replica("10.0.0.2:15000")).encode()
        assert len(find(agent, "other")) == 1
        with subprocess.Popen([DRAYCTL, "--control", agent.control, "segments", "--object", "k"], stderr=subprocess.DEVNULL) as caller:
            until(lambda: len(one.asked) == 3, "the master to be asked")
            agent.ctl("drain")
            assert agent.wait() == 0
            assert caller.wait(LIMIT) != 0


# --- a real master --------------------------------------------------------------------------------

STORE = """
import json, sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", sys.argv[1]) == 0
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    name, key, content = json.loads(line)
    print(json.dumps(store.put(key, bytes.fromhex(content)) if name == "put" else store.remove(key)), flush=True)
"""


class Store:
    """Mooncake's master, and a client of its store that owns a segment."""

    def __init__(self, host):
        self.master = rig.Master(host)
        self.client = subprocess.Popen(host.command("setpriv", "--pdeathsig=KILL", mooncake_python(), "-c", STORE, self.master.address), text=True, stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self.hear() == "ready"

    def hear(self):
        """The client's next answer; its library logs to the same stream."""
        while select.select([self.client.stdout], [], [], 2 * LIMIT)[0]:
            line = self.client.stdout.readline()
            assert line, f"the client has ended with {self.client.wait()}"
            with contextlib.suppress(ValueError):
                return json.loads(line)
        raise AssertionError("the client says nothing")

    def __call__(self, name, key, content=b""):
        self.client.stdin.write(json.dumps([name, key, content.hex()]) + "\n")
        self.client.stdin.flush()
        return self.hear()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.kill()
        self.client.wait()
        self.master.kill()
        self.client.stdin.close()
        self.client.stdout.close()


def read(agent, place):
    """The bytes of a replica, through the agent."""
    memory = dray.Memory(place["length"])
    with agent.client() as client:
        remote = client.import_token(f"mooncake://{place['segment']}")
        client.read(client.region(memory), remote, [(0, place["address"], place["length"])]).result()
        return bytes(memory.view[:place["length"]])


def test_real_master(lab, new_agent):
    """The bytes are where the master says, and it leases the object for the one that asks."""
    content = noise(3 << 20 | 5)
    with Store(lab.hosts[0]) as store:
        agent = new_agent(settings={"mooncake.masters": store.master.url, "mooncake.import": "true", "mooncake.allow": HOST})
        assert store("put", "model/layer=0?x#%20+,", content) == 0 and store("put", "other", b"x") == 0
        place, = find(agent, "model/layer=0?x#%20+,")
        assert place["length"] == len(content) and place["protocol"] == "tcp" and place["master"] == store.master.url
        assert read(agent, place) == content
        assert store("remove", "model/layer=0?x#%20+,") == -706 and store("remove", "other") == 0
        refused(agent, "other", 1, "no such object")
        store.master.kill()
        refused(agent, "model/layer=0?x#%20+,", 1, store.master.url.removeprefix("http://"))
