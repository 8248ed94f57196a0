# SPDX-License-Identifier: Apache-2.0
"""drayctl doctor --peer over RDMA: each rail must write."""

import pytest
from conftest import Pair, listed
from harness import until
from test_doctor_peer import findings, wrong


@pytest.fixture(params=[0, 1200], ids=["quick", "slow"])
def agents(rdma_lab, verbs_faults, request):
    """slow: the second rail of one of them registers memory later than the first trial ends."""
    verbs_faults.registers_slowly(rdma_lab.make(2)[1].device[0], request.param)
    pair = Pair(rdma_lab, 2, env=(verbs_faults.environment, None))
    yield pair.agents
    pair.stop()


def test_each_rail_writes(agents):
    a, b = agents
    found = findings(a, b.listen[0], status=1)
    # the agents of these tests have no key
    assert [f[:3] for f in wrong(found)] == [("key", way, "warning") for way in ("to", "from")]
    rails = [f for f in found if f["check"] == "rail"]
    assert [f["about"].split()[0] for f in rails] == sorted(p["device"] for p in listed(a, "paths"))
    assert all("RDMA has written" in f["text"] for f in rails) and len(rails) == 2
    assert [f["check"] for f in found if "over rdma" in f["text"]] == ["write", "read"]
    until(lambda: not listed(a, "transfers"), "the end of the trial")
