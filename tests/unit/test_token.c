/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens: their form, who may make and import them, and how long they are valid. */
#include "agent/control/region/internal.h"
#include "tests/unit/token_fixture.h"

static uint64_t live_tokens(struct fixture *f)
{
	uint64_t regions, bytes, tokens;

	regions_totals(f->regions, &regions, &bytes, &tokens);
	return tokens;
}

static void test_parse(void **state)
{
	struct fixture *f = *state;
	dray_handle region = add_plain(f, 1);
	struct exported x = export(f, region, 0);
	uint8_t copy[DMSG_TOKEN_MAX + 1];
	struct dray_err err;
	struct pmsg_token t;
	char segment[256];

#define BAD(n)                                                                      \
	do {                                                                        \
		err = DRAY_ERR_NULL;                                                \
		assert_int_equal(token_parse(copy, n, &t, segment, &err), -EINVAL); \
		assert_int_equal(err.code, DRAY_E_TOKEN_INVALID);                   \
	} while (0)

	assert_memory_equal(x.t.agent_id, our_id, 16);
	assert_int_equal(x.t.incarnation, 5);
	assert_int_equal(x.t.region, region);
	assert_int_equal(x.t.token_id, x.id);
	assert_int_equal(x.t.expiry_ms, 0);
	for (uint32_t n = 0; n < x.length; n++) {
		memcpy(copy, x.wire, n);
		BAD(n);
	}
	memcpy(copy, x.wire, x.length);
	copy[x.length] = 0;
	BAD(x.length + 1);
	copy[0] = 2; /* version */
	BAD(x.length);
	memcpy(copy, x.wire, x.length);
	copy[4] = 4; /* access */
	BAD(x.length);
	copy[4] = 0;
	BAD(x.length);
	memcpy(copy, x.wire, x.length);
	memset(copy + 48, 0xff, 16); /* offset and length */
	BAD(x.length);
	memcpy(copy, x.wire, x.length);
	dray_le_put32(copy + PMSG_TOKEN_SIZE, UINT32_MAX);
	BAD(x.length);
	memcpy(copy, x.wire, x.length);
	copy[PMSG_TOKEN_SIZE + 4] = '\0';
	BAD(x.length);
	copy[PMSG_TOKEN_SIZE + 4] = '/';
	BAD(x.length);
	remove_all(f, region);
}

static void test_export(void **state)
{
	struct fixture *f = *state;
	int fd = make_memfd(PAGE, WHOLE);
	struct region_owner mine = f->owner;
	char longest[PMSG_TOKEN_SEGMENT_MAX + 2];
	struct dmsg_region_export m;
	struct exported x;
	dray_handle region;

	assert_int_equal(add_one(f, fd, 0, PAGE, DMSG_ACCESS_READ, &region), 0);
	close(fd);
	m = (struct dmsg_region_export){ .region = region,
					 .length = PAGE,
					 .access = DMSG_ACCESS_READ };
	assert_int_equal(export_with(f, m, "", &x), 0);
	m.access = RW;
	assert_int_equal(export_with(f, m, SEGMENT, &x), DRAY_E_DENIED);
	m.access = 0;
	assert_int_equal(export_with(f, m, SEGMENT, &x), DRAY_E_INVALID);
	m.access = DMSG_ACCESS_READ;
	m.length = 0;
	assert_int_equal(export_with(f, m, SEGMENT, &x), DRAY_E_INVALID);
	m.length = PAGE + 1;
	assert_int_equal(export_with(f, m, SEGMENT, &x), DRAY_E_RANGE);
	m.offset = UINT64_MAX;
	assert_int_equal(export_with(f, m, SEGMENT, &x), DRAY_E_RANGE);
	m.offset = 1;
	m.length = PAGE - 1;
	m.region++;
	assert_int_equal(export_with(f, m, SEGMENT, &x), DRAY_E_NOT_FOUND);
	m.region--;
	/* another group has no such region; another session of the group has it */
	f->owner.group++;
	assert_int_equal(export_with(f, m, SEGMENT, &x), DRAY_E_NOT_FOUND);
	f->owner = (struct region_owner){ SESSION + 1, GROUP, NULL, NULL, f->uid_owner };
	assert_int_equal(export_with(f, m, SEGMENT, &x), 0);
	assert_int_equal(f->tokens, 2);
	f->owner = mine;
	for (size_t i = 0; i < sizeof(longest); i++)
		longest[i] = i % 50 == 49 ? '.' : 'a';
	memcpy(longest + sizeof(longest) - 6, ":7411", 6);
	assert_int_equal(export_with(f, m, longest, &x), DRAY_E_UNSUPPORTED);
	assert_int_equal(export_with(f, m, longest + 1, &x), 0);
	for (unsigned i = 0; i < 5; i++)
		assert_int_equal(export_with(f, m, SEGMENT, &x), 0);
	assert_int_equal(export_with(f, m, SEGMENT, &x), DRAY_E_QUOTA);
	regions_drain(f->regions, true);
	assert_int_equal(export_with(f, m, SEGMENT, &x), DRAY_E_DRAINING);
	remove_all(f, region);
}

static void test_import(void **state)
{
	struct fixture *f = *state;
	dray_handle region = add_plain(f, 1), grants[5];
	struct exported x = export(f, region, 0);
	const struct grant_view *v;
	struct pmsg_token t = x.t;

	assert_int_equal(import(f, &t, &grants[0]), 0);
	v = (const struct grant_view *)fake_last[OBJECT_GRANT];
	assert_int_equal(v->o.handle, grants[0]);
	assert_int_equal(v->o.length, 100);
	assert_int_equal(v->o.session, SESSION);
	assert_int_equal(v->offset, 16);
	assert_int_equal(v->region, region);
	assert_int_equal(v->peer, PEER);
	assert_int_equal(grant_region(f->regions, PEER, grants[0]), region);
	assert_int_equal(grant_region(f->regions, PEER + 1, grants[0]), 0);

	t.capability[15] ^= 1;
	assert_int_equal(import(f, &t, &grants[1]), DRAY_E_TOKEN_INVALID);
	t = x.t;
	t.token_id++;
	assert_int_equal(import(f, &t, &grants[1]), DRAY_E_TOKEN_INVALID);
	t = x.t;
	t.region++;
	assert_int_equal(import(f, &t, &grants[1]), DRAY_E_TOKEN_INVALID);
	t = x.t;
	t.incarnation--;
	assert_int_equal(import(f, &t, &grants[1]), DRAY_E_INCARNATION);
	regions_drain(f->regions, true);
	assert_int_equal(import(f, &x.t, &grants[1]), DRAY_E_DRAINING);
	regions_drain(f->regions, false);
	for (unsigned i = 1; i < 4; i++)
		assert_int_equal(import(f, &x.t, &grants[i]), 0);
	assert_int_equal(import(f, &x.t, &grants[4]), DRAY_E_QUOTA);
	assert_int_equal(import_as(f, &x.t, PEER + 1, &grants[4]), 0);
	assert_int_equal(grants_count(f->regions, PEER), 4);

	/* a release by another peer has no effect */
	grant_release(f->regions, PEER + 1, grants[0], PMSG_RELEASE_HOW_USED);
	assert_int_equal(fake_waiting(), 0);
	grant_release(f->regions, PEER, grants[0], PMSG_RELEASE_HOW_USED);
	assert_int_equal(grant_region(f->regions, PEER, grants[0]), 0);
	assert_int_equal(grants_count(f->regions, PEER), 4);
	fake_answer(OBJECT_GRANT, grants[0]);
	assert_int_equal(grants_count(f->regions, PEER), 3);
	grants_peer_gone(f->regions, PEER);
	grants_peer_gone(f->regions, PEER + 1);
	grants_peer_gone(f->regions, PEER + 2);
	assert_int_equal(f->fences, 0);
	fake_answer_all();
	assert_int_equal(grants_count(f->regions, PEER), 0);
	/* the token is still valid */
	assert_int_equal(import(f, &x.t, &grants[0]), 0);
	grants_peer_gone(f->regions, PEER);
	remove_all(f, region);
}

static void test_audience(void **state)
{
	struct fixture *f = *state;
	dray_handle region = add_plain(f, 1), grant;
	struct dmsg_region_export m = { .region = region, .length = 1, .access = RW };
	struct exported x;

	m.audience[3] = 1;
	assert_int_equal(export_with(f, m, SEGMENT, &x), 0);
	assert_int_equal(import(f, &x.t, &grant), DRAY_E_TOKEN_AUDIENCE);
	assert_int_equal(import_local(f, &x.t, 77), DRAY_E_TOKEN_AUDIENCE);
	memcpy(m.audience, peer_id, 16);
	assert_int_equal(export_with(f, m, SEGMENT, &x), 0);
	assert_int_equal(import(f, &x.t, &grant), 0);
	memcpy(m.audience, our_id, 16);
	assert_int_equal(export_with(f, m, SEGMENT, &x), 0);
	assert_int_equal(import(f, &x.t, &grant), DRAY_E_TOKEN_AUDIENCE);
	assert_int_equal(import_local(f, &x.t, 77), 0);
	grants_peer_gone(f->regions, PEER);
	remove_all(f, region);
}

static void test_single_use(void **state)
{
	struct fixture *f = *state;
	dray_handle region = add_plain(f, 1), grant, other;
	struct exported x = export(f, region, DMSG_EXPORT_FLAG_SINGLE_USE);

	assert_int_equal(import(f, &x.t, &grant), 0);
	assert_int_equal(import(f, &x.t, &other), DRAY_E_TOKEN_USED);
	assert_int_equal(import_local(f, &x.t, 77), DRAY_E_TOKEN_USED);
	assert_int_equal(f->tokens, 1);
	grant_release(f->regions, PEER, grant, PMSG_RELEASE_HOW_USED);
	fake_answer_all();
	/* it no longer counts for the quota, and a later import still gets the reason */
	assert_int_equal(f->tokens, 0);
	assert_int_equal(import(f, &x.t, &other), DRAY_E_TOKEN_USED);
	x.t.capability[0] ^= 1;
	assert_int_equal(import(f, &x.t, &other), DRAY_E_TOKEN_INVALID);
	/* nor do zeros match a record of ended tokens that is not used yet */
	x.t.token_id = 0;
	memset(x.t.capability, 0, sizeof(x.t.capability));
	assert_int_equal(import(f, &x.t, &other), DRAY_E_TOKEN_INVALID);
	x = export(f, region, DMSG_EXPORT_FLAG_SINGLE_USE);
	assert_int_equal(import_local(f, &x.t, 77), 0);
	assert_int_equal(import(f, &x.t, &other), DRAY_E_TOKEN_USED);
	local_remote_gone(f->regions, x.id, 77, PMSG_RELEASE_HOW_USED);
	assert_int_equal(f->tokens, 0);
	remove_all(f, region);
}

static void pass_ms(int64_t ms)
{
	int64_t until = dray_now().ns + ms * DRAY_NS_PER_MS;

	while (dray_now().ns <= until)
		;
}

static void test_expiry(void **state)
{
	struct fixture *f = *state;
	dray_handle region = add_plain(f, 1), held, grant;
	struct dmsg_region_export m = {
		.region = region, .length = 1, .access = RW, .ttl_ms = 3600000
	};
	struct exported x, brief, unused;

	assert_int_equal(export_with(f, m, SEGMENT, &x), 0);
	assert_in_range(x.t.expiry_ms, dray_unix_ms() + 3590000, dray_unix_ms() + 3600000);
	/* a short time to live, and a longer one if a busy machine let it pass before the import */
	m.ttl_ms = 10;
	do {
		m.ttl_ms *= 2;
		assert_int_equal(export_with(f, m, SEGMENT, &brief), 0);
	} while (import(f, &brief.t, &held) == DRAY_E_TOKEN_EXPIRED);
	assert_int_equal(export_with(f, m, SEGMENT, &unused), 0);
	assert_int_equal(live_tokens(f), 3);
	pass_ms(m.ttl_ms);
	assert_int_equal(import(f, &brief.t, &grant), DRAY_E_TOKEN_EXPIRED);
	assert_int_equal(import(f, &unused.t, &grant), DRAY_E_TOKEN_EXPIRED);
	/* a grant that was made in time stays */
	assert_int_equal(grant_region(f->regions, PEER, held), region);
	assert_int_equal(live_tokens(f), 2);
	assert_int_equal(f->tokens, 2);
	assert_int_equal(import(f, &unused.t, &grant), DRAY_E_TOKEN_EXPIRED);
	grant_release(f->regions, PEER, held, PMSG_RELEASE_HOW_USED);
	fake_answer_all();
	assert_int_equal(live_tokens(f), 1);
	assert_int_equal(import(f, &x.t, &grant), 0);
	grants_peer_gone(f->regions, PEER);
	remove_all(f, region);
}

/* A session at its quota can export again when its tokens expire. */
static void test_expiry_quota(void **state)
{
	struct fixture *f = *state;
	dray_handle region = add_plain(f, 1);
	struct dmsg_region_export m = { .region = region, .length = 1, .access = RW };
	struct exported x;

	for (unsigned round = 0; round < 3; round++) {
		for (uint32_t i = 0; i < 8; i++) {
			m.ttl_ms = 1 + (i * 5 + round) % 8;
			assert_int_equal(export_with(f, m, SEGMENT, &x), 0);
		}
		pass_ms(8);
	}
	assert_int_equal(live_tokens(f), 0);
	remove_all(f, region);
}

/* More tokens expire at once than one turn frees. */
static void test_expiry_in_turns(void **state)
{
	const unsigned n = 2 * TOKENS_EXPIRE_PER_TURN + 1;
	struct fixture *f = *state;
	struct region *made;
	dray_handle region = add_plain(f, 1);
	struct dmsg_region_export m = {
		.region = region, .length = 1, .access = RW, .ttl_ms = 3600000
	};
	struct exported x;

	f->cfg.limits.tokens_per_session = n;
	f->regions->deps.event = f->event;
	assert_int_equal(tokens_init(f->regions), 0);
	for (unsigned i = 0; i < n; i++)
		assert_int_equal(export_with(f, m, SEGMENT, &x), 0);
	assert_int_equal(export_with(f, m, SEGMENT, &x), DRAY_E_QUOTA);
	made = dray_handles_get(&f->regions->regions, region);
	dray_list_for_each(&made->tokens, t, struct token, link)
		assert_int_equal(dray_heap_set(&f->regions->expiry, &t->expiry, 0), 0);
	assert_int_equal(export_with(f, m, SEGMENT, &x), 0);
	assert_int_equal(f->tokens, n + 1 - TOKENS_EXPIRE_PER_TURN);
	/* the quota is not used up by them */
	f->cfg.limits.tokens_per_session = 1;
	assert_int_equal(export_with(f, m, SEGMENT, &x), DRAY_E_BUSY);
	assert_non_null(strstr(last_err.msg, "try again"));
	for (uint32_t before; f->tokens > 1;) {
		before = f->tokens;
		assert_true(sd_event_run(f->event, UINT64_MAX) >= 0);
		assert_in_range(before - f->tokens, 0, TOKENS_EXPIRE_PER_TURN);
	}
	assert_int_equal(export_with(f, m, SEGMENT, &x), DRAY_E_QUOTA);
	assert_true(sd_event_run(f->event, 0) >= 0);
	remove_all(f, region);
}

int main(void)
{
#define T(t) cmocka_unit_test_setup_teardown(t, fixture_setup, fixture_teardown)
	const struct CMUnitTest tests[] = {
		T(test_parse),      T(test_export), T(test_import),       T(test_audience),
		T(test_single_use), T(test_expiry), T(test_expiry_quota), T(test_expiry_in_turns),
	};

	return cmocka_run_group_tests_name("token", tests, NULL, NULL);
}
