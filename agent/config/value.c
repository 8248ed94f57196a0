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

#define PSK_IDENTITY_MAX 128

const char *config_clip_to(const char *s, char buf[CONFIG_CLIP_BYTES])
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

int config_refuse(struct dray_err *reterr, const char *where, const char *fmt, ...)
{
	char why[DRAY_ERR_MSG_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	return config_invalid(reterr, "%s: %s", config_clip(where), why);
}

/* A value to be parsed, and where its error goes. */
struct input {
	enum dray_config_key_id id;
	const struct dray_config_key *key;
	const struct config_raw *raw;
	const char *where;
	struct dray_err *reterr;
};

static int refuse_text(const struct input *in, const char *text, const char *why)
{
	return config_refuse(in->reterr, in->where, "%s: \"%.60s\" %s", in->key->path,
			     config_clip(text), why);
}

static int __attribute__((format(printf, 2, 3)))
refuse(const struct input *in, const char *fmt, ...)
{
	char why[DRAY_ERR_MSG_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	return refuse_text(in, in->raw->text, why);
}

static int refuse_range(const struct input *in)
{
	return refuse(in, "is not allowed (allowed: %s)", in->key->allowed);
}

/*
 * A number without quotes has 32 bits in libconfig's syntax, or 64 bits with a trailing L or LL. libconfig truncates
 * larger numbers silently, so the text is checked here. Copies the number without the L.
 */
static int bare_check(const struct input *in, char *buf, size_t n)
{
	size_t len = strlen(in->raw->text), l = 0;
	char hint[40];
	int64_t v;
	int r;

	for (; len && l < 2 && in->raw->text[len - 1] == 'L'; l++)
		len--;
	if (!len || len >= n)
		return refuse_range(in);
	memcpy(buf, in->raw->text, len);
	buf[len] = '\0';
	r = dray_int_parse(buf, in->key->octal, &v);
	if (!r && (l || (v >= INT32_MIN && v <= INT32_MAX)))
		return 0;
	if (r != -EINVAL && in->key->type == DRAY_CONFIG_SIZE && !dray_size_parse(buf, &v))
		return refuse(in, "does not fit into 32 bits; write \"%s\"",
			      dray_size_show(v, hint, sizeof(hint)));
	return refuse_range(in);
}

static int number_parse(const struct dray_config_key *key, const char *text, int64_t *ret)
{
	if (key->type == DRAY_CONFIG_SIZE)
		return dray_size_parse(text, ret);
	return key->type == DRAY_CONFIG_DURATION ? dray_duration_parse(text, ret) :
						   dray_int_parse(text, key->octal, ret);
}

static int number_set(void *to, const struct input *in)
{
	const struct dray_config_key *key = in->key;
	const char *text = in->raw->text;
	char buf[64];
	int64_t v;
	int r;

	if (in->raw->bare) {
		r = bare_check(in, buf, sizeof(buf));
		if (r < 0)
			return r;
		text = buf;
	}
	r = number_parse(key, text, &v);
	if (r == -EINVAL && *text != '-' && key->type == DRAY_CONFIG_SIZE)
		return refuse(in, "is not a size: a number and KiB, MiB, GiB or TiB, such as "
				  "\"16MiB\"");
	if (r == -EINVAL && *text != '-' && key->type == DRAY_CONFIG_DURATION)
		return refuse(in,
			      "is not a duration: a number and ns, us, ms, s, min or h, such as "
			      "\"500ms\"");
	/* without the 0 it is unclear whether 660 is octal */
	if (!r && key->octal && text[0] != '0')
		return refuse(in, "is octal and must start with 0, such as \"0660\"");
	if (r < 0 || v < key->min || v > key->max)
		return refuse_range(in);
	*(int64_t *)to = v;
	return 0;
}

static int bool_set(void *to, const struct input *in)
{
	static const char *const words[] = { "false", "true", "no", "yes", "off", "on", "0", "1" };

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(words); i++)
		if (!strcasecmp(in->raw->text, words[i])) {
			*(bool *)to = i % 2;
			return 0;
		}
	return refuse_range(in);
}

static int enum_set(void *to, const struct input *in)
{
	for (size_t i = 0; i < in->key->n_choices; i++)
		if (!strcmp(in->raw->text, in->key->choices[i])) {
			*(int *)to = (int)i;
			return 0;
		}
	return refuse(in, "is not one of: %s", in->key->allowed);
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

static int string_set(void *to, const struct input *in)
{
	const char *text = in->raw->text, *fault = text_fault(in->id, text);
	char *copy;

	/* a group can be a number */
	if (in->raw->bare && (in->key->type == DRAY_CONFIG_PATH || !is_decimal(text)))
		return refuse(in, "must be in quotes");
	if (fault)
		return refuse_text(in, text, fault);
	copy = strdup(text);
	if (!copy)
		return config_no_memory(in->reterr);
	free(*(char **)to);
	*(char **)to = copy;
	return 0;
}

static const char *listener_fault(const char *word, size_t n_words, const char *if_name,
				  const char *otherwise)
{
	struct dray_addr addr;
	int r;

	if (!strcmp(word, "none"))
		return n_words > 1 ? "must stand alone" : NULL;
	r = dray_addr_parse(word, &addr);
	if (r < 0)
		return r == -EAFNOSUPPORT ? if_name : otherwise;
	return dray_addr_is_link_local(&addr) ?
		       "is link-local, which others cannot reach by address alone" :
		       NULL;
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

static void strv_clearp(struct dray_strv *s)
{
	dray_strv_clear(s);
}

static int list_set(void *to, const struct input *in)
{
	__attribute__((cleanup(strv_clearp))) struct dray_strv words = DRAY_STRV_NULL;
	const struct dray_strv *list = in->raw->list;
	int r = in->raw->text ? dray_strv_split(in->raw->text, &words) : 0;

	for (size_t i = 0; !r && list && i < list->n; i++)
		r = dray_strv_add(&words, list->v[i], strlen(list->v[i]));
	if (r < 0)
		return config_no_memory(in->reterr);
	for (size_t i = 0; i < words.n; i++) {
		const char *fault = element_fault(in->id, words.v[i], words.n);

		if (fault)
			return refuse_text(in, words.v[i], fault);
	}
	dray_strv_clear(to);
	*(struct dray_strv *)to = words;
	words = DRAY_STRV_NULL;
	return 0;
}

/* The texts are allocated; NULL without memory. */
static char *string_text(const struct dray_config_key *key, const void *p)
{
	return strdup(*(char *const *)p);
}

static char *bool_text(const struct dray_config_key *key, const void *p)
{
	return strdup(*(const bool *)p ? "true" : "false");
}

static char *number_text(const struct dray_config_key *key, const void *p)
{
	int64_t v = *(const int64_t *)p;
	char buf[40];

	if (key->type == DRAY_CONFIG_SIZE)
		dray_size_show(v, buf, sizeof(buf));
	else if (key->type == DRAY_CONFIG_DURATION)
		dray_duration_show(v, buf, sizeof(buf));
	else
		snprintf(buf, sizeof(buf), key->octal ? "0%.0" PRIo64 : "%" PRId64, v);
	return strdup(buf);
}

static char *enum_text(const struct dray_config_key *key, const void *p)
{
	return strdup(key->choices[*(const int *)p]);
}

static char *list_text(const struct dray_config_key *key, const void *p)
{
	const struct dray_strv *list = p;
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

static const struct {
	int (*set)(void *to, const struct input *in);
	char *(*text)(const struct dray_config_key *key, const void *p);
} types[] = {
	[DRAY_CONFIG_STRING] = { string_set, string_text },
	[DRAY_CONFIG_PATH] = { string_set, string_text },
	[DRAY_CONFIG_BOOL] = { bool_set, bool_text },
	[DRAY_CONFIG_INT] = { number_set, number_text },
	[DRAY_CONFIG_SIZE] = { number_set, number_text },
	[DRAY_CONFIG_DURATION] = { number_set, number_text },
	[DRAY_CONFIG_ENUM] = { enum_set, enum_text },
	[DRAY_CONFIG_LIST] = { list_set, list_text },
};

int config_value_set(struct dray_config *v, enum dray_config_key_id id,
		     const struct config_raw *raw, const char *where, struct dray_err *reterr)
{
	const struct dray_config_key *key = &dray_config_keys[id];
	const struct input in = { id, key, raw, where, reterr };

	if (!raw->text && key->type != DRAY_CONFIG_LIST)
		return config_refuse(reterr, where, "%s takes one value, not a list", key->path);
	return types[key->type].set((char *)v + key->offset, &in);
}

char *config_value_text(const struct dray_config *v, enum dray_config_key_id id)
{
	const struct dray_config_key *key = &dray_config_keys[id];

	return types[key->type].text(key, config_member(v, id));
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
