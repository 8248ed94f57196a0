/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of the agent and its libraries, also of the C library on other architectures and in newer releases. io_uring is
 * not allowed, because its operations pass no filter.
 */
#include "agent/process/sandbox.h"

#include <stddef.h>

/* clang-format off */
const char *const sandbox_allowed[] = {
	/* waiting */
	"epoll_create", "epoll_create1", "epoll_ctl", "epoll_pwait", "epoll_pwait2", "epoll_wait", "eventfd",
	"eventfd2", "poll", "ppoll", "ppoll_time64", "pselect6", "pselect6_time64", "select", "_newselect",
	"signalfd", "signalfd4", "timerfd_create", "timerfd_gettime", "timerfd_gettime64", "timerfd_settime",
	"timerfd_settime64",
	/* sockets; socket and socketpair by their family */
	"accept", "accept4", "bind", "connect", "getpeername", "getsockname", "getsockopt", "listen", "recv",
	"recvfrom", "recvmmsg", "recvmmsg_time64", "recvmsg", "send", "sendmmsg", "sendmsg", "sendto",
	"setsockopt", "shutdown",
	/* files and devices */
	"_llseek", "access", "chmod", "chown", "close", "close_range", "copy_file_range", "creat", "dup", "dup2",
	"dup3", "faccessat", "faccessat2", "fadvise64", "fadvise64_64", "fallocate", "fchmod", "fchmodat",
	"fchmodat2", "fchown", "fchownat", "fcntl", "fcntl64", "fdatasync", "flock", "fstat", "fstat64",
	"fstatat64", "fstatfs", "fstatfs64", "fsync", "ftruncate", "ftruncate64", "getcwd", "getdents",
	"getdents64", "inotify_add_watch", "inotify_init", "inotify_init1", "inotify_rm_watch", "ioctl", "lchown",
	"lseek", "lstat", "lstat64", "mkdir", "mkdirat", "newfstatat", "open", "openat", "openat2", "pipe",
	"pipe2", "pread64", "preadv", "preadv2", "pwrite64", "pwritev", "pwritev2", "read", "readlink",
	"readlinkat", "readv", "rename", "renameat", "renameat2", "rmdir", "sendfile", "sendfile64", "stat",
	"stat64", "statfs", "statfs64", "statx", "sync_file_range", "sync_file_range2", "umask", "unlink",
	"unlinkat", "utimensat", "utimensat_time64", "write", "writev",
	/* memory; mmap and mprotect by their protection. GPU drivers bind pinned memory to a NUMA node */
	"brk", "madvise", "mbind", "membarrier", "memfd_create", "mincore", "mlock", "mlock2", "mremap", "msync",
	"munlock", "munmap", "set_mempolicy", "userfaultfd",
	/* threads and time; clone by its flags */
	"arch_prctl", "clock_getres", "clock_getres_time64", "clock_gettime", "clock_gettime64", "clock_nanosleep",
	"clock_nanosleep_time64", "exit", "exit_group", "futex", "futex_time64", "futex_waitv", "get_mempolicy",
	"get_robust_list", "getcpu", "gettimeofday", "map_shadow_stack", "nanosleep", "restart_syscall", "rseq",
	"sched_get_priority_max", "sched_get_priority_min", "sched_getaffinity", "sched_getattr",
	"sched_getparam", "sched_getscheduler", "sched_setaffinity", "sched_yield", "set_robust_list",
	"set_thread_area", "set_tid_address", "set_tls", "time", "times",
	/* signals, and zombies that process 1 inherits; tgkill only within this process */
	"rt_sigaction", "rt_sigpending", "rt_sigprocmask", "rt_sigreturn", "rt_sigsuspend", "rt_sigtimedwait",
	"rt_sigtimedwait_time64", "sigaction", "sigaltstack", "sigprocmask", "sigreturn", "wait4", "waitid",
	"waitpid",
	/* identity and limits of this process; capabilities can only be dropped */
	"capget", "capset", "getegid", "getegid32", "geteuid", "geteuid32", "getgid", "getgid32", "getgroups",
	"getgroups32", "getpgrp", "getpid", "getppid", "getrandom", "getresgid", "getresuid", "getrlimit",
	"getrusage", "gettid", "getuid", "getuid32", "prlimit64", "setrlimit", "sysinfo", "ugetrlimit", "uname",
	NULL,
};

const char *const sandbox_forbidden[] = {
	/* other programs, other processes */
	"execve", "execveat", "kcmp", "pidfd_getfd", "process_madvise", "process_vm_readv", "process_vm_writev",
	"ptrace",
	/* other identities and namespaces */
	"chroot", "mount", "mount_setattr", "move_mount", "open_tree", "fsconfig", "fsmount", "fsopen", "fspick",
	"pivot_root", "setns", "umount", "umount2", "unshare", "setfsgid", "setfsuid", "setgid", "setgroups",
	"setregid", "setresgid", "setresuid", "setreuid", "setuid", "setfsgid32", "setfsuid32", "setgid32",
	"setgroups32", "setregid32", "setresgid32", "setresuid32", "setreuid32", "setuid32",
	/* the kernel and the machine */
	"acct", "add_key", "adjtimex", "bpf", "clock_adjtime", "clock_adjtime64", "clock_settime",
	"clock_settime64", "delete_module", "finit_module", "init_module", "ioperm", "iopl", "kexec_file_load",
	"kexec_load", "keyctl", "modify_ldt", "open_by_handle_at", "perf_event_open", "quotactl", "reboot",
	"request_key", "sethostname", "setdomainname", "settimeofday", "stime", "swapoff", "swapon", "syslog",
	"vhangup",
	NULL,
};
/* clang-format on */
