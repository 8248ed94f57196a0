/* SPDX-License-Identifier: Apache-2.0 */
/* status and version. */
#include <inttypes.h>
#include <poll.h>
#include <string.h>

#include "ctl/render/human.h"
#include "ctl/render/json.h"
#include "ctl/render/table.h"
#include "ctl/verbs/verbs.h"
#include "lib/time.h"
#include "schema/gen/config.h"

/* An agent that is starting has no control socket yet, which nothing announces: how long and how often to look.
 * A --timeout replaces the first. */
#define START_NS (2000 * DRAY_NS_PER_MS)
#define LOOK_MS 50

/* For the agent's description of its plug-in. */
#define PLUGIN_BYTES 1200

static void json_print(const struct ctl_properties *p, FILE *f)
{
	struct ctl_json j = CTL_JSON(f);

	ctl_json_object(&j, NULL);
	for (unsigned i = 0; i < DRAY_DBUS_PROPERTIES_N; i++) {
		const struct dray_dbus_property *k = &dray_dbus_properties[i];
		const void *v = (const char *)&p->v + k->offset;

		ctl_json_add(&j, *k->type == 's' ? J_TEXT(k->key, *(const char *const *)v) :
						   J_UINT(k->key, *(const uint64_t *)v));
	}
	ctl_json_object(&j, "counters");
	for (size_t i = 0; i < p->n_counters; i++)
		ctl_json_add(&j, J_UINT(p->counters[i].name, p->counters[i].value));
	ctl_json_end(&j);
	ctl_json_end(&j);
}

static void plain_print(const struct ctl_properties *p, FILE *f)
{
	for (unsigned i = 0; i < DRAY_DBUS_PROPERTIES_N; i++) {
		const struct dray_dbus_property *k = &dray_dbus_properties[i];
		const void *v = (const char *)&p->v + k->offset;

		if (*k->type == 's')
			fprintf(f, "%s\t%s\n", k->key, *(const char *const *)v);
		else
			fprintf(f, "%s\t%" PRIu64 "\n", k->key, *(const uint64_t *)v);
	}
	for (size_t i = 0; i < p->n_counters; i++)
		fprintf(f, "%s\t%" PRIu64 "\n", p->counters[i].name, p->counters[i].value);
}

/* The counter of that name, for people. */
#define count(p, name) counter_text((p), (name), (char[CTL_HUMAN_BYTES]){ "" })
static const char *counter_text(const struct ctl_properties *p, const char *name,
				char buf[CTL_HUMAN_BYTES])
{
	char full[64];

	snprintf(full, sizeof(full), "dray_%s", name);
	if (strstr(name, "bytes"))
		return ctl_show_size(ctl_properties_counter(p, full), buf);
	return ctl_show_count(ctl_properties_counter(p, full), buf);
}

/* Older agents do not have this property, and most agents do not speak the protocol. */
static void mooncake_print(const struct ctl_properties *p, FILE *f)
{
	char text[PLUGIN_BYTES];

	if (!*p->v.mooncake_segment)
		return;
	fprintf(f, "  Mooncake      segment %s: %s buffers, %s connections, %s received, %s sent",
		ctl_show_text(p->v.mooncake_segment, text, sizeof(text)),
		count(p, "mooncake_buffers"), count(p, "mooncake_connections"),
		count(p, "mooncake_received_bytes_total"), count(p, "mooncake_sent_bytes_total"));
	if (ctl_properties_counter(p, "dray_mooncake_queue_pairs"))
		fprintf(f, ", %s queue pairs", count(p, "mooncake_queue_pairs"));
	if (ctl_properties_counter(p, "dray_mooncake_connections_refused_total"))
		fprintf(f, "; connections refused: %s",
			count(p, "mooncake_connections_refused_total"));
	if (ctl_properties_counter(p, "dray_mooncake_metadata_failures_total"))
		fprintf(f, "; %s the metadata server, failed requests: %s",
			ctl_properties_counter(p, "dray_mooncake_metadata_published") ? "at" :
											"not at",
			count(p, "mooncake_metadata_failures_total"));
	fputc('\n', f);
}

/* Older agents do not have this property. */
static void gpus_print(const struct ctl_properties *p, FILE *f)
{
	char text[PLUGIN_BYTES];

	if (!*p->v.gpu_plugin)
		return;
	fprintf(f, "  CUDA plug-in  %s", ctl_show_text(p->v.gpu_plugin, text, sizeof(text)));
	if (ctl_properties_counter(p, "dray_gpu_contexts"))
		fprintf(f, "; GPUs in use: %s, %s of host memory pinned", count(p, "gpu_contexts"),
			count(p, "gpu_pinned_bytes"));
	if (ctl_properties_counter(p, "dray_gpu_lost_total"))
		fprintf(f, "; lost since the start: %s", count(p, "gpu_lost_total"));
	fputc('\n', f);
}

/* Empty without a key, and from older agents. */
static void keys_print(const struct ctl_properties *p, FILE *f)
{
	const char *accepted = strchr(p->v.keys, ' ');

	if (accepted)
		fprintf(f, "  keys          %.*s offered, %s accepted too\n",
			(int)(accepted - p->v.keys), p->v.keys, accepted + 1);
	else if (*p->v.keys)
		fprintf(f, "  key           %s\n", p->v.keys);
}

static void store_print(const struct ctl_properties *p, FILE *f)
{
	if (ctl_properties_counter(p, "dray_store_objects"))
		fprintf(f, "  store         %s objects; %s in memory, %s on disk\n",
			count(p, "store_objects"), count(p, "store_bytes"),
			count(p, "store_disk_bytes"));
	if (ctl_properties_counter(p, "dray_store_disk_down"))
		fprintf(f, "  disk tier     not written: drayctl events has the reason\n");
	if (ctl_properties_counter(p, "dray_store_directory_down"))
		fprintf(f,
			"  directory     not used: drayctl store has its state, drayctl events the reason\n");
}

/* bench, with the option that it needs if the agent's data socket is not the one that it uses by itself. */
static void bench_print(struct ctl *c)
{
	ctl_auto_rows struct ctl_rows settings = CTL_ROWS_NULL;
	ssize_t row = ctl_setting_find(c, &settings, "data.socket");
	const char *given = c->env->socket, *used, *socket;

	used = given && *given ? given : dray_config_keys[DRAY_CONFIG_KEY_DATA_SOCKET].def;
	socket = row < 0 ? used :
			   ctl_rows_text(&settings, (size_t)row, DRAY_DBUS_SETTING_FIELD_VALUE);
	c->failure =
		CTL_FAILURE_NULL; /* An agent that does not tell its settings may still serve. */
	if (strcmp(socket, used) != 0)
		fprintf(c->out,
			"drayctl bench --socket %s moves first bytes; engines find the data socket by DRAY_SOCKET=%s\n",
			socket, socket);
	else
		fputs("drayctl bench moves first bytes; engines find the data socket by DRAY_SOCKET\n",
		      c->out);
}

/* The next step for a person who has just started an agent, or finds one that does not work. */
static void next_print(struct ctl *c, const struct ctl_properties *p)
{
	static const char head[] = "  next          ";

	if (!strcmp(p->v.state, CTL_STATE_DRAINED)) {
		fprintf(c->out, "%sdrayctl resume accepts work again\n", head);
	} else if (ctl_properties_counter(p, "dray_peers") >
		   ctl_properties_counter(p, "dray_peers_ready")) {
		fprintf(c->out, "%sdrayctl peers says why a peer is not ready\n", head);
	} else if (!ctl_properties_counter(p, "dray_sessions_total")) {
		fputs(head, c->out);
		bench_print(c);
	}
}

static void text_print(struct ctl *c, const struct ctl_properties *p)
{
	FILE *f = c->out;

	fprintf(f, "drayd %s  ", p->v.version);
	ctl_mood_print(f, p->v.state, ctl_mood_of(p->v.state), c->color);
	fprintf(f, ", up %s\n", ctl_span(p->v.uptime_ns));
	if (!strcmp(p->v.state, "draining")) {
		char text[CTL_DRAIN_BYTES];

		fprintf(f, "  drain         %s\n", ctl_drain_text(p, text, sizeof(text)));
	}
	fprintf(f, "  agent         %s, pid %" PRIu64 ", %" PRIu64 " worker%s\n", p->v.agent_id,
		p->v.pid, p->v.workers, p->v.workers == 1 ? "" : "s");
	if (p->v.poll_time_ns)
		fprintf(f, "  polling       up to %s after work\n", ctl_span(p->v.poll_time_ns));
	else
		fprintf(f, "  polling       off: %s\n", p->v.poll_reason);
	mooncake_print(p, f);
	gpus_print(p, f);
	fprintf(f, "  segment       %s\n", *p->v.segment ? p->v.segment : "none: no peer listener");
	keys_print(p, f);
	fprintf(f, "  segments      %s known, %s preferred; %s hints\n", count(p, "segments"),
		*p->v.preferred_segment ? p->v.preferred_segment : "none", count(p, "hints"));
	if (ctl_properties_counter(p, "dray_state_in_memory"))
		fprintf(f,
			"  state         kept in memory only: writing to the disk fails; see the log\n");
	store_print(p, f);
	fprintf(f, "  sessions      %s open, %s since the start, %s refused\n",
		count(p, "sessions"), count(p, "sessions_total"),
		count(p, "sessions_refused_total"));
	fprintf(f, "  regions       %s of %s, %s tokens, %s remotes\n", count(p, "regions"),
		count(p, "region_bytes"), count(p, "tokens"), count(p, "remotes"));
	fprintf(f, "  peers         %s ready of %s, %s lost since the start\n",
		count(p, "peers_ready"), count(p, "peers"), count(p, "peers_lost_total"));
	fprintf(f, "  transfers     %s in flight; %s done, %s failed, %s cancelled, %s refused\n",
		count(p, "transfers_in_flight"), count(p, "transfers_done_total"),
		count(p, "transfers_failed_total"), count(p, "transfers_cancelled_total"),
		count(p, "transfers_refused_total"));
	fprintf(f, "  moved         local %s; gpu %s; tcp %s out, %s in; rdma %s out, %s in\n",
		count(p, "local_bytes_total"), count(p, "gpu_bytes_total"),
		count(p, "tcp_sent_bytes_total"), count(p, "tcp_received_bytes_total"),
		count(p, "rdma_sent_bytes_total"), count(p, "rdma_received_bytes_total"));
	fprintf(f, "  notifications %s delivered, %s refused\n",
		count(p, "notifications_delivered_total"), count(p, "notifications_refused_total"));
	fprintf(f, "  mailboxes     %s open, %s letters waiting; %s delivered, %s refused\n",
		count(p, "mailboxes"), count(p, "letters_waiting"),
		count(p, "letters_delivered_total"), count(p, "letters_refused_total"));
	next_print(c, p);
}

/* As ctl_properties_get(), but waits for an agent that is starting. */
static int properties_wait(struct ctl *c, struct ctl_properties *p)
{
	bool given = c->values[CTL_OPTION_TIMEOUT] != NULL;
	int64_t ends_ns = dray_now().ns + (given ? c->numbers[CTL_OPTION_TIMEOUT] : START_NS);

	while (ctl_properties_get(c, p) < 0) {
		if (!c->failure.absent || dray_now().ns >= ends_ns)
			return -1;
		ctl_properties_deinit(p);
		c->failure = CTL_FAILURE_NULL;
		poll(NULL, 0, LOOK_MS);
	}
	return ctl_counters_get(c, p);
}

int ctl_status(struct ctl *c)
{
	ctl_auto_properties struct ctl_properties p = CTL_PROPERTIES_NULL;

	if (properties_wait(c, &p) < 0)
		return -1;
	if (c->format == CTL_JSON)
		json_print(&p, c->out);
	else if (c->format == CTL_PLAIN)
		plain_print(&p, c->out);
	else
		text_print(c, &p);
	return CTL_EXIT_OK;
}

/* An agent that does not answer is not an error, because the release of drayctl is known without it. */
int ctl_version(struct ctl *c)
{
	ctl_auto_properties struct ctl_properties p = CTL_PROPERTIES_NULL;
	bool known = ctl_properties_get(c, &p) == 0;
	struct ctl_json j = CTL_JSON(c->out);

	switch (c->format) {
	case CTL_JSON:
		ctl_json_record(&j, NULL, J_TEXT("drayctl", DRAY_VERSION),
				known ? J_TEXT("drayd", p.v.version) : J_NULL("drayd"));
		break;
	case CTL_PLAIN:
		fprintf(c->out, "drayctl\t%s\ndrayd\t%s\n", DRAY_VERSION, known ? p.v.version : "");
		break;
	case CTL_TEXT:
		fprintf(c->out, "drayctl %s\ndrayd   %s%s\n", DRAY_VERSION,
			known ? p.v.version : "unknown: ", known ? "" : c->failure.msg);
		break;
	}
	c->failure = CTL_FAILURE_NULL;
	return CTL_EXIT_OK;
}
