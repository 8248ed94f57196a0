/* SPDX-License-Identifier: Apache-2.0 */
/* dray and vllm: the socket and segment of the agent, and the address for others. */
#include <string.h>

#include "agent/placement/environment/internal.h"

static int socket_of(const struct env_input *in, struct env_answer *a)
{
	if (!env_has(in->facts->data_socket))
		return env_omit(a, "the agent has no data socket");
	return env_set(a, strdup(in->facts->data_socket), "data.socket of the agent");
}

static int segment_of(const struct env_input *in, struct env_answer *a)
{
	if (!env_has(in->facts->segment))
		return env_omit(a, "the agent has no peer listener");
	return env_set(a, strdup(in->facts->segment), "the agent's own segment");
}

const struct env_profile env_profile_dray = {
	.doc = "the agent's data socket and segment",
	.rules = { { "DRAY_SOCKET", socket_of }, { "DRAY_SEGMENT", segment_of } },
};

/* vLLM does not resolve a name everywhere. */
static int host_address(const struct env_input *in, struct env_answer *a)
{
	int r = env_host_check(in, a);

	if (r > 0 && !env_host_is_numeric(in->facts))
		return env_omit(a, "%s is a name, and vLLM needs an address", in->facts->host);
	return r <= 0 ? r : env_host(in, a);
}

const struct env_profile env_profile_vllm = {
	.doc = "the address of this node, for vLLM and its NIXL side channel",
	.rules = { { "VLLM_HOST_IP", host_address }, { "VLLM_NIXL_SIDE_CHANNEL_HOST", env_host } },
};
