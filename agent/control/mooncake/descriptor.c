/* SPDX-License-Identifier: Apache-2.0 */
/* Mooncake's description of a segment. Its readers stop their process if a value has another type than they expect. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "agent/control/mooncake/internal.h"
#include "lib/cleanup.h"
#include "lib/log.h"
#include "lib/time.h"

/* The version of the data protocol with a status. Older engines do not know the key, and use version 1. */
#define DATA_VERSION 2

/* Bytes of a device in the descriptor, at most. */
#define DEVICE_BYTES 256u
/* Bytes of a buffer over RDMA, at most: with two keys for each device. */
#define PIECE_BYTES (DESCRIPTOR_BUFFER + 24u * RAILS_MAX)
/* Behind the list of buffers, at most: room for the devices and the rest. */
#define PIECES_END \
	(MOONCAKE_FRAME_MAX - MOONCAKE_FRAME_HEAD - DESCRIPTOR_HEAD - DEVICE_BYTES * RAILS_MAX)

/* The place of a buffer is the same for all, so that peers use all devices. */
#define PLACE "cpu:0"

struct writing {
	FILE *f;
	const char *name;
	unsigned n, left_out;
};

/* The name needs no escapes: it is an address or a host name, and a port. */
static void put_buffer(void *arg, const struct grant_view *g)
{
	struct writing *w = arg;

	fprintf(w->f, "%s{\"addr\":%" PRIu64 ",\"length\":%" PRIu64 ",\"name\":\"%s\"}",
		w->n++ ? "," : "", g->mooncake, g->o.length, w->name);
}

static void put_piece(void *arg, uint64_t address, uint64_t length, const uint32_t *keys,
		      unsigned n)
{
	struct writing *w = arg;

	/* what fits is told: one owner's many pieces must not close the handshakes of all */
	if (ftell(w->f) > (long)(PIECES_END - PIECE_BYTES)) {
		w->left_out++;
		return;
	}
	fprintf(w->f,
		"%s{\"addr\":%" PRIu64 ",\"length\":%" PRIu64 ",\"name\":\"" PLACE "\",\"rkey\":[",
		w->n++ ? "," : "", address, length);
	for (unsigned i = 0; i < n; i++)
		fprintf(w->f, "%s%" PRIu32, i ? "," : "", keys[i]);
	/* the keys for local use have no use for a peer, who wants as many of them */
	fputs("],\"lkey\":[", w->f);
	for (unsigned i = 0; i < n; i++)
		fputs(i ? ",0" : "0", w->f);
	fputs("]}", w->f);
}

/*
 * Readers number the devices in the order of priority_matrix, and use the number for keys and devices alike. With one place there is
 * one order.
 */
static void put_devices(FILE *f, const struct rails_guest_device *v, unsigned n)
{
	char gid[MOONCAKE_GID_TEXT];

	fputs("\"devices\":[", f);
	for (unsigned i = 0; i < n; i++)
		fprintf(f, "%s{\"gid\":\"%s\",\"lid\":%u,\"name\":\"%s\"}", i ? "," : "",
			mooncake_gid_show(&v[i].gid, gid), v[i].lid, v[i].name);
	fputs("],\"priority_matrix\":{\"" PLACE "\":[[", f);
	for (unsigned i = 0; i < n; i++)
		fprintf(f, "%s\"%s\"", i ? "," : "", v[i].name);
	fputs("],[]]},", f);
}

static void put_timestamp(FILE *f)
{
	struct timespec now;
	char text[32] = "";
	struct tm tm;

	clock_gettime(CLOCK_REALTIME, &now);
	if (localtime_r(&now.tv_sec, &tm))
		strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &tm);
	fprintf(f, "\"timestamp\":\"%s.%06ld\"", text, now.tv_nsec / 1000);
}

uint32_t descriptor_buffers_max(const char *name)
{
	return (uint32_t)((MOONCAKE_FRAME_MAX - DESCRIPTOR_HEAD) /
			  (DESCRIPTOR_BUFFER + strlen(name)));
}

/* NULL: no memory. */
static char *make(struct mooncake_server *s, size_t *ret_n, unsigned *ret_buffers)
{
	struct rails_guest_device devices[RAILS_MAX];
	struct writing w = { .name = s->name };
	char *text = NULL;
	bool bad;

	w.f = open_memstream(&text, ret_n);
	if (!w.f)
		return NULL;
	fputs("{\"buffers\":[", w.f);
	if (s->rdma)
		rails_guest_buffers(*s->deps.rails, put_piece, &w);
	else
		regions_mooncake_each(s->deps.regions, put_buffer, &w);
	fputs("],", w.f);
	if (w.left_out)
		log_limited(
			DRAY_LOG_WARNING, AREA,
			"the segment has more pieces than an answer has room for, so that engines "
			"do not reach %u of them: export ranges of fewer pieces (mooncake.buffers)",
			w.left_out);
	if (s->rdma)
		put_devices(w.f, devices, rails_guest_devices(*s->deps.rails, devices));
	fprintf(w.f,
		"\"name\":\"%s\",\"protocol\":\"%s\",\"tcp_data_port\":%u,"
		"\"tcp_proto_version\":%d,",
		s->name, s->rdma ? "rdma" : "tcp", s->data_port, s->rdma ? 1 : DATA_VERSION);
	put_timestamp(w.f);
	fputs("}\n", w.f);
	bad = ferror(w.f);
	if (fclose(w.f) || bad) {
		free(text);
		return NULL;
	}
	if (*ret_n > MOONCAKE_FRAME_MAX - MOONCAKE_FRAME_HEAD) {
		log_limited(
			DRAY_LOG_WARNING, AREA,
			"a handshake is closed: the segment has more buffers than an answer has "
			"room for (mooncake.buffers)");
		free(text);
		return NULL;
	}
	*ret_buffers = w.n;
	return text;
}

uint64_t descriptor_changes(const struct mooncake_server *s)
{
	return regions_mooncake_changes(s->deps.regions) +
	       (s->rdma ? rails_guest_changes(*s->deps.rails) : 0);
}

const char *descriptor_text(struct mooncake_server *s, size_t *ret_n)
{
	uint64_t changes = descriptor_changes(s);
	unsigned buffers = 0;
	size_t n = 0;
	char *text;

	if (!s->descriptor.text || s->descriptor.changes != changes) {
		text = make(s, &n, &buffers);
		if (!text)
			return NULL;
		free(s->descriptor.text);
		s->descriptor.text = text;
		s->descriptor.n = n;
		s->descriptor.buffers = buffers;
		s->descriptor.changes = changes;
	}
	*ret_n = s->descriptor.n;
	return s->descriptor.text;
}
