/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Posts: letters of our clients for mailboxes of other agents.
 *
 * A post names a segment, not an agent. It uses a connection to the agent that we have reached at this segment before. If
 * there is none, an attempt connects to the segment and accepts any agent id. If that agent proves to be connected
 * already, its posts move to that connection, which then is known to belong to the segment. What a peer that connected to
 * us claims to be its segment is not used.
 *
 * Posts that wait for one peer are bounded in number and bytes, and so are the attempts to connect. Both are divided fairly
 * among the owners of our clients, so that the posts of one client neither stop those of another one nor imports.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/mailbox/share.h"
#include "agent/control/peer/internal.h"

/* Posts of one peer that have not ended, and the bytes on its connection above which none is added. */
#define POSTS_MAX 512
#define POSTS_OUT_MAX (CONN_OUT_SOFT / 2)

/* Attempts to connect for posts take at most this part of limits.peers. */
#define ATTEMPTS_PART 4

#define POST_TIMEOUT_NS PEER_IMPORT_TIMEOUT_NS

struct post {
	struct dray_list link; /* in peer->posts */
	struct peer_timeout timeout;
	struct peer *peer;
	struct peer_post call; /* with pointers into data */
	bool no_wait;          /* fails when the address refuses the connection */
	bool sent;
	struct pending_request *request; /* NULL before it is sent and after its end */
	char data[];
};

static void post_end(struct post *post, struct dray_err err, const struct pmsg_post *own)
{
	dray_list_del(&post->link);
	dray_list_del(&post->timeout.link);
	if (post->request)
		request_free(post->request);
	post->call.done(post->call.arg, post->call.session, post->call.request_id, &err, own);
	free(post);
}

static void post_done(struct peer *peer, struct pending_request *r, const struct dray_err *err,
		      const union pmsg_body *m)
{
	struct post *post = r->post;

	post->request = NULL;
	if (peer->fsm.state == PEER_STATE_CLOSED)
		return; /* posts_end() follows */
	if (err->code) {
		post_end(post,
			 dray_err_of(err->code, "the agent at %s: %s", post->call.segment,
				     *err->msg ? err->msg : dray_error_doc((uint32_t)err->code)),
			 NULL);
		return;
	}
	/* a draining agent would have refused, so it has resumed */
	peer_event(peer, PEER_EVENT_RESUMED);
	post_end(post, DRAY_ERR_NULL, NULL);
}

static const struct request_kind post_kind = {
	.type = PMSG_POST,
	.done = post_done,
};

/* 0, or -errno with reterr: the peer that is up cannot take a post now, or at all. */
static int check_peer(const struct peer *peer, struct dray_err *reterr)
{
	if (!(peer->features & PMSG_FEATURE_MAILBOX))
		return dray_err_set(
			reterr, -EOPNOTSUPP, DRAY_E_UNSUPPORTED,
			"the agent at %s is too old for mailboxes (peer protocol before "
			"1.4); upgrade it",
			peer->segment);
	if (msgbuf_size(&peer->conn->out) >= POSTS_OUT_MAX)
		return dray_err_set(
			reterr, -EBUSY, DRAY_E_BUSY,
			"the agent at %s does not read its messages fast enough; post again later",
			peer->segment);
	return 0;
}

static void post_send(struct post *post)
{
	post->request = request_send(post->peer, &post_kind, -1,
				     (struct pending_request){ .post = post },
				     &(union pmsg_body){ .post = post->call.m });
	if (post->request)
		post->sent = true;
	else /* post_end() must not run here, which may be inside peer_post() */
		conn_fail(post->peer->conn,
			  dray_err_of(DRAY_E_NO_MEMORY, "no memory to send a post to the peer"));
}

static void post_move(struct post *post, struct peer *to)
{
	dray_list_del(&post->link);
	dray_list_del(&post->timeout.link);
	dray_list_add(&to->posts, &post->link);
	post->peer = to;
	peer_add_timeout(to, &post->timeout);
}

void posts_adopt(struct peer *to, struct peer *from)
{
	if (!dray_list_empty(&from->posts))
		peer_set_reached(to, from->segment);
	dray_list_for_each(&from->posts, post, struct post, link)
		post_move(post, to);
}

void posts_run(struct peer *peer)
{
	struct dray_list todo = DRAY_LIST_INIT(todo);
	struct post *post;

	/* a callback may end a session, so no pointer to the next one is kept */
	dray_list_splice(&todo, &peer->posts);
	while ((post = dray_list_first(&todo, struct post, link))) {
		struct dray_err err = DRAY_ERR_NULL;

		dray_list_move(&peer->posts, &post->link);
		if (post->request)
			continue;
		if (check_peer(peer, &err) < 0)
			post_end(post, err, NULL);
		else
			post_send(post);
	}
}

/* The agent that is known to be reached at this segment, or NULL. */
static struct peer *find_up(struct peers *p, const char *segment)
{
	size_t n = strlen(segment);

	dray_map_for_each_of(&p->by_segment, segment, n, peer, struct peer, by_segment)
		if (peer_fsm_is_up(&peer->fsm))
			return peer;
	dray_map_for_each_of(&p->by_reached, segment, n, reached, struct peer, by_reached)
		if (peer_fsm_is_up(&reached->fsm))
			return reached;
	return NULL;
}

dray_handle peers_at(struct peers *p, const char *segment, uint64_t features)
{
	/* of two agents that have connected to each other, one keeps the connection that it has accepted */
	const struct peer *kept = kept_segment_peer(p, segment);
	const struct peer *peer = kept && peer_fsm_is_up(&kept->fsm) ? kept : find_up(p, segment);

	if (!peer || (peer->features & features) != features || conn_is_clogged(peer->conn))
		return 0;
	return peer->handle;
}

bool peers_is_up_at(struct peers *p, const char *segment)
{
	const struct peer *kept = kept_segment_peer(p, segment);

	return (kept && peer_fsm_is_up(&kept->fsm)) || find_up(p, segment);
}

/* An attempt to reach whichever agent is at this segment, or NULL. */
static struct peer *find_attempt(struct peers *p, const char *segment)
{
	dray_map_for_each_of(&p->by_segment, segment, strlen(segment), peer, struct peer,
			     by_segment)
		if (peer->any_agent && !peer_fsm_is_up(&peer->fsm))
			return peer;
	return NULL;
}

static bool same_owner(const struct pmsg_post *a, const struct pmsg_post *b)
{
	return a->uid == b->uid && a->tenant.n == b->tenant.n &&
	       !memcmp(a->tenant.p, b->tenant.p, a->tenant.n);
}

static struct peer_client client_of(const struct post *post)
{
	const struct pmsg_post *m = &post->call.m;

	return peer_client_of(m->tenant.p, m->tenant.n, m->uid);
}

static int check_room(const struct peer *peer, const struct pmsg_post *m, struct dray_err *reterr)
{
	uint64_t all = 0, own = 0;

	dray_list_for_each(&peer->posts, other, struct post, link) {
		all++;
		own += same_owner(&other->call.m, m);
	}
	if (dray_share_fits(POSTS_MAX - dray_min(all, (uint64_t)POSTS_MAX), own, 1))
		return 0;
	return dray_err_set(
		reterr, -EBUSY, DRAY_E_BUSY,
		"%llu posts wait for the agent at %s, %llu of them of uid %u; post again "
		"when some have ended",
		(unsigned long long)all, peer->segment, (unsigned long long)own, m->uid);
}

/* A client that posts to many segments where nobody answers must not take the places of all peers. */
static int check_attempts(struct peers *p, const struct pmsg_post *m, struct dray_err *reterr)
{
	uint64_t max = (uint64_t)dray_max(p->cfg->limits.peers / ATTEMPTS_PART, (int64_t)1);
	uint64_t all = 0, own = 0;

	/* what is not up and has posts accepts any agent id */
	dray_list_for_each(&p->attempts, peer, struct peer, attempts_link) {
		const struct post *first = dray_list_first(&peer->posts, struct post, link);

		if (!first)
			continue;
		all++;
		own += same_owner(&first->call.m, m);
	}
	if (dray_share_fits(max - dray_min(all, max), own, 1))
		return 0;
	return dray_err_set(
		reterr, -EBUSY, DRAY_E_BUSY,
		"this agent is connecting to %llu segments for posts, %llu of them of uid "
		"%u; post again when some have ended",
		(unsigned long long)all, (unsigned long long)own, m->uid);
}

/* Sends the post, or moves it to an attempt to reach its segment, a new one if there is none. */
static int post_start(struct peers *p, struct post *post, struct dray_err *reterr)
{
	struct peer *peer = find_up(p, post->call.segment);
	const struct pmsg_post *m = &post->call.m;
	struct peer_client client = client_of(post);
	int r;

	if (peer) {
		r = check_peer(peer, reterr);
		if (r >= 0)
			r = check_room(peer, m, reterr);
		if (r < 0)
			return r;
		post_move(post, peer);
		post_send(post);
		return 0;
	}
	peer = find_attempt(p, post->call.segment);
	if (!peer) {
		r = check_attempts(p, m, reterr);
		if (r >= 0)
			r = peers_may_reach(p, &client, post->call.segment, reterr);
		if (r >= 0)
			r = peer_new_to_any(&peer, p, post->call.segment, reterr);
		if (r < 0)
			return r;
		post_move(post, peer);
		peer_event(peer, PEER_EVENT_DIAL);
		return 0;
	}
	r = check_room(peer, m, reterr);
	if (r >= 0)
		r = peers_may_reach(p, &client, post->call.segment, reterr);
	if (r < 0)
		return r;
	post_move(post, peer);
	/* the post must learn whether the address still refuses */
	if (post->no_wait)
		peer_event(peer, PEER_EVENT_DIAL);
	return 0;
}

static void expired(struct peer *peer, struct peer_timeout *t)
{
	struct post *post = dray_container_of(t, struct post, timeout);
	struct peer_client client = client_of(post);

	post_end(
		post,
		peer_fsm_is_up(&peer->fsm) ?
			dray_err_of(
				DRAY_E_TIMEOUT,
				"the agent at %s did not answer in time; the letter may have been delivered",
				post->call.segment) :
			peer_unreached(peer, "agent", &client, DRAY_E_PEER_UNREACHABLE),
		NULL);
	if (dray_list_empty(&peer->posts))
		peer_event(peer, PEER_EVENT_UNNEEDED);
}

/* Returns the copy, and moves *at behind it. */
static void *copy(char **at, const void *p, uint32_t n)
{
	void *to = *at;

	if (n)
		memcpy(to, p, n);
	*at += n;
	return to;
}

static struct post *post_new(struct peers *p, const struct peer_post *call)
{
	const struct pmsg_post *m = &call->m;
	struct post *post = calloc(1, sizeof(*post) + m->name.n + m->tenant.n + m->payload.n);
	char *at;

	if (!post)
		return NULL;
	post->call = *call;
	at = post->data;
	post->call.m.name.p = copy(&at, m->name.p, m->name.n);
	post->call.m.tenant.p = copy(&at, m->tenant.p, m->tenant.n);
	post->call.m.payload.p = copy(&at, m->payload.p, m->payload.n);
	post->no_wait = !call->timeout_ns;
	post->timeout = (struct peer_timeout){
		.end_ns = peers_now(p) + (call->timeout_ns ? call->timeout_ns : POST_TIMEOUT_NS),
		.expired = expired,
	};
	dray_list_init(&post->link);
	dray_list_init(&post->timeout.link);
	return post;
}

int peer_post(struct peers *p, const struct peer_post *call, struct dray_err *reterr)
{
	struct post *post;
	int r;

	if (p->stopping)
		return dray_err_set(reterr, -ESHUTDOWN, DRAY_E_DRAINING,
				    "the agent stops; connect to its successor");
	if (!dray_endpoint_valid(call->segment))
		return dray_err_set(
			reterr, -EINVAL, DRAY_E_INVALID,
			"segment \"%s\" is not an address and port that other hosts can use; pass HOST:PORT of the mailbox's agent",
			call->segment);
	post = post_new(p, call);
	if (!post)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a post");
	r = post_start(p, post, reterr);
	if (r < 0)
		free(post);
	return r;
}

void posts_refused(struct peer *peer)
{
	/* overdue at once; the callback must not run here, which may be inside peer_post() */
	dray_list_for_each(&peer->posts, post, struct post, link)
		if (post->no_wait) {
			dray_list_del(&post->timeout.link);
			post->timeout.end_ns = 0;
			peer_add_timeout(peer, &post->timeout);
		}
}

void posts_end(struct peer *peer, uint32_t code)
{
	struct peers *p = peer->p;
	const char *why = *peer->fsm.why.msg ? peer->fsm.why.msg : dray_error_doc(code);
	struct post *post;

	while ((post = dray_list_first(&peer->posts, struct post, link))) {
		const char *segment = post->call.segment;
		struct peer_client client = client_of(post);
		struct dray_err err = DRAY_ERR_NULL;

		if (p->stopping)
			err = dray_err_of(DRAY_E_DRAINING, "the agent stops: %s", why);
		else if (peer->leads_here)
			post_end(post, err, &post->call.m);
		else if (post->sent && !peer->left)
			err = dray_err_of(
				DRAY_E_PEER_LOST,
				"the agent at %s was lost before it answered: %s; the letter may have been delivered",
				segment, why);
		else if (!peer->left)
			err = peer_unreached(peer, "agent", &client, code);
		else
			/* a peer that left in good order had not taken the letter: connect again */
			post_start(p, post, &err);
		if (err.code)
			post_end(post, err, NULL);
	}
}

void posts_free(struct peer *peer)
{
	dray_list_for_each(&peer->posts, post, struct post, link)
		free(post);
	dray_list_init(&peer->posts);
}
