# SPDX-License-Identifier: Apache-2.0
"""The routers of the examples, without engines."""

import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from harness import LIMIT, ROOT


NOBODY = "http://127.0.0.1:1"


@contextlib.contextmanager
def routed(program, *engines):
    """A router between engines, and its port."""
    process = subprocess.Popen([sys.executable, ROOT / "examples" / program, "0", *engines], stdout=subprocess.PIPE, text=True)
    yield process, int(process.stdout.readline().rpartition(":")[2])
    process.kill()
    process.wait()


@pytest.fixture(params=["vllm-pd/router.py", "vllm-epd/route_images.py"])
def router(request):
    """A router whose engines do not run."""
    with routed(request.param, NOBODY, NOBODY) as made:
        yield made


def test_many_clients_at_once(router):
    """The kernel keeps the connections of clients that come before the router accepts them."""
    process, port = router
    process.send_signal(signal.SIGSTOP)  # it accepts none
    try:
        with contextlib.ExitStack() as open_until_the_end:
            for _ in range(200):  # a refused one is tried again after a second, and a connection that waits is not refused
                open_until_the_end.enter_context(socket.create_connection(("127.0.0.1", port), timeout=0.5))
    finally:
        process.send_signal(signal.SIGCONT)


def refuses_all(port):
    for request in (b"GET /v1/models HTTP/1.0\r\n\r\n", b"POST /v1/completions HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}"):
        with socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as client:
            client.sendall(request)
            assert re.match(rb"HTTP/1.. 502 .* not answer", client.makefile("rb").readline())


def test_engines_that_do_not_answer(router):
    refuses_all(router[1])


def test_engines_that_end_in_their_answers():
    with socket.create_server(("127.0.0.1", 0)) as server:
        def end_in_answers():
            with contextlib.suppress(OSError):  # the end of the test
                while True:
                    with server.accept()[0] as one:
                        one.recv(1 << 16)
                        one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")

        threading.Thread(target=end_in_answers, daemon=True).start()
        with routed("vllm-pd/router.py", *(f"http://127.0.0.1:{server.getsockname()[1]}",) * 2) as (_, port):
            refuses_all(port)
        server.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def engine(**params):
    """An engine that answers each request with these parameters, and keeps the requests; its URL."""
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            text = json.dumps({"text": "yes", **params}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *args):
            pass

    asked = []
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield asked, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def ask(port, **body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    return json.loads(connection.getresponse().read())["text"]


PICTURE = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}, {"type": "text", "text": "?"}]}]}
TEXT = {"messages": [{"role": "user", "content": "?"}]}
FORGED = {"ec_transfer_params": {"of": "a client"}, "kv_transfer_params": {"of": "a client"}}


def test_images_go_through_the_encoder():
    with engine(ec_transfer_params={"of": "E"}) as (encoded, e), engine() as (used, pd):
        with routed("vllm-epd/route_images.py", e, pd) as (_, port):
            assert ask(port, **PICTURE, **FORGED, max_tokens=9) == ask(port, **TEXT, **FORGED) == "yes"
        with routed("vllm-epd/route_images.py", NOBODY, pd) as (_, port):
            assert ask(port, **PICTURE, **FORGED) == "yes"
    assert encoded == [{**PICTURE, "max_tokens": 1, "stream": False}]
    assert used == [{**PICTURE, "max_tokens": 9, "ec_transfer_params": {"of": "E"}}, TEXT, PICTURE]


def test_images_before_prefill_and_decode():
    with engine(ec_transfer_params={"of": "E"}) as (_, e), engine(kv_transfer_params={"of": "P"}) as (prefilled, p), engine() as (decoded, d):
        with routed("vllm-pd/router.py", p, d) as (_, following):
            with routed("vllm-epd/route_images.py", e, f"http://127.0.0.1:{following}") as (_, port):
                assert ask(port, **PICTURE) == "yes"
    assert prefilled[0]["ec_transfer_params"] == {"of": "E"}
    assert decoded == [{**PICTURE, "kv_transfer_params": {"of": "P"}}]
