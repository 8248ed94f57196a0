/* SPDX-License-Identifier: Apache-2.0 */
/* Outputs that follow each other until the user ends them. */
#include <stdlib.h>

#include "ctl/keyboard.h"
#include "ctl/render/screen.h"
#include "ctl/verbs/verbs.h"
#include "lib/time.h"

struct watch {
	struct ctl *c;
	const struct ctl_watched *w;
	void *arg;
	bool screen; /* each output replaces the last */
	char *text;  /* the last output on the screen */
	struct ctl_keyboard keyboard;
};

/* Prints by that function, on a screen cut to the size that the terminal has now. What it returned. */
static int show(struct watch *s, int (*print)(struct ctl *c, void *arg))
{
	struct ctl *c = s->c;
	FILE *out = c->out;
	size_t n;
	int ret;

	if (!s->screen)
		return print(c, s->arg);
	free(s->text);
	s->text = NULL;
	c->out = open_memstream(&s->text, &n);
	if (!c->out) {
		c->out = out;
		return ctl_no_memory(c);
	}
	ret = print(c, s->arg);
	if (fclose(c->out) && ret >= 0)
		ret = ctl_no_memory(c);
	c->out = out;
	if (ret >= 0)
		ctl_screen_show(out, s->text);
	return ret;
}

/* Waits until the next output is due. CTL_WAKE_TIME then, CTL_WAKE_END, or -1. */
static int pause_until(struct watch *s, int64_t ends_ns)
{
	char key;

	for (;;) {
		int64_t left_ns = dray_max(ends_ns - dray_now().ns, (int64_t)0);
		int ret = ctl_keyboard_wait(s->c, &s->keyboard, left_ns, &key);

		if (ret == CTL_WAKE_READY && key == 'q')
			return CTL_WAKE_END;
		if (ret == CTL_WAKE_SIGNAL)
			ctl_screen_show(s->c->out, s->text);
		else if (ret != CTL_WAKE_READY)
			return ret;
		else if (s->w->key && s->w->key(s->arg, key) && show(s, s->w->again) < 0)
			return -1;
		if (ctl_flush(s->c) < 0)
			return -1;
	}
}

static int watch(struct watch *s)
{
	const struct ctl *c = s->c;
	int64_t interval_ns = c->numbers[CTL_OPTION_INTERVAL], count = c->numbers[CTL_OPTION_TIMES];

	for (int64_t outputs = 0;;) {
		int ret = show(s, s->w->print);

		if (ret < 0 || ctl_flush(s->c) < 0)
			return -1;
		outputs += ret == 0;
		if (count && outputs == count)
			return CTL_EXIT_OK;
		ret = pause_until(s, dray_now().ns + interval_ns);
		if (ret <= CTL_WAKE_END)
			return ret;
	}
}

int ctl_watch(struct ctl *c, const struct ctl_watched *w, void *arg)
{
	struct watch s = {
		.c = c, .w = w, .arg = arg, .screen = c->env->terminal && c->format == CTL_TEXT
	};
	int ret;

	ctl_keyboard_open(&s.keyboard, c);
	ret = watch(&s);
	ctl_keyboard_close(&s.keyboard);
	free(s.text);
	return ret;
}
