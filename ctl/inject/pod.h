/* SPDX-License-Identifier: Apache-2.0 */
/* A pod, or a template of pods, in a manifest: whether it gets a sidecar, and the changes that give it one. */
#pragma once

#include "ctl/inject/edit.h"
#include "ctl/inject/template.h"

struct inject_pod {
	struct ctl *c;
	const struct ctl_yaml *yaml;
	yaml_document_t *d;
	yaml_node_t *pod, *spec;
	const char *container; /* the name of the first one, for messages */
	const struct inject_parameters *parameters;
	struct inject_edits *edits;
};

enum inject_fate {
	INJECT_NOT_WANTED, /* it has no annotation, or one that declines */
	INJECT_BEFORE,     /* it has its sidecar already */
	INJECT_SKIPPED,
	INJECT_DONE,
};

/* True if the mapping is a pod or a template, and not an object that contains one. */
bool inject_is_pod(yaml_document_t *d, yaml_node_t *mapping);

/*
 * Adds the changes to p->edits. all: pods without the annotation want a sidecar too. *reason: why it was skipped. One of enum
 * inject_fate, or -1 with c->failure if the form of the manifest does not allow the change.
 */
int inject_pod(struct inject_pod *p, bool all, const char **reason);
