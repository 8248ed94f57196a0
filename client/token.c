/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "client/internal.h"

#define PREFIX "dray1:"
#define PREFIX_N (sizeof(PREFIX) - 1)
#define SCHEME "mooncake://"
#define SCHEME_N (sizeof(SCHEME) - 1)

/* Characters of base64url (RFC 4648 section 5) without padding for n bytes. */
#define TEXT_LENGTH(n) (((n)*4 + 2) / 3)

_Static_assert(PREFIX_N + TEXT_LENGTH(DMSG_TOKEN_MAX) < DRAY_TOKEN_TEXT_MAX,
	       "the text of any token fits");

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

static void encode(const uint8_t *src, size_t n, char *dst)
{
	uint32_t acc = 0;
	unsigned bits = 0;

	for (size_t i = 0; i < n; i++) {
		acc = acc << 8 | src[i];
		for (bits += 8; bits >= 6; bits -= 6)
			*dst++ = alphabet[acc >> (bits - 6) & 63];
	}
	if (bits)
		*dst++ = alphabet[acc << (6 - bits) & 63];
	*dst = '\0';
}

/* Bytes written; 0: a bad character, or no text of at most DRAY_TOKEN_MAX bytes. */
static size_t decode(const char *src, uint8_t dst[DRAY_TOKEN_MAX])
{
	uint32_t acc = 0;
	unsigned bits = 0;
	size_t length = 0, n = strlen(src);

	for (size_t i = 0; i < n; i++) {
		const char *c = strchr(alphabet, src[i]);

		if (!c || (bits >= 2 && length == DRAY_TOKEN_MAX))
			return 0;
		acc = acc << 6 | (uint32_t)(c - alphabet);
		bits += 6;
		if (bits < 8)
			continue;
		bits -= 8;
		dst[length++] = (uint8_t)(acc >> bits);
	}
	/* one text for each value: no single character is left, and bits that no byte uses are 0 */
	return n % 4 == 1 || acc & ((1U << bits) - 1) ? 0 : length;
}

int dray_token_from_bytes(const void *bytes, size_t length, struct dray_token *ret)
{
	if (!bytes || !length || length > DRAY_TOKEN_MAX)
		return -DRAY_E_TOKEN_INVALID;
	*ret = (struct dray_token){ .length = (uint32_t)length };
	memcpy(ret->data, bytes, length);
	/* the name of a segment of Mooncake is text in both forms */
	if (length >= SCHEME_N && !memcmp(bytes, SCHEME, SCHEME_N)) {
		if (memchr(bytes, 0, length))
			return -DRAY_E_TOKEN_INVALID;
		memcpy(ret->text, bytes, length);
		return 0;
	}
	memcpy(ret->text, PREFIX, PREFIX_N);
	encode(ret->data, length, ret->text + PREFIX_N);
	return 0;
}

int dray_token_parse(const char *text, struct dray_token *ret)
{
	uint8_t data[DRAY_TOKEN_MAX];

	if (text && !strncmp(text, SCHEME, SCHEME_N))
		return dray_token_from_bytes(text, strlen(text), ret);
	if (!text || strncmp(text, PREFIX, PREFIX_N) != 0)
		return -DRAY_E_TOKEN_INVALID;
	return dray_token_from_bytes(data, decode(text + PREFIX_N, data), ret);
}

int dc_token_take(struct dray *d, struct request *r, struct dray_blob bytes, uint64_t id)
{
	struct dray_token *token = r->answer = malloc(sizeof(*token));

	if (!token)
		return -DRAY_E_NO_MEMORY;
	if (dray_token_from_bytes(bytes.p, bytes.n, token) < 0)
		return -DRAY_E_PROTOCOL;
	token->id = id;
	token->epoch = d->epoch;
	return 0;
}

int dc_token_made(struct dray *d, struct request *r, const struct dmsg_region_export_reply *m)
{
	r->number = m->token_id;
	return dc_token_take(d, r, m->token, m->token_id);
}

/* Revokes a token that no caller will see. Without memory for that, it ends with the session. */
void dc_token_ended(struct dray *d, struct request *r)
{
	if ((r->abandoned || r->status) && r->number && !d->loss.code)
		dc_request_internal(d, DMSG_REGION_REVOKE, r->region, NO_REMOTE, r->number);
}

static int export_start(struct dray *d, dray_region region, const struct dray_export *what,
			uint64_t mooncake, void *arg, uint64_t *ret_id)
{
	static const struct dray_export whole;
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	struct region *g;
	struct request *r;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	r = dc_region_request(d, DMSG_REGION_EXPORT, region, arg, &g);
	if (!r)
		return dc_failed();
	if (!what)
		what = &whole;
	if (!what->length && g->borrowed)
		return dc_request_refuse(d, r, DRAY_E_RANGE,
					 "a range of a borrowed region needs a length");
	if (!what->length && what->offset >= g->length)
		return dc_request_refuse(d, r, DRAY_E_RANGE, "the range is empty");
	r->what = (struct dmsg_region_export){
		.offset = what->offset,
		.length = what->length ? what->length : g->length - what->offset,
		.access = (uint16_t)(what->access ? what->access : g->access),
		.flags = (uint16_t)((what->single_use ? DMSG_EXPORT_FLAG_SINGLE_USE : 0) |
				    (mooncake ? DMSG_EXPORT_FLAG_MOONCAKE : 0)),
		.ttl_ms = what->ttl_ms,
		.mooncake = mooncake,
	};
	memcpy(r->what.audience, what->audience, sizeof(r->what.audience));
	return dc_request_go(d, r, ret_id);
}

int dray_region_export_start(struct dray *d, dray_region region, const struct dray_export *what,
			     void *arg, uint64_t *ret_id)
{
	return export_start(d, region, what, 0, arg, ret_id);
}

int dray_region_export_mooncake_start(struct dray *d, dray_region region,
				      const struct dray_export *what, uint64_t address, void *arg,
				      uint64_t *ret_id)
{
	if (!address)
		return -DRAY_E_INVALID;
	return export_start(d, region, what, address, arg, ret_id);
}

static int export_wait(struct dray *d, dray_region region, const struct dray_export *what,
		       uint64_t mooncake, struct dray_token *ret)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	struct dray_completion c;
	uint64_t id;
	int error;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	error = dc_request_wait(d, export_start(d, region, what, mooncake, NULL, &id), &id, 0, &c);
	if (!error)
		*ret = *c.token;
	return error;
}

int dray_region_export(struct dray *d, dray_region region, const struct dray_export *what,
		       struct dray_token *ret)
{
	return export_wait(d, region, what, 0, ret);
}

int dray_region_export_mooncake(struct dray *d, dray_region region, const struct dray_export *what,
				uint64_t address, struct dray_token *ret)
{
	if (!address)
		return -DRAY_E_INVALID;
	return export_wait(d, region, what, address, ret);
}

int dray_region_revoke_start(struct dray *d, dray_region region, const struct dray_token *token,
			     void *arg, uint64_t *ret_id)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	struct region *g;
	struct request *r;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	r = dc_region_request(d, DMSG_REGION_REVOKE, region, arg, &g);
	if (!r)
		return dc_failed();
	/* one that was parsed; without a number the agent revokes all tokens */
	if (token && !token->id)
		return dc_request_refuse(
			d, r, DRAY_E_NOT_FOUND,
			"the token does not say which one it is; pass the struct that the export made");
	/* in this session, the id may belong to another token */
	if (token && token->epoch != d->epoch)
		return dc_request_refuse(d, r, DRAY_E_NOT_FOUND,
					 "the token is of an earlier session, and void");
	r->number = token ? token->id : 0;
	return dc_request_go(d, r, ret_id);
}

int dray_region_revoke(struct dray *d, dray_region region, const struct dray_token *token)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	uint64_t id;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	return dc_request_wait(d, dray_region_revoke_start(d, region, token, NULL, &id), &id, 0,
			       NULL);
}
