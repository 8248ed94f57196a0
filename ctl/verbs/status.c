/* SPDX-License-Identifier: Apache-2.0 */
/* status and version. */
#include <inttypes.h>
#include <string.h>

#include "ctl/ctl.h"
#include "ctl/verbs/drain.h"
#include "ctl/render/human.h"
#include "ctl/render/json.h"
#include "ctl/bus/properties.h"
#include "ctl/render/table.h"

/* Of what the agent says of its plug-in, made harmless. */
#define PLUGIN_BYTES 1200

static void json_print(const struct ctl_properties *p, FILE *f)
{
	struct ctl_json j = CTL_JSON(f);

	ctl_json_object(&j, NULL);
	ctl_json_string(&j, "state", p->state);
	ctl_json_string(&j, "version", p->version);
	ctl_json_string(&j, "agent_id", p->agent_id);
	ctl_json_uint(&j, "incarnation", p->incarnation);
	ctl_json_string(&j, "segment", p->segment);
	ctl_json_string(&j, "preferred_segment", p->preferred_segment);
	ctl_json_uint(&j, "pid", p->pid);
	ctl_json_uint(&j, "workers", p->workers);
	ctl_json_uint(&j, "poll_time_ns", p->poll_time_ns);
	ctl_json_string(&j, "poll_reason", p->poll_reason);
	ctl_json_string(&j, "gpu_plugin", p->gpu_plugin);
	ctl_json_uint(&j, "uptime_ns", p->uptime_ns);
	ctl_json_string(&j, "log_level", p->log_level);
	ctl_json_uint(&j, "transfers_left", p->transfers_left);
	ctl_json_uint(&j, "bytes_left", p->bytes_left);
	ctl_json_uint(&j, "grants_left", p->grants_left);
	ctl_json_uint(&j, "deadline_ns", p->deadline_ns);
	ctl_json_object(&j, "counters");
	for (size_t i = 0; i < p->n_counters; i++)
		ctl_json_uint(&j, p->counters[i].name, p->counters[i].value);
	ctl_json_end(&j);
	ctl_json_end(&j);
}

static void plain_print(const struct ctl_properties *p, FILE *f)
{
	fprintf(f, "state\t%s\nversion\t%s\nagent_id\t%s\nincarnation\t%" PRIu64 "\nsegment\t%s\n",
		p->state, p->version, p->agent_id, p->incarnation, p->segment);
	fprintf(f, "preferred_segment\t%s\n", p->preferred_segment);
	fprintf(f, "pid\t%" PRIu32 "\nworkers\t%" PRIu32 "\n", p->pid, p->workers);
	fprintf(f, "poll_time_ns\t%" PRIu64 "\npoll_reason\t%s\n", p->poll_time_ns, p->poll_reason);
	fprintf(f, "gpu_plugin\t%s\nuptime_ns\t%" PRIu64 "\n", p->gpu_plugin, p->uptime_ns);
	fprintf(f, "log_level\t%s\ntransfers_left\t%" PRIu64 "\nbytes_left\t%" PRIu64 "\n",
		p->log_level, p->transfers_left, p->bytes_left);
	fprintf(f, "grants_left\t%" PRIu64 "\ndeadline_ns\t%" PRIu64 "\n", p->grants_left,
		p->deadline_ns);
	for (size_t i = 0; i < p->n_counters; i++)
		fprintf(f, "%s\t%" PRIu64 "\n", p->counters[i].name, p->counters[i].value);
}

/* The counter of that name in words. Buffers go round, enough for one line. */
static const char *count(const struct ctl_properties *p, const char *name)
{
	static char bufs[8][CTL_HUMAN_BYTES];
	static unsigned next;
	char *buf = bufs[next++ % 8];
	char full[64];

	snprintf(full, sizeof(full), "dray_%s", name);
	if (strstr(name, "bytes"))
		return ctl_show_size(ctl_properties_counter(p, full), buf);
	return ctl_show_count(ctl_properties_counter(p, full), buf);
}

/* An agent without GPUs is the usual one, and an earlier one knows of none. */
static void gpus_print(const struct ctl_properties *p, FILE *f)
{
	char text[PLUGIN_BYTES];

	if (!*p->gpu_plugin)
		return;
	fprintf(f, "  CUDA plug-in  %s", ctl_show_text(p->gpu_plugin, text, sizeof(text)));
	if (ctl_properties_counter(p, "dray_gpu_contexts"))
		fprintf(f, "; GPUs in use: %s, %s of host memory pinned", count(p, "gpu_contexts"),
			count(p, "gpu_pinned_bytes"));
	if (ctl_properties_counter(p, "dray_gpu_lost_total"))
		fprintf(f, "; lost so far: %s", count(p, "gpu_lost_total"));
	fputc('\n', f);
}

static void text_print(const struct ctl_properties *p, FILE *f, bool color)
{
	char span[CTL_HUMAN_BYTES];

	fprintf(f, "drayd %s  ", p->version);
	ctl_mood_print(f, p->state, ctl_mood_of(p->state), color);
	fprintf(f, ", up %s\n", ctl_show_span(p->uptime_ns, span));
	if (!strcmp(p->state, "draining")) {
		char text[CTL_DRAIN_BYTES];

		fprintf(f, "  drain         %s\n", ctl_drain_text(p, text, sizeof(text)));
	}
	fprintf(f, "  agent         %s, pid %" PRIu32 ", %" PRIu32 " worker%s\n", p->agent_id,
		p->pid, p->workers, p->workers == 1 ? "" : "s");
	if (p->poll_time_ns)
		fprintf(f, "  polling       up to %s after work\n",
			ctl_show_span(p->poll_time_ns, span));
	else
		fprintf(f, "  polling       off: %s\n", p->poll_reason);
	gpus_print(p, f);
	fprintf(f, "  segment       %s\n", *p->segment ? p->segment : "none: no peer listener");
	fprintf(f, "  segments      %s known, %s preferred; %s hints\n", count(p, "segments"),
		*p->preferred_segment ? p->preferred_segment : "none", count(p, "hints"));
	if (ctl_properties_counter(p, "dray_state_in_memory"))
		fprintf(f,
			"  state         in memory alone: the disk cannot be written; the log says why\n");
	fprintf(f, "  sessions      %s open, %s in all, %s refused\n", count(p, "sessions"),
		count(p, "sessions_total"), count(p, "sessions_refused_total"));
	fprintf(f, "  regions       %s of %s, %s tokens, %s remotes\n", count(p, "regions"),
		count(p, "region_bytes"), count(p, "tokens"), count(p, "remotes"));
	fprintf(f, "  peers         %s ready of %s, %s lost so far\n", count(p, "peers_ready"),
		count(p, "peers"), count(p, "peers_lost_total"));
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
}

static int properties_get(struct ctl *c, struct ctl_properties *p, struct ctl_err *reterr)
{
	struct ctl_bus bus = CTL_BUS_NULL;
	int ret = ctl_bus_open(&bus, c->control, c->timeout_ns, reterr);

	*p = CTL_PROPERTIES_NULL;
	if (!ret)
		ret = ctl_properties_get(p, &bus, reterr);
	ctl_bus_close(&bus);
	return ret;
}

int ctl_status(struct ctl *c)
{
	struct ctl_err err = CTL_ERR_NULL;
	struct ctl_properties p;

	if (properties_get(c, &p, &err) < 0)
		return ctl_fail(c, &err);
	if (c->format == CTL_JSON)
		json_print(&p, c->out);
	else if (c->format == CTL_PLAIN)
		plain_print(&p, c->out);
	else
		text_print(&p, c->out, c->color);
	ctl_properties_deinit(&p);
	return CTL_EXIT_OK;
}

/* An agent that cannot be asked is no failure: the release of drayctl is known all the same. */
int ctl_version(struct ctl *c)
{
	struct ctl_err err = CTL_ERR_NULL;
	struct ctl_properties p;
	bool known = properties_get(c, &p, &err) == 0;
	struct ctl_json j = CTL_JSON(c->out);

	switch (c->format) {
	case CTL_JSON:
		ctl_json_object(&j, NULL);
		ctl_json_string(&j, "drayctl", DRAY_VERSION);
		if (known)
			ctl_json_string(&j, "drayd", p.version);
		else
			ctl_json_null(&j, "drayd");
		ctl_json_end(&j);
		break;
	case CTL_PLAIN:
		fprintf(c->out, "drayctl\t%s\ndrayd\t%s\n", DRAY_VERSION, known ? p.version : "");
		break;
	case CTL_TEXT:
		fprintf(c->out, "drayctl %s\n", DRAY_VERSION);
		if (known)
			fprintf(c->out, "drayd   %s\n", p.version);
		else
			fprintf(c->out, "drayd   unknown: %s\n", err.msg);
		break;
	}
	ctl_properties_deinit(&p);
	return CTL_EXIT_OK;
}
