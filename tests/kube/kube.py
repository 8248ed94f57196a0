# SPDX-License-Identifier: Apache-2.0
"""What the tests share: rendering, Kubernetes' schemas, JSON patches, and the policy in Google's CEL."""

import copy
import functools
import importlib.util
import json
import pathlib
import subprocess

import jsonschema
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging/kubernetes"
CHART = PACKAGING / "chart"
NAMESPACE = "dray-system"
BASE = "https://kubernetes.io/api/"  # of the references in the schemas
TABLE = yaml.safe_load((ROOT / "tests/kube/pods/table.yaml").read_text())


def run(*argv, **how):
    done = subprocess.run([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how)
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
    return done.stdout


@functools.cache
def _rendered(*argv):
    """The objects that a command prints, by kind and name. Each command runs once for all tests."""
    found = [o for o in yaml.load_all(run(*argv), Loader=yaml.CSafeLoader) if o]
    by_name = {(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]): o for o in found}
    assert len(by_name) == len(found)
    return by_name


def helm(*settings):
    return copy.deepcopy(_rendered("helm", "template", "dray", CHART, "--namespace", NAMESPACE, *(word for s in settings for word in ("--set", s))))


def kustomize(folder):
    return copy.deepcopy(_rendered("kubectl", "kustomize", PACKAGING / "kustomize" / folder))


# --- schemas ----------------------------------------------------------------------------------------


@functools.cache
def _schema(version, name):
    (package,) = importlib.util.find_spec("kubernetes_validate").submodule_search_locations
    return json.loads((pathlib.Path(package) / f"kubernetes-json-schema/v{version}.0-local-strict" / name).read_text())


@functools.cache
def _validator(version, kind, api):
    group, _, number = api.rpartition("/")
    name = f"{kind.lower()}-{group.split('.')[0] + '-' if group else ''}{number}.json"
    schema = _schema(version, name)
    resolver = jsonschema.RefResolver(BASE, schema, store={f"{BASE}_definitions.json": _schema(version, "_definitions.json")})
    return jsonschema.Draft7Validator(schema, resolver=resolver)


def validate(version, thing):
    """Fails if the object has a wrong or unknown field in this version of Kubernetes."""
    errors = [f"{'/'.join(map(str, e.absolute_path))}: {e.message}" for e in _validator(version, thing["kind"], thing["apiVersion"]).iter_errors(thing)]
    assert not errors, errors


# --- patches ----------------------------------------------------------------------------------------


def add(thing, path, value):
    """The operation add of RFC 6902."""
    *parents, last = (p.replace("~1", "/").replace("~0", "~") for p in path.split("/")[1:])
    for p in parents:
        thing = thing[int(p)] if isinstance(thing, list) else thing[p]
    if isinstance(thing, dict):
        thing[last] = value
    else:
        at = len(thing) if last == "-" else int(last)
        assert 0 <= at <= len(thing), path
        thing.insert(at, value)


# --- CEL --------------------------------------------------------------------------------------------


class Policy:
    """The MutatingAdmissionPolicy as the API server evaluates it: types checked at compilation, variables in order, then the patch."""

    def __init__(self, thing):
        from cel_expr_python import cel
        from cel_expr_python.ext import ext_strings

        self.spec = thing["spec"]
        dynamic = dict.fromkeys(("object", "params", "variables"), cel.Type.DYN)
        index_of = cel.Overload("list_index_of", cel.Type.INT, [cel.Type.LIST, cel.Type.DYN], True, lambda items, item: items.index(item))
        self.extensions = [ext_strings.ExtStrings(), cel.CelExtension("kubernetes", [cel.FunctionDecl("indexOf", [index_of])])]
        self.env = cel.NewEnv(descriptor_pool=self.pool(), variables=dynamic, extensions=self.extensions)
        self.conditions = [self.env.compile(c["expression"]) for c in self.spec["matchConditions"]]
        self.variables = [(v["name"], self.env.compile(v["expression"])) for v in self.spec["variables"]]
        (mutation,) = self.spec["mutations"]
        self.patch = self.env.compile(mutation["jsonPatch"]["expression"])
        assert self.patch.return_type().name() == "LIST<JSONPatch>"

    @staticmethod
    def pool():
        from google.protobuf import descriptor_pb2, descriptor_pool, struct_pb2

        pool = descriptor_pool.DescriptorPool()
        pool.AddSerializedFile(struct_pb2.DESCRIPTOR.serialized_pb)
        file = descriptor_pb2.FileDescriptorProto(name="patch.proto", syntax="proto3", dependency=["google/protobuf/struct.proto"])
        message = file.message_type.add(name="JSONPatch")
        for number, name in enumerate(("op", "path"), 1):
            message.field.add(name=name, number=number, type=9, label=1)
        message.field.add(name="value", number=3, type=11, type_name=".google.protobuf.Value", label=1)
        pool.AddSerializedFile(file.SerializeToString())
        return pool

    def mutated(self, pod, parameters):
        """The pod after the policy."""
        from google.protobuf import json_format

        data = {"object": pod, "params": {"data": parameters}, "variables": {}}
        if not all(evaluated(c, data) for c in self.conditions):
            return pod
        for name, expression in self.variables:
            data["variables"] = {**data["variables"], name: evaluated(expression, data)}
        result = copy.deepcopy(pod)
        for step in evaluated(self.patch, data):
            operation = json_format.MessageToDict(step)
            assert operation["op"] == "add"
            add(result, operation["path"], whole(operation.get("value")))
        return result


def evaluated(expression, data):
    value = expression.eval(data=data)
    assert value.type().name() != "ERROR", value.plain_value()
    return value.plain_value()


def whole(value):
    """A message of protobuf has only floating-point numbers."""
    if isinstance(value, float):
        assert value.is_integer()
        return int(value)
    if isinstance(value, dict):
        return {k: whole(v) for k, v in value.items()}
    return [whole(v) for v in value] if isinstance(value, list) else value


def parameters(**changes):
    data = kustomize("inject")[("ConfigMap", NAMESPACE, "dray-inject")]["data"]
    assert set(changes) <= set(data)
    return {**data, **changes}
