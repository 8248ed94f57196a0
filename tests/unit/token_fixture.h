/* SPDX-License-Identifier: Apache-2.0 */
/* Exporting, importing and revoking tokens, on a region fixture. */
#pragma once

#include <errno.h>

#include "lib/time.h"
#include "lib/wire.h"
#include "tests/unit/region_fixture.h"

#define SEGMENT "10.0.0.1:7411"
#define RW DMSG_ACCESS_ALL

struct exported {
	uint64_t id;
	uint8_t wire[DMSG_TOKEN_MAX];
	uint32_t length;
	struct pmsg_token t;
	char segment[256];
};

static inline int export_with(struct fixture *f, struct dmsg_region_export m, const char *segment,
			      struct exported *ret)
{
	last_err = DRAY_ERR_NULL;
	if (region_export(f->regions, &f->owner, &m, segment, &ret->id, ret->wire, &ret->length,
			  &last_err) == 0) {
		struct dray_err err = DRAY_ERR_NULL;

		assert_int_equal(token_parse(ret->wire, ret->length, &ret->t, ret->segment, &err),
				 0);
		assert_string_equal(ret->segment, segment);
	}
	return last_err.code;
}

static inline struct exported export(struct fixture *f, dray_handle region, uint16_t flags)
{
	struct exported x;

	assert_int_equal(export_with(f,
				     (struct dmsg_region_export){ .region = region,
								  .offset = 16,
								  .length = 100,
								  .access = RW,
								  .flags = flags },
				     SEGMENT, &x),
			 0);
	return x;
}

static inline int import_as(struct fixture *f, const struct pmsg_token *t, dray_handle peer,
			    dray_handle *ret)
{
	struct pmsg_import m = { .token_id = t->token_id,
				 .region = t->region,
				 .incarnation = t->incarnation };
	struct pmsg_import_reply reply = { 0 };

	memcpy(m.capability, t->capability, sizeof(m.capability));
	last_err = DRAY_ERR_NULL;
	if (grant_import(f->regions, peer, peer_id, &m, &reply, &last_err) == 0) {
		assert_int_equal(reply.length, t->length);
		assert_int_equal(reply.access, t->access);
	}
	*ret = reply.grant;
	return last_err.code;
}

static inline int import(struct fixture *f, const struct pmsg_token *t, dray_handle *ret)
{
	return import_as(f, t, PEER, ret);
}

static inline int import_local(struct fixture *f, const struct pmsg_token *t, dray_handle remote)
{
	struct remote_view view = { .o = { .handle = remote } };

	last_err = DRAY_ERR_NULL;
	if (token_import_local(f->regions, t, &view, &last_err) == 0) {
		assert_int_equal(view.region, t->region);
		assert_int_equal(view.offset, t->offset);
		assert_int_equal(view.o.length, t->length);
		assert_int_equal(view.o.access, t->access);
	}
	return last_err.code;
}

struct outcome {
	unsigned calls;
	uint32_t count;
};

static inline void revoked(void *arg, uint32_t count)
{
	struct outcome *o = arg;

	o->calls++;
	o->count = count;
}

static inline int start_revoke(struct fixture *f, dray_handle region, uint64_t token,
			       struct outcome *o)
{
	*o = (struct outcome){ 0 };
	last_err = DRAY_ERR_NULL;
	region_revoke(f->regions, region, &f->owner, token, revoked, o, &last_err);
	assert_int_equal(o->calls, 0);
	return last_err.code;
}

static inline void remove_all(struct fixture *f, dray_handle region)
{
	unsigned done = 0;

	assert_int_equal(region_remove(f->regions, region, SESSION, true, count_done, &done), 0);
	fake_answer_all();
	assert_int_equal(done, 1);
	assert_int_equal(f->tokens, 0);
}
