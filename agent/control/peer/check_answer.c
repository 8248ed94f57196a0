/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The answering side of a check: checks the way to the asking agent, and lends it memory for a trial, which belongs to no
 * session. The answer ends the connection; the memory ends after its time.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/owner/owner.h"
#include "agent/control/peer/check.h"
#include "agent/control/peer/internal.h"
#include "lib/log.h"
#include "lib/memfd.h"

#define CHECKS_MAX 4
#define LENT_MAX 4
/* Making so much resident takes the control thread a millisecond or two, at most LENT_MAX times in LENT_NS. */
#define MEMORY_MAX (4u << 20)
#define LENT_NS (30 * DRAY_NS_PER_SEC)
/* The check may take as long; then the connection ends. */
#define ANSWER_NS (25 * DRAY_NS_PER_SEC)

struct lent;

struct check_answer {
	struct incoming *in;
	uint64_t request_id;
	char segment[SEGMENT_MAX + 1]; /* of the asking agent */
	uint8_t asker[16];             /* its id */
	struct lent *lent;             /* that is being added */
	struct peer_check *check;
	uint8_t token[DMSG_TOKEN_MAX];
	uint32_t n_token;
};

/* Memory that another agent may use for a while. */
struct lent {
	struct dray_list link; /* in peers->lent */
	struct peers *p;
	struct check_answer *answer; /* that waits for it */
	dray_handle region;
	uint64_t bytes;
	sd_event_source *timer;
};

static void way_back(struct check_answer *a);

static void lent_free(struct lent *l)
{
	if (l->answer)
		l->answer->lent = NULL;
	dray_list_del(&l->link);
	l->p->n_lent--;
	sd_event_source_disable_unref(l->timer);
	free(l);
}

/* An answer that waits for the memory goes without it. */
static void on_removed(void *arg)
{
	struct lent *l = arg;
	struct check_answer *a = l->answer;

	lent_free(l);
	if (a)
		way_back(a);
}

static void lent_remove(struct lent *l)
{
	/* it must not come here again before on_removed() */
	sd_event_source_set_enabled(l->timer, SD_EVENT_OFF);
	if (region_remove(l->p->deps.regions, l->region, 0, false, on_removed, l) < 0)
		on_removed(l);
}

static int on_lent_end(sd_event_source *source, uint64_t usec, void *userdata)
{
	lent_remove(userdata);
	return 0;
}

void lent_end(struct peers *p)
{
	dray_list_for_each(&p->lent, l, struct lent, link)
		sd_event_source_set_time_relative(l->timer, 0);
}

void lent_clear(struct peers *p)
{
	dray_list_for_each(&p->lent, l, struct lent, link)
		lent_free(l);
}

static int export(struct lent *l, struct check_answer *a, struct dray_err *reterr)
{
	struct region_owner owner = { .uid_owner = l->p->deps.owners->own };
	struct dmsg_region_export x = { .region = l->region,
					.length = l->bytes,
					.access = DMSG_ACCESS_READ | DMSG_ACCESS_WRITE,
					.ttl_ms = LENT_NS / DRAY_NS_PER_MS };
	uint64_t id;

	memcpy(x.audience, a->asker, sizeof(x.audience));
	return region_export(l->p->deps.regions, &owner, &x, l->p->segment, &id, a->token,
			     &a->n_token, reterr);
}

static void on_added(void *arg, const struct dray_err *err)
{
	struct lent *l = arg;
	struct check_answer *a = l->answer;
	struct dray_err why = err ? *err : DRAY_ERR_NULL;

	l->answer = NULL;
	/* without an answer that waits for it, it ends after its time */
	if (!err && a && export(l, a, &why) < 0)
		lent_remove(l);
	if (why.code)
		log_info(AREA, "no memory is lent for a check: %s", why.msg);
	/* the region has ended with the error */
	if (err)
		lent_free(l);
	if (a) {
		a->lent = NULL;
		way_back(a);
	}
}

static int region_start(struct lent *l, struct dray_err *reterr)
{
	static const char name[] = "lent for a check";
	struct region_owner owner = { .uid_owner = l->p->deps.owners->own };
	uint8_t extent[DMSG_EXTENT_SIZE];
	struct dmsg_region_add m = { .access = DMSG_ACCESS_READ | DMSG_ACCESS_WRITE,
				     .name = { name, sizeof(name) - 1 },
				     .extents = { extent, 1 } };
	int fd dray_auto_close = dray_memfd_new("dray-check", l->bytes, false);
	struct region_added added;
	int r;

	/* workers refuse memory with holes */
	if (fd < 0 || fallocate(fd, 0, 0, (off_t)l->bytes) < 0)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory");
	dmsg_extent_put(extent,
			&(struct dmsg_extent){ .kind = DMSG_KIND_MEMFD, .length = l->bytes });
	r = region_add(l->p->deps.regions,
		       &(struct region_spec){ .owner = &owner,
					      .m = &m,
					      .fds = &fd,
					      .n_fds = 1,
					      .added = on_added,
					      .arg = l },
		       &added, reterr);
	if (r == 0)
		l->region = added.region;
	return r;
}

/* True: on_added() follows. */
static bool lend(struct check_answer *a, uint32_t bytes)
{
	struct peers *p = a->in->p;
	struct dray_err why = DRAY_ERR_NULL;
	struct lent *l;

	if (!p->deps.owners || !*p->segment || !bytes)
		return false;
	if (p->n_lent >= LENT_MAX) {
		log_info(AREA, "no memory is lent for a check: other checks have it, for %d s",
			 (int)(LENT_NS / DRAY_NS_PER_SEC));
		return false;
	}
	l = calloc(1, sizeof(*l));
	if (!l)
		return false;
	*l = (struct lent){ .p = p, .bytes = dray_min(bytes, MEMORY_MAX) };
	dray_list_add(&p->lent, &l->link);
	p->n_lent++;
	if (sd_event_add_time_relative(p->deps.event, &l->timer, CLOCK_MONOTONIC, LENT_NS / 1000, 0,
				       on_lent_end, l) < 0 ||
	    region_start(l, &why) < 0) {
		log_info(AREA, "no memory is lent for a check: %s", why.msg);
		lent_free(l);
		return false;
	}
	l->answer = a;
	a->lent = l;
	return true;
}

struct check_answer *check_answer_free(struct check_answer *a)
{
	if (!a)
		return NULL;
	if (a->lent)
		a->lent->answer = NULL;
	a->in->p->n_checks--;
	peer_check_free(a->check);
	free(a);
	return NULL;
}

static void reply(struct check_answer *a, const struct peer_check_note *v, unsigned n)
{
	struct incoming *in = a->in;
	uint8_t notes[PEER_CHECK_NOTES_MAX * PMSG_CHECK_NOTE_SIZE];
	uint8_t texts[PEER_CHECK_NOTES_MAX * (sizeof(v->text) + sizeof(v->remedy))];
	union pmsg_body m = { .check_reply = { .state = in->p->draining || in->p->stopping ?
								PMSG_PROBE_STATE_DRAINING :
								PMSG_PROBE_STATE_RUNNING,
					       .token = { a->token, a->n_token },
					       .notes = { notes, n },
					       .texts = { texts, 0 } } };

	for (unsigned i = 0; i < n; i++) {
		struct pmsg_check_note w = { .step = (uint16_t)v[i].step,
					     .result = (uint16_t)v[i].result,
					     .text = (uint16_t)strlen(v[i].text),
					     .remedy = (uint16_t)strlen(v[i].remedy),
					     .took_ns = v[i].took_ns };

		pmsg_check_note_put(notes + (size_t)i * PMSG_CHECK_NOTE_SIZE, &w);
		memcpy(texts + m.check_reply.texts.n, v[i].text, w.text);
		memcpy(texts + m.check_reply.texts.n + w.text, v[i].remedy, w.remedy);
		m.check_reply.texts.n += w.text + (uint32_t)w.remedy;
	}
	conn_send_message(in->conn, PMSG_CHECK_REPLY, a->request_id, &m);
	/* flushes the reply and closes the connection */
	incoming_free(in);
}

static void checked(void *arg, const struct peer_check_result *r)
{
	reply(arg, r->v, r->n);
}

/* The asking agent cannot be reached by its segment, or has none. */
static void cannot(struct check_answer *a, const char *why, const char *remedy)
{
	struct peer_check_note n = { .step = PMSG_CHECK_STEP_NAME,
				     .result = PMSG_CHECK_RESULT_WARNING };

	snprintf(n.text, sizeof(n.text), "%s", why);
	snprintf(n.remedy, sizeof(n.remedy), "%s", remedy);
	reply(a, &n, 1);
}

static bool same_host(const struct dray_addr *a, const struct dray_addr *b)
{
	struct dray_addr x = *a, y = *b;
	char text[2][DRAY_ADDR_TEXT_MAX];

	dray_addr_set_port(&x, 0);
	dray_addr_set_port(&y, 0);
	return !strcmp(dray_addr_show(&x, text[0], sizeof(text[0])),
		       dray_addr_show(&y, text[1], sizeof(text[1])));
}

static void refuse(struct incoming *in, uint64_t request_id, const char *why)
{
	conn_send_error(in->conn, request_id, dray_err_of(DRAY_E_BUSY, "%s", why));
	incoming_free(in);
}

/* A check from the same address is being answered. */
static bool is_answered(const struct incoming *in)
{
	dray_list_for_each(&in->p->incoming, x, struct incoming, link)
		if (x->answer && same_host(&x->from, &in->from))
			return true;
	return false;
}

/* Checks the way to the asking agent, and answers. */
static void way_back(struct check_answer *a)
{
	struct dray_err why = DRAY_ERR_NULL;

	if (!*a->segment)
		cannot(a,
		       "the agent here has no listener, so no other agent reaches its clients' memory",
		       "set peer.listen here, unless its clients only read and write elsewhere");
	else if (peer_check_start(&a->check, a->in->p, a->segment, true, checked, a, &why) < 0)
		cannot(a, why.msg, "set peer.advertise here to a segment that others reach");
}

void check_handle(struct incoming *in, uint64_t request_id, const struct pmsg_check *m)
{
	struct peers *p = in->p;
	struct check_answer *a;

	if (p->n_checks >= CHECKS_MAX || is_answered(in)) {
		refuse(in, request_id, "it answers other checks; try again later");
		return;
	}
	a = calloc(1, sizeof(*a));
	if (!a) {
		refuse(in, request_id, "no memory for a check");
		return;
	}
	*a = (struct check_answer){ .in = in, .request_id = request_id };
	in->answer = a;
	p->n_checks++;
	snprintf(a->segment, sizeof(a->segment), "%.*s", (int)m->segment.n, m->segment.p);
	memcpy(a->asker, m->agent_id, sizeof(a->asker));
	sd_event_source_set_time_relative(in->timer, ANSWER_NS / 1000);
	if (p->draining || p->stopping || !lend(a, m->memory))
		way_back(a);
}
