/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/exchange/exchange.h"

#include <errno.h>
#include <stdlib.h>

#include "agent/control/exchange/internal.h"
#include "schema/gen/errors.h"

bool exchange_asks(const struct dray_config *cfg)
{
	return cfg->store.peers.n || (*cfg->store.directory && cfg->store.directory_agents.n);
}

int exchange_new(struct exchange **ret, const struct exchange_deps *deps, struct dray_err *reterr)
{
	struct exchange *x = calloc(1, sizeof(*x));
	int r = -ENOMEM;

	if (x) {
		x->deps = *deps;
		keeps_init(x);
		/* both, because exchange_free() ends both */
		r = ask_init(x);
		if (replicate_init(x) < 0 && r >= 0)
			r = -ENOMEM;
	}
	if (r >= 0)
		r = memory_regions_init(x);
	if (r >= 0)
		r = lend_init(x);
	if (r >= 0)
		r = summaries_init(x);
	if (r < 0) {
		exchange_free(x);
		return dray_err_set(reterr, r, DRAY_E_NO_MEMORY,
				    "no memory for the stores of other agents");
	}
	exchange_prefer(x);
	*ret = x;
	return 0;
}

struct exchange *exchange_free(struct exchange *x)
{
	if (!x)
		return NULL;
	summaries_deinit(x);
	keeps_deinit(x);
	replicate_deinit(x);
	ask_deinit(x);
	lend_deinit(x);
	memory_regions_deinit(x);
	free(x);
	return NULL;
}

struct exchange_totals exchange_totals(const struct exchange *x)
{
	struct exchange_totals t = { .summaries = 0 };

	if (!x)
		return t;
	t.summary_bytes = summarizer_bytes(x->summarizer);
	t.summary_skipped = x->n_skipped;
	for (uint32_t i = 0; i < x->n_lenders; i++) {
		t.summaries += x->lenders[i].summary.whole;
		t.summary_bytes += x->lenders[i].summary.filter.bits / 8;
	}
	return t;
}
