/* SPDX-License-Identifier: Apache-2.0 */
/* vllm-mooncake, mooncake and mooncake-owner: Mooncake's transfer engine and store. Mooncake adds port and brackets to a host itself. */
#include <string.h>

#include "agent/placement/environment/internal.h"
#include "lib/addr.h"

#define FIRST_PORT 1 /* Mooncake takes no others */

static int preferred_segment(const struct env_input *in, struct env_answer *a)
{
	const struct env_facts *f = in->facts;
	const char *state = env_has(f->preferred.state) ? f->preferred.state : "unknown";

	if (!env_has(f->preferred.name))
		return env_omit(a, "no segment is preferred%s%s",
				env_has(f->preferred.reason) ? ": " : "",
				env_has(f->preferred.reason) ? f->preferred.reason : "");
	if (f->preferred.agent)
		return env_omit(a, "%.100s is a dray agent, and no segment of Mooncake's",
				f->preferred.name);
	if (!dray_endpoint_valid(f->preferred.name))
		return env_omit(a, "\"%.100s\" is not HOST:PORT", f->preferred.name);
	return env_set(a, strdup(f->preferred.name), "%s, %s%s%s",
		       env_has(f->preferred.preference) ? f->preferred.preference : "preferred",
		       state, env_has(f->preferred.reason) ? ": " : "",
		       env_has(f->preferred.reason) ? f->preferred.reason : "");
}

/* Any value selects IPv6, so the variable must be absent otherwise. */
static int use_ipv6(const struct env_input *in, struct env_answer *a)
{
	a->skip = !env_host_is_ipv6(in->facts);
	return a->skip ? 0 : env_set(a, strdup("1"), "%s is IPv6", in->facts->host);
}

static int protocol(const struct env_input *in, struct env_answer *a)
{
	if (!in->facts->scan)
		return env_omit(a, "%s", in->fabric.none);
	if (!in->fabric.n)
		return env_set(a, strdup("tcp"), "%s%s", in->fabric.none, in->fabric.left_out);
	return env_set(a, strdup("rdma"), "%zu active port%s", in->fabric.n,
		       in->fabric.n == 1 ? "" : "s");
}

static int master(const struct env_input *in, struct env_answer *a)
{
	if (!env_has(in->facts->master))
		return env_omit(a, "no Mooncake master is known");
	return env_set(a, strdup(in->facts->master), "the Mooncake master that the agent knows");
}

const struct env_profile env_profile_vllm_mooncake = {
	.doc = "vLLM with a Mooncake connector: the segment to prefer, this node's name, RDMA",
	.port = FIRST_PORT,
	.rules = { { "MOONCAKE_PREFERRED_SEGMENT", preferred_segment },
		   { "MOONCAKE_REQUESTER_LOCAL_HOSTNAME", env_host },
		   { "MC_USE_IPV6", use_ipv6 },
		   { "MC_GID_INDEX", env_gid_index },
		   { "MOONCAKE_DEVICE", env_gpu_devices } },
};

const struct env_profile env_profile_mooncake = {
	.doc = "Mooncake's transfer engine or store within a process",
	.port = FIRST_PORT,
	.rules = { { "MOONCAKE_LOCAL_HOSTNAME", env_host },
		   { "MOONCAKE_MASTER", master },
		   { "MOONCAKE_PROTOCOL", protocol },
		   { "MC_USE_IPV6", use_ipv6 },
		   { "MC_GID_INDEX", env_gid_index },
		   { "MC_TE_FILTERS", env_devices } },
};

/* --- arguments of mooncake_client ----------------------------------------------------------------- */

/* Mooncake publishes it unchanged, so other nodes must be able to use it. */
static int owner_host(const struct env_input *in, struct env_answer *a)
{
	const struct env_facts *f = in->facts;
	bool v6 = env_host_is_ipv6(f);
	int r = env_host_check(in, a);

	if (r <= 0)
		return r;
	if (!f->owner_segment)
		return env_omit(a, "mooncake.owner_segment is not known");
	return env_set(
		a, env_format("%s%s%s:%u", v6 ? "[" : "", f->host, v6 ? "]" : "", f->owner_segment),
		"%s; port of mooncake.owner_segment", env_host_reason(f));
}

static int owner_rpc(const struct env_input *in, struct env_answer *a)
{
	if (!in->facts->owner_rpc)
		return env_omit(a, "mooncake.owner_rpc is not known");
	return env_set(a, env_format("%u", in->facts->owner_rpc), "mooncake.owner_rpc");
}

const struct env_profile env_profile_mooncake_owner = {
	.doc = "arguments of mooncake_client, the owner of this node's memory",
	.port = FIRST_PORT,
	.arguments = true,
	.rules = { { "--host", owner_host },
		   { "--port", owner_rpc },
		   { "--master_server_address", master },
		   { "--protocol", protocol },
		   { "--device_names", env_devices } },
};
