/* SPDX-License-Identifier: Apache-2.0 */
/* dray, vllm and vllm-dray: the socket and segment of the agent, the address for others, and dray's connectors. */
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

/* --- arguments of vLLM ---------------------------------------------------------------------------- */

/* The connector finds the socket by DRAY_SOCKET, and with this role an engine can prefill and decode. */
static int kv_transfer(const struct env_input *in, struct env_answer *a)
{
	return env_set(a,
		       strdup("{\"kv_connector\": \"DrayConnector\", "
			      "\"kv_connector_module_path\": \"dray.vllm\", "
			      "\"kv_role\": \"kv_both\"}"),
		       "KV caches by dray, for prefill and decode");
}

static int ec_transfer(const struct env_input *in, struct env_answer *a)
{
	return env_omit(
		a, "an engine either encodes or uses encoder outputs, and the agent does not know "
		   "which; exec --ec-transfer-config adds it");
}

const struct env_profile env_profile_vllm_dray = {
	.doc = "arguments of vLLM for dray's connectors",
	.arguments = true,
	.rules = { { "--kv-transfer-config", kv_transfer },
		   { "--ec-transfer-config", ec_transfer } },
};
