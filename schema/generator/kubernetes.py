# SPDX-License-Identifier: Apache-2.0
"""Reads kubernetes.yaml: parameters, templates with choices, and the reasons to refuse a pod."""

import re

from generator.check import SchemaError, check_keys, unique

PARAMETER = re.compile(r"\$\{(\w+)\}")
REFUSALS = {"annotated": ("annotation",), "equal": ("field", "value"), "name": ("list", "name"), "mount": ("path",), "missing": ()}
NAMES = ("container", "request", "containers", "result", "agent", "injected", "skipped")


def is_choice(node):
    return isinstance(node, dict) and "when" in node


def is_split(node):
    return isinstance(node, list) and len(node) == 2 and node[0] == "split"


class Kubernetes:
    def __init__(self, raw, version):
        where = "kubernetes.yaml"
        check_keys(where, raw, ("names", "parameters", "conditions", "sidecar", "volumes", "engine", "refusals", "daemonset"))
        self.names, self.conditions, self.engine = raw["names"], raw["conditions"], raw["engine"]
        check_keys(f"{where}: names", self.names, NAMES)
        check_keys(f"{where}: engine", self.engine, ("env", "volumeMount"))
        self.parameters = raw["parameters"]
        for p in self.parameters:
            check_keys(f"{where}: parameter {p.get('name')}", p, ("name", "default", "doc"), ("optional", "words", "quantity"))
            p["default"] = p["default"].replace("@VERSION@", version)
            p["optional"] = p.get("optional", False) or not p["default"]
        unique(f"{where}: parameters", "name", [(p["name"], p["name"]) for p in self.parameters])
        self.defaults = {p["name"]: p["default"] for p in self.parameters}
        self.check_parameters("conditions", self.conditions.values())
        self.refusals = raw["refusals"]
        for r in self.refusals:
            if r.get("kind") not in REFUSALS:
                raise SchemaError(f"{where}: refusals: unknown kind {r.get('kind')}")
            check_keys(f"{where}: refusal {r['kind']}", r, ("kind", "reason", *REFUSALS[r["kind"]]))
        self.sidecar, self.volumes = raw["sidecar"], raw["volumes"]
        self.daemonset = {k: v for k, v in {**self.sidecar, **raw["daemonset"]}.items() if v is not None}
        for part in (self.sidecar, self.volumes, self.daemonset):
            self.check_template(part)

    def check_parameters(self, where, names):
        for name in names:
            if name not in self.defaults:
                raise SchemaError(f"kubernetes.yaml: {where}: unknown parameter {name}")

    def check_template(self, node, in_list=False):
        if is_choice(node):
            check_keys("kubernetes.yaml: choice", node, ("when", "then"), ("else",))
            if node["when"] not in self.conditions:
                raise SchemaError(f"kubernetes.yaml: unknown condition {node['when']}")
            if "else" not in node and not in_list:
                raise SchemaError(f"kubernetes.yaml: the choice by {node['when']} needs an else, because it is no element of a list")
            self.check_template(node["then"])
            self.check_template(node.get("else"))
        elif is_split(node):
            self.check_parameters("split", node[1:])
        elif isinstance(node, dict):
            for key, value in node.items():
                self.check_template(key)
                self.check_template(value)
        elif isinstance(node, list):
            for item in node:
                self.check_template(item, True)
        elif isinstance(node, str):
            self.check_parameters("template", PARAMETER.findall(node))

    def expand(self, node, values=None):
        """The template with these parameters, by default their defaults."""
        values = self.defaults if values is None else values
        if is_choice(node):
            return self.expand(node["then"] if values[self.conditions[node["when"]]] else node.get("else"), values)
        if is_split(node):
            return values[node[1]].split(",")
        if isinstance(node, dict):
            return {self.expand(k, values): self.expand(v, values) for k, v in node.items()}
        if isinstance(node, list):
            return [self.expand(i, values) for i in node if not is_choice(i) or "else" in i or values[self.conditions[i["when"]]]]
        if isinstance(node, str):
            return PARAMETER.sub(lambda m: values[m[1]], node)
        return node
