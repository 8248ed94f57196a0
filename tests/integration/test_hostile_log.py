# SPDX-License-Identifier: Apache-2.0
"""Log lines: what one client or address brings about again and again hides no line about another."""

import contextlib
import re

from harness import parse_segment, until


def knock(agent, segment, source):
    """A connection from this address whose first byte is of no protocol between agents."""
    with agent.host.socket() as sock:
        sock.bind((source, 0))
        sock.connect(parse_segment(segment))
        sock.sendall(b"?" * 64)
        with contextlib.suppress(ConnectionResetError):
            while sock.recv(100):
                pass


def lines_about(agent, pattern):
    return len(re.findall(pattern, agent.text()))


def test_an_address_hides_no_other(new_agent):
    agent = new_agent(settings={"limits.log_lines_per_peer": 3})
    with agent.client() as client:
        segment = client.segment
    for _ in range(200):
        knock(agent, segment, "127.0.0.2")
    knock(agent, segment, "127.0.0.3")
    until(lambda: "from=127.0.0.3" in agent.text(), "the line about the other address")
    # seconds that the flood took, and what each lets pass
    times = {line.split(".")[0] for line in agent.text().splitlines() if "from=127.0.0.2" in line}
    assert lines_about(agent, "refused a connection: .* from=127.0.0.2") <= 3 * (len(times) + 1)
