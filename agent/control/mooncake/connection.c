/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests for queue pairs, as JSON. A request names both ends by "segment@device", and has the LID, GID and queue pairs of the
 * guest's end; the answer mirrors it. Its readers stop their process if a value has another type than they expect.
 */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/mooncake/internal.h"
#include "lib/cleanup.h"

#define QPN_MAX 0xffffff

/* Sixteen bytes in hexadecimal, with colons in between. 0 or -EINVAL. */
static int gid_parse(const char *text, struct in6_addr *ret)
{
	static const char digits[] = "0123456789abcdef";

	if (strlen(text) != MOONCAKE_GID_TEXT - 1)
		return -EINVAL;
	for (unsigned i = 0; i < sizeof(ret->s6_addr); i++, text += 3) {
		const char *high = memchr(digits, text[0] | 0x20, 16);
		const char *low = memchr(digits, text[1] | 0x20, 16);

		if (!high || !low || text[2] != (i + 1 < sizeof(ret->s6_addr) ? ':' : '\0'))
			return -EINVAL;
		ret->s6_addr[i] = (uint8_t)((high - digits) << 4 | (low - digits));
	}
	return 0;
}

const char *mooncake_gid_show(const struct in6_addr *gid, char buf[static MOONCAKE_GID_TEXT])
{
	for (unsigned i = 0; i < sizeof(gid->s6_addr); i++)
		snprintf(buf + (size_t)3 * i, MOONCAKE_GID_TEXT - (size_t)3 * i,
			 "%02x:", gid->s6_addr[i]);
	return buf;
}

/* A name that needs no escapes in JSON, nor in a log. */
static bool is_plain(const char *text)
{
	for (; *text; text++)
		if (*text <= ' ' || *text > '~' || *text == '"' || *text == '\\')
			return false;
	return true;
}

static const char *string_of(const json_t *o, const char *key)
{
	const char *text = json_string_value(json_object_get(o, key));

	return text ? text : "";
}

static const char *queue_pairs_of(const json_t *list, struct rails_guest_request *ret)
{
	size_t n = json_array_size(list);

	if (!n || n > RAILS_GUEST_QUEUE_PAIRS)
		return "qp_num has no queue pairs, or too many";
	for (size_t i = 0; i < n; i++) {
		const json_t *v = json_array_get(list, i);
		json_int_t qpn = json_integer_value(v);

		if (!json_is_integer(v) || qpn < 0 || qpn > QPN_MAX)
			return "qp_num has an invalid number";
		ret->qpn[i] = (uint32_t)qpn;
	}
	ret->n = (unsigned)n;
	return NULL;
}

/* NULL, or why it is refused. */
static const char *understand(const json_t *o, const char *segment, struct rails_guest_request *ret)
{
	const char *path = string_of(o, "local_nic_path"), *ours = string_of(o, "peer_nic_path");
	const json_t *lid = json_object_get(o, "local_lid");
	size_t n = strlen(segment);

	if (!*path || strlen(path) >= sizeof(ret->path) || !is_plain(path))
		return "local_nic_path is no name of a device";
	if (strncmp(ours, segment, n) != 0 || ours[n] != '@' || !ours[n + 1] ||
	    strlen(ours + n + 1) >= sizeof(ret->device) || !is_plain(ours))
		return "peer_nic_path is no device of this segment";
	if (gid_parse(string_of(o, "local_gid"), &ret->gid) < 0)
		return "local_gid is no GID; engines before version 0.3.11 send none";
	if (lid && (!json_is_integer(lid) || json_integer_value(lid) < 0 ||
		    json_integer_value(lid) > UINT16_MAX))
		return "local_lid is no LID";
	snprintf(ret->path, sizeof(ret->path), "%s", path);
	snprintf(ret->device, sizeof(ret->device), "%s", ours + n + 1);
	ret->lid = (uint16_t)json_integer_value(lid);
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

char *connection_answer(const struct mooncake_server *s, const struct rails_guest_request *request,
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
		fprintf(f, "%s@%s", s->name, d->name);
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
