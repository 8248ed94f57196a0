/* SPDX-License-Identifier: Apache-2.0 */
/* Sources of segments: configuration, peers, hints. Listening sockets and masters have files of their own. */
#include <errno.h>

#include "agent/placement/segment/internal.h"

void segment_mention(struct segment *s, enum segment_source source, bool on)
{
	if (on || (s->sources & source))
		s->mentioned_ns = dray_now().ns;
	s->sources = on ? s->sources | source : s->sources & ~(unsigned)source;
	segment_count(s);
}

/* NULL: no memory. */
static struct segment *named_by_config(struct segments *ss, const char *name)
{
	struct segment *s = segment_ensure(ss, name, SEGMENT_CONFIG);

	if (s)
		segment_mention(s, SEGMENT_CONFIG, true);
	return s;
}

static int name_word(struct segments *ss, const char *text)
{
	struct segment *s;

	if (!text || preferred_is_own(text))
		return 0;
	s = named_by_config(ss, text);
	if (!s)
		return -ENOMEM;
	s->named_preferred = true;
	segment_recheck(s);
	return 0;
}

static int known_set(struct segments *ss, const char *word)
{
	struct known_rule r;
	struct segment *s;

	/* the configuration was checked when it was loaded */
	if (known_rule_parse(word, &r, NULL) < 0)
		return 0;
	s = named_by_config(ss, r.segment);
	if (!s)
		return -ENOMEM;
	s->known_round = ss->round;
	segment_target(&s->configured, &r.target);
	segment_recheck(s);
	return 0;
}

/* Handles segments that the configuration no longer names. */
static void forget_former(struct segments *ss)
{
	dray_list_for_each(&ss->all, s, struct segment, link) {
		bool known = s->known_round == ss->round;

		if (!(s->sources & SEGMENT_CONFIG))
			continue;
		/* until it expires it is probed as before */
		if (!known && s->configured) {
			segment_target(&s->restored, s->configured);
			segment_target(&s->configured, NULL);
		}
		if (!known && !s->named_preferred)
			segment_mention(s, SEGMENT_CONFIG, false);
		segment_recheck(s);
	}
}

int segments_configure(struct segments *ss)
{
	const struct dray_config *cfg = ss->deps.cfg;
	int r = listeners_configure(ss);

	if (r >= 0)
		r = locality_set_rules(&ss->locality, &cfg->segment.local);
	ss->round++;
	dray_list_for_each(&ss->all, s, struct segment, link) {
		s->named_preferred = false;
		segment_locate(s);
	}
	for (size_t i = 0; i < cfg->segment.known.n && r >= 0; i++)
		r = known_set(ss, cfg->segment.known.v[i]);
	if (r >= 0)
		r = name_word(ss, preferred_of_config(cfg));
	if (r >= 0)
		r = name_word(ss, ss->deps.environment);
	if (r >= 0)
		forget_former(ss);
	return r;
}

void segments_peer_changed(struct segments *ss, const char *segment, bool ready)
{
	struct segment *s;

	if (!dray_endpoint_valid(segment))
		return;
	s = ready ? segment_ensure(ss, segment, SEGMENT_PEER) : segment_find(ss, segment);
	if (!s)
		return;
	s->was_peer = true;
	s->peer_ready = ready;
	segment_mention(s, SEGMENT_PEER, ready);
	segment_recheck(s);
}

/* The owner's hints name the segment, which is not known, from now on. */
static struct segment *name_new(struct segments *ss, const char *segment,
				const struct hint_owner *owner)
{
	struct hint_share *share = share_ensure(ss, owner);
	struct segment *s = NULL;

	if (!share)
		return NULL;
	if (share_has_room(ss, share))
		s = segment_ensure(ss, segment, SEGMENT_HINT);
	if (s)
		share_charge(s, share);
	else
		share_waits(ss, share);
	return s;
}

/* Hints of others still name the segment. */
static void name_for_others(struct segment *s, const struct hint_owner *former)
{
	struct hint_owner other;

	if (share_is_of(s->share, former) && hints_names(s->ss->deps.hints, s->name, &other))
		share_charge(s, share_ensure(s->ss, &other));
}

void segments_hint_changed(struct segments *ss, const char *segment, const struct hint_owner *owner,
			   bool named)
{
	struct segment *s = segment_find(ss, segment);

	if (!s && named)
		s = name_new(ss, segment, owner);
	if (!s)
		return;
	if (!named && hints_names(ss->deps.hints, segment, NULL)) {
		name_for_others(s, owner);
		return;
	}
	/* it is known since an earlier hint, of another owner perhaps */
	if (named && s->of_hints && !(s->sources & SEGMENT_HINT))
		share_charge(s, share_ensure(ss, owner));
	segment_mention(s, SEGMENT_HINT, named);
	segment_recheck(s);
	if (named)
		listeners_find(s);
}

static void name_again(void *arg, const struct hint *h)
{
	struct hint_owner owner = hint_owner_of(h);
	struct segments *ss = arg;

	if (hint_is_given(h->source) && !segment_find(ss, h->segment))
		segments_hint_changed(ss, h->segment, &owner, true);
}

void segments_hints_again(struct segments *ss)
{
	if (shares_take_waiting(ss))
		hints_each(ss->deps.hints, name_again, ss);
}
