# SPDX-License-Identifier: Apache-2.0
"""The tables of `drayctl inject`: templates as JSON, parameters and reasons."""

import json

from generator.text import banner, header_file, quoted

HEADER = """
/* A parameter of the templates. */
struct kubernetes_parameter {
	const char *name;
	const char *def;
	bool optional; /* may be empty */
	const char *words; /* the allowed ones, with | between them; NULL: any text */
};

/* A condition of the templates holds if its parameter is not empty. */
struct kubernetes_condition {
	const char *name;
	enum kubernetes_parameter_id parameter;
};

enum kubernetes_refusal_kind {
	KUBERNETES_REFUSAL_ANNOTATED, /* the pod has the annotation `where` */
	KUBERNETES_REFUSAL_EQUAL, /* the field `where`, a path with dots, is `value` */
	KUBERNETES_REFUSAL_NAME, /* an element of the list `where` of the spec is named `value` */
	KUBERNETES_REFUSAL_MOUNT, /* a container mounts something at `where` */
	KUBERNETES_REFUSAL_MISSING, /* the annotation of containers names one that the pod does not have */
};

/* Why a pod gets no sidecar; the first reason that holds counts. */
struct kubernetes_refusal {
	enum kubernetes_refusal_kind kind;
	const char *where, *value;
	const char *reason;
};

extern const struct kubernetes_parameter kubernetes_parameters[KUBERNETES_PARAMETER_N];
extern const struct kubernetes_condition kubernetes_conditions[KUBERNETES_CONDITIONS_N];
extern const struct kubernetes_refusal kubernetes_refusals[KUBERNETES_REFUSALS_N];

/*
 * Templates, in JSON. A string may contain ${parameter}. {"when": condition, "then": ..., "else": ...} is a choice; without
 * else, a list has one element less. ["split", parameter] is a list from a parameter with commas.
 */
extern const char kubernetes_sidecar[]; /* the first init container */
extern const char kubernetes_volumes[]; /* a list */
extern const char kubernetes_variable[], kubernetes_mount[]; /* of chosen containers */
"""
COLUMNS = 100


def literal(value):
    text, parts = json.dumps(value, separators=(",", ":")), []
    while text:
        parts.append(quoted(text[:COLUMNS]))
        text = text[COLUMNS:]
    return "\n\t" + "\n\t".join(parts)


def parameter(p):
    words = quoted("|".join(p["words"])) if "words" in p else "NULL"
    return f"\t{{ {quoted(p['name'])}, {quoted(p['default'])}, {json.dumps(p['optional'])}, {words} }},\n"


def refusal(r):
    where = {"annotated": "annotation", "equal": "field", "name": "list", "mount": "path", "missing": None}[r["kind"]]
    where = r[where] if where else ""
    value = r.get("value", r.get("name", ""))
    return (f"\t{{ KUBERNETES_REFUSAL_{r['kind'].upper()}, {quoted(where if isinstance(where, str) else '.'.join(where))}, "
            f"{quoted(value if isinstance(value, str) else json.dumps(value))},\n\t  {quoted(r['reason'])} }},\n")


def write(schema):
    h = "#include <stdbool.h>\n\n" + "".join(f"#define KUBERNETES_{key.upper()} {quoted(value)}\n" for key, value in schema.names.items())
    h += f"#define KUBERNETES_CONDITIONS_N {len(schema.conditions)}\n#define KUBERNETES_REFUSALS_N {len(schema.refusals)}\n"
    ids = [f"KUBERNETES_PARAMETER_{p['name'].upper()}" for p in schema.parameters]
    h += "\nenum kubernetes_parameter_id {\n" + "".join(f"\t{i},\n" for i in ids) + "\tKUBERNETES_PARAMETER_N\n};\n" + HEADER
    c = banner("/*", " */") + '#include "schema/gen/kubernetes.h"\n\n#include <stddef.h>\n\n'
    c += "const struct kubernetes_parameter kubernetes_parameters[KUBERNETES_PARAMETER_N] = {\n"
    c += "".join(parameter(p) for p in schema.parameters) + "};\n\n"
    c += "const struct kubernetes_condition kubernetes_conditions[KUBERNETES_CONDITIONS_N] = {\n"
    c += "".join(f"\t{{ {quoted(n)}, KUBERNETES_PARAMETER_{p.upper()} }},\n" for n, p in schema.conditions.items()) + "};\n\n"
    c += "const struct kubernetes_refusal kubernetes_refusals[KUBERNETES_REFUSALS_N] = {\n" + "".join(map(refusal, schema.refusals)) + "};\n"
    for name, value in (("sidecar", schema.sidecar), ("volumes", schema.volumes), ("variable", schema.engine["env"]),
                        ("mount", schema.engine["volumeMount"])):
        c += f"\nconst char kubernetes_{name}[] ={literal(value)};\n"
    return {"schema/gen/kubernetes.h": header_file(h), "schema/gen/kubernetes.c": c}
