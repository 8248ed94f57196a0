/* SPDX-License-Identifier: Apache-2.0 */
/* The sidecar of schema/kubernetes.yaml with the values of its parameters. */
#pragma once

#include <jansson.h>

#include "ctl/ctl.h"
#include "schema/gen/kubernetes.h"

struct inject_parameters {
	char *given[KUBERNETES_PARAMETER_N]; /* NULL: the default */
};

#define INJECT_PARAMETERS_NULL ((struct inject_parameters){ .given = { NULL } })

/*
 * Reads the parameters from a file: the ConfigMap of the policy, or a mapping of their names. 0, or -1 with c->failure; the
 * caller frees them in any case.
 */
int inject_parameters_read(struct ctl *c, const char *path, struct inject_parameters *ret);
void inject_parameters_deinit(struct inject_parameters *p);

/* A template of schema/gen/kubernetes.h with the parameters, which the caller releases; NULL: no memory. */
json_t *inject_template(const struct inject_parameters *p, const char *text);
