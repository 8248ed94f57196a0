/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the profiles: the answer for a variable, usable ports, and the host. */
#pragma once

#include "agent/config/env_profile.h"
#include "agent/placement/environment/env.h"

struct env_answer {
	char *value, *reason;
	bool skip; /* the variable is not listed at all */
};

#define ENV_ANSWER_NULL ((struct env_answer){ .value = NULL })

/* 0 or -ENOMEM. env_set() takes over value, also on errors; NULL: no memory. */
int env_set(struct env_answer *a, char *value, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
int env_omit(struct env_answer *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* NULL for no memory. */
char *env_format(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static inline bool env_has(const char *s)
{
	return s && *s;
}

/* A port that libraries can use by its name and a GID index. */
struct env_port {
	uint16_t device; /* index in the scan */
	const struct nd_device *d;
	const struct nd_port *p;
	const struct nd_gid *gid; /* NULL: InfiniBand, which needs no choice */
};

struct env_fabric {
	struct env_port *v; /* in the scan's order */
	size_t n;
	char *left_out; /* "; left out: " and ports that cannot be used, with the reason; "" for none */
	const char *none; /* if n is 0: the reason */
};

/* only: the number of the ports; 0: any. 0 or -ENOMEM. */
int env_fabric_make(struct env_fabric *f, const struct nd_scan *scan, uint32_t only);
void env_fabric_deinit(struct env_fabric *f);

/* The port of that device, or NULL. */
const struct env_port *env_fabric_find(const struct env_fabric *f, uint16_t device);

struct env_input {
	const struct env_facts *facts;
	const struct env_profile *profile;
	struct env_fabric fabric; /* the ports that the profile takes */
};

/* The GID index of all ports; omitted with the reason if they differ. */
int env_gid_index(const struct env_input *in, struct env_answer *a);

/* The names of the devices, separated by commas, in the form of the profile; omitted if there are no ports. */
int env_devices(const struct env_input *in, struct env_answer *a);

struct env_rule {
	const char *name;
	int (*fn)(const struct env_input *in, struct env_answer *a); /* 0 or -ENOMEM */
};

struct env_profile {
	const char *doc;
	bool arguments;            /* of a command line, instead of variables */
	uint32_t port;             /* takes only ports with this number; 0: all, as DEVICE:PORT */
	bool exact;                /* lists of devices begin with = */
	struct env_rule rules[10]; /* up to the first without a name */
};

extern const struct env_profile env_profile_dray, env_profile_vllm, env_profile_vllm_dray,
	env_profile_vllm_mooncake, env_profile_mooncake, env_profile_mooncake_owner,
	env_profile_nccl, env_profile_ucx;

extern const struct env_profile *const env_profiles[ENV_PROFILE_N];

/* Is there a host that others can use? 1; else 0 or -ENOMEM, which is the result of env_omit(). */
int env_host_check(const struct env_input *in, struct env_answer *a);
/* The host, as a name or an address. */
int env_host(const struct env_input *in, struct env_answer *a);
bool env_host_is_ipv6(const struct env_facts *f);
bool env_host_is_numeric(const struct env_facts *f);
/* Why this host, such as "the default route uses it". */
const char *env_host_reason(const struct env_facts *f);

/* A device for each GPU, by position (gpus.c). */
int env_gpu_devices(const struct env_input *in, struct env_answer *a);
