# SPDX-License-Identifier: Apache-2.0
"""dray.vllm.siblings: names, parts of kv_transfer_params and the memory of several DrayConnectors of one engine."""

from types import SimpleNamespace

import pytest

from dray import errors
from dray.vllm.options import Options
from dray.vllm.siblings import join, shared_pool


class Thing:
    pass


def engine():
    return SimpleNamespace(parallel_config=Thing())


def test_parts():
    config = engine()
    first, second = (join(config, Options(name=name, socket="x")) for name in ("dray", "dray-b"))
    params = {"do_remote_prefill": True, "dray": {"a": 1}, "dray-b": {"b": 2}}
    assert first.own(params) == params and second.own(params)["dray"] == {"b": 2}
    assert "dray" not in second.own({"do_remote_prefill": True, "dray": {}})
    assert first.own(None) is None and second.own(None) is None
    assert first.others_have(params) and second.others_have(params)
    assert not first.others_have({"dray": {}}) and not second.others_have({"dray-b": {}}) and not first.others_have(None)


def test_answers_have_no_key_in_common():
    config = engine()
    first, second = (join(config, Options(name=name, socket="x")) for name in ("dray-a", "dray-b"))
    answer = {"do_remote_prefill": True, "tp_size": 1, "dray": {}}
    for request in (Thing(), Thing()):
        assert first.answer(request, dict(answer)) == {"do_remote_prefill": True, "tp_size": 1, "dray-a": {}}
        assert second.answer(request, dict(answer)) == {"dray-b": {}}
    assert first.answer(Thing(), None) is None
    assert second.answer(Thing(), dict(answer)).keys() == {"do_remote_prefill", "tp_size", "dray-b"}


def test_names():
    config = engine()
    member = join(config, Options())
    with pytest.raises(errors.Invalid, match="two DrayConnectors with the name 'dray'.*option 'name'"):
        join(config, Options())
    join(engine(), Options())  # of another engine
    member.leave()
    member.leave()
    join(config, Options())


@pytest.mark.parametrize("other", [{"transport": "tcp"}, {"devices": ("mlx5_0",)}, {"key_file": "/k"}])
def test_one_private_agent(other):
    config = engine()
    join(config, Options(name="dray-a"))
    with pytest.raises(errors.Invalid, match=f"use the same agent, and differ in '{next(iter(other))}'.*option 'socket'"):
        join(config, Options(name="dray-b", **other))
    join(config, Options(name="dray-b", socket="/run/other.sock", transport="tcp"))


def test_push():
    config = engine()
    join(config, Options(mode="push"))
    with pytest.raises(errors.Invalid, match="'dray' and 'dray-b', one of them in mode 'push'"):
        join(config, Options(name="dray-b", socket="x"))


def test_one_pool():
    config = engine()
    first, made = shared_pool(config, Thing)
    assert made and shared_pool(config, Thing) == (first, False)
    assert shared_pool(engine(), Thing)[1]
    del first
    assert shared_pool(config, Thing)[1]  # that of an engine that is gone is not used again
