# SPDX-License-Identifier: Apache-2.0
"""The MutatingAdmissionPolicy over a table of pods."""

import copy

import pytest
from kube import TABLE, Policy, helm, kustomize, parameters, validate

VERSIONS = ("1.35", "1.36", "1.37")
REQUEST, RESULT, CONTAINERS = "dray.dev/inject", "dray.dev/inject-result", "dray.dev/inject-containers"


@pytest.fixture(scope="module")
def policy():
    return Policy(kustomize("inject")[("MutatingAdmissionPolicy", None, "dray-inject")])


def pod_of(row):
    pod = copy.deepcopy(row["pod"])
    return {"apiVersion": "v1", "kind": "Pod", **pod, "metadata": {"name": "p", **pod["metadata"]}}


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row["name"])
def test_table(policy, row):
    pod, values = pod_of(row), parameters(**row.get("values", {}))
    after = policy.mutated(pod, values)
    assert after["metadata"].get("annotations", {}).get(RESULT) == row.get("result")
    assert policy.mutated(after, values) == after, "a second pass changes nothing"
    before = copy.deepcopy(after)
    if row.get("result") != "injected" or RESULT in pod["metadata"]["annotations"] and pod["metadata"]["annotations"][RESULT] == "injected":
        before["metadata"] = pod["metadata"]
        assert before == pod, "only the annotation differs"
        return
    check_sidecar(after, values)
    check_rest(pod, after)
    for version in VERSIONS:
        validate(version, after)


def check_sidecar(pod, values):
    """It is the first init container, keeps running, and has what the parameters say."""
    sidecar, volumes = pod["spec"]["initContainers"][0], [v["name"] for v in pod["spec"]["volumes"]]
    assert (sidecar["name"], sidecar["restartPolicy"], sidecar["image"]) == ("dray", "Always", values["image"])
    security = sidecar["securityContext"]
    added = [name.strip() for name in values["capabilities"].split(",")] if values["capabilities"] else []
    assert security["capabilities"] == {"drop": ["ALL"], **({"add": added} if added else {})}
    assert (security["runAsUser"] == 0) == bool(added) and security["runAsNonRoot"] == (not added)
    assert not security["allowPrivilegeEscalation"] and security["readOnlyRootFilesystem"]
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}, "with these fields, pod security admits it as restricted unless it is root"
    devices = {values["rdmaResource"]: values["rdmaCount"]} if values["rdmaResource"] else {}
    processors = {"cpu": values["cpuLimit"]} if values["cpuLimit"] else {}
    limits = {**processors, "memory": values["memory"], **devices}
    assert sidecar["resources"] == {"requests": {"cpu": values["cpu"], "memory": values["memory"], **devices}, "limits": limits}
    keys = [v for v in pod["spec"]["volumes"] if v["name"] == "dray-keys"]
    assert [v["secret"]["secretName"] for v in keys] == ([values["keySecret"]] if values["keySecret"] else [])
    configs = [v["configMap"]["name"] for v in pod["spec"]["volumes"] if v["name"] == "dray-config"]
    assert configs == ([values["configMap"]] if values["configMap"] else [])
    assert sidecar["args"] == (["--config", "/etc/dray/config/drayd.conf"] if configs else [])
    assert {m["name"] for m in sidecar["volumeMounts"]} <= set(volumes)
    env = {e["name"]: e.get("value") for e in sidecar["env"]}
    assert ("DRAY_PEER_KEY_FILE" in env) == bool(keys) and env["DRAY_HTTP_LISTEN"] == values["address"] + ":7412"
    assert all(v.keys() & {"secret", "emptyDir", "configMap"} for v in pod["spec"]["volumes"] if v["name"].startswith("dray-"))


def check_rest(pod, after):
    """The chosen containers have socket and variable; everything else is as it was."""
    annotations, spec = pod["metadata"]["annotations"], after["spec"]
    chosen = [n.strip() for n in annotations[CONTAINERS].split(",")] if CONTAINERS in annotations else [c["name"] for c in pod["spec"]["containers"]]
    assert spec["initContainers"][1:] == pod["spec"].get("initContainers", [])
    assert [v for v in spec["volumes"] if not v["name"].startswith("dray-")] == pod["spec"].get("volumes", [])
    assert after["metadata"]["labels"] == {**pod["metadata"].get("labels", {}), "dray.dev/agent": "sidecar"}
    for old, new in zip(pod["spec"]["containers"], spec["containers"], strict=True):
        if old["name"] not in chosen:
            assert new == old
            continue
        own = [e for e in old.get("env", []) if e["name"] == "DRAY_SOCKET"]
        assert new["env"] == old.get("env", []) + ([] if own else [{"name": "DRAY_SOCKET", "value": "/run/dray/dray.sock"}])
        assert new["volumeMounts"] == old.get("volumeMounts", []) + [{"name": "dray-run", "mountPath": "/run/dray", "readOnly": True}]
        assert {k: v for k, v in new.items() if k not in ("env", "volumeMounts")} == {k: v for k, v in old.items() if k not in ("env", "volumeMounts")}


def is_guaranteed(pod):
    """Whether Kubernetes gives the pod the class Guaranteed: each container has limits, and requests of the same amount."""
    resources = [c.get("resources", {}) for c in pod["spec"].get("initContainers", []) + pod["spec"]["containers"]]
    return all(name in r.get("limits", {}) and r.get("requests", {}).get(name, r["limits"][name]) == r["limits"][name]
               for r in resources for name in ("cpu", "memory"))


def test_a_limit_of_processor_time_keeps_the_class_of_a_pod(policy):
    """The sidecar counts for the class of its pod."""
    engine = {"name": "engine", "image": "vllm", "resources": {"limits": {"cpu": "8", "memory": "64Gi"}}}
    pod = pod_of({"pod": {"metadata": {"annotations": {REQUEST: "true"}}, "spec": {"containers": [engine]}}})
    assert is_guaranteed(pod) and not is_guaranteed(policy.mutated(pod, parameters()))
    assert is_guaranteed(policy.mutated(pod, parameters(cpu="2", cpuLimit="2")))


def test_each_reason_is_in_the_table(policy):
    """The table has a pod for each reason of the policy."""
    reason = next(v["expression"] for v in policy.spec["variables"] if v["name"] == "reason")
    shown = {row["result"].removeprefix("skipped: ").replace("'", "\\'") for row in TABLE if row.get("result", "").startswith("skipped")}
    assert reason.count("\n  ? ") == len(shown)
    assert all(f"? '{text}' :" in reason for text in shown)


def test_literals_have_one_type(policy):
    """The API server refuses maps and lists with values of several types; this CEL does not. A map that is not all strings has dyn() everywhere."""
    expressions = [v["expression"] for v in policy.spec["variables"]] + [m["jsonPatch"]["expression"] for m in policy.spec["mutations"]]
    for text in expressions:
        for literal in literals(text):
            values = [part.split(": ", 1)[1].strip() if literal[0] == "{" else part.strip() for part in parts(literal[1:-1])]
            kinds = {"dyn" if v.startswith("dyn(") else "patch" if v.startswith("JSONPatch{") else "other" for v in values}
            assert len(kinds) <= 1, literal
            assert "dyn" in kinds or "patch" in kinds or all(v[0] in "'pv" for v in values), literal


def literals(text):
    """Maps and lists of an expression, but not fields of messages and indices."""
    stack, quoted = [], False
    for i, ch in enumerate(text):
        if ch == "'" and text[i - 1] != "\\":
            quoted = not quoted
        elif quoted:
            continue
        elif ch in "{[(":
            stack.append(i)
        elif ch in "}])":
            begin = stack.pop()
            if ch != ")" and not (begin and (text[begin - 1].isalnum() or text[begin - 1] in "_)]")):
                yield text[begin:i + 1]


def parts(text):
    """The elements between commas of the outermost level."""
    depth, quoted, begin = 0, False, 0
    for i, ch in enumerate(text):
        if ch == "'" and text[i - 1:i] != "\\":
            quoted = not quoted
        elif not quoted and ch in "{[(":
            depth += 1
        elif not quoted and ch in "}])":
            depth -= 1
        elif not quoted and ch == "," and not depth:
            yield text[begin:i]
            begin = i + 1
    if text[begin:].strip():
        yield text[begin:]


def test_the_binding_needs_a_label_of_the_namespace():
    things = kustomize("inject")
    spec = things[("MutatingAdmissionPolicyBinding", None, "dray-inject")]["spec"]
    assert spec["matchResources"]["namespaceSelector"] == {"matchLabels": {REQUEST: "true"}}
    assert spec["paramRef"]["parameterNotFoundAction"] == "Deny"
    assert ("ConfigMap", spec["paramRef"]["namespace"], spec["paramRef"]["name"]) in things


def test_older_versions_of_the_api():
    """The chart gives the policy in the version that a cluster has."""
    for api, version in (("v1alpha1", "1.32"), ("v1beta1", "1.34"), ("v1", "1.36")):
        for thing in helm(f"inject.apiVersion={api}").values():
            validate(version, thing)
