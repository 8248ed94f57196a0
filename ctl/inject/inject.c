/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inject: adds the sidecar to the pods of a manifest, as the MutatingAdmissionPolicy does in a cluster. A pod is found by its
 * form, in objects of any kind. The output is the input with additions.
 */
#include <string.h>

#include "ctl/inject/pod.h"

#define DEPTH_MAX 100

struct inject {
	struct ctl *c;
	struct ctl_yaml yaml;
	struct inject_parameters parameters;
	struct inject_edits edits;
	unsigned n_pods, n_wanted;
};

static void inject_deinit(struct inject *in)
{
	inject_edits_deinit(&in->edits);
	inject_parameters_deinit(&in->parameters);
	ctl_yaml_deinit(&in->yaml);
}

static int pod_visit(struct inject *in, yaml_document_t *d, yaml_node_t *node)
{
	struct inject_pod p = { .c = in->c,
				.yaml = &in->yaml,
				.d = d,
				.pod = node,
				.spec = ctl_yaml_get(d, node, "spec"),
				.parameters = &in->parameters,
				.edits = &in->edits };
	const char *reason = NULL;
	int fate = inject_pod(&p, in->c->values[CTL_OPTION_ALL], &reason);

	in->n_pods++;
	in->n_wanted += fate > INJECT_NOT_WANTED;
	if (fate == INJECT_SKIPPED)
		fprintf(in->c->err, "drayctl: %.200s, line %zu: the pod gets no sidecar: %s\n",
			in->yaml.name, node->start_mark.line + 1, reason);
	return fate;
}

/* An alias is visited where its anchor is. */
static int visit(struct inject *in, yaml_document_t *d, int id, const yaml_node_t *owner,
		 unsigned depth)
{
	yaml_node_t *node = yaml_document_get_node(d, id);
	int ret = 0;

	if (depth > DEPTH_MAX)
		return ctl_failed(in->c, "%.200s, line %zu: more than %d levels", in->yaml.name,
				  node->start_mark.line + 1, DEPTH_MAX);
	if (owner && node->start_mark.index < owner->start_mark.index)
		return 0;
	if (inject_is_pod(d, node))
		return pod_visit(in, d, node) < 0 ? -1 : 0;
	if (node->type == YAML_MAPPING_NODE)
		for (yaml_node_pair_t *p = node->data.mapping.pairs.start;
		     p < node->data.mapping.pairs.top && !ret; p++)
			ret = visit(in, d, p->value, node, depth + 1);
	if (node->type == YAML_SEQUENCE_NODE)
		for (yaml_node_item_t *i = node->data.sequence.items.start;
		     i < node->data.sequence.items.top && !ret; i++)
			ret = visit(in, d, *i, node, depth + 1);
	return ret;
}

static int read_all(struct inject *in)
{
	struct ctl *c = in->c;
	const char *file = c->values[CTL_OPTION_FILE];
	const char *parameters = c->values[CTL_OPTION_PARAMETERS];

	if (!file)
		return ctl_misuse(c, "inject needs a manifest: drayctl inject -f FILE");
	if (parameters && !strcmp(file, "-") && !strcmp(parameters, "-"))
		return ctl_misuse(c, "standard input is either the manifest or the parameters");
	if (parameters && inject_parameters_read(c, parameters, &in->parameters) < 0)
		return -1;
	if (ctl_yaml_read(c, file, &in->yaml) < 0)
		return -1;
	in->edits.yaml = &in->yaml;
	for (size_t i = 0; i < in->yaml.n_documents; i++)
		if (visit(in, &in->yaml.documents[i], 1, NULL, 0) < 0)
			return -1;
	return in->edits.no_memory ? ctl_no_memory(c) : 0;
}

int ctl_inject(struct ctl *c)
{
	struct inject in = { .c = c, .yaml = CTL_YAML_NULL, .parameters = INJECT_PARAMETERS_NULL };
	int ret = read_all(&in);

	if (!ret)
		inject_write(&in.edits, c->out);
	if (!ret && !in.n_pods)
		fprintf(c->err, "drayctl: %.200s contains no pod and no template of pods\n",
			in.yaml.name);
	else if (!ret && !in.n_wanted)
		fprintf(c->err,
			"drayctl: no pod in %.200s has the annotation %s: \"true\"; add it, or give --all\n",
			in.yaml.name, KUBERNETES_REQUEST);
	inject_deinit(&in);
	return ret;
}
