/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks the text of a value and stores it in the key's member of struct dray_config; renders values as text. All
 * sources use config_value_set(), so a wrong value has the same error message everywhere.
 */
#include "agent/config/internal.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/un.h>

#include "lib/addr.h"
#include "lib/cleanup.h"
#include "lib/units.h"
#include "schema/gen/errors.h"

#define PSK_IDENTITY_MAX 128

const char *config_clip(const char *s, char buf[CONFIG_CLIP_BYTES])
{
	size_t n = strlen(s), at = 0;

	if (n >= CONFIG_CLIP_BYTES) {
		memcpy(buf, "...", 3);
		at = 3;
		s += n - (CONFIG_CLIP_BYTES - 4);
	}
	for (; *s; s++)
		buf[at++] = iscntrl((unsigned char)*s) ? '?' : *s;
	buf[at] = '\0';
	return buf;
}

static void number_show(const struct dray_config_key *key, int64_t v, char *buf, size_t n)
{
	char text[32];

	if (key->type == DRAY_CONFIG_SIZE)
		snprintf(buf, n, "\"%s\"", dray_size_show(v, text, sizeof(text)));
	else if (key->type == DRAY_CONFIG_DURATION)
		snprintf(buf, n, "\"%s\"", dray_duration_show(v, text, sizeof(text)));
	else if (key->octal)
		snprintf(buf, n, "0%.0" PRIo64, v);
	else
		snprintf(buf, n, "%" PRId64, v);
}

const char *config_allowed(const struct dray_config_key *key, char *buf, size_t n)
{
	char min[40], max[40];
	size_t at = 0;

	switch (key->type) {
	case DRAY_CONFIG_STRING:
	case DRAY_CONFIG_PATH:
		snprintf(buf, n, "%s", key->type == DRAY_CONFIG_PATH ? "a path" : "a string");
		break;
	case DRAY_CONFIG_BOOL:
		snprintf(buf, n, "true or false");
		break;
	case DRAY_CONFIG_INT:
	case DRAY_CONFIG_SIZE:
	case DRAY_CONFIG_DURATION:
		number_show(key, key->min, min, sizeof(min));
		number_show(key, key->max, max, sizeof(max));
		snprintf(buf, n, "%s%s to %s", key->octal ? "octal, " : "", min, max);
		break;
	case DRAY_CONFIG_ENUM:
		*buf = '\0';
		for (size_t i = 0; i < key->n_choices && at < n; i++)
			at += (size_t)snprintf(buf + at, n - at, "%s%s", i ? ", " : "",
					       key->choices[i]);
		break;
	case DRAY_CONFIG_LIST:
		snprintf(buf, n, "a list");
		break;
	}
	return buf;
}

static int __attribute__((format(printf, 5, 6)))
refuse(struct dray_err *reterr, const char *where, const struct dray_config_key *key,
       const char *value, const char *fmt, ...)
{
	char place[CONFIG_CLIP_BYTES], shown[CONFIG_CLIP_BYTES], why[DRAY_ERR_MSG_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID, "%s: %s: \"%.60s\" %s",
			    config_clip(where, place), key->path, config_clip(value, shown), why);
}

static int refuse_range(struct dray_err *reterr, const char *where,
			const struct dray_config_key *key, const char *value)
{
	char allowed[160];

	return refuse(reterr, where, key, value, "is not allowed (allowed: %s)",
		      config_allowed(key, allowed, sizeof(allowed)));
}

/*
 * A number without quotes has 32 bits in libconfig's syntax, or 64 bits with a trailing L or LL. libconfig truncates
 * larger numbers silently, so the text is checked here. Copies the number without the L.
 */
static int bare_check(const char *text, bool octal, char *buf, size_t n, bool *ret_fits)
{
	size_t len = strlen(text), l = 0;
	int64_t v;

	for (; len && l < 2 && text[len - 1] == 'L'; l++)
		len--;
	if (!len || len >= n)
		return -EINVAL;
	memcpy(buf, text, len);
	buf[len] = '\0';
	*ret_fits = true;
	switch (dray_int_parse(buf, octal, &v)) {
	case 0:
		*ret_fits = l || (v >= INT32_MIN && v <= INT32_MAX);
		return 0;
	case -ERANGE:
		*ret_fits = false;
		return 0;
	default:
		return -EINVAL;
	}
}

static int number_set(int64_t *to, const struct dray_config_key *key, const struct config_raw *raw,
		      const char *where, struct dray_err *reterr)
{
	const char *text = raw->text;
	char buf[64], hint[40];
	bool fits;
	int64_t v;
	int r;

	if (raw->bare) {
		if (bare_check(text, key->octal, buf, sizeof(buf), &fits) < 0)
			return refuse_range(reterr, where, key, text);
		if (!fits && key->type == DRAY_CONFIG_SIZE && !dray_size_parse(buf, &v))
			return refuse(reterr, where, key, text,
				      "does not fit into 32 bits; write \"%s\"",
				      dray_size_show(v, hint, sizeof(hint)));
		if (!fits)
			return refuse_range(reterr, where, key, text);
		text = buf;
	}
	switch (key->type) {
	case DRAY_CONFIG_SIZE:
		r = dray_size_parse(text, &v);
		if (r == -EINVAL && *text != '-')
			return refuse(
				reterr, where, key, text,
				"is not a size: a number and KiB, MiB, GiB or TiB, such as %s",
				"\"16MiB\"");
		break;
	case DRAY_CONFIG_DURATION:
		r = dray_duration_parse(text, &v);
		if (r == -EINVAL && *text != '-')
			return refuse(reterr, where, key, text,
				      "is not a duration: a number and us, ms, s, min or h, %s",
				      "such as \"500ms\"");
		break;
	case DRAY_CONFIG_INT:
	case DRAY_CONFIG_STRING:
	case DRAY_CONFIG_PATH:
	case DRAY_CONFIG_BOOL:
	case DRAY_CONFIG_ENUM:
	case DRAY_CONFIG_LIST:
	default:
		r = dray_int_parse(text, key->octal, &v);
		/* without the 0 it is unclear whether 660 is octal */
		if (!r && key->octal && text[0] != '0')
			return refuse(reterr, where, key, text,
				      "is octal and must start with 0, such as \"0660\"");
		break;
	}
	if (r < 0 || v < key->min || v > key->max)
		return refuse_range(reterr, where, key, raw->text);
	*to = v;
	return 0;
}

static int bool_set(bool *to, const struct dray_config_key *key, const char *text,
		    const char *where, struct dray_err *reterr)
{
	static const char *const words[][4] = { { "false", "no", "off", "0" },
						{ "true", "yes", "on", "1" } };

	for (int v = 0; v < 2; v++)
		for (int i = 0; i < 4; i++)
			if (!strcasecmp(text, words[v][i])) {
				*to = v;
				return 0;
			}
	return refuse_range(reterr, where, key, text);
}

static int enum_set(int *to, const struct dray_config_key *key, const char *text, const char *where,
		    struct dray_err *reterr)
{
	char allowed[160];

	for (size_t i = 0; i < key->n_choices; i++)
		if (!strcmp(text, key->choices[i])) {
			*to = (int)i;
			return 0;
		}
	return refuse(reterr, where, key, text, "is not one of: %s",
		      config_allowed(key, allowed, sizeof(allowed)));
}

static bool is_decimal(const char *s)
{
	return *s && s[strspn(s, "0123456789")] == '\0';
}

static bool has_control(const char *s)
{
	for (; *s; s++)
		if (iscntrl((unsigned char)*s))
			return true;
	return false;
}

/* The fault of the text as a value of this key, or NULL. */
static const char *text_fault(enum dray_config_key_id id, const char *text)
{
	if (has_control(text))
		return "has a control character";
	if (id == DRAY_CONFIG_KEY_AGENT_STATE_DIR && !*text)
		return "must not be empty";
	if (id == DRAY_CONFIG_KEY_DATA_SOCKET || id == DRAY_CONFIG_KEY_CONTROL_SOCKET) {
		if (!*text)
			return "must not be empty";
		if (strlen(text) >= sizeof(((struct sockaddr_un *)0)->sun_path))
			return "is over the 107 bytes that a Unix socket's path may have";
	}
	if (id == DRAY_CONFIG_KEY_PEER_ADVERTISE && *text && !dray_endpoint_valid(text))
		return "is not a segment: host:port or [addr]:port that others can reach";
	if (id == DRAY_CONFIG_KEY_PEER_KEY_IDENTITY && (!*text || strlen(text) > PSK_IDENTITY_MAX))
		return "must have 1 to 128 bytes";
	return NULL;
}

static int string_set(char **to, enum dray_config_key_id id, const struct config_raw *raw,
		      const char *where, struct dray_err *reterr)
{
	const struct dray_config_key *key = &dray_config_keys[id];
	const char *fault;
	char *copy;

	/* a group can be a number */
	if (raw->bare && (key->type == DRAY_CONFIG_PATH || !is_decimal(raw->text)))
		return refuse(reterr, where, key, raw->text, "must be in quotes");
	fault = text_fault(id, raw->text);
	if (fault)
		return refuse(reterr, where, key, raw->text, "%s", fault);
	copy = strdup(raw->text);
	if (!copy)
		return config_no_memory(reterr);
	free(*to);
	*to = copy;
	return 0;
}

static const char *listener_fault(const char *word, size_t n_words, const char *if_name,
				  const char *otherwise)
{
	struct dray_addr addr;

	if (!strcmp(word, "none"))
		return n_words > 1 ? "must stand alone" : NULL;
	switch (dray_addr_parse(word, &addr)) {
	case 0:
		if (dray_addr_is_link_local(&addr))
			return "is link-local, which others cannot reach by address alone";
		return NULL;
	case -EAFNOSUPPORT:
		return if_name;
	default:
		return otherwise;
	}
}

/* The fault of the word as an element of this key, or NULL. */
static const char *element_fault(enum dray_config_key_id id, const char *word, size_t n_words)
{
	int64_t v;

	if (!*word)
		return "has an empty element";
	if (has_control(word))
		return "has a control character";
	if (id == DRAY_CONFIG_KEY_DATA_ALLOW_UIDS || id == DRAY_CONFIG_KEY_DATA_ALLOW_GIDS) {
		/* the kernel uses UINT32_MAX for "no id" */
		if (!is_decimal(word) || dray_int_parse(word, 0, &v) < 0 || v >= UINT32_MAX)
			return "is not a number of 0 to 4294967294";
	}
	if (id == DRAY_CONFIG_KEY_PEER_LISTEN)
		return listener_fault(
			word, n_words,
			"is a name; listeners take addresses: 10.0.0.1:7411, [::]:7411, none",
			"is not an address and port, such as 10.0.0.1:7411, [::]:7411, or none");
	if (id == DRAY_CONFIG_KEY_HTTP_LISTEN || id == DRAY_CONFIG_KEY_HTTP_PROBE_LISTEN)
		return listener_fault(
			word, n_words,
			"is a name; listeners take addresses: 127.0.0.1:7412, [::]:7412, none",
			"is not an address and port, such as 127.0.0.1:7412, [::]:7412, or none");
	return NULL;
}

/* Splits at commas and strips blanks; "" has no words. */
static int words_split(const char *text, struct dray_strv *ret)
{
	if (!text[strspn(text, " \t")])
		return 0;
	for (;;) {
		size_t n = strcspn(text, ","), skip = strspn(text, " \t"), len;

		skip = dray_min(skip, n);
		len = n - skip;
		while (len && (text[skip + len - 1] == ' ' || text[skip + len - 1] == '\t'))
			len--;
		if (dray_strv_add(ret, text + skip, len) < 0)
			return -ENOMEM;
		if (!text[n])
			return 0;
		text += n + 1;
	}
}

static void strv_clearp(struct dray_strv *s)
{
	dray_strv_clear(s);
}

static int list_set(struct dray_strv *to, enum dray_config_key_id id, const struct config_raw *raw,
		    const char *where, struct dray_err *reterr)
{
	__attribute__((cleanup(strv_clearp))) struct dray_strv words = DRAY_STRV_NULL;
	const struct dray_config_key *key = &dray_config_keys[id];
	int r = 0;

	if (raw->text)
		r = words_split(raw->text, &words);
	for (size_t i = 0; !r && raw->list && i < raw->list->n; i++)
		r = dray_strv_add(&words, raw->list->v[i], strlen(raw->list->v[i]));
	if (r < 0)
		return config_no_memory(reterr);
	for (size_t i = 0; i < words.n; i++) {
		const char *fault = element_fault(id, words.v[i], words.n);

		if (fault)
			return refuse(reterr, where, key, words.v[i], "%s", fault);
	}
	dray_strv_clear(to);
	*to = words;
	words = DRAY_STRV_NULL;
	return 0;
}

int config_value_set(struct dray_config *v, enum dray_config_key_id id,
		     const struct config_raw *raw, const char *where, struct dray_err *reterr)
{
	const struct dray_config_key *key = &dray_config_keys[id];
	void *to = (char *)v + key->offset;
	char place[CONFIG_CLIP_BYTES];

	if (!raw->text && key->type != DRAY_CONFIG_LIST)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "%s: %s takes one value, not a list", config_clip(where, place),
				    key->path);
	switch (key->type) {
	case DRAY_CONFIG_STRING:
	case DRAY_CONFIG_PATH:
		return string_set(to, id, raw, where, reterr);
	case DRAY_CONFIG_BOOL:
		return bool_set(to, key, raw->text, where, reterr);
	case DRAY_CONFIG_INT:
	case DRAY_CONFIG_SIZE:
	case DRAY_CONFIG_DURATION:
		return number_set(to, key, raw, where, reterr);
	case DRAY_CONFIG_ENUM:
		return enum_set(to, key, raw->text, where, reterr);
	case DRAY_CONFIG_LIST:
		return list_set(to, id, raw, where, reterr);
	}
	return -EINVAL;
}

void config_values_free(struct dray_config *v)
{
	for (int i = 0; i < DRAY_CONFIG_KEY_N; i++) {
		const struct dray_config_key *key = &dray_config_keys[i];
		void *p = (char *)v + key->offset;

		if (key->type == DRAY_CONFIG_STRING || key->type == DRAY_CONFIG_PATH)
			free(*(char **)p);
		else if (key->type == DRAY_CONFIG_LIST)
			dray_strv_clear(p);
	}
	*v = (struct dray_config){ .agent.state_dir = NULL };
}

static char *list_text(const struct dray_strv *list)
{
	char *text = NULL;
	size_t n;
	FILE *f = open_memstream(&text, &n);

	if (!f)
		return NULL;
	for (size_t i = 0; i < list->n; i++)
		fprintf(f, "%s%s", i ? "," : "", list->v[i]);
	if (fclose(f)) {
		free(text);
		return NULL;
	}
	return text;
}

char *config_value_text(const struct dray_config *v, enum dray_config_key_id id)
{
	const struct dray_config_key *key = &dray_config_keys[id];
	const void *p = config_member(v, id);
	char buf[40];

	switch (key->type) {
	case DRAY_CONFIG_STRING:
	case DRAY_CONFIG_PATH:
		return strdup(*(char *const *)p);
	case DRAY_CONFIG_BOOL:
		return strdup(*(const bool *)p ? "true" : "false");
	case DRAY_CONFIG_INT:
		number_show(key, *(const int64_t *)p, buf, sizeof(buf));
		return strdup(buf);
	case DRAY_CONFIG_SIZE:
		return strdup(dray_size_show(*(const int64_t *)p, buf, sizeof(buf)));
	case DRAY_CONFIG_DURATION:
		return strdup(dray_duration_show(*(const int64_t *)p, buf, sizeof(buf)));
	case DRAY_CONFIG_ENUM:
		return strdup(key->choices[*(const int *)p]);
	case DRAY_CONFIG_LIST:
		return list_text(p);
	}
	return NULL;
}
