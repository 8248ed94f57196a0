/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/mooncake/connection.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/mooncake/gid.h"
#include "lib/cleanup.h"
#include "lib/plain.h"
#include "schema/gen/errors.h"

#define QPN_MAX 0xffffff

static const char *string_of(const json_t *o, const char *key)
{
	const char *text = json_string_value(json_object_get(o, key));

	return text ? text : "";
}

/* -1: it is none. */
static int64_t queue_pair_of(const json_t *v)
{
	json_int_t qpn = json_integer_value(v);

	return json_is_integer(v) && qpn >= 0 && qpn <= QPN_MAX ? qpn : -1;
}

static const char *queue_pairs_of(const json_t *list, struct rails_guest_request *ret)
{
	size_t n = json_array_size(list);

	if (!n || n > RAILS_GUEST_QUEUE_PAIRS)
		return "qp_num has no queue pairs, or too many";
	for (size_t i = 0; i < n; i++) {
		int64_t qpn = queue_pair_of(json_array_get(list, i));

		if (qpn < 0)
			return "qp_num has an invalid number";
		ret->qpn[i] = (uint32_t)qpn;
	}
	ret->n = (unsigned)n;
	return NULL;
}

/* -1: it is none. */
static int lid_of(const json_t *o)
{
	const json_t *v = json_object_get(o, "local_lid");
	json_int_t lid = json_integer_value(v);

	return !v ? 0 : json_is_integer(v) && lid >= 0 && lid <= UINT16_MAX ? (int)lid : -1;
}

/* NULL, or why it is refused. */
static const char *understand(const json_t *o, const char *segment, struct rails_guest_request *ret)
{
	const char *path = string_of(o, "local_nic_path"), *ours = string_of(o, "peer_nic_path");
	int lid = lid_of(o);
	size_t n = strlen(segment);

	if (!*path || strlen(path) >= sizeof(ret->path) || !mooncake_name_is_plain(path))
		return "local_nic_path is no name of a device";
	if (strncmp(ours, segment, n) != 0 || ours[n] != '@' || !ours[n + 1] ||
	    strlen(ours + n + 1) >= sizeof(ret->device) || !mooncake_name_is_plain(ours))
		return "peer_nic_path is no device of this segment";
	if (mooncake_gid_parse(string_of(o, "local_gid"), &ret->gid) < 0)
		return "local_gid is no GID; engines before version 0.3.11 send none";
	if (lid < 0)
		return "local_lid is no LID";
	snprintf(ret->path, sizeof(ret->path), "%s", path);
	snprintf(ret->device, sizeof(ret->device), "%s", ours + n + 1);
	ret->lid = (uint16_t)lid;
	return queue_pairs_of(json_object_get(o, "qp_num"), ret);
}

const char *connection_parse(const char *text, size_t n, const char *segment,
			     struct rails_guest_request *ret)
{
	json_error_t error;
	json_t *o = json_loadb(text, n, JSON_DISABLE_EOF_CHECK, &error);
	const char *why = o ? understand(o, segment, ret) : "the request is not JSON";

	json_decref(o);
	return why;
}

char *connection_answer(const char *segment, const struct rails_guest_request *request,
			const struct rails_guest_reply *reply, size_t *ret_n)
{
	const struct rails_guest_device *d = &reply->device;
	bool good = !reply->refused;
	char gid[MOONCAKE_GID_TEXT] = "", *text = NULL;
	FILE *f = open_memstream(&text, ret_n);
	bool bad;

	if (!f)
		return NULL;
	fprintf(f, "{\"local_gid\":\"%s\",\"local_lid\":%u,\"local_nic_path\":\"",
		good ? mooncake_gid_show(&d->gid, gid) : "", good ? d->lid : 0u);
	if (good)
		fprintf(f, "%s@%s", segment, d->name);
	fprintf(f, "\",\"payload\":\"\",\"peer_nic_path\":\"%s\",\"qp_num\":[",
		good ? request->path : "");
	for (unsigned i = 0; good && i < reply->n; i++)
		fprintf(f, "%s%" PRIu32, i ? "," : "", reply->qpn[i]);
	fprintf(f, "],\"reply_msg\":\"%s\"}\n", good ? "" : reply->refused);
	bad = ferror(f);
	if (fclose(f) || bad) {
		free(text);
		return NULL;
	}
	return text;
}

char *connection_request(const struct connection_ends *ends,
			 const struct rails_engine_request *request, unsigned n, uint32_t unused,
			 size_t *ret_n)
{
	char gid[MOONCAKE_GID_TEXT], *text = NULL;
	FILE *f = open_memstream(&text, ret_n);
	bool bad;

	if (!f)
		return NULL;
	fprintf(f,
		"{\"local_gid\":\"%s\",\"local_lid\":%u,\"local_nic_path\":\"%s\",\"payload\":\"\","
		"\"peer_nic_path\":\"%s\",\"qp_num\":[%" PRIu32,
		mooncake_gid_show(&request->gid, gid), request->lid, ends->ours, ends->theirs,
		request->qpn);
	for (unsigned i = 1; i < n; i++)
		fprintf(f, ",%" PRIu32, unused & QPN_MAX);
	fputs("],\"reply_msg\":\"\"}\n", f);
	bad = ferror(f);
	if (fclose(f) || bad) {
		free(text);
		return NULL;
	}
	return text;
}

/* NULL, or what is wrong. */
static const char *reply_of(const json_t *o, const struct connection_ends *ends,
			    struct connection_reply *ret)
{
	const json_t *list = json_object_get(o, "qp_num");
	const char *refused = string_of(o, "reply_msg");
	size_t n = json_array_size(list);
	int lid = lid_of(o);
	int64_t qpn = queue_pair_of(json_array_get(list, 0));

	/* what releases before 0.3.12 answer if they refuse */
	if (json_is_null(o)) {
		snprintf(ret->refused, sizeof(ret->refused), "%s", "it does not say why");
		return NULL;
	}
	if (!json_is_object(o))
		return "no object";
	ret->n = n <= RAILS_GUEST_QUEUE_PAIRS ? (unsigned)n : 0;
	if (*refused) {
		dray_plain(ret->refused, sizeof(ret->refused), refused, strlen(refused));
		return NULL;
	}
	if (strcmp(string_of(o, "local_nic_path"), ends->theirs) != 0 ||
	    strcmp(string_of(o, "peer_nic_path"), ends->ours) != 0)
		return "the answer to another request, or of an engine without RDMA";
	if (!ret->n || qpn < 0)
		return "no queue pair";
	if (mooncake_gid_parse(string_of(o, "local_gid"), &ret->gid) < 0)
		return "no GID; versions before 0.3.11 are not supported over RDMA";
	if (lid < 0)
		return "no LID";
	ret->qpn = (uint32_t)qpn;
	ret->lid = (uint16_t)lid;
	return NULL;
}

int connection_answer_read(const char *text, size_t n, const struct connection_ends *ends,
			   struct connection_reply *ret, struct dray_err *reterr)
{
	json_error_t error;
	json_t *o = json_loadb(text, n, JSON_DECODE_ANY | JSON_DISABLE_EOF_CHECK, &error);
	const char *why;

	*ret = (struct connection_reply){ .n = 0 };
	why = o ? reply_of(o, ends, ret) : "no JSON";
	json_decref(o);
	return why ? dray_err_set(reterr, -EPROTO, DRAY_E_PROTOCOL,
				  "Mooncake's engine answers a request for a queue pair with %s",
				  why) :
		     0;
}
