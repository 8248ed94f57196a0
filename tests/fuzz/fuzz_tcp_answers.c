/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hostile owner that answers the importing side of transport tcp. The input is a script: transfers begin and are
 * stopped, their memory goes, the owner reads requests and answers them in any order with frames that are nearly
 * valid, refuses or drops streams, and time passes. Each transfer must end exactly once, and only bytes that a READ
 * asked for may change.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/data/transport/tcp/tcp.h"
#include "tests/unit/tcp_lab.h"

#define REGION 65536u
/* READs change bytes from here on. */
#define TARGET 32768u
#define TRANSFERS_MAX 32
#define REQUESTS_MAX 64
#define STREAMS_MAX 8

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct script {
	const uint8_t *p, *end;
};

/* A frame that the owner has read and not answered. */
struct asked {
	struct pmsg_frame frame;
	unsigned stream;
};

static struct lab lab;
static struct lab_side *const importer = &lab.side[0];
static struct asked asked[REQUESTS_MAX];
static unsigned n_asked;
/* Bytes of payload of the stream's last WRITE that the owner has not read. */
static uint64_t payload_left[STREAMS_MAX];
static uint64_t n_transfers, next_id;

static uint64_t take(struct script *s, unsigned bytes)
{
	uint64_t v = 0;

	while (bytes-- && s->p < s->end)
		v = v << 8 | *s->p++;
	return v;
}

static void transfer(struct script *s)
{
	uint64_t how = take(s, 1), length = 1 + take(s, how & 2 ? 2 : 1) % (TARGET / 2);
	enum dmsg_direction d = how & 1 ? DMSG_DIRECTION_READ : DMSG_DIRECTION_WRITE;
	uint64_t at = take(s, 2) % (TARGET / 2), ops[8][3];
	uint32_t n = 1 + (how >> 3) % DRAY_ARRAY_SIZE(ops);

	if (n_transfers == TRANSFERS_MAX)
		return;
	n_transfers++;
	for (uint32_t i = 0; i < n; i++) {
		ops[i][0] = d == DMSG_DIRECTION_READ ? TARGET + at : at;
		ops[i][1] = at;
		ops[i][2] = length / n + 1;
		at = (at + length) % (TARGET / 2);
	}
	lab_transfer(importer, ++next_id, d, how & 4 ? DMSG_CLASS_LATENCY : DMSG_CLASS_BULK,
		     (const uint64_t(*)[3])ops, n);
}

static void stop(struct script *s)
{
	uint64_t how = take(s, 1), id = next_id - how % TRANSFERS_MAX;

	if (n_transfers > how % TRANSFERS_MAX && !lab_end(importer, id))
		xfer_stop(&importer->core, lab_xfer(importer, id), DRAY_E_CANCELLED, NULL,
			  how & 64);
}

/* --- the owner ----------------------------------------------------------------------------------- */

/* Reads what is left of a WRITE's payload. False: some is still on its way. */
static bool skip_payload(unsigned k)
{
	static uint8_t sink[65536];

	while (payload_left[k]) {
		ssize_t n = recv(lab.raw_fd[k], sink, dray_min(payload_left[k], sizeof(sink)),
				 MSG_DONTWAIT);

		if (n <= 0)
			return false;
		payload_left[k] -= (uint64_t)n;
	}
	return true;
}

static void read_requests(unsigned k)
{
	uint8_t wire[TCP_HEAD_MAX];
	struct pmsg_frame f;

	while (n_asked < REQUESTS_MAX && skip_payload(k) &&
	       recv(lab.raw_fd[k], wire, PMSG_FRAME_SIZE, MSG_PEEK | MSG_DONTWAIT) ==
		       PMSG_FRAME_SIZE) {
		ssize_t head;

		pmsg_frame_get(wire, &f);
		lab_check(f.segs && f.segs <= PMSG_SEGS_MAX);
		head = PMSG_FRAME_SIZE + f.segs * PMSG_SEG_SIZE;
		if (recv(lab.raw_fd[k], wire, (size_t)head, MSG_PEEK | MSG_DONTWAIT) != head)
			return;
		lab_check(recv(lab.raw_fd[k], wire, (size_t)head, MSG_DONTWAIT) == head);
		payload_left[k] = f.kind == PMSG_FRAME_KIND_WRITE ? f.length : 0;
		asked[n_asked++] = (struct asked){ f, k };
	}
}

static void feed(unsigned k, const void *p, size_t n)
{
	/* bytes that the socket does not accept are lost, as with a real peer */
	if (lab.raw_fd[k] >= 0 && send(lab.raw_fd[k], p, n, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		lab_check(errno == EAGAIN || errno == EPIPE || errno == ECONNRESET);
}

static void answer(struct script *s)
{
	static const uint8_t payload[65536];
	uint64_t which = take(s, 1), how = take(s, 1);
	uint8_t wire[PMSG_FRAME_SIZE];
	struct asked a;
	bool read;

	if (!n_asked)
		return;
	a = asked[which % n_asked];
	if (!(how & 1)) {
		asked[which % n_asked] = asked[n_asked - 1];
		n_asked--;
	}
	read = a.frame.kind == PMSG_FRAME_KIND_READ;
	if (how & 2)
		a.frame.status = (uint32_t)take(s, how & 4 ? 4 : 1);
	a.frame.length = read && !a.frame.status ? a.frame.length : 0;
	lab_answer(wire, read ? PMSG_FRAME_KIND_READ_DATA : PMSG_FRAME_KIND_WRITE_ACK,
		   a.frame.slice, a.frame.status, a.frame.length);
	if (how & 8) {
		/* corrupts a field */
		uint64_t at = take(s, 1) % sizeof(wire);

		wire[at] ^= (uint8_t)take(s, 1);
	}
	if (how & 16)
		a.stream = (unsigned)take(s, 1) % lab.n_raw;
	feed(a.stream, wire, how & 32 ? take(s, 1) % sizeof(wire) : sizeof(wire));
	/* the rest of a payload may never come */
	if (a.frame.length)
		feed(a.stream, payload, how & 64 ? take(s, 2) % a.frame.length : a.frame.length);
}

static void stream_close(unsigned k)
{
	if (lab.raw_fd[k] >= 0)
		close(lab.raw_fd[k]);
	lab.raw_fd[k] = -1;
	payload_left[k] = 0;
}

/* Reports that the owner's ends of lost streams are closed, as the control connection would. */
static void lost_are_dead(void)
{
	struct lab_ids lost = importer->lost;

	importer->lost.n = 0;
	for (unsigned i = 0; i < lost.n; i++)
		lab_stream_dead(importer, LAB_PEER, lost.id[i]);
}

/* --- scripts ------------------------------------------------------------------------------------- */

static void turn(void)
{
	lab_turn(&lab);
	lab.resets.n = 0;
	for (unsigned k = 0; k < lab.n_raw; k++)
		if (lab.raw_fd[k] >= 0)
			read_requests(k);
}

static void greet(uint64_t how)
{
	lab.welcome_status = how & 1 ? DRAY_E_QUOTA : 0;
	lab.bad_mac = how & 2;
	lab.no_welcome = how & 4 || lab.n_raw + 2 > STREAMS_MAX;
}

static void step(struct script *s)
{
	unsigned k = lab.n_raw;
	uint64_t n;

	switch (take(s, 1) % 10) {
	case 0:
		transfer(s);
		break;
	case 1:
		stop(s);
		break;
	case 2:
		answer(s);
		break;
	case 3:
		n = dray_min(take(s, 1), (uint64_t)(s->end - s->p));
		if (k)
			feed((unsigned)n % k, s->p, n);
		s->p += n;
		break;
	case 4:
		n = take(s, 1);
		if (k && n & 64)
			shutdown(lab.raw_fd[n % k], SHUT_WR);
		else if (k)
			stream_close((unsigned)n % k);
		break;
	case 5:
		lost_are_dead();
		break;
	case 6:
		lab_advance(&lab, (int64_t)take(s, 1) * 8);
		break;
	case 7:
		greet(take(s, 1));
		break;
	case 8:
		turn();
		break;
	case 9:
		/* the client removes memory that a READ fills; false: this system cannot */
		(void)lab_punch(importer, TARGET + take(s, 1) % 4 * 4096, 4096);
		break;
	}
	greet(lab.no_welcome ? 4 : (uint64_t)(lab.bad_mac ? 2 : 0) | (lab.welcome_status != 0));
}

static void finish(void)
{
	for (unsigned i = 0; i < TRANSFERS_MAX && i < n_transfers; i++)
		if (!lab_end(importer, next_id - i))
			xfer_stop(&importer->core, lab_xfer(importer, next_id - i),
				  DRAY_E_CANCELLED, NULL, false);
	for (unsigned i = 0; importer->n_ended < n_transfers || importer->core.awaited; i++) {
		lab_check(i < 1000);
		for (unsigned k = 0; k < lab.n_raw; k++)
			stream_close(k);
		turn();
		lost_are_dead();
		lab_advance(&lab, 100);
	}
	lab_check(importer->n_ended == n_transfers);
	lab_check(lab_filled(importer, 0, TARGET, 1));
}

/* The lab is new for each input: streams that are being opened, and pauses after failures, would be left. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct script s = { data, data + size };

	n_asked = 0;
	n_transfers = 0;
	memset(payload_left, 0, sizeof(payload_left));
	lab_prepare(&lab);
	lab.raw = lab.hold_resets = true;
	importer->core.cfg.slice_size = 4096;
	importer->core.cfg.tcp_slices_in_flight = 4;
	lab_start(&lab, REGION, 4);
	lab_fill(importer, 0, REGION, 1);
	while (s.p < s.end && importer->lost.n < STREAMS_MAX)
		step(&s);
	finish();
	lab_deinit(&lab);
	return 0;
}
