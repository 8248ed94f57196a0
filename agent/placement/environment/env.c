/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/placement/environment/env.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/placement/environment/internal.h"
#include "lib/cleanup.h"
#include "lib/nearest.h"
#include "schema/gen/errors.h"

static const struct env_profile *const profiles_all[] = {
	&env_profile_dray,     &env_profile_vllm,           &env_profile_vllm_mooncake,
	&env_profile_mooncake, &env_profile_mooncake_owner, &env_profile_nccl,
	&env_profile_ucx,
};

/* --- answers ------------------------------------------------------------------------------------ */

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
	/* names in it may be somebody else's */
	for (char *c = a->reason; *c; c++)
		if ((unsigned char)*c < ' ' || *c == 0x7f)
			*c = ' ';
	return 0;
}

int env_leave(struct env_answer *a, const char *fmt, ...)
{
	va_list ap;
	int ret;

	va_start(ap, fmt);
	ret = reason_set(a, fmt, ap);
	va_end(ap);
	return ret;
}

int env_say(struct env_answer *a, char *value, const char *fmt, ...)
{
	va_list ap;
	int ret;

	if (!value)
		return -ENOMEM;
	/* no file and no protocol here can carry it */
	if (strpbrk(value, "\r\n")) {
		free(value);
		return env_leave(a, "its value holds a newline");
	}
	a->value = value;
	va_start(ap, fmt);
	ret = reason_set(a, fmt, ap);
	va_end(ap);
	return ret;
}

/* --- the host ----------------------------------------------------------------------------------- */

bool env_host_is_ipv6(const struct env_facts *f)
{
	struct in6_addr a;

	return env_known(f->host) && inet_pton(AF_INET6, f->host, &a) == 1;
}

bool env_host_is_numeric(const struct env_facts *f)
{
	struct in_addr a;

	return env_host_is_ipv6(f) || (env_known(f->host) && inet_pton(AF_INET, f->host, &a) == 1);
}

const char *env_host_reason(const struct env_facts *f)
{
	return env_known(f->host_reason) ? f->host_reason : "the address to advertise";
}

bool env_host_ok(const struct env_input *in, struct env_answer *a, int *ret_left)
{
	const struct env_facts *f = in->facts;

	if (!env_known(f->host))
		*ret_left = env_leave(a, "no address to advertise%s%s",
				      env_known(f->host_reason) ? ": " : " was found",
				      env_known(f->host_reason) ? f->host_reason : "");
	else if (!strcmp(f->host, "0.0.0.0") || !strcmp(f->host, "::"))
		*ret_left = env_leave(a, "%s is no address that others can use", f->host);
	else
		return true;
	return false;
}

/* --- profiles ----------------------------------------------------------------------------------- */

const struct env_profile *env_profile_find(const char *name)
{
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(profiles_all); i++)
		if (!strcmp(profiles_all[i]->name, name))
			return profiles_all[i];
	return NULL;
}

static int unknown_profile(const char *name, struct dray_err *reterr)
{
	struct dray_nearest nearest = DRAY_NEAREST(name);
	char known[120];
	size_t at = 0;

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(profiles_all); i++) {
		dray_nearest_offer(&nearest, profiles_all[i]->name);
		at += (size_t)snprintf(known + at, sizeof(known) - at, "%s%s", i ? ", " : "",
				       profiles_all[i]->name);
	}
	return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
			    "unknown profile \"%.40s\"%s%s%s; there are %s", name,
			    nearest.best ? ", did you mean " : "", nearest.best ? nearest.best : "",
			    nearest.best ? "?" : "", known);
}

int env_profiles_check(const char *const *profiles, size_t n, struct dray_err *reterr)
{
	for (size_t i = 0; i < n; i++)
		if (!env_profile_find(profiles[i]))
			return unknown_profile(profiles[i], reterr);
	return 0;
}

int env_profiles_parse(const char *text, struct dray_strv *ret, struct dray_err *reterr)
{
	struct dray_strv list = DRAY_STRV_NULL;
	int r = 0;

	for (const char *at = text; r >= 0 && *at;) {
		size_t n = strcspn(at, ",");
		const char *name = at + strspn(at, " ");
		size_t length = n - dray_min((size_t)(name - at), n);

		while (length && name[length - 1] == ' ')
			length--;
		r = dray_strv_add(&list, name, length);
		at += n + (at[n] == ',');
		/* an empty name at the end is one, too */
		if (r >= 0 && !*at && at > text && at[-1] == ',')
			r = dray_strv_add(&list, "", 0);
	}
	if (r >= 0)
		r = env_profiles_check((const char *const *)list.v, list.n, reterr);
	if (r < 0) {
		dray_strv_clear(&list);
		return r;
	}
	*ret = list;
	return 0;
}

static int variable_add(struct env *e, const struct env_profile *p, const struct env_rule *rule,
			struct env_answer *a)
{
	struct env_variable *v;

	if (a->skip)
		return 0;
	v = reallocarray(e->v, e->n + 1, sizeof(*v));
	if (!v)
		return -ENOMEM;
	e->v = v;
	v[e->n++] = (struct env_variable){ .profile = p->name,
					   .name = rule->name,
					   .value = dray_take(a->value),
					   .reason = dray_take(a->reason),
					   .argument = p->arguments };
	return 0;
}

static int profile_add(struct env *e, const struct env_input *in, const struct env_profile *p)
{
	int ret = 0;

	for (const struct env_rule *rule = p->rules; ret >= 0 && rule->name; rule++) {
		struct env_answer a = ENV_ANSWER_NULL;

		ret = rule->fn(in, &a);
		if (ret >= 0)
			ret = variable_add(e, p, rule, &a);
		free(a.value);
		free(a.reason);
	}
	return ret;
}

static bool named_before(const char *const *profiles, size_t i)
{
	for (size_t k = 0; k < i; k++)
		if (!strcmp(profiles[k], profiles[i]))
			return true;
	return false;
}

int env_make(const struct env_facts *facts, const char *const *profiles, size_t n, struct env *ret,
	     struct dray_err *reterr)
{
	struct env_input in = { .facts = facts };
	struct env e = ENV_NULL;
	int r = env_profiles_check(profiles, n, reterr);

	if (r < 0)
		return r;
	r = env_fabric_make(&in.any, facts->scan, 0);
	if (r >= 0)
		r = env_fabric_make(&in.first, facts->scan, 1);
	for (size_t i = 0; r >= 0 && i < n; i++)
		if (!named_before(profiles, i))
			r = profile_add(&e, &in, env_profile_find(profiles[i]));
	env_fabric_deinit(&in.any);
	env_fabric_deinit(&in.first);
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
