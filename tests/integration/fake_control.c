/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fake agent that has only a control socket, for tests of drayctl: fake_control PATH. Each line of standard
 * input is a JSON object that sets its behaviour from then on:
 *   {"records": {"ListSegments": [{"segment": "a:1", ...}]}}  answers of list methods, with the interface's fields
 *   {"state": "draining"}                                     the property State
 *   {"errors": {"SetHint": ["org...Error.AccessDenied", "no"]}}
 *   {"hang": true}                                            calls are no longer answered
 *   {"unread": true}                                          stored hints cannot be read yet
 *   {"drop": true}                                            every connection is closed
 *   {"signal": ["SegmentChanged", "a:1", "probing", "ready", "it answers"]}
 * Each line of standard output is a JSON array: a call's member and arguments, or ["done"] for a line of input.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <systemd/sd-bus.h>
#include <systemd/sd-event.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "schema/gen/dbus.h"

#define BUSES_MAX 32

static const struct {
	const char *member;
	const struct dray_dbus_field *fields;
	unsigned n;
} lists[] = {
	{ "ListSegments", dray_dbus_segment_fields, DRAY_DBUS_SEGMENT_FIELD_N },
	{ "ListCandidates", dray_dbus_candidate_fields, DRAY_DBUS_CANDIDATE_FIELD_N },
	{ "ListHints", dray_dbus_hint_fields, DRAY_DBUS_HINT_FIELD_N },
	{ "ListEnvironment", dray_dbus_variable_fields, DRAY_DBUS_VARIABLE_FIELD_N },
};

static struct {
	sd_event *event;
	sd_bus *buses[BUSES_MAX];
	unsigned n_buses;
	json_t *records, *errors;
	char state[32];
	bool hang, unread;
} fake = { .state = "running" };

static void say(json_t *what)
{
	char *text = json_dumps(what, 0);

	printf("%s\n", text);
	fflush(stdout);
	free(text);
	json_decref(what);
}

static void field_append(sd_bus_message *m, const struct dray_dbus_field *f, json_t *value)
{
	const char *text = json_string_value(value);

	sd_bus_message_open_container(m, 'e', "sv");
	sd_bus_message_append(m, "s", f->key);
	if (*f->type == 's')
		sd_bus_message_append(m, "v", "s", text ? text : "");
	else if (*f->type == 't')
		sd_bus_message_append(m, "v", "t", (uint64_t)json_integer_value(value));
	else if (*f->type == 'b')
		sd_bus_message_append(m, "v", "b", (int)json_is_true(value));
	else
		sd_bus_message_append(m, "v", f->type, (int)json_integer_value(value));
	sd_bus_message_close_container(m);
}

static void list_append(sd_bus_message *m, const struct dray_dbus_field *fields, unsigned n,
			json_t *rows)
{
	size_t i;
	json_t *row;

	sd_bus_message_open_container(m, 'a', "a{sv}");
	json_array_foreach(rows, i, row)
	{
		sd_bus_message_open_container(m, 'a', "{sv}");
		for (unsigned k = 0; k < n; k++)
			if (json_object_get(row, fields[k].key))
				field_append(m, &fields[k], json_object_get(row, fields[k].key));
		sd_bus_message_close_container(m);
	}
	sd_bus_message_close_container(m);
}

/* The arguments of calls are strings, numbers, booleans and lists of strings. */
static json_t *arguments(sd_bus_message *m)
{
	json_t *call = json_pack("[s]", sd_bus_message_get_member(m)), *list;
	const char *contents, *s;
	uint64_t t;
	uint32_t u;
	char type;
	int b;

	while (sd_bus_message_peek_type(m, &type, &contents) > 0) {
		if (type == 's' && sd_bus_message_read(m, "s", &s) > 0) {
			json_array_append_new(call, json_string(s));
		} else if (type == 'u' && sd_bus_message_read(m, "u", &u) > 0) {
			json_array_append_new(call, json_integer(u));
		} else if (type == 't' && sd_bus_message_read(m, "t", &t) > 0) {
			json_array_append_new(call, json_integer((json_int_t)t));
		} else if (type == 'b' && sd_bus_message_read(m, "b", &b) > 0) {
			json_array_append_new(call, json_boolean(b));
		} else if (type == 'a' && sd_bus_message_enter_container(m, 'a', "s") > 0) {
			list = json_array();
			while (sd_bus_message_read(m, "s", &s) > 0)
				json_array_append_new(list, json_string(s));
			sd_bus_message_exit_container(m);
			json_array_append_new(call, list);
		} else {
			break;
		}
	}
	return call;
}

static int answer(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	const char *member = sd_bus_message_get_member(m);
	json_t *error = json_object_get(fake.errors, member);
	sd_bus_message *reply;

	if (!sd_bus_message_is_method_call(m, NULL, NULL))
		return 0;
	say(arguments(m));
	if (fake.hang)
		return 1;
	if (error) {
		sd_bus_reply_method_errorf(m, json_string_value(json_array_get(error, 0)), "%s",
					   json_string_value(json_array_get(error, 1)));
		return 1;
	}
	if (sd_bus_message_new_method_return(m, &reply) < 0)
		return 0;
	if (!strcmp(member, "GetAll"))
		sd_bus_message_append(reply, "a{sv}", 1, DRAY_DBUS_PROPERTY_STATE, "s", fake.state);
	if (!strcmp(member, "ForgetHints"))
		sd_bus_message_append(reply, "ub", 2, fake.unread);
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(lists); i++)
		if (!strcmp(member, lists[i].member))
			list_append(reply, lists[i].fields, lists[i].n,
				    json_object_get(fake.records, member));
	sd_bus_send(NULL, reply, NULL);
	sd_bus_message_unref(reply);
	return 1;
}

static int accepted(sd_event_source *s, int fd, uint32_t events, void *arg)
{
	sd_id128_t id = { .bytes = { 1 } };
	int client = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	sd_bus *bus;

	if (client < 0 || sd_bus_new(&bus) < 0)
		return 0;
	if (fake.n_buses == BUSES_MAX) {
		sd_bus_close_unref(fake.buses[0]);
		memmove(fake.buses, fake.buses + 1, sizeof(fake.buses) - sizeof(*fake.buses));
		fake.n_buses--;
	}
	if (sd_bus_set_fd(bus, client, client) < 0 || sd_bus_set_server(bus, true, id) < 0 ||
	    sd_bus_add_filter(bus, NULL, answer, NULL) < 0 || sd_bus_start(bus) < 0 ||
	    sd_bus_attach_event(bus, fake.event, 0) < 0) {
		sd_bus_close_unref(bus);
		return 0;
	}
	fake.buses[fake.n_buses++] = bus;
	return 0;
}

static void drop(void)
{
	while (fake.n_buses)
		sd_bus_close_unref(fake.buses[--fake.n_buses]);
}

static void signal_send(json_t *words)
{
	for (unsigned i = 0; i < fake.n_buses; i++) {
		sd_bus_message *m;

		if (sd_bus_message_new_signal(fake.buses[i], &m, DRAY_DBUS_PATH,
					      DRAY_DBUS_INTERFACE,
					      json_string_value(json_array_get(words, 0))) < 0)
			continue;
		for (size_t k = 1; k < json_array_size(words); k++)
			sd_bus_message_append(m, "s", json_string_value(json_array_get(words, k)));
		sd_bus_send(fake.buses[i], m, NULL);
		sd_bus_message_unref(m);
	}
}

static void obey(json_t *j)
{
	json_t *v;

	if ((v = json_object_get(j, "records")))
		json_object_update(fake.records, v);
	if ((v = json_object_get(j, "errors")))
		json_object_update(fake.errors, v);
	if ((v = json_object_get(j, "state")))
		snprintf(fake.state, sizeof(fake.state), "%s", json_string_value(v));
	if ((v = json_object_get(j, "unread")))
		fake.unread = json_is_true(v);
	if ((v = json_object_get(j, "hang")))
		fake.hang = json_is_true(v);
	if (json_object_get(j, "drop"))
		drop();
	if ((v = json_object_get(j, "signal")))
		signal_send(v);
}

/* Lines come one at a time, because the other end waits for ["done"]. */
static int heard(sd_event_source *s, int fd, uint32_t events, void *arg)
{
	static char line[1 << 20];
	json_t *j;

	if (!fgets(line, sizeof(line), stdin))
		return sd_event_exit(fake.event, 0);
	j = json_loads(line, 0, NULL);
	if (!j)
		return sd_event_exit(fake.event, 1);
	obey(j);
	json_decref(j);
	say(json_pack("[s]", "done"));
	return 0;
}

int main(int argc, char **argv)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), ret;

	if (argc != 2 || strlen(argv[1]) >= sizeof(sa.sun_path))
		return 2;
	memcpy(sa.sun_path, argv[1], strlen(argv[1]));
	(void)unlink(argv[1]);
	fake.records = json_object();
	fake.errors = json_object();
	if (bind(fd, (const struct sockaddr *)&sa, sizeof(sa)) < 0 || listen(fd, 64) < 0 ||
	    sd_event_new(&fake.event) < 0 ||
	    sd_event_add_io(fake.event, NULL, fd, EPOLLIN, accepted, NULL) < 0 ||
	    sd_event_add_io(fake.event, NULL, STDIN_FILENO, EPOLLIN, heard, NULL) < 0)
		return 1;
	say(json_pack("[s]", "done"));
	ret = sd_event_loop(fake.event);
	drop();
	json_decref(fake.records);
	json_decref(fake.errors);
	sd_event_unref(fake.event);
	close(fd);
	return ret < 0;
}
