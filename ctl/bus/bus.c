/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/bus/bus.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "ctl/render/human.h"
#include "lib/cleanup.h"
#include "lib/err.h"
#include "lib/time.h"
#include "schema/gen/dbus.h"

/* Between two tries while the agent's queue of new connections is full, which no descriptor reports. */
#define CONNECT_PAUSE_MS 10

static int no_answer(struct ctl *c, int64_t timeout_ns)
{
	return ctl_fail(c, CTL_EXIT_UNREACHABLE,
			"the agent on %s did not answer within %s; check whether it is stopped, "
			"or give a longer --timeout",
			c->control, ctl_span((uint64_t)timeout_ns));
}

static int connect_failed(struct ctl *c, int err)
{
	struct stat st;

	if (err == ECONNREFUSED && !stat(c->control, &st) && !S_ISSOCK(st.st_mode))
		return ctl_fail(c, CTL_EXIT_UNREACHABLE,
				"%s is a %s, not a socket; name the agent's control socket with "
				"--control",
				c->control, S_ISDIR(st.st_mode) ? "folder" : "file");
	c->failure.absent = err == ENOENT || err == ECONNREFUSED;
	switch (err) {
	case ENOENT:
		return ctl_fail(c, CTL_EXIT_UNREACHABLE,
				"no agent on %s: the socket does not exist; start drayd, or name "
				"its socket with --control",
				c->control);
	case ECONNREFUSED:
		return ctl_fail(c, CTL_EXIT_UNREACHABLE,
				"no agent on %s: the agent that made this socket has ended; "
				"start drayd",
				c->control);
	case EACCES:
	case EPERM:
		return ctl_fail(c, CTL_EXIT_REFUSED,
				"cannot connect to %s: permission denied; the socket's owner "
				"and mode (control.group, control.mode) decide who may connect",
				c->control);
	case EPROTOTYPE:
		return ctl_fail(c, CTL_EXIT_UNREACHABLE,
				"%s is not a control socket; name the agent's control socket with "
				"--control",
				c->control);
	default:
		return ctl_fail(c, CTL_EXIT_UNREACHABLE, "cannot connect to %s: %s", c->control,
				dray_errno_text(err));
	}
}

static int closed(struct ctl *c, int err)
{
	/* D-Bus authentication failed: the agent is in another user namespace, or the server is no agent. */
	if (err == -EPERM)
		return ctl_fail(c, CTL_EXIT_REFUSED,
				"the agent on %s rejected our credentials; run drayctl in the "
				"agent's user namespace",
				c->control);
	return ctl_fail(c, CTL_EXIT_UNREACHABLE,
			"the agent on %s closed the connection: it has ended, or has too many "
			"connections; check it and try again",
			c->control);
}

/* A connected socket, or -1. */
static int socket_open(struct ctl *c, int64_t timeout_ns)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int64_t ends = dray_now().ns + timeout_ns;
	int fd dray_auto_close = -1;

	if (strlen(c->control) >= sizeof(sa.sun_path))
		return ctl_misuse(c,
				  "--control: the path is too long for a socket; use at most %zu "
				  "bytes",
				  sizeof(sa.sun_path) - 1);
	memcpy(sa.sun_path, c->control, strlen(c->control));
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return ctl_failed(c, "cannot make a socket: %s", dray_errno_text(errno));
	while (connect(fd, (const struct sockaddr *)&sa, sizeof(sa)) < 0) {
		if (errno == EINTR)
			continue;
		if (errno != EAGAIN)
			return connect_failed(c, errno);
		if (dray_now().ns >= ends)
			return no_answer(c, timeout_ns);
		poll(NULL, 0, CONNECT_PAUSE_MS);
	}
	return dray_take_fd(fd);
}

int ctl_bus_open(struct ctl *c, int64_t timeout_ns)
{
	int fd, ret;

	ctl_bus_close(c);
	c->bus_timeout_ns = timeout_ns;
	fd = socket_open(c, timeout_ns);
	if (fd < 0)
		return -1;
	ret = sd_bus_new(&c->bus);
	if (ret >= 0)
		ret = sd_bus_set_fd(c->bus, fd, fd);
	if (ret < 0)
		dray_close(fd);
	if (ret >= 0)
		ret = sd_bus_start(c->bus);
	if (ret >= 0)
		return 0;
	ctl_bus_close(c);
	/* sd_bus_start() sends the first bytes of the authentication; the agent may be gone by then. */
	if (ret == -EPIPE || ret == -ECONNRESET || ret == -ENOTCONN)
		return closed(c, ret);
	return ctl_failed(c, "cannot use D-Bus on %s: %s", c->control, dray_errno_text(ret));
}

void ctl_bus_close(struct ctl *c)
{
	/* Flushing could block without limit. */
	sd_bus_close_unref(c->bus);
	c->bus = NULL;
	c->news = (struct ctl_news){ .any = false };
}

int ctl_bus_new_call(struct ctl *c, const char *interface, const char *member, sd_bus_message **ret)
{
	if (!c->bus && ctl_bus_open(c, c->numbers[CTL_OPTION_TIMEOUT]) < 0)
		return -1;
	if (sd_bus_message_new_method_call(c->bus, ret, DRAY_DBUS_INTERFACE, DRAY_DBUS_PATH,
					   interface, member) < 0)
		return ctl_no_memory(c);
	return 0;
}

static int reply_take(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	*(sd_bus_message **)userdata = sd_bus_message_ref(m);
	return 1;
}

/* Turns the agent's error into an exit status and its text. */
static void error_take(struct ctl *c, const sd_bus_error *e)
{
	static const struct {
		const char *name;
		enum ctl_exit exit;
		const char *prefix;
	} known[] = {
		{ SD_BUS_ERROR_ACCESS_DENIED, CTL_EXIT_REFUSED, "refused: " },
		{ SD_BUS_ERROR_INVALID_ARGS, CTL_EXIT_USAGE, "" },
		{ DRAY_DBUS_ERROR_DRAINING, CTL_EXIT_REFUSED, "" },
		{ DRAY_DBUS_ERROR_STOPPING, CTL_EXIT_REFUSED, "" },
		{ DRAY_DBUS_ERROR_BUSY, CTL_EXIT_REFUSED, "" },
		{ SD_BUS_ERROR_LIMITS_EXCEEDED, CTL_EXIT_REFUSED, "" },
	};
	char text[300];

	snprintf(c->failure.name, sizeof(c->failure.name), "%s", e->name);
	if (!strcmp(e->name, SD_BUS_ERROR_NO_REPLY) || !strcmp(e->name, SD_BUS_ERROR_DISCONNECTED))
		closed(c, 0);
	ctl_show_text(e->message ? e->message : e->name, text, sizeof(text));
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(known); i++)
		if (!strcmp(e->name, known[i].name))
			ctl_fail(c, known[i].exit, "%s%s", known[i].prefix, text);
	if (!strcmp(e->name, SD_BUS_ERROR_UNKNOWN_METHOD) ||
	    !strcmp(e->name, SD_BUS_ERROR_UNKNOWN_OBJECT) ||
	    !strcmp(e->name, SD_BUS_ERROR_UNKNOWN_INTERFACE))
		ctl_failed(c,
			   "the server on %s does not know this method: %s; check that it is a "
			   "drayd of the same release",
			   c->control, text);
	/* The first error set wins. */
	ctl_failed(c, "%s", text);
}

/* Handles the agent's messages for at most this long. 1: there was one, 0: none, below 0: the agent is gone. */
static int turn(struct ctl *c, int64_t timeout_ns)
{
	int ret = sd_bus_process(c->bus, NULL);

	if (ret)
		return ret < 0 ? ret : 1;
	if (timeout_ns <= 0)
		return 0;
	/* Rounded up, because 0 would spin. */
	ret = sd_bus_wait(c->bus, (uint64_t)(timeout_ns + 999) / 1000);
	return ret == -EINTR ? 0 : ret;
}

int ctl_bus_send(struct ctl *c, sd_bus_message *m, sd_bus_message **ret_reply)
{
	int64_t ends = dray_now().ns + c->bus_timeout_ns, left;
	dray_auto(sd_bus_message_unref) sd_bus_message *reply = NULL;
	sd_bus_slot *slot = NULL;
	int ret;

	/* sd_bus_call() has no limit of ours on its wait for the authentication. */
	ret = sd_bus_call_async(c->bus, &slot, m, reply_take, &reply, UINT64_MAX);
	sd_bus_message_unref(m);
	while (ret >= 0 && !reply && (left = ends - dray_now().ns) > 0)
		ret = turn(c, left);
	sd_bus_slot_unref(slot);
	if (!reply)
		return ret < 0 ? closed(c, ret) : no_answer(c, c->bus_timeout_ns);
	if (sd_bus_message_is_method_error(reply, NULL)) {
		error_take(c, sd_bus_message_get_error(reply));
		return -1;
	}
	*ret_reply = dray_take(reply);
	return 0;
}

int ctl_bus_callv(struct ctl *c, const char *member, sd_bus_message **ret_reply, const char *types,
		  va_list ap)
{
	sd_bus_message *m;

	if (ctl_bus_new_call(c, DRAY_DBUS_INTERFACE, member, &m) < 0)
		return -1;
	if (types && sd_bus_message_appendv(m, types, ap) < 0) {
		sd_bus_message_unref(m);
		return ctl_no_memory(c);
	}
	return ctl_bus_send(c, m, ret_reply);
}

int ctl_bus_call(struct ctl *c, const char *member, sd_bus_message **ret_reply, const char *types,
		 ...)
{
	va_list ap;
	int ret;

	va_start(ap, types);
	ret = ctl_bus_callv(c, member, ret_reply, types, ap);
	va_end(ap);
	return ret;
}

static int signal_handle(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	struct ctl_news *news = userdata;
	const char *old, *new;

	news->any = true;
	if (!sd_bus_message_is_signal(m, NULL, DRAY_DBUS_SIGNAL_STATE_CHANGED) ||
	    sd_bus_message_read(m, "ss", &old, &new) <= 0)
		return 0;
	news->drained |= !strcmp(new, CTL_STATE_DRAINED);
	news->running |= !strcmp(new, CTL_STATE_RUNNING);
	return 0;
}

int ctl_bus_subscribe(struct ctl *c, const char *signal)
{
	if (!c->bus && ctl_bus_open(c, c->numbers[CTL_OPTION_TIMEOUT]) < 0)
		return -1;
	if (sd_bus_match_signal(c->bus, NULL, NULL, DRAY_DBUS_PATH, DRAY_DBUS_INTERFACE, signal,
				signal_handle, &c->news) < 0)
		return ctl_no_memory(c);
	return 0;
}

int ctl_bus_wait(struct ctl *c, bool interruptible, int64_t ends_ns)
{
	while (!c->news.any) {
		int64_t left = ends_ns ? ends_ns - dray_now().ns : -1;
		int ret = turn(c, interruptible ? 0 : left);

		if (ret < 0)
			return CTL_WAKE_CLOSED;
		if (ret)
			continue;
		if (ends_ns && left <= 0)
			return CTL_WAKE_TIME;
		if (!interruptible)
			continue;
		ret = ctl_interrupt_wait(c, sd_bus_get_fd(c->bus), left);
		if (ret <= CTL_WAKE_END)
			return ret;
	}
	return CTL_WAKE_READY;
}

int ctl_bus_bad_reply(struct ctl *c, const char *member, int error)
{
	return ctl_failed(c,
			  "%s: the agent's reply does not have the types of the interface (%s); "
			  "check that it is a drayd of the same release",
			  member, dray_errno_text(error));
}
