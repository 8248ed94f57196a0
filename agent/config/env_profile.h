/* SPDX-License-Identifier: Apache-2.0 */
/* The names of the profiles that the launcher's environment is made for. */
#pragma once

#include "lib/err.h"
#include "lib/strv.h"

#define ENV_PROFILES(X)                     \
	X(DRAY, "dray")                     \
	X(VLLM, "vllm")                     \
	X(VLLM_DRAY, "vllm-dray")           \
	X(VLLM_MOONCAKE, "vllm-mooncake")   \
	X(MOONCAKE, "mooncake")             \
	X(MOONCAKE_OWNER, "mooncake-owner") \
	X(NCCL, "nccl")                     \
	X(UCX, "ucx")

#define ENV_PROFILE_ENUM_(id, name) ENV_PROFILE_##id,
enum env_profile_id { ENV_PROFILES(ENV_PROFILE_ENUM_) ENV_PROFILE_N };

extern const char *const env_profile_names[ENV_PROFILE_N];

/* ENV_PROFILE_N: unknown. */
enum env_profile_id env_profile_find(const char *name);

/* 0, or -EINVAL for an unknown profile, with reterr naming the known ones. */
int env_profile_check(const char *name, struct dray_err *reterr);

/* Parses "dray,nccl" into a list and checks it. *ret is the caller's. 0, -EINVAL as above, -ENOMEM. */
int env_profiles_parse(const char *text, struct dray_strv *ret, struct dray_err *reterr);
