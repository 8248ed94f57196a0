/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/status/transfer_log.h"

#include <inttypes.h>
#include <stdio.h>

#include "lib/log.h"
#include "lib/time.h"
#include "schema/gen/data.h"
#include "schema/gen/errors.h"

#define RAILS_TEXT 160
#define LINE_MAX_BYTES 700

const char *numbers_text(uint64_t set, char *buf, size_t n)
{
	size_t at = 0;

	*buf = '\0';
	for (; set && at < n; set &= set - 1)
		at += (size_t)snprintf(buf + at, n - at, "%s%d", at ? "," : "",
				       __builtin_ctzll(set));
	return buf;
}

void report_log(const struct report *report)
{
	const struct transfer_record *r = &report->record;
	char rails[RAILS_TEXT], label[sizeof(r->label)], text[LINE_MAX_BYTES];

	snprintf(text, sizeof(text),
		 "%s took %.3f ms: waited %.3f, queued %.3f, moved %.3f, notified %.3f; %" PRIu64
		 " of %" PRIu64
		 " bytes, %u operations, %u slices, %u sent again; %s session=%" PRIu64
		 " request=%" PRIu64 " peer=%" PRIx64 " transport=%s rails=%s class=%s%s%s",
		 dmsg_direction_name(r->direction), dray_ms(record_duration(r)),
		 dray_ms(r->phase_ns[XFER_PHASE_WAIT]), dray_ms(r->phase_ns[XFER_PHASE_QUEUE]),
		 dray_ms(r->phase_ns[XFER_PHASE_MOVE]), dray_ms(r->phase_ns[XFER_PHASE_COMPLETE]),
		 r->bytes_done, r->bytes, r->operations, r->slices, r->resent,
		 dray_error_name(r->code), r->session, r->request, r->peer,
		 dmsg_transport_name(r->transport),
		 r->rails ? numbers_text(r->rails, rails, sizeof(rails)) : "-",
		 dmsg_class_name(r->class), *r->label ? " label=" : "",
		 dray_log_word(r->label, label, sizeof(label)));
	if (report->slow)
		log_warning("transfer", "slow: %s", text);
	else
		log_info("transfer", "%s", text);
}
