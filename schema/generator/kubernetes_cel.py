# SPDX-License-Identifier: Apache-2.0
"""The MutatingAdmissionPolicy, in CEL.

Kubernetes compiles CEL with homogeneous literals: all values of a map, and all elements of a list, have one type. dyn() gives them one.
"""

from generator.kubernetes import PARAMETER, is_choice, is_split

CONTAINER = "c.name in variables.containers"
COLUMNS = 110


def text(value):
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def block(begin, parts, end):
    """On one line if that is short."""
    line = begin + ", ".join(parts) + end
    if len(line) <= COLUMNS and "\n" not in line:
        return line
    return begin + ",".join("\n" + part for part in parts).replace("\n", "\n  ") + "\n" + end


def pointer(name):
    """A name in a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


class Cel:
    def __init__(self, schema):
        self.schema, self.names = schema, schema.names

    # --- values of templates ---------------------------------------------------------------------

    def string(self, value):
        parts = PARAMETER.split(value)  # text, name, text, name, ..., text
        return " + ".join(f"params.data.{p}" if i % 2 else text(p) for i, p in enumerate(parts) if i % 2 or p) or "''"

    def condition(self, name):
        return f"params.data.{self.schema.conditions[name]} != ''"

    def of_one_type(self, values):
        """Strings stay as they are; every other value becomes dynamic, and then all of them."""
        return [self.value(v) if all(isinstance(x, str) for x in values) else f"dyn({self.value(v)})" for v in values]

    def list(self, items):
        """Runs of elements that always exist, and between them those that depend on a condition."""
        parts, run = [], []
        for item in items:
            if is_choice(item) and "else" not in item:
                parts += [run] if run else []
                parts += [(item["when"], item["then"])]
                run = []
            else:
                run.append(item)
        parts += [run] if run or not parts else []
        always = all(isinstance(i, str) for i in items)
        element = (lambda i: self.value(i)) if always else (lambda i: f"dyn({self.value(i)})")
        texts = [f"({self.condition(p[0])} ? [{element(p[1])}] : [])" if isinstance(p, tuple) else block("[", [element(i) for i in p], "]") for p in parts]
        return " + ".join(texts)

    def value(self, node):
        if is_choice(node):
            return f"{self.condition(node['when'])}\n? dyn({self.value(node['then'])})\n: dyn({self.value(node['else'])})"
        if is_split(node):
            return f"params.data.{node[1]}.split(',').map(n, n.trim())"
        if isinstance(node, dict):
            values = self.of_one_type(list(node.values()))
            return block("{", [f"{self.string(k)}: {v}" for k, v in zip(node, values)], "}")
        if isinstance(node, list):
            return self.list(node)
        if isinstance(node, bool):
            return str(node).lower()
        return str(node) if isinstance(node, int) else self.string(node)

    # --- refusals --------------------------------------------------------------------------------

    def has(self, fields):
        """Tests for each step of the path, because has() fails if a step before the last one is missing."""
        return " && ".join(f"has(object.{'.'.join(fields[:n])})" for n in range(2 if fields[0] == "spec" else 1, len(fields) + 1))

    def refusal(self, r):
        if r["kind"] == "annotated":
            return f"{text(r['annotation'])} in variables.annotations"
        if r["kind"] == "equal":
            return f"{self.has(r['field'])} && object.{'.'.join(r['field'])} == {self.value(r['value'])}"
        if r["kind"] == "name":
            return f"has(object.spec.{r['list']}) && object.spec.{r['list']}.exists(x, x.name == {text(r['name'])})"
        if r["kind"] == "mount":
            return f"object.spec.containers.exists(c, has(c.volumeMounts) && c.volumeMounts.exists(m, m.mountPath == {text(r['path'])}))"
        return "!variables.containers.all(n, object.spec.containers.exists(c, c.name == n))"

    def reason(self):
        return "\n".join(f"{self.refusal(r)}\n  ? {text(r['reason'])} :" for r in self.schema.refusals) + "\n''"

    # --- patches ---------------------------------------------------------------------------------

    @staticmethod
    def add(path, value):
        return f"JSONPatch{{op: 'add', path: {path}, value: {value}}}"

    def into_list(self, path, missing, values, at="-"):
        """Adds values to a list of the pod, which may be missing."""
        return [f"({missing} ? [{self.add(text(path), '[]')}] : [])", *(f"[{self.add(text(f'{path}/{at}'), v)}]" if not c else
                f"({self.condition(c)} ? [{self.add(text(f'{path}/{at}'), v)}] : [])" for c, v in values)]

    def into_containers(self, field, key, value):
        """Adds the value to a list of each chosen container, unless an element has the same key."""
        path = f"'/spec/containers/' + string(object.spec.containers.indexOf(c)) + {text('/' + field)}"
        lacks = f"!(has(c.{field}) && c.{field}.exists(x, x.{key} == {text(value[key])}))"
        each = "object.spec.containers.filter(c, {}).map(c,\n  {})"
        return [each.format(f"{CONTAINER} && !has(c.{field})", self.add(path, "[]")),
                each.format(f"{CONTAINER} && {lacks}", self.add(f"{path} + '/-'", self.value(value)))]

    def patches(self):
        n, engine = self.names, self.schema.engine
        volumes = [(v["when"], self.value(v["then"])) if is_choice(v) else (None, self.value(v)) for v in self.schema.volumes]
        result = text("/metadata/annotations/" + pointer(n["result"]))
        injected = [f"[{self.add(result, text(n['injected']))}]",
                    f"(has(object.metadata.labels) ? [] : [{self.add(text('/metadata/labels'), '{}')}])",
                    f"[{self.add(text('/metadata/labels/' + pointer(n['agent'])), text('sidecar'))}]",
                    *self.into_list("/spec/initContainers", "!has(object.spec.initContainers)", [(None, "variables.sidecar")], "0"),
                    *self.into_list("/spec/volumes", "!has(object.spec.volumes)", volumes),
                    *self.into_containers("env", "name", engine["env"]), *self.into_containers("volumeMounts", "mountPath", engine["volumeMount"])]
        skipped = self.add(result, f"{text(n['skipped'])} + variables.reason")
        return f"variables.reason != '' ? [{skipped}] :\n" + " +\n".join(injected)

    # --- objects ---------------------------------------------------------------------------------

    def policy(self):
        n, annotations = self.names, "object.metadata.annotations"
        chosen = text(n["containers"])
        variables = [
            ("annotations", annotations),
            ("containers", f"{chosen} in variables.annotations ? variables.annotations[{chosen}].split(',').map(n, n.trim()) :\n"
                           "object.spec.containers.map(c, c.name)"),
            ("reason", self.reason()),
            ("sidecar", self.value(self.schema.sidecar)),
        ]
        request, result = text(n["request"]), text(n["result"])
        wanted = f"has({annotations}) && {request} in {annotations} && {annotations}[{request}] == 'true'"
        again = f"!(has({annotations}) && {result} in {annotations} && {annotations}[{result}] == {text(n['injected'])})"
        return {
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]},
            "matchConditions": [{"name": "requested", "expression": wanted}, {"name": "not-injected", "expression": again}],
            "variables": [{"name": name, "expression": expression} for name, expression in variables],
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": self.patches()}}],
        }
