#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cost of segments: a thousand that are probed at the default interval, and ten thousand that a master lists."""

import contextlib
import http.client
import http.server
import json
import socket
import statistics
import subprocess
import sys
import threading
import time

import common as c

PROBED, LISTED = 1000, 10000
SECONDS = 30
RESTARTS = 15

# Accepts on a thousand ports. A process of its own, because this process must have time to serve the agent.
_ACCEPTS = """
import selectors, socket, sys
s = selectors.DefaultSelector()
for port in map(int, sys.argv[2:]):
    l = socket.socket()
    l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    l.bind((sys.argv[1], port))
    l.listen(64)
    s.register(l, selectors.EVENT_READ)
print("ready", flush=True)
while True:
    for key, _ in s.select():
        key.fileobj.accept()[0].close()
"""


@contextlib.contextmanager
def accepting(n):
    first = 20000
    with subprocess.Popen([sys.executable, "-c", _ACCEPTS, "127.0.0.1", *map(str, range(first, first + n))],
                          stdout=subprocess.PIPE) as process:
        if process.stdout.readline() != b"ready\n":
            raise c.CannotRun("the listeners cannot be opened")
        try:
            yield range(first, first + n)
        finally:
            process.kill()


@contextlib.contextmanager
def master(n):
    """Serves the page of a master with n segments."""
    body = json.dumps({"total_segments": n, "segments": [
        {"segment_name": f"10.{i >> 8}.{i & 255}.1:50053", "te_endpoint": f"10.{i >> 8}.{i & 255}.1:15001", "status": "OK",
         "size_bytes": 4 << 30, "allocator_used_bytes": 1 << 30, "protocol": "rdma"} for i in range(n)]}).encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


def one_agent(lab, **settings):
    return lab.agent("agent", c.harness.Host("agent"), listen=("127.0.0.1",), key=lab.key,
                     settings={"agent.workers": 0, "http.listen": "127.0.0.1:7412", "segment.ports": "none", **settings})


def processor(agent, seconds):
    before, since = c.cpu_ns(agent.pid), c.now()
    time.sleep(seconds)
    return (c.cpu_ns(agent.pid) - before) / 1e9 / (c.now() - since) * 100


def probed(lab, records):
    with accepting(PROBED) as ports:
        conf = lab.write("conf", 'segment: { known = [%s]; };\n' % ", ".join(f'"127.0.0.1:{p}"' for p in ports))
        agent = one_agent(lab)
        agent.args = ["--config", conf]
        idle = one_agent(lab)
        idle.settings["http.listen"] = "none"
        agent.start()
        idle.start()
        c.harness.until(lambda: agent.ctl("segments", "--json").get("segments", []).__len__() >= PROBED)
        c.harness.until(lambda: all(s["state"] == "ready" for s in agent.ctl("segments", "--json")["segments"]))
        time.sleep(10)  # the agent spreads the first probes over an interval
        before = agent.ctl("status", "--json")["counters"]["dray_probes_total"]
        bare = processor(idle, 10)
        share = processor(agent, SECONDS)
        probes = agent.ctl("status", "--json")["counters"]["dray_probes_total"] - before
        records.add(f"{PROBED} segments probed: processor", share, "%", ceiling_name="an agent without segments", ceiling=bare,
                    target=("<=", 1))
        records.add(f"{PROBED} segments probed: probes in a second", probes / (SECONDS + 10), "1/s")
        idle.stop()
        agent.stop()


def listed(lab, records):
    with master(LISTED) as url:
        agent = one_agent(lab, **{"mooncake.masters": url})
        agent.start()
        c.harness.until(lambda: agent.ctl("status", "--json")["counters"]["dray_segments"] >= LISTED)
        records.add(f"{LISTED} segments listed: processor", processor(agent, SECONDS), "%")
        connection = http.client.HTTPConnection("127.0.0.1", 7412, timeout=10)
        values = []
        for _ in range(101):
            since = time.monotonic_ns()
            connection.request("GET", "/metrics")
            connection.getresponse().read()
            values.append((time.monotonic_ns() - since) / 1e6)
        connection.close()
        records.add(f"{LISTED} segments listed: scrape", statistics.median(values), "ms", target=("<=", 20), spread=values)
        agent.stop()


def restarted(lab, records):
    """Measures the time from exec to the answer with the previous preferred segment."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as owner:
        agent = one_agent(lab, **{"segment.ports": owner.getsockname()[1], "http.listen": "none"})
        agent.start()
        name = c.harness.until(lambda: agent.ctl("status", "--json")["preferred_segment"])
        agent.stop()  # now all segments are on disk
        agent.start()
        values = []
        for _ in range(RESTARTS):
            agent.kill()
            since = c.now()
            agent.start()
            with agent.client() as client:
                got = client.preferred_segment().segment
            values.append((c.now() - since) * 1e3)
            if got != name:
                raise c.CannotRun(f"the preferred segment is {got} after a restart")
        records.add("kill -9, start, until the preferred segment is answered", statistics.median(values), "ms", target=("<=", 50),
                    spread=values)
        agent.stop()


with c.bench("probes") as (lab, records):
    probed(lab, records)
    listed(lab, records)
    restarted(lab, records)
