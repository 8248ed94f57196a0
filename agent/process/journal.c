/* SPDX-License-Identifier: Apache-2.0 */
/* The place of a call in this file says nothing about the line. */
#define SD_JOURNAL_SUPPRESS_LOCATION
#include "agent/process/journal.h"

#include <ctype.h>
#include <string.h>
#include <sys/uio.h>
#include <systemd/sd-journal.h>
#include <unistd.h>

#define SOCKET "/run/systemd/journal/socket"
#define FIELD_BYTES 1100
#define NAME_MAX_BYTES 64

struct entry {
	struct iovec v[3 + DRAY_LOG_FIELDS_MAX];
	int n;
	char buf[3 * FIELD_BYTES];
	size_t used;
};

/* Leaves out a field that does not fit. */
static void add(struct entry *e, const char *name, const char *value, size_t n)
{
	size_t n_name = strlen(name);
	char *at = e->buf + e->used;

	if (sizeof(e->buf) - e->used < n_name + 1 + n)
		return;
	memcpy(at, name, n_name);
	at[n_name] = '=';
	memcpy(at + n_name + 1, value, n);
	e->v[e->n++] = (struct iovec){ at, n_name + 1 + n };
	e->used += n_name + 1 + n;
}

static void add_field(struct entry *e, const struct dray_log_field *f)
{
	char name[NAME_MAX_BYTES + 1] = "DRAY_";
	size_t at = strlen(name);

	for (size_t i = 0; i < f->n_key && at < NAME_MAX_BYTES; i++)
		name[at++] = f->key[i] == '.' ? '_' : (char)toupper((unsigned char)f->key[i]);
	name[at] = '\0';
	add(e, name, f->value, f->n_value);
}

bool journal_send(int priority, const char *area, const char *line, size_t n,
		  const struct dray_log_field *fields, unsigned n_fields)
{
	struct entry e = { .n = 0 };
	char digit = (char)('0' + priority);

	/* without a journal sd_journal_sendv() drops the entry and reports success */
	if (access(SOCKET, F_OK) < 0)
		return false;
	add(&e, "MESSAGE", line, n);
	add(&e, "PRIORITY", &digit, 1);
	add(&e, "DRAY_AREA", area, strlen(area));
	for (unsigned i = n_fields; i > 0; i--)
		add_field(&e, &fields[i - 1]);
	return sd_journal_sendv(e.v, e.n) >= 0;
}
