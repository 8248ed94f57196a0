/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/placement/environment/env.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/placement/environment/internal.h"
#include "lib/array.h"
#include "lib/cleanup.h"
#include "schema/gen/errors.h"

const struct env_profile *const env_profiles[ENV_PROFILE_N] = {
	[ENV_PROFILE_DRAY] = &env_profile_dray,
	[ENV_PROFILE_VLLM] = &env_profile_vllm,
	[ENV_PROFILE_VLLM_DRAY] = &env_profile_vllm_dray,
	[ENV_PROFILE_VLLM_MOONCAKE] = &env_profile_vllm_mooncake,
	[ENV_PROFILE_MOONCAKE] = &env_profile_mooncake,
	[ENV_PROFILE_MOONCAKE_OWNER] = &env_profile_mooncake_owner,
	[ENV_PROFILE_NCCL] = &env_profile_nccl,
	[ENV_PROFILE_UCX] = &env_profile_ucx,
};

char *env_format(const char *fmt, ...)
{
	va_list ap;
	char *s;
	int n;

	va_start(ap, fmt);
	n = vasprintf(&s, fmt, ap);
	va_end(ap);
	return n < 0 ? NULL : s;
}

__attribute__((format(printf, 2, 0))) static int reason_set(struct env_answer *a, const char *fmt,
							    va_list ap)
{
	if (vasprintf(&a->reason, fmt, ap) < 0) {
		a->reason = NULL;
		return -ENOMEM;
	}
	/* it may have names from outside the agent */
	for (char *c = a->reason; *c; c++)
		if ((unsigned char)*c < ' ' || *c == 0x7f)
			*c = ' ';
	return 0;
}

int env_omit(struct env_answer *a, const char *fmt, ...)
{
	va_list ap;
	int ret;

	va_start(ap, fmt);
	ret = reason_set(a, fmt, ap);
	va_end(ap);
	return ret;
}

int env_set(struct env_answer *a, char *value, const char *fmt, ...)
{
	va_list ap;
	int ret;

	if (!value)
		return -ENOMEM;
	/* neither the file nor the protocol can carry a newline */
	if (strpbrk(value, "\r\n")) {
		free(value);
		return env_omit(a, "its value holds a newline");
	}
	a->value = value;
	va_start(ap, fmt);
	ret = reason_set(a, fmt, ap);
	va_end(ap);
	return ret;
}

bool env_host_is_ipv6(const struct env_facts *f)
{
	struct in6_addr a;

	return env_has(f->host) && inet_pton(AF_INET6, f->host, &a) == 1;
}

bool env_host_is_numeric(const struct env_facts *f)
{
	struct in_addr a;

	return env_host_is_ipv6(f) || (env_has(f->host) && inet_pton(AF_INET, f->host, &a) == 1);
}

const char *env_host_reason(const struct env_facts *f)
{
	return env_has(f->host_reason) ? f->host_reason : "the address to advertise";
}

int env_host_check(const struct env_input *in, struct env_answer *a)
{
	const struct env_facts *f = in->facts;
	bool why = env_has(f->host_reason);
	int r;

	if (!env_has(f->host))
		r = env_omit(a, "no address to advertise%s%s", why ? ": " : " was found",
			     why ? f->host_reason : "");
	else if (!strcmp(f->host, "0.0.0.0") || !strcmp(f->host, "::"))
		r = env_omit(a, "%s is not an address that others can use", f->host);
	else
		r = 1;
	return r;
}

int env_host(const struct env_input *in, struct env_answer *a)
{
	int r = env_host_check(in, a);

	return r <= 0 ? r : env_set(a, strdup(in->facts->host), "%s", env_host_reason(in->facts));
}

static int variable_add(struct env *e, enum env_profile_id id, const struct env_rule *rule,
			struct env_answer *a)
{
	struct env_variable v = { .profile = env_profile_names[id],
				  .name = rule->name,
				  .value = a->value,
				  .reason = a->reason,
				  .argument = env_profiles[id]->arguments };

	if (a->skip)
		return 0;
	if (DRAY_APPEND(e->v, e->n, v) < 0)
		return -ENOMEM;
	a->value = a->reason = NULL;
	return 0;
}

static int profile_add(struct env *e, const struct env_facts *facts, enum env_profile_id id)
{
	struct env_input in = { .facts = facts, .profile = env_profiles[id] };
	int ret = env_fabric_make(&in.fabric, facts->scan, in.profile->port);

	for (const struct env_rule *rule = in.profile->rules; ret >= 0 && rule->name; rule++) {
		struct env_answer a = ENV_ANSWER_NULL;

		ret = rule->fn(&in, &a);
		if (ret >= 0)
			ret = variable_add(e, id, rule, &a);
		free(a.value);
		free(a.reason);
	}
	env_fabric_deinit(&in.fabric);
	return ret;
}

int env_make(const struct env_facts *facts, const char *const *profiles, size_t n, struct env *ret,
	     struct dray_err *reterr)
{
	bool added[ENV_PROFILE_N] = { false };
	struct env e = ENV_NULL;
	int r = 0;

	for (size_t i = 0; i < n; i++)
		if (env_profile_check(profiles[i], reterr) < 0)
			return -EINVAL;
	for (size_t i = 0; r >= 0 && i < n; i++) {
		enum env_profile_id id = env_profile_find(profiles[i]);

		if (!added[id])
			r = profile_add(&e, facts, id);
		added[id] = true;
	}
	if (r < 0) {
		env_deinit(&e);
		return dray_err_set(reterr, r, DRAY_E_INTERNAL, "no memory for the environment");
	}
	*ret = e;
	return 0;
}

void env_deinit(struct env *e)
{
	for (size_t i = 0; i < e->n; i++) {
		free(e->v[i].value);
		free(e->v[i].reason);
	}
	free(e->v);
	*e = ENV_NULL;
}
