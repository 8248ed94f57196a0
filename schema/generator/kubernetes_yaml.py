# SPDX-License-Identifier: Apache-2.0
"""Writes the objects of Kubernetes twice: as they are, for Kustomize, and as templates of the Helm chart."""

import json
import re

from generator.kubernetes import PARAMETER, is_choice, is_split
from generator.kubernetes_cel import Cel
from generator.text import banner

FOLDER = "packaging/kubernetes"
QUANTITY = re.compile(r"^\d+[A-Za-z]*$")
PLAIN = re.compile(r"^[A-Za-z/][A-Za-z0-9_./-]*$")
WORDS = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")
# Names that are no parameters of the sidecar: their value for Kustomize, and their expression for Helm.
SETTINGS = {
    "namespace": ("dray-system", "$.Release.Namespace"),
    "engines": ("engines", "$namespace"),
    "tenant": ("default", "$tenant"),
    "monitoring": ("monitoring", "$.Values.networkPolicy.monitoringNamespace"),
    "admission": ("v1", "$.Values.inject.apiVersion"),
}
NAME = {"app.kubernetes.io/name": "dray"}
LICENCE = "SPDX-License-Identifier: Apache-2.0"


# --- YAML -----------------------------------------------------------------------------------------


class Static:
    """Text of objects without templates."""

    @staticmethod
    def string(value):
        return value if PLAIN.match(value) and value not in WORDS else json.dumps(value, ensure_ascii=False)

    def scalar(self, node):
        if node is None or isinstance(node, (bool, int)):
            return json.dumps(node)
        return self.string(node)

    def lines(self, node, indent=""):
        if not node:
            return [f"{indent}{json.dumps(node)}"]
        if isinstance(node, dict):
            return [line for key, value in node.items() for line in self.entry(f"{indent}{self.scalar(key)}:", value, indent)]
        return [line for item in node for line in self.item(item, indent)]

    def entry(self, head, value, indent):
        if isinstance(value, str) and "\n" in value:
            return [f"{head} |-"] + [f"{indent}  {line}" for line in value.split("\n")]
        if value in ({}, []):
            return [f"{head} {'{}' if isinstance(value, dict) else '[]'}"]
        if isinstance(value, (dict, list)):
            return [head] + self.lines(value, indent + "  ")
        return [f"{head} {self.scalar(value)}"]

    def item(self, item, indent):
        if not isinstance(item, (dict, list)) or not item:
            return self.entry(f"{indent}-", item, indent)
        first, *rest = self.lines(item, indent + "  ")
        return [f"{indent}- {first[len(indent) + 2:]}"] + rest


class Helm(Static):
    """Text of objects as templates of Helm, in which $p has the parameters. Their values have no quotes (values.schema.json)."""

    def __init__(self, conditions):
        self.conditions = conditions

    def string(self, value):
        if not PARAMETER.search(value):
            return super().string(value)
        return '"' + PARAMETER.sub(lambda m: "{{ " + (SETTINGS[m[1]][1] if m[1] in SETTINGS else f"$p.{m[1]}") + " }}", value) + '"'

    def choice(self, node, indent, write):
        out = [f"{indent}{{{{- if $p.{self.conditions[node['when']]} }}}}"] + write(node["then"])
        if "else" in node:
            out += [f"{indent}{{{{- else }}}}"] + write(node["else"])
        return out + [f"{indent}{{{{- end }}}}"]

    def lines(self, node, indent=""):
        if is_choice(node):
            return self.choice(node, indent, lambda v: self.lines(v, indent))
        return super().lines(node, indent)

    def entry(self, head, value, indent):
        if is_split(value):
            return [f'{head} {{{{ regexSplit " *, *" (trim $p.{value[1]}) -1 | toJson }}}}']
        if is_choice(value):
            return [head] + self.lines(value, indent + "  ")
        return super().entry(head, value, indent)

    def item(self, item, indent):
        if is_choice(item):
            return self.choice(item, indent, lambda v: super(Helm, self).item(v, indent))
        return super().item(item, indent)


# --- objects --------------------------------------------------------------------------------------


def meta(name, namespace=None, **more):
    return {"name": name, **({"namespace": namespace} if namespace else {}), "labels": {**NAME, **more}}


def parameters(schema):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta("dray-inject", "${namespace}"),
            "data": {name: f"${{{name}}}" for name in schema.defaults}}


def policy(schema):
    return {"apiVersion": "admissionregistration.k8s.io/${admission}", "kind": "MutatingAdmissionPolicy", "metadata": meta("dray-inject"),
            "spec": Cel(schema).policy()}


def binding(schema):
    return {"apiVersion": "admissionregistration.k8s.io/${admission}", "kind": "MutatingAdmissionPolicyBinding", "metadata": meta("dray-inject"),
            "spec": {"policyName": "dray-inject",
                     "paramRef": {"name": "dray-inject", "namespace": "${namespace}", "parameterNotFoundAction": "Deny"},
                     "matchResources": {"namespaceSelector": {"matchLabels": {schema.names["request"]: "true"}}}}}


def daemonset(schema):
    labels = {schema.names["agent"]: "daemonset", "dray.dev/tenant": "${tenant}"}
    volumes = [{"name": "dray-run", "hostPath": {"path": "/run/dray/${tenant}", "type": "DirectoryOrCreate"}},
               {"name": "dray-state", "hostPath": {"path": "/var/lib/dray/${tenant}", "type": "DirectoryOrCreate"}},
               *(v for v in schema.volumes if is_choice(v))]
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": meta("dray-${tenant}", "${namespace}", **labels),
            "spec": {"selector": {"matchLabels": labels},
                     "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
                     "template": {"metadata": {"labels": {**NAME, **labels}},
                                  "spec": {"automountServiceAccountToken": False, "terminationGracePeriodSeconds": 30,
                                           "containers": [schema.daemonset], "volumes": volumes}}}}


def ports(*ranges):
    return [{"protocol": protocol, "port": first, **({"endPort": last} if last != first else {})} for protocol, first, last in ranges]


SCRAPE = {"from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "${monitoring}"}}}], "ports": ports(("TCP", 7412, 7412))}


def network_policy(name, namespace, pods, peers, *more):
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": meta(name, namespace),
            "spec": {"podSelector": {"matchLabels": pods}, "policyTypes": ["Ingress"],
                     "ingress": [{"from": peers, "ports": ports(("TCP", 7411, 7411))}, SCRAPE, *more]}}


def sidecar_network(schema):
    """A policy isolates the whole pod, so the engine's ports are allowed again. The kubelet always reaches the probes."""
    pods = {schema.names["agent"]: "sidecar"}
    peers = [{"namespaceSelector": {"matchLabels": {schema.names["request"]: "true"}}, "podSelector": {"matchLabels": pods}}]
    rest = {"ports": ports(("TCP", 1, 7410), ("TCP", 7414, 65535), ("UDP", 1, 65535))}
    return network_policy("dray-sidecars", "${engines}", pods, peers, rest)


def daemonset_network(schema):
    pods = {schema.names["agent"]: "daemonset", "dray.dev/tenant": "${tenant}"}
    return network_policy("dray-${tenant}", "${namespace}", pods, [{"podSelector": {"matchLabels": pods}}])


def pod_monitor(schema):
    return {"apiVersion": "monitoring.coreos.com/v1", "kind": "PodMonitor", "metadata": meta("dray", "${namespace}"),
            "spec": {"namespaceSelector": {"any": True},
                     "selector": {"matchExpressions": [{"key": schema.names["agent"], "operator": "Exists"}]},
                     "podMetricsEndpoints": [{"port": "dray-metrics", "interval": "15s"}]}}


# --- files ----------------------------------------------------------------------------------------

# Each folder for Kustomize is what an option of the chart adds: name, Helm's condition, loop around each object, objects.
PARTS = (
    ("inject", "if .Values.inject.enabled", None, {"parameters": parameters, "policy": policy, "binding": binding}),
    ("daemonset", None, "range $tenant := .Values.daemonset.tenants", {"daemonset": daemonset, "daemonset-network": daemonset_network}),
    ("network-policy", None, "range $namespace := .Values.networkPolicy.namespaces", {"network-policy": sidecar_network}),
    ("monitoring", "if .Values.monitoring.enabled", None, {"pod-monitor": pod_monitor}),
)
# Values of the chart for the pods of the DaemonSet: the field of the pod that each of them is.
IN_METADATA, IN_SPEC = ("annotations",), ("nodeSelector", "tolerations", "priorityClassName", "runtimeClassName", "imagePullSecrets")


def optional(field):
    """A field of a pod template, which exists if the chart's value is not empty."""
    return f"      {{{{- with $.Values.daemonset.{field} }}}}\n      {field}: {{{{- toYaml . | nindent 8 }}}}\n      {{{{- end }}}}\n"


def static_object(schema, node):
    defaults = {**schema.defaults, **{name: value for name, (value, _) in SETTINGS.items()}}
    return "\n".join(Static().lines(schema.expand(node, defaults))) + "\n"


def helm_template(schema, node, condition, loop):
    body = "\n".join(Helm(schema.conditions).lines(node)) + "\n"
    if node["kind"] == "DaemonSet":
        head, template = "  template:\n    metadata:\n", "".join(map(optional, IN_METADATA))
        body = body.replace(head, head + template) + "".join(map(optional, IN_SPEC))
    around = loop or condition
    begin = "{{- $p := .Values.parameters }}\n" if "$p." in body else ""
    if around:
        return f"{banner('#')}{begin}{{{{- {around} }}}}\n{'---' + chr(10) if loop else ''}{body}{{{{- end }}}}\n"
    return banner("#") + begin + body


def reference_of(kind, path):
    return {"kind": kind, "fieldSpecs": [{"kind": "MutatingAdmissionPolicyBinding", "path": path}]}


# Names in the binding that Kustomize does not know, so that an overlay with a namespace or a prefix changes them, too.
REFERENCES = {"namespace": [{"kind": "MutatingAdmissionPolicyBinding", "path": "spec/paramRef/namespace"}],
              "nameReference": [reference_of("ConfigMap", "spec/paramRef/name"), reference_of("MutatingAdmissionPolicy", "spec/policyName")]}


def kustomization(files, **more):
    head = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": files, **more}
    return banner("#") + "\n".join(Static().lines(head)) + "\n"


def chart(schema, version):
    lines = {"apiVersion": "v2", "name": "dray", "type": "application", "version": version, "appVersion": version, "kubeVersion": ">=1.29.0-0",
             "description": "Data-movement agent for LLM inference: sidecar injection, DaemonSet, network policies and monitoring"}
    return banner("#") + "\n".join(Static().lines(lines)) + "\n"


def values(schema):
    out = banner("#") + "# Settings of the agent, for sidecars and DaemonSets.\nparameters:\n"
    out += "".join(f"  # {p['doc']}\n  {p['name']}: {json.dumps(p['default'])}\n" for p in schema.parameters)
    return out + """# The MutatingAdmissionPolicy that adds the sidecar to pods.
inject:
  enabled: true
  # v1 from Kubernetes 1.36; v1beta1 in 1.34 and 1.35, where the API server has to enable it.
  apiVersion: v1
# A DaemonSet for each tenant, such as [team-a, team-b].
daemonset:
  tenants: []
  # Annotations of the pods, such as k8s.v1.cni.cncf.io/networks for a second network by Multus.
  annotations: {}
  nodeSelector: {}
  tolerations: []
  priorityClassName: ""
  # For the image dray-cuda, where NVIDIA's runtime is not the default one: nvidia.
  runtimeClassName: ""
  # Secrets for the registry of the image, in the namespace of the release, such as [{name: registry}].
  imagePullSecrets: []
# A NetworkPolicy in each of these namespaces, which contain engines with sidecars.
networkPolicy:
  namespaces: []
  # Prometheus runs there.
  monitoringNamespace: monitoring
# PodMonitor, alerts and dashboard, for clusters with the Prometheus operator.
monitoring:
  enabled: false
"""


def values_schema(schema):
    def closed(required=(), **properties):
        """Helm removes a value that is null, so that a required one cannot be null."""
        return {"type": "object", "additionalProperties": False, "required": list(required), "properties": properties}

    def label(most):
        return {"type": "string", "pattern": f"^[a-z0-9]([-a-z0-9]{{0,{most - 2}}}[a-z0-9])?$"}

    def labels(most):
        return {"type": "array", "items": label(most), "uniqueItems": True}

    def parameter(p):
        """A quantity, as its default is one, may be a number, which --set makes of digits."""
        if "words" in p:
            return {"enum": p["words"], "description": p["doc"]}
        return {"type": ["string", "number"] if p.get("quantity") or QUANTITY.match(p["default"]) else "string", "pattern": '^[^"\\\\\\n{}]*$',
                "minLength": 0 if p["optional"] else 1, "description": p["doc"]}

    tenants = labels(52)  # the name of a pod, dray-TENANT-xxxxx, is limited to 63
    text, parameters = {"type": "string"}, {p["name"]: parameter(p) for p in schema.parameters}
    texts = {"type": "object", "additionalProperties": text}
    toleration = closed(key=text, operator=text, value=text, effect=text, tolerationSeconds={"type": "integer"})
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", "$comment": LICENCE, **closed(
        ["parameters", "inject", "daemonset", "networkPolicy", "monitoring"], **{"global": {"type": "object"}},
        enabled={"type": "boolean", "description": "Of the condition under which another chart depends on this one."},
        parameters=closed([p["name"] for p in schema.parameters if not p["optional"]], **parameters),
        inject=closed(["apiVersion"], enabled={"type": "boolean"}, apiVersion={"enum": ["v1", "v1beta1", "v1alpha1"]}),
        daemonset=closed(tenants=tenants, annotations=texts, nodeSelector=texts, tolerations={"type": "array", "items": toleration},
                         priorityClassName=text, runtimeClassName=text, imagePullSecrets={"type": "array", "items": closed(["name"], name=text)}),
        networkPolicy=closed(["monitoringNamespace"], namespaces=labels(63), monitoringNamespace=label(63)),
        monitoring=closed(enabled={"type": "boolean"}))}, indent=2) + "\n"


def reference(schema):
    n = schema.names
    out = f"""<!-- SPDX-License-Identifier: Apache-2.0 -->
<!-- Generated by schema/generate.py, do not edit. -->

# Injection of the sidecar

What the MutatingAdmissionPolicy and `drayctl inject` do to a pod; [kubernetes.md](../kubernetes.md) says how to use them. The source is `schema/kubernetes.yaml`.

## Annotations and labels

| name | of | value | meaning |
| --- | --- | --- | --- |
| `{n['request']}` | namespaces (label) | `true` | The policy looks at pods of this namespace. |
| `{n['request']}` | pods (annotation) | `true` | The pod wants a sidecar. |
| `{n['containers']}` | pods (annotation) | names, separated by commas | Containers that get the socket; without it, all of the pod. |
| `{n['result']}` | pods (annotation) | `{n['injected']}`, or `{n['skipped']}` and the reason | Written by the injection. |
| `{n['agent']}` | pods (label) | `sidecar`, `daemonset` | Written by the injection, and by the DaemonSet. |

## Parameters

They are keys of the ConfigMap `dray-inject`, of `parameters` in the values of the chart, and of a file for `drayctl inject --parameters`.

| parameter | default | meaning |
| --- | --- | --- |
"""
    for p in schema.parameters:
        words = f" One of {', '.join(f'`{w}`' for w in p['words'])}." if "words" in p else ""
        out += f"| `{p['name']}` | {'`' + p['default'] + '`' if p['default'] else 'empty'} | {p['doc']}{words} |\n"
    out += "\n## Reasons to skip a pod\n\nThe first one that holds is the result.\n\n"
    return out + "".join(f"- `{r['reason']}`\n" for r in schema.refusals)


def write(schema, version):
    files = {}
    for part, condition, loop, objects in PARTS:
        for name, make in objects.items():
            node = make(schema)
            files[f"{FOLDER}/chart/templates/{name}.yaml"] = helm_template(schema, node, condition, loop)
            files[f"{FOLDER}/kustomize/{part}/{name}.yaml"] = banner("#") + static_object(schema, node)
        more = ["rules", "dashboard"] if part == "monitoring" else []  # generator.monitoring
        references = {"configurations": ["references.yaml"]} if part == "inject" else {}
        files[f"{FOLDER}/kustomize/{part}/kustomization.yaml"] = kustomization([f"{name}.yaml" for name in [*objects, *more]], **references)
    files[f"{FOLDER}/kustomize/inject/references.yaml"] = banner("#") + "\n".join(Static().lines(REFERENCES)) + "\n"
    files[f"{FOLDER}/chart/Chart.yaml"] = chart(schema, version)
    files[f"{FOLDER}/chart/values.yaml"] = values(schema)
    files[f"{FOLDER}/chart/values.schema.json"] = values_schema(schema)
    files["docs/reference/kubernetes.md"] = reference(schema)
    return files
