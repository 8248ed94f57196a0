# SPDX-License-Identifier: Apache-2.0
"""drayctl inject gives a pod what the policy gives it, and leaves the rest of a manifest as it is."""

import json
import os
import subprocess

import pytest
import yaml
from kube import ROOT, TABLE, Policy, kustomize, parameters
from test_policy import pod_of

DRAYCTL = ROOT / os.environ.get("DRAY_BUILD", "build") / "drayctl"
WANTED = 'dray.dev/inject: "true"'


class Indented(yaml.SafeDumper):
    """Elements of lists are further to the right than their key."""

    def increase_indent(self, flow=False, indentless=False):
        return super().increase_indent(flow, False)


FORMS = {
    "lines": lambda pod: yaml.safe_dump(pod, sort_keys=False),
    "indented lines": lambda pod: yaml.dump(pod, Dumper=Indented, sort_keys=False, indent=4),
    "short lists in brackets": lambda pod: yaml.safe_dump(pod, default_flow_style=None, sort_keys=False),
    "braces": lambda pod: yaml.safe_dump(pod, default_flow_style=True, sort_keys=False, width=60),
    "JSON": json.dumps,
    "JSON with lines": lambda pod: json.dumps(pod, indent=3),
    "no newline at the end": lambda pod: yaml.safe_dump(pod, sort_keys=False).rstrip("\n"),
    "CRLF": lambda pod: yaml.safe_dump(pod, sort_keys=False).replace("\n", "\r\n"),
    "other characters": lambda pod: "# größer: 日本語 🙂\n" + yaml.safe_dump(pod, sort_keys=False),
    "byte order mark": lambda pod: "\ufeff" + yaml.safe_dump(pod, sort_keys=False),
    "a comment behind each line": lambda pod: yaml.safe_dump(pod, sort_keys=False, width=1000).replace("\n", "  # it's {a} [comment]\n"),
    "JSON with a comment behind each line": lambda pod: json.dumps(pod, indent=3).replace("\n", "  # it's {a} [comment]\n"),
    "in a list": lambda pod: yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [pod]}, sort_keys=False),
    "in a deployment": lambda pod: yaml.safe_dump({"kind": "Deployment", "spec": {"replicas": 2, "template": {k: pod[k] for k in ("metadata", "spec")}}}),
    "behind another document": lambda pod: "---\nkind: Namespace\n---\n" + yaml.safe_dump(pod, sort_keys=False) + "...\n---\nkind: Service\n",
}


def pods_in(text):
    """The pods of a manifest in one of these forms."""
    for thing in filter(None, yaml.load_all(text, yaml.CSafeLoader)):
        if thing["kind"] == "List":
            yield from thing["items"]
        elif thing["kind"] == "Deployment":
            yield {"apiVersion": "v1", "kind": "Pod", **thing["spec"]["template"]}
        elif thing["kind"] == "Pod":
            yield thing


def inject(text, *options, check=True):
    done = subprocess.run([DRAYCTL, "inject", "-f", "-", *options], input=text.encode(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert not check or done.returncode == 0, done.stderr
    return done if not check else done.stdout.decode()


@pytest.fixture(scope="module")
def groups():
    """Rows of the table with the same parameters: the parameters, the pods, and what the policy makes of them."""
    policy, found = Policy(kustomize("inject")[("MutatingAdmissionPolicy", None, "dray-inject")]), {}
    for row in TABLE:
        values = row.get("values", {})
        _, pods, wanted = found.setdefault(json.dumps(values), (values, [], []))
        pods.append(pod_of(row))
        wanted.append(policy.mutated(pod_of(row), parameters(**values)))
    assert len(found) > 3
    return found.values()


@pytest.mark.parametrize("form", FORMS)
def test_the_policy_and_drayctl_agree(groups, form, tmp_path):
    file = tmp_path / "parameters.yaml"
    for values, pods, wanted in groups:
        file.write_text(yaml.safe_dump({"kind": "ConfigMap", "data": values}))
        text = FORMS[form](pods[0]) + "".join("\n---\n" + FORMS[form](pod).lstrip("\ufeff") for pod in pods[1:])
        after = inject(text, "--parameters", file)
        assert list(pods_in(after)) == wanted
        assert inject(after, "--parameters", file) == after, "a second run changes nothing"


@pytest.mark.parametrize("form", FORMS)
def test_text_is_only_added(groups, form):
    """Each character of the manifest is still there, in order."""
    for _, pods, _ in groups:
        for pod in pods[:4]:
            text = FORMS[form](pod)
            rest = iter(inject(text))
            assert all(ch in rest for ch in text)


MANIFEST = """\
# What the file says is not lost.
apiVersion: v1
kind: Pod
metadata:
    name: vllm
    annotations: {dray.dev/inject: "true"} # wanted
spec:
    containers: # engines
        - name: engine # the first one
          image: vllm
          command: ["vllm", serve, 'm']
          env:
          - {name: A, value: "1"} # one
          - name: B
            value: |
              two
              lines

          # end of the container
    # end of the list
    nodeSelector:
        gpu: "yes" # quoted
# end of the file
"""


def test_comments_order_and_form_stay(tmp_path):
    """Without the lines and the words that were added, the text is that of before."""
    file = tmp_path / "parameters"
    file.write_text('keySecret: ""')
    after = inject(MANIFEST, "--parameters", file)
    added = [line for line in after.splitlines() if line not in MANIFEST.splitlines()]
    assert after.index("- name: DRAY_SOCKET") > after.index("              lines\n")
    assert after.index("volumeMounts:") < after.index("    # end of the list")
    assert after.endswith("# end of the file\n") and 'gpu: "yes" # quoted\n    initContainers:\n      - name: dray\n' in after
    assert '    annotations: {dray.dev/inject: "true", "dray.dev/inject-result": "injected"} # wanted\n' in after
    kept = [line for line in after.splitlines() if line not in added]
    assert kept == [line for line in MANIFEST.splitlines() if "annotations:" not in line]


def test_pods_in_objects_of_any_kind():
    """Templates are found by their form, also in resources that drayctl does not know."""
    template = {"metadata": {"annotations": {"dray.dev/inject": "true"}}, "spec": {"containers": [{"name": "engine"}]}}
    manifest = {"kind": "LeaderWorkerSet", "spec": {"leaderWorkerTemplate": {"leaderTemplate": template, "workerTemplate": template}}}
    cron = {"kind": "CronJob", "spec": {"jobTemplate": {"spec": {"template": template}}}}
    plain = {"kind": "Deployment", "spec": {"template": {"spec": {"containers": [{"name": "web"}]}}}}
    text = yaml.dump_all([manifest, cron, plain], Dumper=type("NoAliases", (yaml.SafeDumper,), {"ignore_aliases": lambda *_: True}))
    after = list(yaml.safe_load_all(inject(text)))
    found = [*after[0]["spec"]["leaderWorkerTemplate"].values(), after[1]["spec"]["jobTemplate"]["spec"]["template"]]
    assert [t["spec"]["initContainers"][0]["name"] for t in found] == ["dray"] * 3
    assert after[2] == plain
    (every,) = yaml.safe_load_all(inject(yaml.safe_dump(plain), "--all"))
    pod = every["spec"]["template"]
    assert pod["spec"]["initContainers"][0]["name"] == "dray" and pod["metadata"]["annotations"] == {"dray.dev/inject-result": "injected"}
    declined = 'kind: Pod\nmetadata: {annotations: {dray.dev/inject: "false"}}\nspec: {containers: [{name: a}]}\n'
    assert inject(declined, "--all") == declined


@pytest.mark.parametrize("empty", ["", " null", " ~", " []", " [ ]", " # nothing", " [\n  ]"])
def test_empty_lists(empty):
    text = f"kind: Pod\nmetadata:\n  annotations: {{{WANTED},}}\nspec:\n  initContainers:{empty}\n  volumes:{empty}\n  containers:\n  - name: a\n    env:{empty}\n"
    pod = yaml.safe_load(inject(text))
    assert [len(pod["spec"][k]) for k in ("initContainers", "volumes")] == [1, 3] and len(pod["spec"]["containers"][0]["env"]) == 1


def keys_of(node):
    """The names of the keys of a mapping of the text, at which a key that is a mapping itself counts as None."""
    return [key.value if isinstance(key, yaml.ScalarNode) else None for key, _ in node.value]


@pytest.mark.parametrize("key", ["? app: vllm", "? app: vllm\n{0}: x", "? app: vllm\n{0}:", "? app", "? app # why\n\n# after", "? - app\n{0}  - vllm",
                                 "? app:\n{0}    deep: 1", "? |\n{0}   text", "? {{app: vllm}}", "? ? app"])
@pytest.mark.parametrize("last", [True, False], ids=["last", "first"])
def test_explicit_keys(key, last):
    """A key after a question mark may be a mapping and may lack a value. What is added stands behind all of it."""
    def block(column, *lines):
        explicit = " " * column + key.format(" " * column)
        return "\n".join([*(" " * column + line for line in lines), explicit] if last else [explicit, *(" " * column + line for line in lines)])
    text = "\n".join(["kind: Pod", "metadata:", "  annotations:", block(4, 'dray.dev/inject: "true"'), "  labels:", block(4, "a: b"),
                      "spec:", "  containers:", "  -", block(4, "name: engine", "image: vllm"), "  # end", "  nodeSelector:", "    gpu: x", ""])
    before, after = yaml.compose(text), yaml.compose(inject(text))
    old, new = ({k.value: v for k, v in node.value} for node in (before, after))
    (annotations, labels), (old_annotations, old_labels) = ([v for _, v in n["metadata"].value] for n in (new, old))
    assert keys_of(annotations) == [*keys_of(old_annotations), "dray.dev/inject-result"]
    assert keys_of(labels) == [*keys_of(old_labels), "dray.dev/agent"]
    spec, old_spec = ({k.value: v for k, v in n["spec"].value} for n in (new, old))
    assert set(spec) == {*old_spec, "initContainers", "volumes"}
    assert keys_of(spec["containers"].value[0]) == [*keys_of(old_spec["containers"].value[0]), "env", "volumeMounts"]


@pytest.mark.parametrize("container", [
    "\n  - name: engine\n    command: *list",
    "\n  - &again\n    name: engine",
    "\n  - !!map\n    name: engine",
    "\n  - &key name: engine\n    &other image: vllm",
    " !!seq\n  - name: engine",
    " !!seq [!!map {name: engine, command: *list}]",
    " &again [&engine {name: engine, env: !!seq [!!map {name: A}]}]",
    " [{name: engine, command: *list} # one\n  ]",
    " [{name: engine, command: }]",
    " [{name: engine, env: }]",
    "\n  - name: engine\n    args:\n    - |+\n      text\n\n\n",
    "\n  - name: engine\n    args:\n    - >2+ # kept\n        text\n\n\n  # end",
    "\n  - name: engine\n    args:\n    - |-\n      text\n\n\n",
])
@pytest.mark.parametrize("last", ["", "\n  nodeSelector: *map"], ids=["", "alias"])
def test_tags_anchors_aliases_and_newlines(container, last):
    """What is added stands behind all of a node, and changes no value there."""
    text = f"list: &list [a]\nmap: &map {{a: b}}\nmetadata: {{annotations: {{{WANTED}}}}}\nspec:\n  containers:{container}{last}\n"
    before, after = (yaml.safe_load(t)["spec"] for t in (text, inject(text)))
    assert [i["name"] for i in after.pop("initContainers")] == ["dray"] and len(after.pop("volumes")) == 3
    (engine,), (old,) = after.pop("containers"), before.pop("containers")
    old_env = old.pop("env", None) or []
    assert after == before and engine.pop("volumeMounts")[-1]["name"] == "dray-run"
    assert engine.pop("env") == [*old_env, {"name": "DRAY_SOCKET", "value": "/run/dray/dray.sock"}]
    assert engine == old


@pytest.mark.parametrize(("text", "message"), [
    (f"metadata: {{annotations: {{{WANTED}}}}}\nspec:\n  containers: [name: a]\n", "line 3: a container has no braces"),
    ("a: [", "line 2"),
    ("kind: Pod\n  bad: 1\n", "line 2"),
    ("a: \"\0\"", "NUL"),
    (f"x: &e [{{name: A}}]\npod:\n  metadata: {{annotations: {{{WANTED}}}}}\n  spec: {{containers: [{{name: a, env: *e}}]}}\n", "line 1: env is used by an alias"),
    (f"base: &b {{hostNetwork: true}}\npod:\n  metadata: {{annotations: {{{WANTED}}}}}\n  spec:\n    <<: *b\n    containers: [{{name: a}}]\n", "line 5: spec has a merge key"),
    (f"metadata: {{annotations: {{{WANTED}}}}}\nspec:\n  volumes:\n    emptyDir: {{}}\n  containers: [{{name: a}}]\n", "line 4: volumes is not a list"),
    (f"metadata: {{annotations: {{{WANTED}}}, labels: x}}\nspec: {{containers: [{{name: a}}]}}\n", "line 1: labels is not a mapping"),
    ("[" * 200 + "]" * 200, "more than 100 levels"),
])
def test_errors_name_file_and_line(text, message):
    done = inject(text, check=False)
    assert done.returncode == 1 and done.stdout == b""
    assert message in done.stderr.decode() and "standard input" in done.stderr.decode()


@pytest.mark.parametrize(("argv", "status", "message"), [
    ([], 2, "inject needs a manifest"),
    (["-f", "/nonexistent"], 1, "cannot open /nonexistent: No such file or directory"),
    (["-f", "-", "--parameters", "-"], 2, "either the manifest or the parameters"),
])
def test_usage(argv, status, message, tmp_path):
    done = subprocess.run([DRAYCTL, "inject", *argv], input="kind: Pod", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (status, "") and message in done.stderr


@pytest.mark.parametrize(("given", "message"), [
    ("data: {imgae: x}", "unknown parameter imgae, did you mean image?"),
    ("memory: ''", "memory must not be empty"),
    ("image: null", "image must not be empty"),
    ("image:", "image must not be empty"),
    ("image: [x]", "image is not a text"),
    ("imagePullPolicy: Sometimes", "imagePullPolicy Sometimes is not allowed; use Always|IfNotPresent|Never"),
    ("image: x\nmemory: 1Gi\nimage: y", "line 3: image is there twice"),
    ('{"data": {"image": "x", "image": "x"}}', "line 1: image is there twice"),
    ("data: {image: x}\ndata: {image: y}", "line 2: data is there twice"),
    ("logLevel: inf", "logLevel inf is not allowed; use error|warning|notice|info|debug"),
])
def test_wrong_parameters_are_refused(given, message, tmp_path):
    (tmp_path / "PARAMETERS").write_text(given)
    done = subprocess.run([DRAYCTL, "inject", "-f", "-", "--parameters", tmp_path / "PARAMETERS"], input=MANIFEST, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (1, "") and message in done.stderr and "PARAMETERS" in done.stderr


def test_parameters_that_may_be_empty(tmp_path):
    """Null is empty: no key, and no devices."""
    (tmp_path / "PARAMETERS").write_text("keySecret: null\nrdmaResource: ~\ncapabilities: ''\nlogLevel: debug\n")
    pod = yaml.safe_load(inject(MANIFEST, "--parameters", tmp_path / "PARAMETERS"))
    (sidecar,) = pod["spec"]["initContainers"]
    assert [v["name"] for v in pod["spec"]["volumes"]] == ["dray-run", "dray-state"] and list(sidecar["resources"]["limits"]) == ["memory"]
    assert {"name": "DRAY_LOG_LEVEL", "value": "debug"} in sidecar["env"]


@pytest.mark.parametrize(("text", "note"), [
    ("kind: Service\n", "contains no pod"),
    ("kind: Pod\nspec: {containers: [{name: a}]}\n", "no pod in standard input has the annotation"),
    ("", "contains no pod"),
    (f"metadata: {{annotations: {{{WANTED}}}}}\nspec: {{hostNetwork: true, containers: [{{name: a}}]}}\n", "line 1: the pod gets no sidecar: agents of several pods"),
])
def test_notes(text, note):
    done = inject(text, check=False)
    assert done.returncode == 0 and note in done.stderr.decode()
