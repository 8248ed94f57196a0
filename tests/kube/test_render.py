# SPDX-License-Identifier: Apache-2.0
"""The chart and the bases of Kustomize."""

import json
import os
import subprocess

import pytest
import yaml
from kube import CHART, PACKAGING, ROOT, helm, kustomize, run, validate

VERSIONS = ("1.35", "1.36", "1.37")
OPERATOR = ("PodMonitor", "PrometheusRule")  # their schemas belong to the Prometheus operator
PARTS = {
    "inject": (),
    "daemonset": ("inject.enabled=false", "daemonset.tenants={default}"),
    "network-policy": ("inject.enabled=false", "networkPolicy.namespaces={engines}"),
    "monitoring": ("inject.enabled=false", "monitoring.enabled=true"),
}


def test_lint():
    assert "0 chart(s) failed" in run("helm", "lint", "--strict", CHART)


@pytest.mark.parametrize("part", PARTS)
def test_chart_and_kustomize_render_the_same_objects(part):
    ours = kustomize(part)
    assert ours
    rest = {} if part == "inject" else {k: v for k, v in helm("inject.enabled=false").items()}
    rendered = {k: v for k, v in helm(*PARTS[part]).items() if k not in rest}
    assert rendered == ours


def test_an_overlay_of_kustomize_moves_the_injection(tmp_path):
    """The binding names the policy and the parameters by their new names, or the API server would refuse every annotated pod."""
    patch = {"target": {"kind": "ConfigMap", "name": "dray-inject"}, "patch": "{apiVersion: v1, kind: ConfigMap, metadata: {name: any}, data: {image: mine}}"}
    overlay = {"resources": [os.path.relpath(PACKAGING / "kustomize/inject", tmp_path)], "namespace": "other", "namePrefix": "x-", "patches": [patch]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    things = {o["kind"]: o for o in yaml.safe_load_all(run("kubectl", "kustomize", tmp_path))}
    (name, namespace), binding = (things["ConfigMap"]["metadata"][k] for k in ("name", "namespace")), things["MutatingAdmissionPolicyBinding"]["spec"]
    assert (name, namespace, things["ConfigMap"]["data"]["image"]) == ("x-dray-inject", "other", "mine")
    assert binding["paramRef"] == {"name": name, "namespace": namespace, "parameterNotFoundAction": "Deny"}
    assert binding["policyName"] == things["MutatingAdmissionPolicy"]["metadata"]["name"]


@pytest.mark.parametrize("version", VERSIONS)
def test_schemas(version):
    everything = helm("daemonset.tenants={a,b}", "networkPolicy.namespaces={x,y}", "monitoring.enabled=true", "parameters.capabilities=IPC_LOCK",
                      "parameters.rdmaResource=rdma/hca", "parameters.configMap=c", "daemonset.nodeSelector.gpu=yes", "daemonset.tolerations[0].operator=Exists")
    for thing in everything.values():
        if thing["kind"] not in OPERATOR and (version != "1.35" or "MutatingAdmission" not in thing["kind"]):
            validate(version, thing)


def test_parameters_reach_the_daemonset():
    """With RDMA it has capabilities and the devices; without, neither. Each tenant has folders of its own."""
    things = helm("daemonset.tenants={a,b}", "parameters.capabilities=IPC_LOCK\\, SYS_NICE ", "parameters.rdmaResource=rdma/hca", "parameters.keySecret=k",
                  "parameters.configMap=c")
    sets = {name: o["spec"]["template"]["spec"] for (kind, _, name), o in things.items() if kind == "DaemonSet"}
    assert set(sets) == {"dray-a", "dray-b"}
    for tenant in "ab":
        (agent,) = sets[f"dray-{tenant}"]["containers"]
        assert agent["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK", "SYS_NICE"]}
        assert agent["resources"]["limits"]["rdma/hca"] == "1" and "restartPolicy" not in agent
        mounts = {m["name"]: m["mountPath"] for m in agent["volumeMounts"]}
        assert agent["args"] == ["--config", mounts["dray-config"] + "/drayd.conf"]
        assert {"name": "dray-config", "configMap": {"name": "c"}} in sets[f"dray-{tenant}"]["volumes"]
        paths = {v["hostPath"]["path"] for v in sets[f"dray-{tenant}"]["volumes"] if "hostPath" in v}
        assert paths == {f"/run/dray/{tenant}", f"/var/lib/dray/{tenant}"}
    (agent,) = helm("daemonset.tenants={a}")[("DaemonSet", "dray-system", "dray-a")]["spec"]["template"]["spec"]["containers"]
    assert agent["securityContext"]["capabilities"] == {"drop": ["ALL"]} and list(agent["resources"]["limits"]) == ["memory"]


def test_values_that_helm_passes_as_numbers_and_to_subcharts():
    """--set makes numbers of digits, and `condition: dray.enabled` of another chart puts `enabled` among the values."""
    longest = "n" * 63
    things = helm("enabled=true", "daemonset.tenants={a}", "parameters.rdmaResource=rdma/hca", "parameters.rdmaCount=2", "parameters.cpu=1", "parameters.cpuLimit=2",
                  "parameters.memory=536870912", f"networkPolicy.namespaces={{{longest}}}", f"networkPolicy.monitoringNamespace={longest}")
    (agent,) = things[("DaemonSet", "dray-system", "dray-a")]["spec"]["template"]["spec"]["containers"]
    assert agent["resources"]["limits"] == {"cpu": "2", "memory": "536870912", "rdma/hca": "2"} and agent["resources"]["requests"]["cpu"] == "1"
    assert ("NetworkPolicy", longest, "dray-sidecars") in things
    values = next(o["data"] for (kind, _, _), o in things.items() if kind == "ConfigMap")
    assert (values["cpu"], values["memory"], values["rdmaCount"]) == ("1", "536870912", "2")


def test_pods_of_the_daemonset_fit_the_cluster(tmp_path):
    """Annotations, such as those for a second network by Multus, priority, and secrets for a registry."""
    given = {"annotations": {"k8s.v1.cni.cncf.io/networks": '[{"name": "roce"}]', "number": "1"}, "priorityClassName": "system-node-critical", "runtimeClassName": "nvidia",
             "imagePullSecrets": [{"name": "registry"}], "nodeSelector": {"gpu": "true"}, "tolerations": [{"operator": "Exists", "tolerationSeconds": 5}]}
    (tmp_path / "values.yaml").write_text(yaml.safe_dump({"daemonset": {"tenants": ["a", "b"], **given}}))
    things = [o for o in yaml.safe_load_all(run("helm", "template", "dray", CHART, "--values", tmp_path / "values.yaml")) if o and o["kind"] == "DaemonSet"]
    assert len(things) == 2
    for thing in things:
        pod = thing["spec"]["template"]
        assert {"annotations": pod["metadata"]["annotations"], **{k: pod["spec"][k] for k in given if k != "annotations"}} == given
        assert pod["metadata"]["labels"].items() >= thing["spec"]["selector"]["matchLabels"].items()
        for version in VERSIONS:
            validate(version, thing)


@pytest.mark.parametrize(("setting", "name"), [
    ("parameters.imgae=x", "imgae"), ("parameters.image=a\"b", "image"), ("inject.apiVersion=v2", "apiVersion"), ("daemonset.tenants={../x}", "tenants"),
    ("parameters.image=1", "image"), ("parameters.image=", "/parameters/image"), ("parameters.cpu=null", "cpu"), ("parameters=null", "parameters"),
    ("parameters.memory=", "/parameters/memory"), ("parameters.imagePullPolicy=Sometimes", "imagePullPolicy"), ("parameters.logLevel=loud", "logLevel"),
    ("inject=null", "missing property 'inject'"), ("inject.apiVersion=null", "missing property 'apiVersion'"), ("networkPolicy.monitoringNamespace=null", "monitoringNamespace"),
    ("daemonset.annotations.a=1", "/daemonset/annotations/a"), ("daemonset.imagePullSecrets={registry}", "/daemonset/imagePullSecrets/0"),
    ("daemonset.nodeSelector.gpu=true", "/daemonset/nodeSelector/gpu"), ("daemonset.tolerations[0].value=1", "/daemonset/tolerations/0/value"),
    ("daemonset.tolerations[0].efect=NoSchedule", "efect"), ("networkPolicy.namespaces={" + 64 * "n" + "}", "namespaces"), ("daemonset.tenants={" + 53 * "n" + "}", "tenants")])
def test_wrong_values_are_refused(setting, name):
    done = subprocess.run(["helm", "template", "dray", CHART, "--set", setting], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode and name in done.stderr, done.stderr


def test_values_that_may_be_empty():
    """Without a key there is no Secret; lists that are null are empty."""
    things = helm("parameters.keySecret=", "daemonset.tenants=null", "daemonset.nodeSelector=null", "daemonset.tolerations=null", "networkPolicy.namespaces=null")
    assert things[("ConfigMap", "dray-system", "dray-inject")]["data"]["keySecret"] == ""
    assert {kind for kind, _, _ in things} == {"ConfigMap", "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"}


def test_log_levels_are_those_of_the_agent():
    words = json.loads((CHART / "values.schema.json").read_text())["properties"]["parameters"]["properties"]["logLevel"]["enum"]
    level = next(k for k in yaml.safe_load((ROOT / "schema/config.yaml").read_text())["keys"] if k["key"] == "log.level")
    assert words == level["choices"]


def test_network_policy_isolates_only_the_agent():
    """Ports of the engine stay open, the agent's are for agents and for Prometheus."""
    spec = kustomize("network-policy")[("NetworkPolicy", "engines", "dray-sidecars")]["spec"]

    def sources(port):
        rules = [r for r in spec["ingress"] if any(p["protocol"] == "TCP" and p["port"] <= port <= p.get("endPort", p["port"]) for p in r["ports"])]
        return ["all" if "from" not in r else next(iter(r["from"][0]["namespaceSelector"]["matchLabels"])) for r in rules]

    assert [sources(p) for p in (1, 7410, 7414, 65535, 8000)] == [["all"]] * 5
    assert (sources(7411), sources(7412), sources(7413)) == (["dray.dev/inject"], ["kubernetes.io/metadata.name"], [])
