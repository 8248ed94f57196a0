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
    process = subprocess.Popen([sys.executable, ROOT / "examples" / program, "0", *engines], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process, int(process.stdout.readline().rpartition(":")[2])
    finally:
        process.kill()
        assert "Traceback" not in process.communicate()[1]


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


@pytest.mark.parametrize(("head", "body", "status"), [
    ("Content-Length: 1", "{", 400), ("Content-Length: 2", "[]", 400), ("Content-Length: 0", "", 400), pytest.param("Content-Length: 200000", "[" * 200000, 400, id="deep"),
    ("Content-Length: -1", "", 411), ("Content-Length: x", "", 411), ("X: y", "", 411)])
def test_requests_that_are_no_json_objects(router, head, body, status):
    process, port = router
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as client:
        client.sendall(f"POST /v1/completions HTTP/1.1\r\n{head}\r\n\r\n{body}".encode())
        assert f" {status} ".encode() in client.makefile("rb").readline()
    assert str(status) in process.stderr.readline()


@pytest.mark.parametrize("body", [{"messages": 1}, {"messages": [1]}, {"messages": [{"content": ["x", 1, None]}]}])
def test_chats_that_an_engine_would_refuse(body):
    with engine() as (used, following), routed("vllm-epd/route_images.py", NOBODY, following) as (_, port):
        assert ask(port, **body) == "yes"
    assert used == [body]


@contextlib.contextmanager
def answers(*texts):
    """An engine that answers with these bytes, in turn, and ends the connection; its URL."""
    def serve():
        with contextlib.suppress(OSError):  # the end of the test
            for text in texts:
                with server.accept()[0] as one, one.makefile("rb") as request:
                    length = 0
                    while (line := request.readline()).strip():
                        name, _, value = line.partition(b":")
                        length = int(value) if name.lower() == b"content-length" else length
                    request.read(length)
                    one.sendall(text)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def text_of(status, text):
    return f"HTTP/1.1 {status} .\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()


KNOWN = text_of(200, json.dumps({"kv_transfer_params": {"of": "P"}}))


@pytest.mark.parametrize("text", [text_of(200, "no JSON"), text_of(200, "[1]"), b"no HTTP\r\n\r\n", b""])
@pytest.mark.parametrize("options", [[], ["--push"]])
def test_prefill_engines_with_wrong_answers(options, text):
    """The first answer is awaited in both modes. Of a later one in mode push, the client has the decode engine's."""
    with answers(text, KNOWN, text) as p, engine() as (decoded, d), routed("vllm-pd/router.py", *options, p, d) as (process, port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
        connection.request("POST", "/", "{}")
        assert connection.getresponse().status == 502
        assert "the prefill engine does not answer" in process.stderr.readline()
        assert ask(port) == "yes"
        if options:
            assert ask(port) == "yes"
            assert "the prefill engine does not answer" in process.stderr.readline()
            assert decoded[1]["kv_transfer_params"]["of"] == "P"


@pytest.mark.parametrize("params", [None, "text", [1]])
def test_wrong_parameters_are_not_passed_on(params):
    with engine(kv_transfer_params=params) as (_, p), engine() as (decoded, d), routed("vllm-pd/router.py", "--push", p, d) as (_, port):
        assert ask(port) == ask(port) == "yes"
    assert decoded == [{}, {}]
    with engine(ec_transfer_params=params) as (_, e), engine() as (used, pd), routed("vllm-epd/route_images.py", e, pd) as (_, port):
        assert ask(port, **PICTURE) == "yes"
    assert used == [PICTURE]


def test_errors_of_the_prefill_engine():
    """Its first answer is the client's. In mode push the decode engine finds out by itself that nothing comes."""
    with answers(text_of(500, "first"), KNOWN, text_of(500, "third")) as p, engine() as (_, d):
        with routed("vllm-pd/router.py", "--push", p, d) as (_, port):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
            connection.request("POST", "/", "{}")
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (500, b"first")
            assert ask(port) == ask(port) == "yes"


@pytest.mark.parametrize("answer", [b"Content-Length: 100\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"])
@pytest.mark.parametrize("program", ["vllm-pd/router.py", "vllm-epd/route_images.py"])
def test_answers_that_break_off(program, answer):
    with engine() as (_, p), answers(b"HTTP/1.1 200 OK\r\n" + answer) as d, routed(program, p, d) as (process, port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
        connection.request("POST", "/", "{}")
        with pytest.raises(http.client.IncompleteRead):
            connection.getresponse().read()
        assert "has broken off" in process.stderr.readline()


@pytest.mark.parametrize("program", ["vllm-pd/router.py", "vllm-epd/route_images.py"])
def test_clients_that_leave(program):
    """The answer is larger than what sockets buffer."""
    with engine(more="x" * (64 << 20)) as (_, d), routed(program, d, d) as (process, port):
        with socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as client:
            client.sendall(b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
            assert b" 200 " in client.makefile("rb").readline()
        assert "the client has left" in process.stderr.readline()


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
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))  # how often it looks for its end
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
