/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames of a hostile peer against the owner's side of transport tcp. The input is a script: raw bytes, frames that
 * are nearly valid, payload, turns of the worker, drops of the grant, resets. Bytes outside the grant must not
 * change, objects may be held only while a frame is handled, and answers must be well-formed. Each script runs
 * twice: with a region of host memory, then of (fake) GPU memory with few staging buffers.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/data/transfer/object.h"
#include "agent/data/transport/tcp/tcp.h"
#include "tests/gpu/fake.h"
#include "tests/unit/tcp_lab.h"

#define REGION 65536u
#define START 8192u
#define LENGTH 40000u
#define STREAM 9

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Eight buffers, so that a frame may need more than one peer can have at once. */
#define STAGING 65536u

static struct target {
	struct lab lab;
	struct grant_view grant;
} targets[2]; /* host memory, GPU memory */

static struct target *target;
static struct lab_side *owner;
static int fd;

struct script {
	const uint8_t *p, *end;
};

static uint64_t take(struct script *s, unsigned bytes)
{
	uint64_t v = 0;

	while (bytes-- && s->p < s->end)
		v = v << 8 | *s->p++;
	return v;
}

static void grant_publish(void)
{
	/* a new generation each time, as with real handles */
	target->grant = (struct grant_view){
		.o = { OBJECT_GRANT, target->grant.o.handle + ((uint64_t)1 << 32), 0, 0, LENGTH,
		       DMSG_ACCESS_ALL },
		.peer = LAB_PEER,
		.region = LAB_REGION,
		.offset = START,
	};
	object_publish(&owner->core, &target->grant.o);
}

static void grant_drop(bool urgent)
{
	unsigned n = owner->n_dropped;

	object_drop(&owner->core, OBJECT_GRANT, target->grant.o.handle, DRAY_E_REVOKED,
		    urgent ? DROP_URGENT : DROP_STOP);
	lab_check(!urgent || owner->n_dropped == n + 1);
	if (owner->n_dropped == n) {
		/* a READ answer may take some time to finish, and so may copies of a GPU */
		lab_advance(&target->lab, 1000);
		lab_side_turn(owner);
		if (target == &targets[1])
			lab_until(&target->lab, owner->n_dropped == n + 1);
	}
	lab_check(owner->n_dropped == n + 1);
}

static void stream_new(void)
{
	int pair[2];

	lab_check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
	fd = pair[0];
	lab_stream_adopt(owner, LAB_PEER, pair[1], STREAM, DMSG_CLASS_BULK);
}

static void stream_end(void)
{
	owner->closed.n = 0;
	lab_stream_reset(owner, LAB_PEER, STREAM);
	lab_check(owner->closed.n == 1);
	close(fd);
	lab_check(object_get(&owner->core, OBJECT_GRANT, target->grant.o.handle)->users == 0);
}

static void feed(const void *p, size_t n)
{
	/* bytes that the socket does not accept are lost, as with a real peer */
	if (send(fd, p, n, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		lab_check(errno == EAGAIN || errno == EPIPE || errno == ECONNRESET);
}

static void drain(size_t n)
{
	static uint8_t sink[65536];

	if (recv(fd, sink, dray_min(n, sizeof(sink)), MSG_DONTWAIT) < 0)
		lab_check(errno == EAGAIN || errno == ECONNRESET);
}

static void feed_frame(struct script *s)
{
	uint8_t wire[TCP_HEAD_MAX + PMSG_SEG_SIZE];
	struct pmsg_seg segs[PMSG_SEGS_MAX];
	uint64_t how = take(s, 1), n = how & 64 ? take(s, 2) % PMSG_SEGS_MAX + 1 : how % 4 + 1;
	struct pmsg_frame f;
	size_t bytes;

	for (unsigned i = 0; i < n; i++)
		segs[i] = (struct pmsg_seg){ take(s, 2), take(s, how & 128 ? 2 : 1) + 1 };
	bytes = lab_frame(wire, how & 4 ? PMSG_FRAME_KIND_READ : PMSG_FRAME_KIND_WRITE, take(s, 1),
			  target->grant.o.handle, segs, (uint16_t)n);
	if (how & 8) {
		/* corrupts a field */
		unsigned at = (unsigned)(take(s, 2) % bytes);

		wire[at] ^= (uint8_t)take(s, 1);
	}
	feed(wire, bytes);
	pmsg_frame_get(wire, &f);
	if (f.kind == PMSG_FRAME_KIND_WRITE && how & 16) {
		static const uint8_t zero[65536];

		feed(zero, dray_min(f.length, sizeof(zero)));
	}
}

static void start(void)
{
	lab_staging[1] = target == &targets[1] ? STAGING : 0;
	lab_init(&target->lab, REGION, 4);
	target->grant.o.handle = LAB_HANDLE(100);
	grant_publish();
}

static void run(struct target *t, struct script s)
{
	target = t;
	owner = &t->lab.side[1];
	if (!t->grant.o.handle)
		start();
	lab_fill(owner, 0, REGION, 1);
	stream_new();
	while (s.p < s.end) {
		uint64_t n;

		switch (take(&s, 1) % 8) {
		case 0:
			n = dray_min(take(&s, 1), (uint64_t)(s.end - s.p));
			feed(s.p, n);
			s.p += n;
			break;
		case 1:
		case 2:
			feed_frame(&s);
			break;
		case 3:
			lab_side_turn(owner);
			break;
		case 4:
			drain(take(&s, 2));
			break;
		case 5:
			grant_drop(take(&s, 1) & 1);
			grant_publish();
			break;
		case 6:
			if (take(&s, 1) & 1)
				shutdown(fd, SHUT_WR);
			lab_advance(&target->lab, 10);
			lab_side_turn(owner);
			break;
		case 7:
			stream_end();
			stream_new();
			break;
		}
	}
	for (unsigned i = 0; i < 12; i++)
		lab_side_turn(owner);
	stream_end();
	lab_side_turn(owner);
	lab_check(lab_filled(owner, 0, START, 1));
	lab_check(lab_filled(owner, START + LENGTH, REGION - START - LENGTH, 1));
	lab_check(!atomic_load(&fake_gpu_status()->illegal) && !owner->gpu.n_lost);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(targets); i++)
		run(&targets[i], (struct script){ data, data + size });
	return 0;
}
