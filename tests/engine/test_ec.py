# SPDX-License-Identifier: Apache-2.0
"""Outputs of encoders from E to PD, with vLLM's real schedulers and agents, on one host and over TCP."""

import json
import signal
from types import SimpleNamespace

import pytest
from dray import errors
from dray.vllm.ec.load import Load
from dray.vllm.ec.secret import Secret
from ec_bare import NO_PIXELS, Bare, encode, images, making, offered
from harness import until


@pytest.fixture(scope="module", params=["in-place", "local", "tcp"])
def pair(request, agents):
    """Each loads over this transport only, or in place."""
    made = [Bare("e", agents[0].socket, "ec_producer"),
            Bare("pd", agents[request.param == "tcp"].socket, "ec_consumer", transport="tcp" if request.param == "tcp" else "local")]
    made[1].side.in_place = request.param == "in-place"
    yield made
    for engine in made:
        engine.idle()
        engine.close()


@pytest.fixture
def engine(agents):
    """Makes an engine of a test's own."""
    with making(agents) as make:
        yield make


def test_outputs_are_loaded_and_not_encoded(pair):
    e, pd = pair
    wanted = images(3, 1)
    params = encode(e, "a", wanted)
    assert pd.run(pd.add("a", wanted, params, NO_PIXELS, tokens=2))[0] == "LENGTH"
    assert e.encoded[-3:] == [name for name, _ in wanted] and not pd.encoded
    pd.idle()
    e.idle()


def test_an_image_twice(pair):
    """The second request at E has its output in E's pool, and that of PD finds it in PD's pool or cache."""
    e, pd = pair
    (image,) = images(1, 2)
    before = len(e.encoded)
    for name in ("b1", "b2"):
        params = encode(e, name, [image, image])
        assert pd.run(pd.add(name, [image, image], params, NO_PIXELS))[0] == "LENGTH"
    assert len(e.encoded) == before + 1 and not pd.encoded


def test_eight_at_once(pair):
    e, pd = pair
    wanted = {f"c{i}": images(2, 10 + i % 5) for i in range(8)}
    for name, these in wanted.items():
        e.add(name, these)
    offers = {name: e.run(name)[1] for name in wanted}
    for name, these in wanted.items():
        pd.add(name, these, offers[name], NO_PIXELS, tokens=3)
    assert all(pd.run(name)[0] == "LENGTH" for name in wanted)
    assert not pd.encoded


def test_two_encoders_for_one_request(pair, engine):
    """A router joins their lists of offers."""
    e, pd = pair
    other = engine("e2", "ec_producer")
    first, second = images(2, 20)
    params = encode(e, "d", [first])
    params["dray"]["offers"] += encode(other, "d", [second])["dray"]["offers"]
    assert pd.run(pd.add("d", [first, second], params, NO_PIXELS))[0] == "LENGTH" and not pd.encoded
    other.idle()


def test_two_consumers_of_one_output(pair, engine):
    """The place is in use until both have read it."""
    e, pd = pair
    other = engine("pd2", "ec_consumer", 1)
    wanted = images(1, 21)
    params = encode(e, "f", wanted, params={"consumers": 2})
    assert pd.run(pd.add("f", wanted, params, NO_PIXELS))[0] == "LENGTH"
    pd.idle()  # rights are used up after the step that uses the outputs
    until(lambda: e.step() or len(e.side._grants) == 1, "one right is left")
    assert other.run(other.add("f", wanted, params, NO_PIXELS))[0] == "LENGTH"
    e.idle()
    assert not pd.encoded + other.encoded


def test_a_full_pool_slows_the_encoder_down(engine):
    """Six requests through room for two: each waits for its turn, and all are offered."""
    e, pd = engine("e", "ec_producer", size=256 * 512 + 4096), engine("pd", "ec_consumer")
    wanted = {f"g{i}": [(f"large-{i}", 120)] for i in range(6)}
    for name, these in wanted.items():
        e.add(name, these)
    for name, these in wanted.items():
        params = e.run(name)[1]
        assert len(e.side._by_grant) <= 2
        assert pd.run(pd.add(name, these, params, NO_PIXELS))[0] == "LENGTH"
        pd.idle()  # the step after the request's end says that its output is not read any more
    e.idle()
    assert e.side._pool.evicted >= 4 and not pd.encoded


def test_what_nobody_claims_expires(engine):
    e = engine("e", "ec_producer", size=256 * 512 + 4096, lease=0.3)
    for name in ("h1", "h2", "h3"):
        encode(e, name, [(name, 250)])
    e.idle()
    assert e.side._pool.evicted == 2


def test_outputs_larger_than_the_pool_are_encoded_by_the_consumer(engine):
    e, pd = engine("e", "ec_producer", size=256 * 512 + 4096), engine("pd", "ec_consumer", size=256 * 512 + 4096)
    wanted = [("i1", 200), ("i2", 200)]
    params = encode(e, "i", wanted)
    assert pd.run(pd.add("i", wanted, params))[0] == "LENGTH"
    assert pd.encoded == ["i2"]
    pd.idle()
    e.idle()


def test_an_output_in_the_middle_of_the_pool(engine):
    """It divides the room that the other output of its request needs, and is placed anew."""
    e, pd = engine("e", "ec_producer", size=256 * 512 + 4096), engine("pd", "ec_consumer", size=256 * 512 + 4096)
    for name, wanted in (("o1", [("o-first", 60), ("o-middle", 20)]), ("o2", [("o-middle", 20), ("o-large", 200)])):
        params = encode(e, name, wanted)
        assert pd.run(pd.add(name, wanted, params, NO_PIXELS))[0] == "LENGTH"
        pd.idle()
    assert not pd.encoded


def busy(*arguments, **how):
    raise errors.Busy("its agent has no room for another transfer")


@pytest.mark.parametrize("what", ["a transfer", "room in the pool", "an agent that is busy"])
def test_steps_wait_for_what_the_session_says(engine, monkeypatch, what):
    """Of the end of a transfer it does, so that a step without tokens waits until then."""
    e, pd = engine("e", "ec_producer"), engine("pd", "ec_consumer", 1, transport="tcp")
    asked, seconds = [], pd.side._rest.seconds

    def recorded(tokens, waiting, asks, session_reports_end):
        asked.append((waiting, session_reports_end))
        return seconds(tokens, waiting, asks, session_reports_end)

    monkeypatch.setattr(pd.side._rest, "seconds", recorded)
    wanted = images(1, "rest " + what)
    params = encode(e, "h", wanted)
    with monkeypatch.context() as patch:
        if what == "a transfer":
            patch.setattr(Load, "_go_on", lambda *how: None)
        elif what == "room in the pool":
            patch.setattr(pd.side._pool, "enter", lambda *how: None)
        else:
            patch.setattr(pd.side._client, "read", busy)
        pd.add("h", wanted, params, NO_PIXELS)
        until(lambda: pd.step() or (pd.side._loads if what != "room in the pool" else len(pd.side._line)), "the load, or its place in the line")
        del asked[:]
        pd.step()
        assert asked == [(1, what == "a transfer")]
    assert pd.run("h")[0] == "LENGTH" and not pd.encoded
    pd.idle()
    e.idle()


def fails(pd, name, wanted, params, *expected, idle=True, **how):
    """The consumer encodes an item that cannot be loaded; without its image, that request fails."""
    counted, failed = [], pd.side.stats.failed
    pd.side.stats.failed = lambda name: (counted.append(name), failed(name))
    with_image, without = pd.add(name, wanted, params, **how), pd.add(name + "-without", wanted, params, NO_PIXELS, **how)
    assert pd.run(with_image)[0] == "LENGTH"
    assert pd.run(without)[0] == "ERROR"
    pd.side.stats.failed = failed
    assert counted and set(counted) <= set(expected), counted
    if idle:
        pd.idle()


def test_an_encoder_that_has_died(engine):
    e, pd = engine("e", "ec_producer"), engine("pd", "ec_consumer", 1)
    wanted = images(2, 30)
    params = encode(e, "j", wanted)
    e.scheduler.ec_connector.shutdown()
    fails(pd, "j", wanted, params, "token_invalid", "revoked")
    assert pd.run(pd.add("text", [], tokens=2))[0] == "LENGTH"


def test_wrong_bytes(engine):
    e, pd = engine("e", "ec_producer"), engine("pd", "ec_consumer", 1)
    wanted = images(1, 31)
    params = encode(e, "k", wanted, params={"consumers": 2})
    with offered(params) as offer:
        at, = offer["items"].values()
    e.scheduler.ec_connector._memory.memory.view[at[0] + 300] ^= 1
    fails(pd, "k", wanted, params, "io")
    e.idle()


@pytest.mark.parametrize("what", ["model", "rows", "width", "version", "identifier", "tenant"])
def test_what_does_not_match_is_refused(pair, what):
    """Another model, or an offer that a client has changed: nothing is loaded, and E has its room back."""
    e, pd = pair
    wanted = images(1, "for " + what)
    params = encode(e, "l-" + what, wanted, params={"consumers": 2}, salt="one")
    how = {"salt": "one"}
    with offered(params) as offer:
        (name, values), = offer["items"].items()
        if what == "model":
            offer["model"]["dtype"] = "float16"
        elif what == "rows":
            values[1] += 1
        elif what == "width":
            values[2] *= 2
        elif what == "version":
            params["dray"]["version"] = 1
        elif what == "identifier":  # the output of another image in the place of this one
            wanted = [(name + "-of-another-tenant", values[1])]
            offer["items"] = {wanted[0][0]: values}
        else:
            how = {"salt": "two"}
    error = {"version": "version", "identifier": "denied", "tenant": "denied"}.get(what, "unsupported")
    fails(pd, "l-" + what, wanted, params, error, **how)
    pd.encoded.clear()
    e.idle()


@pytest.mark.parametrize("version", [4, 5])
def test_an_older_offer_gives_its_right_back(engine, version):
    """Offers are mappings in version 4, and texts of one line in version 5. The encoder does not wait for the end of the lease."""
    e, pd = engine("e", "ec_producer", lease=600), engine("pd", "ec_consumer")
    wanted = images(1, "older")
    params = encode(e, "older", wanted)
    older = [{name: value for line in text.splitlines() for name, value in json.loads(line).items()} for text in params["dray"]["offers"]]
    params["dray"] = {"version": version, "offers": older if version == 4 else list(map(json.dumps, older))}
    assert pd.run(pd.add("older", wanted, params))[0] == "LENGTH" and pd.encoded == [name for name, _ in wanted]
    pd.idle()
    e.idle()


def test_only_an_encoder_with_the_secret_can_place_an_output(engine, tmp_path):
    """Whoever can lease memory to this engine's agent, or change an offer, cannot. Such a right is not even asked for."""
    (tmp_path / "secret").write_text("of these two engines\n")
    (tmp_path / "secret").chmod(0o400)
    e, pd = (engine(name, role, secret_file=str(tmp_path / "secret")) for name, role in (("e", "ec_producer"), ("pd", "ec_consumer")))
    wanted = images(2, 80)
    assert pd.run(pd.add("s", wanted, encode(e, "s", wanted, salt="one"), NO_PIXELS, salt="one"))[0] == "LENGTH" and not pd.encoded
    e.idle()
    for what in ("no secret", "another secret", "another image", "another tenant", "another place", "damaged"):
        e.side._secret = None if what == "no secret" else Secret(b"another one") if what == "another secret" else pd.side._secret
        mine, theirs = wanted = [(f"mine {what}", 9), (f"theirs {what}", 9)]
        params = encode(e, what, wanted, salt="one")
        with offered(params) as offer:
            items = offer["items"]
            if what == "another image":
                items[mine[0]], items[theirs[0]] = items[theirs[0]], items[mine[0]]
            elif what == "another place":
                items[mine[0]][0] += 256
            elif what == "damaged":
                items[mine[0]].pop()
        fails(pd, what, wanted, params, "invalid" if what == "damaged" else "denied", salt="two" if what == "another tenant" else "one")
    assert len(e.side._grants) == 6


def test_an_agent_that_does_not_answer(agents, engine):
    """The request ends within its deadline; one of text is not delayed."""
    e, pd = engine("e", "ec_producer"), engine("pd", "ec_consumer", 1, deadline=0.7, transport="tcp")
    wanted = images(1, 50)
    params = encode(e, "m", wanted, params={"consumers": 2})
    agents[0].signal(signal.SIGSTOP)
    try:
        pd.add("m", wanted, params)
        pd.add("m-without", wanted, params, NO_PIXELS)
        assert pd.run(pd.add("text-m", [], tokens=2))[0] == "LENGTH" and "m" not in pd.answers
        assert pd.run("m")[0] == "LENGTH" and pd.encoded == [wanted[0][0]]
        assert pd.run("m-without")[0] == "ERROR"
    finally:
        agents[0].signal(signal.SIGCONT)
    pd.idle()
    e.idle()


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_an_agent_of_its_own_that_does_not_answer(lab, how):
    """E encodes, and offers nothing; PD encodes what it has an image for."""
    agents = [lab.agent(f"agent-ec-{how}-{name}", key=lab.key).start() for name in ("e", "pd")]
    e, pd = Bare("e", agents[0].socket, "ec_producer"), Bare("pd", agents[1].socket, "ec_consumer", deadline=3, transport="tcp")
    wanted = images(1, "own " + how)
    params = encode(e, "p", wanted, params={"consumers": 2})
    for agent in agents:
        agent.signal(signal.SIGSTOP if how == "stopped" else signal.SIGKILL)
    for name in ("p1", "p2"):
        assert e.run(e.add(name, images(2, how + name))) == ("STOP", None)
    fails(pd, "p", wanted, params, "deadline" if how == "stopped" else "session_closed", "session_closed", "agent_restarted", idle=False)
    assert pd.run(pd.add("text-p", [], tokens=2))[0] == "LENGTH"
    if how == "stopped":
        for agent in agents:
            agent.signal(signal.SIGCONT)
        pd.idle()
        e.idle()
        encode(e, "p3", images(1, "own " + how + "3"))
    for engine in (e, pd):
        engine.close()
    for agent in agents:
        agent.kill()


def test_a_request_without_its_image_keeps_no_room_while_it_generates(pair):
    e, pd = pair
    wanted = images(2, 70)
    pd.add("q", wanted, encode(e, "q", wanted), NO_PIXELS, tokens=30)
    until(lambda: pd.step() or pd.scheduler.requests["q"].num_output_tokens > 3, "some tokens")
    assert not pd.side._pool.used
    pd.preempt()
    assert pd.run("q")[0] == "LENGTH" and not pd.encoded


def test_a_preempted_request_waits_for_what_another_one_loads(engine, monkeypatch):
    """Its own right has been used, and its output was evicted."""
    e, pd = engine("e", "ec_producer"), engine("pd", "ec_consumer", 1, size=256 * 512 + 4096, transport="tcp")
    wanted, others = [("again", 120)], [("between", 240)]
    pd.add("first", wanted, encode(e, "first", wanted), NO_PIXELS, tokens=30)
    until(lambda: pd.step() or pd.scheduler.requests["first"].num_output_tokens > 3, "some tokens")
    assert pd.run(pd.add("evicts", others, encode(e, "evicts", others), NO_PIXELS))[0] == "LENGTH"
    pd.add("second", wanted, encode(e, "second", wanted), NO_PIXELS)
    with monkeypatch.context() as patch:
        patch.setattr(Load, "poll", lambda *args: None)
        until(lambda: pd.step() or pd.side._loads, "the load of the other request")
        pd.preempt()
        pd.scheduler.reset_encoder_cache()
        pd.cache.clear()
        pd.step()
    assert pd.run("first")[0] == "LENGTH" and pd.run("second")[0] == "LENGTH" and not pd.encoded
    pd.idle()
    e.idle()


def test_outputs_that_cannot_be_stored_are_not_offered(engine, monkeypatch):
    """Another dtype than the model's, or a modality that vLLM has not measured."""
    e = engine("e", "ec_producer", lease=0.3)
    with monkeypatch.context() as patch:
        patch.setattr(e.worker._worker, "_dtype", None)
        assert e.run(e.add("r1", [("r-image", 9)])) == ("STOP", None)
    assert encode(e, "r2", [("r-image", 9)])
    monkeypatch.setattr(e.config.ec_transfer_config, "mm_encoder_output_widths", {})
    assert e.run(e.add("r3", images(1, 71))) == ("STOP", None)
    e.idle()


def test_a_step_waits_for_outputs_only_if_nothing_is_computed(engine):
    e, pd = engine("e", "ec_producer"), engine("pd", "ec_consumer", 1, transport="tcp")
    waits, wait = [], pd.side._wait
    pd.side._wait = lambda want: (waits.append(want.request.request_id), wait(want))
    wanted = images(1, 62)
    pd.add("v1", wanted, encode(e, "v1", wanted), NO_PIXELS)
    pd.step()
    assert waits == ["v1"] and pd.run("v1")[0] == "LENGTH"
    pd.add("text-v", [], tokens=1900)
    pd.step()
    waits.clear()
    wanted = images(1, 63)
    pd.add("v2", wanted, encode(e, "v2", wanted), NO_PIXELS)
    assert pd.run("v2")[0] == "LENGTH" and not waits and "text-v" not in pd.answers
    pd.abort("text-v")
    pd.idle()
    e.idle()


def test_an_aborted_request_gives_the_room_back(pair):
    e, pd = pair
    wanted = images(2, 60)
    params = encode(e, "n", wanted)
    pd.add("n", wanted, params, NO_PIXELS)
    pd.step()
    pd.abort("n")
    e.add("n2", images(1, 61))
    e.step()
    e.abort("n2")
    params = encode(e, "n3", wanted)
    pd.add("n3", wanted, params, NO_PIXELS)
    pd.abort("n3")
    pd.idle()
    e.idle()


def test_options_and_roles_are_checked(agents, tmp_path):
    with pytest.raises(errors.Io, match="secret_file '.*none' of the connector cannot be read: No such file"):
        Bare("e", agents[0].socket, "ec_producer", secret_file=str(tmp_path / "none"))
    with pytest.raises(errors.Invalid, match="ec_connector_extra_config has an unknown option 'bounce'"):
        Bare("e", agents[0].socket, "ec_producer", bounce=True)
    with pytest.raises(errors.Unsupported, match="ec_both"):
        Bare("e", agents[0].socket, "ec_both")


@pytest.mark.parametrize("what, model, parallel", [
    ("encoder-decoder", {"is_encoder_decoder": True}, {}), ("pipeline", {}, {"pipeline_parallel_size": 2}),
    ("pooling", {"runner_type": "pooling"}, {}), ("several hosts", {}, {"nnodes": 2})])
def test_engines_that_report_nothing_are_refused(what, model, parallel):
    from dray.vllm.ec.hooks import _refuse

    def config(v2=False):
        return SimpleNamespace(
            ec_transfer_config=SimpleNamespace(is_ec_producer=False, is_ec_consumer=True), use_v2_model_runner=v2,
            device_config=SimpleNamespace(device_type="cpu"), model_config=SimpleNamespace(**model),
            parallel_config=SimpleNamespace(**{"pipeline_parallel_size": 1, **parallel}))

    with pytest.raises(errors.Unsupported, match=what):
        _refuse(config(), "DrayECConnector")
    if what in ("pipeline", "pooling"):
        _refuse(config(v2=True), "DrayECConnector")
