/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/bus/bus.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "ctl/render/human.h"
#include "lib/cleanup.h"
#include "lib/err.h"
#include "lib/time.h"
#include "schema/gen/dbus.h"

/* While the agent's queue of new connections is full; there is nothing to wait on. */
#define CONNECT_PAUSE_MS 10

static int no_answer(struct ctl_err *reterr, const char *path, int64_t timeout_ns)
{
	char span[CTL_HUMAN_BYTES];

	return ctl_err_set(reterr, CTL_EXIT_UNREACHABLE,
			   "the agent on %s gives no answer within %s; it may be stopped, or "
			   "--timeout too short",
			   path, ctl_show_span((uint64_t)timeout_ns, span));
}

static int connect_failed(struct ctl_err *reterr, const char *path, int err)
{
	reterr->absent = err == ENOENT || err == ECONNREFUSED;
	switch (err) {
	case ENOENT:
		return ctl_err_set(reterr, CTL_EXIT_UNREACHABLE,
				   "no agent on %s: there is no such socket; start drayd, or name "
				   "its socket with --control",
				   path);
	case ECONNREFUSED:
		return ctl_err_set(reterr, CTL_EXIT_UNREACHABLE,
				   "no agent on %s: the one that made this socket is gone", path);
	case EACCES:
	case EPERM:
		return ctl_err_set(reterr, CTL_EXIT_REFUSED,
				   "%s: permission denied; the socket's owner and mode "
				   "(control.group, control.mode) decide who may connect",
				   path);
	default:
		return ctl_err_set(reterr, CTL_EXIT_UNREACHABLE, "%s: %s", path,
				   dray_errno_text(err));
	}
}

static int gone(struct ctl_err *reterr, const struct ctl_bus *b, int err)
{
	/* the authentication of D-Bus, not the kernel's: another user namespace, or no agent at all */
	if (err == -EPERM)
		return ctl_err_set(reterr, CTL_EXIT_REFUSED, "the agent on %s refuses who we are",
				   b->path);
	return ctl_err_set(reterr, CTL_EXIT_UNREACHABLE,
			   "the agent on %s closed the connection; it may have ended, or have too "
			   "many already",
			   b->path);
}

/* A connected socket, or -1. */
static int socket_open(const char *path, int64_t timeout_ns, struct ctl_err *reterr)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int64_t ends = dray_now().ns + timeout_ns;
	int fd dray_auto_close = -1;

	if (strlen(path) >= sizeof(sa.sun_path))
		return ctl_err_set(reterr, CTL_EXIT_USAGE,
				   "--control: a socket's path has at most %zu bytes",
				   sizeof(sa.sun_path) - 1);
	memcpy(sa.sun_path, path, strlen(path));
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return ctl_err_set(reterr, CTL_EXIT_FAILED, "socket: %s", dray_errno_text(errno));
	while (connect(fd, (const struct sockaddr *)&sa, sizeof(sa)) < 0) {
		if (errno == EINTR)
			continue;
		if (errno != EAGAIN)
			return connect_failed(reterr, path, errno);
		if (dray_now().ns >= ends)
			return no_answer(reterr, path, timeout_ns);
		poll(NULL, 0, CONNECT_PAUSE_MS);
	}
	return dray_take_fd(fd);
}

int ctl_bus_open(struct ctl_bus *b, const char *path, int64_t timeout_ns, struct ctl_err *reterr)
{
	int fd, ret;

	*b = (struct ctl_bus){ .path = path, .timeout_ns = timeout_ns };
	fd = socket_open(path, timeout_ns, reterr);
	if (fd < 0)
		return -1;
	ret = sd_bus_new(&b->bus);
	if (ret >= 0)
		ret = sd_bus_set_fd(b->bus, fd, fd);
	if (ret < 0)
		dray_close(fd);
	if (ret >= 0)
		ret = sd_bus_start(b->bus);
	if (ret >= 0)
		return 0;
	ctl_bus_close(b);
	/* the first bytes of the authentication go out at once, perhaps to nobody */
	if (ret == -EPIPE || ret == -ECONNRESET || ret == -ENOTCONN)
		return gone(reterr, b, ret);
	return ctl_err_set(reterr, CTL_EXIT_FAILED, "%s: %s", path, dray_errno_text(ret));
}

void ctl_bus_close(struct ctl_bus *b)
{
	/* without flushing, which could wait for ever */
	sd_bus_close_unref(b->bus);
	b->bus = NULL;
}

int ctl_bus_new_call(struct ctl_bus *b, const char *interface, const char *member,
		     sd_bus_message **ret, struct ctl_err *reterr)
{
	int r = sd_bus_message_new_method_call(b->bus, ret, DRAY_DBUS_INTERFACE, DRAY_DBUS_PATH,
					       interface, member);

	if (r < 0)
		return ctl_err_set(reterr, CTL_EXIT_FAILED, "%s: %s", member, dray_errno_text(r));
	return 0;
}

struct answer {
	sd_bus_message *m; /* NULL until it is there */
};

static int take_answer(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	struct answer *a = userdata;

	a->m = sd_bus_message_ref(m);
	return 1;
}

/* The agent's own words, in our exit statuses. */
static int refused(struct ctl_err *reterr, const struct ctl_bus *b, const sd_bus_error *e)
{
	static const char *const refusals[] = { DRAY_DBUS_ERROR_DRAINING, DRAY_DBUS_ERROR_STOPPING,
						DRAY_DBUS_ERROR_BUSY,
						SD_BUS_ERROR_LIMITS_EXCEEDED };
	char text[300];

	snprintf(reterr->name, sizeof(reterr->name), "%s", e->name);
	if (!strcmp(e->name, SD_BUS_ERROR_NO_REPLY) || !strcmp(e->name, SD_BUS_ERROR_DISCONNECTED))
		return gone(reterr, b, 0);
	ctl_show_text(e->message ? e->message : e->name, text, sizeof(text));
	if (!strcmp(e->name, SD_BUS_ERROR_ACCESS_DENIED))
		return ctl_err_set(reterr, CTL_EXIT_REFUSED, "refused: %s", text);
	if (!strcmp(e->name, SD_BUS_ERROR_INVALID_ARGS))
		return ctl_err_set(reterr, CTL_EXIT_USAGE, "%s", text);
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(refusals); i++)
		if (!strcmp(e->name, refusals[i]))
			return ctl_err_set(reterr, CTL_EXIT_REFUSED, "%s", text);
	if (!strcmp(e->name, SD_BUS_ERROR_UNKNOWN_METHOD) ||
	    !strcmp(e->name, SD_BUS_ERROR_UNKNOWN_OBJECT) ||
	    !strcmp(e->name, SD_BUS_ERROR_UNKNOWN_INTERFACE))
		return ctl_err_set(
			reterr, CTL_EXIT_FAILED,
			"what serves %s does not know this: %s; is it a drayd of another "
			"release?",
			b->path, text);
	return ctl_err_set(reterr, CTL_EXIT_FAILED, "%s", text);
}

int ctl_bus_turn(struct ctl_bus *b, int64_t timeout_ns)
{
	int ret = sd_bus_process(b->bus, NULL);

	if (ret)
		return ret < 0 ? ret : 1;
	if (timeout_ns <= 0)
		return 0;
	/* rounded up: 0 would spin */
	ret = sd_bus_wait(b->bus, (uint64_t)(timeout_ns + 999) / 1000);
	return ret == -EINTR ? 0 : ret;
}

int ctl_bus_call(struct ctl_bus *b, sd_bus_message *m, sd_bus_message **ret_reply,
		 struct ctl_err *reterr)
{
	int64_t ends = dray_now().ns + b->timeout_ns;
	struct answer answer = { NULL };
	sd_bus_slot *slot = NULL;
	int ret;

	/* not sd_bus_call(), whose wait for the authentication knows no limit of ours */
	ret = sd_bus_call_async(b->bus, &slot, m, take_answer, &answer, UINT64_MAX);
	sd_bus_message_unref(m);
	while (ret >= 0 && !answer.m) {
		int64_t left = ends - dray_now().ns;

		if (left <= 0)
			break;
		ret = ctl_bus_turn(b, left);
	}
	sd_bus_slot_unref(slot);
	if (!answer.m && ret < 0)
		return gone(reterr, b, ret);
	if (!answer.m)
		return no_answer(reterr, b->path, b->timeout_ns);
	if (sd_bus_message_is_method_error(answer.m, NULL)) {
		refused(reterr, b, sd_bus_message_get_error(answer.m));
		sd_bus_message_unref(answer.m);
		return -1;
	}
	*ret_reply = answer.m;
	return 0;
}

int ctl_bus_askv(struct ctl_bus *b, const char *member, sd_bus_message **ret_reply,
		 struct ctl_err *reterr, const char *types, va_list ap)
{
	sd_bus_message *m;
	int ret = 0;

	if (ctl_bus_new_call(b, DRAY_DBUS_INTERFACE, member, &m, reterr) < 0)
		return -1;
	if (types)
		ret = sd_bus_message_appendv(m, types, ap);
	if (ret < 0) {
		sd_bus_message_unref(m);
		return ctl_err_set(reterr, CTL_EXIT_FAILED, "%s: %s", member, dray_errno_text(ret));
	}
	return ctl_bus_call(b, m, ret_reply, reterr);
}

int ctl_bus_ask(struct ctl_bus *b, const char *member, sd_bus_message **ret_reply,
		struct ctl_err *reterr, const char *types, ...)
{
	va_list ap;
	int ret;

	va_start(ap, types);
	ret = ctl_bus_askv(b, member, ret_reply, reterr, types, ap);
	va_end(ap);
	return ret;
}

int ctl_bus_bad_reply(struct ctl_err *reterr, const char *what, int error)
{
	return ctl_err_set(reterr, CTL_EXIT_FAILED,
			   "%s: the agent's answer is not what the interface says (%s); is it a "
			   "drayd of another release?",
			   what, dray_errno_text(error));
}
