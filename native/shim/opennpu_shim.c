/* SPDX-License-Identifier: MIT
 *
 * LD_PRELOAD library of `opennpu emulate`: shows NPU device nodes to a program.
 *
 * It knows no driver.  Calls on a node go to the emulator process over a Unix socket
 * (opennpu/device/serve.py); the emulator asks back for whatever memory of ours the call
 * points to.  The kernel copies between that memory and the socket, so a bad pointer is
 * EFAULT, never a crash.  Everything else passes through.
 *
 * The file descriptor that a program gets for a node is one end of a socket pair, bound to the
 * name "\0SERVER/FILE/MAJOR/MINOR".  So close, dup, fork, exec and SCM_RIGHTS need no help:
 * the emulator sees the other end hang up when the last copy is closed.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define REAL(name) \
	static __typeof__(&name) real; \
	if (!real) \
	real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

enum { OPEN = 1, STAT, IOCTL, MMAP, CANCEL, DATA, DONE, PASS, READ, WRITE, INSTALL, WHO, SEEK };

struct message { /* little endian, as both CPUs are; serve.py has the same */
	uint32_t op;
	int32_t error;
	uint64_t file;
	uint64_t request; /* ioctl number; mmap offset; flags of open; device of a node; fd */
	uint64_t address; /* in this process; PROT_ of mmap */
	uint64_t size; /* of the payload, or of what `address` points to */
};

static char server[80]; /* abstract socket name without its first zero; empty: do nothing */
static char root[256]; /* a folder with our part of /dev, /sys and /proc */
static size_t root_length;

__attribute__((constructor)) static void start(void)
{
	const char *name = getenv("OPENNPU_EMULATE"), *folder = getenv("OPENNPU_EMULATE_ROOT");

	if (name && strlen(name) < sizeof server)
		strcpy(server, name);
	if (folder && strlen(folder) < sizeof root)
		strcpy(root, folder);
	root_length = strlen(root);
}

/* -- connections: as many as there are calls at a time ------------------------------------ */

#define SLOTS 64
#define FIRST_FD 200 /* out of the way of programs that count their descriptors */

enum { EMPTY, IDLE, BUSY };

static struct slot {
	atomic_int state;
	int fd;
	dev_t dev;
	ino_t ino;
} slots[SLOTS];

static int same_socket(const struct slot *s) /* a program may close what it did not open */
{
	struct stat st;

	return !syscall(SYS_fstat, s->fd, &st) && st.st_dev == s->dev && st.st_ino == s->ino;
}

static void child(void) /* after fork: connections belong to the parent */
{
	for (int i = 0; i < SLOTS; i++) {
		if (atomic_load(&slots[i].state) != EMPTY && same_socket(&slots[i]))
			close(slots[i].fd);
		atomic_store(&slots[i].state, EMPTY);
	}
}

static int dial(void)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	size_t n = strlen(server);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), high;

	memcpy(a.sun_path + 1, server, n);
	if (fd < 0)
		return -1;
	if (connect(fd, (struct sockaddr *)&a, offsetof(struct sockaddr_un, sun_path) + 1 + n)) {
		close(fd);
		return -1;
	}
	high = fcntl(fd, F_DUPFD_CLOEXEC, FIRST_FD);
	if (high >= 0) {
		close(fd);
		fd = high;
	}
	return fd;
}

static int take(struct slot **slot)
{
	static atomic_flag hooked = ATOMIC_FLAG_INIT;
	struct stat st;

	if (!atomic_flag_test_and_set(&hooked))
		pthread_atfork(NULL, NULL, child);
	for (int i = 0; i < SLOTS; i++) {
		struct slot *s = &slots[i];
		int state = IDLE;

		if (atomic_compare_exchange_strong(&s->state, &state, BUSY)) {
			if (same_socket(s)) {
				*slot = s;
				return s->fd;
			}
		} else if (state != EMPTY ||
			   !atomic_compare_exchange_strong(&s->state, &state, BUSY)) {
			continue;
		}
		s->fd = dial();
		if (s->fd < 0 || syscall(SYS_fstat, s->fd, &st)) {
			atomic_store(&s->state, EMPTY);
			return -1;
		}
		s->dev = st.st_dev;
		s->ino = st.st_ino;
		*slot = s;
		return s->fd;
	}
	*slot = NULL;
	return dial();
}

static void give(struct slot *slot, int fd, int broken)
{
	if (broken || !slot)
		close(fd);
	if (slot)
		atomic_store(&slot->state, broken ? EMPTY : IDLE);
}

static uint64_t file_of(int fd, dev_t *device);

/* -- one call ------------------------------------------------------------------------------ */

static ssize_t put(int fd, struct message *m, const void *data, size_t n)
{
	struct iovec iov[2] = { { m, sizeof *m }, { (void *)data, n } };
	struct msghdr h = { .msg_iov = iov, .msg_iovlen = n ? 2 : 1 };
	ssize_t r;

	do
		r = sendmsg(fd, &h, MSG_NOSIGNAL);
	while (r < 0 && errno == EINTR);
	return r;
}

static ssize_t get(int fd, struct message *m, int *passed)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov = { m, sizeof *m };
	struct msghdr h = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct cmsghdr *c;
	ssize_t r;

	memset(&control, 0, sizeof control);
	h.msg_control = &control;
	h.msg_controllen = sizeof control;
	r = recvmsg(fd, &h, MSG_CMSG_CLOEXEC);
	if (r > 0 && (c = CMSG_FIRSTHDR(&h)) && c->cmsg_type == SCM_RIGHTS)
		memcpy(passed, CMSG_DATA(c), sizeof *passed);
	return r;
}

static int fill(int fd, uint64_t address, uint64_t size) /* the next message, to our memory */
{
	char rest[64];
	ssize_t r;

	do /* until it is there */
		r = recv(fd, rest, 1, MSG_PEEK);
	while (r < 0 && errno == EINTR);
	r = recv(fd, (void *)(uintptr_t)address, size, MSG_DONTWAIT);
	if (r == (ssize_t)size)
		return 0;
	/* With a bad address the kernel throws it away; qemu-user leaves it there. */
	recv(fd, rest, sizeof rest, MSG_DONTWAIT | MSG_TRUNC);
	return EFAULT;
}

/* Returns 0, an errno, or -1: not ours.  A call that a signal interrupts is asked to end. */
static int call(struct message *m, const void *payload, size_t n, void *result, int *passed)
{
	int kept = errno, cancelled = 0, broken = 0, error;
	struct message in;
	struct slot *slot;
	int fd = take(&slot);

	if (fd < 0) {
		errno = kept;
		return ENODEV;
	}
	if (put(fd, m, payload, n) < 0) {
		error = errno == EFAULT ? EFAULT : ENODEV;
		goto out;
	}
	for (;;) {
		int got = -1;
		ssize_t r = get(fd, &in, &got);

		if (r < 0 && errno == EINTR) {
			struct message cancel = { .op = CANCEL };

			if (!cancelled++)
				put(fd, &cancel, NULL, 0);
			continue;
		}
		if (r != sizeof in) {
			error = ENODEV; /* the emulator is gone */
			break;
		}
		if (in.op == READ) {
			struct message out = { .op = DATA, .size = in.size };

			if (put(fd, &out, (void *)(uintptr_t)in.address, in.size) < 0) {
				out.error = EFAULT;
				out.size = 0;
				put(fd, &out, NULL, 0);
			}
		} else if (in.op == WRITE) {
			struct message out = { .op = DATA };

			out.error = fill(fd, in.address, in.size);
			put(fd, &out, NULL, 0);
		} else if (in.op == INSTALL) {
			struct message out = { .op = DATA, .request = got };

			if (got < 0)
				out.error = EMFILE;
			else if (!(in.request & O_CLOEXEC))
				fcntl(got, F_SETFD, 0);
			put(fd, &out, NULL, 0);
		} else if (in.op == WHO) {
			struct message out = { .op = DATA };

			if (fcntl((int)in.request, F_GETFD) < 0)
				out.error = EBADF;
			else
				out.file = file_of((int)in.request, NULL);
			put(fd, &out, NULL, 0);
		} else {
			error = in.op == PASS ? -1 : in.error;
			if (passed)
				*passed = got;
			if (in.size && fill(fd, (uintptr_t)result, in.size))
				error = EFAULT;
			*m = in;
			break;
		}
	}
	broken = error == ENODEV;
out:
	give(slot, fd, broken);
	errno = kept;
	return error;
}

static int failed(int error)
{
	errno = error;
	return -1;
}

/* -- what is ours -------------------------------------------------------------------------- */

static uint64_t file_of(int fd, dev_t *device) /* 0: not one of our nodes */
{
	struct sockaddr_un a;
	socklen_t n = sizeof a;
	size_t prefix = strlen(server);
	char text[sizeof a.sun_path + 1], *at;
	unsigned long long file, major, minor;
	int kept = errno;

	if (!prefix || fd < 0)
		return 0;
	if (getsockname(fd, (struct sockaddr *)&a, &n)) {
		errno = kept;
		return 0;
	}
	n -= offsetof(struct sockaddr_un, sun_path);
	if (a.sun_family != AF_UNIX || n < prefix + 3 || n > sizeof a.sun_path || a.sun_path[0] ||
	    memcmp(a.sun_path + 1, server, prefix) || a.sun_path[prefix + 1] != '/')
		return 0;
	memcpy(text, a.sun_path + prefix + 2, n - prefix - 2);
	text[n - prefix - 2] = 0;
	file = strtoull(text, &at, 10);
	major = strtoull(*at ? at + 1 : at, &at, 10);
	minor = strtoull(*at ? at + 1 : at, &at, 10);
	if (device)
		*device = makedev(major, minor);
	return file;
}

/* -- paths --------------------------------------------------------------------------------- */

static const char *const parts[] = { /* where `root` may have something */
	"/dev/accel", "/dev/dri", "/sys/class/accel", "/sys/class/drm", "/sys/dev/char",
	"/sys/devices/platform", "/sys/bus/platform", "/sys/module/rocket",
	"/sys/firmware/devicetree/base", "/proc/device-tree",
};

#define ROOM 512 /* our paths are short; threads may have little stack */

/* The path as an absolute one, without "//", "/./" and `root`; 0: it cannot be in our parts. */
static int absolute(int at, const char *path, char *out, size_t room)
{
	char base[ROOM];
	size_t n = 0;
	ssize_t got;

	if (!*server || !root_length || (uintptr_t)path < 4096 || !*path) /* for the kernel */
		return 0;
	if (*path == '/') {
		if (strncmp(path, root, root_length) && !strstr(path, "/dev/") &&
		    !strstr(path, "/sys/") && !strstr(path, "/proc/") && !strstr(path, "//"))
			return 0;
	} else {
		int kept = errno;

		if (at != AT_FDCWD) {
			char link[32];

			snprintf(link, sizeof link, "/proc/self/fd/%d", at);
			got = syscall(SYS_readlinkat, AT_FDCWD, link, base, sizeof base - 1);
		} else {
			got = syscall(SYS_getcwd, base, sizeof base);
			got = got > 0 ? (ssize_t)strlen(base) : -1;
		}
		errno = kept;
		if (got <= 0 || *base != '/' || (size_t)got + 1 >= room)
			return 0;
		memcpy(out, base, n = got);
		if (n == 1)
			n = 0; /* "/" */
	}
	for (const char *p = path; *p;) {
		size_t word;

		while (*p == '/')
			p++;
		word = strcspn(p, "/");
		if (word && !(word == 1 && *p == '.')) {
			if (n + word + 2 > room)
				return 0;
			out[n++] = '/';
			memcpy(out + n, p, word);
			n += word;
		}
		p += word;
	}
	out[n] = 0;
	if (!strncmp(out, root, root_length) && (out[root_length] == '/' || !out[root_length]))
		memmove(out, out + root_length, n - root_length + 1);
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		size_t length = strlen(parts[i]);

		if (!strncmp(out, parts[i], length) && (out[length] == '/' || !out[length]))
			return 1;
	}
	return 0;
}

static __attribute__((noinline)) int real_name(const char *path, char *name)
{
	char full[PATH_MAX];
	int kept = errno, known;
	REAL(realpath);

	known = real(path, full) && !strncmp(full, root, root_length) &&
		strlen(full) - root_length < ROOM; /* else a link to what the system has */
	if (known)
		strcpy(name, full + root_length);
	errno = kept;
	return known;
}

/* The path in `root`, if there is such a thing: then also, in `name`, what it is called without
 * symbolic links.  Else the path itself. */
static const char *folder(int at, const char *path, char *out, char *name)
{
	char plain[ROOM];

	*name = 0;
	if (!absolute(at, path, plain, sizeof plain) ||
	    snprintf(out, ROOM, "%s%s", root, plain) >= ROOM)
		return path;
	return real_name(out, name) ? out : path;
}

static int is_node(const char *name)
{
	return !strncmp(name, "/dev/accel/", 11) || !strncmp(name, "/dev/dri/", 9);
}

/* Where a function of libc has to look: in `path`; or, if that has a `name`, maybe at a node. */
#define LOOK(at, path) \
	char other[ROOM], name[ROOM]; \
	path = folder(at, path, other, name);

static int open_node(const char *name, int flags, int *fd) /* 0: not ours */
{
	struct message m = { .op = OPEN, .request = flags };
	int error;

	if (!is_node(name))
		return 0;
	*fd = -1;
	error = call(&m, name, strlen(name), NULL, fd);
	if (error < 0)
		return 0;
	if (!error && flags & (O_DIRECTORY | O_EXCL)) {
		error = flags & O_DIRECTORY ? ENOTDIR : flags & O_CREAT ? EEXIST : 0;
		if (error)
			close(*fd);
	}
	if (error)
		*fd = failed(error);
	else if (!(flags & O_CLOEXEC))
		fcntl(*fd, F_SETFD, 0);
	return 1;
}

static int stat_node(const char *name, struct stat *st) /* 0: not ours */
{
	struct message m = { .op = STAT };

	if (!is_node(name) || call(&m, name, strlen(name), NULL, NULL))
		return 0;
	memset(st, 0, sizeof *st);
	st->st_mode = S_IFCHR | 0666;
	st->st_nlink = 1;
	st->st_rdev = makedev(m.request >> 32, m.request & 0xffffffff);
	return 1;
}

static void as_node(int fd, struct stat *st)
{
	dev_t device;

	if (S_ISSOCK(st->st_mode) && file_of(fd, &device)) {
		st->st_mode = device ? S_IFCHR | 0666 : 0600; /* dma-bufs and sync files: no type */
		st->st_rdev = device;
	}
}

/* -- libc ---------------------------------------------------------------------------------- */

#define MODE(flags) \
	mode_t mode = 0; \
	if (flags & (O_CREAT | O_TMPFILE)) { \
		va_list list; \
		va_start(list, flags); \
		mode = va_arg(list, mode_t); \
		va_end(list); \
	}

#define OPEN_FUNCTION(function) \
	EXPORT int function(const char *path, int flags, ...) \
	{ \
		int fd; \
		REAL(function); \
		MODE(flags) \
		LOOK(AT_FDCWD, path) \
		return open_node(name, flags, &fd) ? fd : real(path, flags, mode); \
	}

#define OPENAT_FUNCTION(function) \
	EXPORT int function(int at, const char *path, int flags, ...) \
	{ \
		int fd; \
		REAL(function); \
		MODE(flags) \
		LOOK(at, path) \
		return open_node(name, flags, &fd) ? fd : real(at, path, flags, mode); \
	}

OPEN_FUNCTION(open)
OPEN_FUNCTION(open64)
OPENAT_FUNCTION(openat)
OPENAT_FUNCTION(openat64)

EXPORT int __open_2(const char *path, int flags)
{
	return open(path, flags);
}

EXPORT int __open64_2(const char *path, int flags)
{
	return open64(path, flags);
}

EXPORT int __openat_2(int at, const char *path, int flags)
{
	return openat(at, path, flags);
}

EXPORT int __openat64_2(int at, const char *path, int flags)
{
	return openat64(at, path, flags);
}

static int flags_of(const char *mode) /* of fopen */
{
	int flags = strchr(mode, '+') ? O_RDWR : *mode == 'r' ? O_RDONLY : O_WRONLY;

	return flags | (strchr(mode, 'e') ? O_CLOEXEC : 0);
}

#define FOPEN_FUNCTION(function) \
	EXPORT FILE *function(const char *path, const char *mode) \
	{ \
		FILE *f; \
		int fd; \
		REAL(function); \
		LOOK(AT_FDCWD, path) \
		if (!open_node(name, flags_of(mode), &fd)) \
			return real(path, mode); \
		f = fd < 0 ? NULL : fdopen(fd, mode); \
		if (!f && fd >= 0) \
			close(fd); \
		return f; \
	}

FOPEN_FUNCTION(fopen)
FOPEN_FUNCTION(fopen64)

/* -- folders; the nodes in ours are plain files, so we say what they stand for --------------- */

#define FOLDERS 16
static DIR *_Atomic ours[FOLDERS];

static DIR *note(DIR *d, const char *name)
{
	int in_dev = !strncmp(name, "/dev/", 5);

	for (int i = 0; d && in_dev && i < FOLDERS; i++) {
		DIR *none = NULL;

		if (atomic_compare_exchange_strong(&ours[i], &none, d))
			break;
	}
	return d;
}

EXPORT DIR *opendir(const char *path)
{
	REAL(opendir);
	LOOK(AT_FDCWD, path)

	return note(real(path), name);
}

EXPORT DIR *fdopendir(int fd)
{
	char out[ROOM], name[ROOM];
	REAL(fdopendir);

	folder(fd, ".", out, name);
	return note(real(fd), name);
}

EXPORT int closedir(DIR *d)
{
	REAL(closedir);

	for (int i = 0; i < FOLDERS; i++) {
		DIR *same = d;

		if (atomic_compare_exchange_strong(&ours[i], &same, NULL))
			break;
	}
	return real(d);
}

#define READDIR_FUNCTION(function, type) \
	EXPORT struct type *function(DIR *d) \
	{ \
		struct type *e; \
		REAL(function); \
		e = real(d); \
		for (int i = 0; e && e->d_type == DT_REG && i < FOLDERS; i++) \
			if (atomic_load(&ours[i]) == d) \
				e->d_type = DT_CHR; \
		return e; \
	}

READDIR_FUNCTION(readdir, dirent)
READDIR_FUNCTION(readdir64, dirent64)

#define SCANDIR_FUNCTION(function, type) \
	EXPORT int function(const char *path, struct type ***list, \
			    int (*filter)(const struct type *), \
			    int (*compare)(const struct type **, const struct type **)) \
	{ \
		REAL(function); \
		LOOK(AT_FDCWD, path) \
		return real(path, list, filter, compare); \
	}

SCANDIR_FUNCTION(scandir, dirent)
SCANDIR_FUNCTION(scandir64, dirent64)

static void *glob_opendir(const char *path)
{
	return opendir(path);
}

static struct dirent *glob_readdir(void *d)
{
	return readdir(d);
}

static void glob_closedir(void *d)
{
	closedir(d);
}

/* glob() looks around with functions of its own, unless it is given ours. */
#define GLOB_FUNCTION(function, type, state) \
	EXPORT int function(const char *pattern, int flags, int (*error)(const char *, int), \
			    type *g) \
	{ \
		type mine = *g; \
		int result; \
		REAL(function); \
		if (!*server || flags & GLOB_ALTDIRFUNC || (uintptr_t)pattern < 4096 || \
		    (strncmp(pattern, "/dev/", 5) && strncmp(pattern, "/sys/", 5))) \
			return real(pattern, flags, error, g); \
		mine.gl_opendir = glob_opendir; \
		mine.gl_readdir = (__typeof__(mine.gl_readdir))glob_readdir; \
		mine.gl_closedir = glob_closedir; \
		mine.gl_stat = (__typeof__(mine.gl_stat))stat; \
		mine.gl_lstat = (__typeof__(mine.gl_lstat))lstat; \
		result = real(pattern, flags | GLOB_ALTDIRFUNC, error, &mine); \
		g->gl_pathc = mine.gl_pathc; \
		g->gl_pathv = mine.gl_pathv; \
		g->gl_offs = mine.gl_offs; \
		g->gl_flags = mine.gl_flags & ~GLOB_ALTDIRFUNC; \
		return result; \
	}

GLOB_FUNCTION(glob, glob_t, stat)
GLOB_FUNCTION(glob64, glob64_t, stat64)

/* -- what is known of a file ----------------------------------------------------------------- */

#define STAT_FUNCTION(function, type) \
	EXPORT int function(const char *path, struct type *st) \
	{ \
		REAL(function); \
		LOOK(AT_FDCWD, path) \
		return stat_node(name, (struct stat *)st) ? 0 : real(path, st); \
	}

#define LSTAT_FUNCTION(function, type) \
	EXPORT int function(const char *path, struct type *st) \
	{ \
		REAL(function); \
		LOOK(AT_FDCWD, path) \
		if (*name && strcmp(path + root_length, name)) /* a symbolic link */ \
			return real(path, st); \
		return stat_node(name, (struct stat *)st) ? 0 : real(path, st); \
	}

#define FSTATAT_FUNCTION(function, type) \
	EXPORT int function(int at, const char *path, struct type *st, int flags) \
	{ \
		int r; \
		REAL(function); \
		LOOK(at, path) \
		if ((!*name || !(flags & AT_SYMLINK_NOFOLLOW) || \
		     !strcmp(path + root_length, name)) && \
		    stat_node(name, (struct stat *)st)) \
			return 0; \
		r = real(at, path, st, flags); \
		if (!r && flags & AT_EMPTY_PATH && !*path) \
			as_node(at, (struct stat *)st); \
		return r; \
	}

#define FSTAT_FUNCTION(function, type) \
	EXPORT int function(int fd, struct type *st) \
	{ \
		int r; \
		REAL(function); \
		r = real(fd, st); \
		if (!r) \
			as_node(fd, (struct stat *)st); \
		return r; \
	}

_Static_assert(sizeof(struct stat) == sizeof(struct stat64), "a 64-bit system");
STAT_FUNCTION(stat, stat)
STAT_FUNCTION(stat64, stat64)
LSTAT_FUNCTION(lstat, stat)
LSTAT_FUNCTION(lstat64, stat64)
FSTATAT_FUNCTION(fstatat, stat)
FSTATAT_FUNCTION(fstatat64, stat64)
FSTAT_FUNCTION(fstat, stat)
FSTAT_FUNCTION(fstat64, stat64)

/* Programs that were linked with glibc before 2.33 call these. */
#define OLD_STAT_FUNCTION(function, old) \
	EXPORT int old(int version, const char *path, struct stat *st) \
	{ \
		(void)version; \
		return function(path, st); \
	}
#define OLD_FSTAT_FUNCTION(old) \
	EXPORT int old(int version, int fd, struct stat *st) \
	{ \
		(void)version; \
		return fstat(fd, st); \
	}
#define OLD_FSTATAT_FUNCTION(old) \
	EXPORT int old(int version, int at, const char *path, struct stat *st, int flags) \
	{ \
		(void)version; \
		return fstatat(at, path, st, flags); \
	}

OLD_STAT_FUNCTION(stat, __xstat)
OLD_STAT_FUNCTION(stat, __xstat64)
OLD_STAT_FUNCTION(lstat, __lxstat)
OLD_STAT_FUNCTION(lstat, __lxstat64)
OLD_FSTAT_FUNCTION(__fxstat)
OLD_FSTAT_FUNCTION(__fxstat64)
OLD_FSTATAT_FUNCTION(__fxstatat)
OLD_FSTATAT_FUNCTION(__fxstatat64)

EXPORT int statx(int at, const char *path, int flags, unsigned int mask, struct statx *sx)
{
	struct stat st;
	int r, node;
	REAL(statx);
	LOOK(at, path)

	node = stat_node(name, &st);
	if (node) { /* all but the type is that of our file */
		r = real(AT_FDCWD, path, flags, mask, sx);
	} else {
		r = real(at, path, flags, mask, sx);
		if (r || !S_ISSOCK(sx->stx_mode) || !(flags & AT_EMPTY_PATH) || *path)
			return r;
		st.st_mode = S_IFSOCK;
		st.st_rdev = 0;
		as_node(at, &st);
		node = !S_ISSOCK(st.st_mode);
	}
	if (!r && node) {
		sx->stx_mode = st.st_mode;
		sx->stx_rdev_major = major(st.st_rdev);
		sx->stx_rdev_minor = minor(st.st_rdev);
	}
	return r;
}

EXPORT int access(const char *path, int mode)
{
	struct stat st;
	REAL(access);
	LOOK(AT_FDCWD, path)

	return stat_node(name, &st) ? 0 : real(path, mode);
}

EXPORT int faccessat(int at, const char *path, int mode, int flags)
{
	struct stat st;
	REAL(faccessat);
	LOOK(at, path)

	return stat_node(name, &st) ? 0 : real(at, path, mode, flags);
}

EXPORT int chdir(const char *path)
{
	REAL(chdir);
	LOOK(AT_FDCWD, path)
	return real(path);
}

EXPORT ssize_t readlink(const char *path, char *to, size_t room)
{
	REAL(readlink);
	LOOK(AT_FDCWD, path)
	return real(path, to, room);
}

EXPORT ssize_t readlinkat(int at, const char *path, char *to, size_t room)
{
	REAL(readlinkat);
	LOOK(at, path)
	return real(at, path, to, room);
}

EXPORT char *realpath(const char *path, char *to)
{
	REAL(realpath);
	LOOK(AT_FDCWD, path)

	if (!*name)
		return real(path, to);
	return to ? strcpy(to, name) : strdup(name);
}

EXPORT char *__realpath_chk(const char *path, char *to, size_t room)
{
	(void)room; /* the compiler's check: PATH_MAX */
	return realpath(path, to);
}

EXPORT char *canonicalize_file_name(const char *path)
{
	return realpath(path, NULL);
}

#define LSEEK_FUNCTION(function, type) \
	EXPORT type function(int fd, type offset, int whence) \
	{ \
		struct message m = { .op = SEEK }; \
		int error; \
		REAL(function); \
		if (whence > SEEK_END || !(m.file = file_of(fd, NULL))) \
			return real(fd, offset, whence); \
		error = call(&m, NULL, 0, NULL, NULL); \
		if (error) \
			return failed(error); \
		if (offset || whence == SEEK_CUR) /* only its size can be asked */ \
			return failed(EINVAL); \
		return whence == SEEK_END ? (type)m.request : 0; \
	}

LSEEK_FUNCTION(lseek, off_t)
LSEEK_FUNCTION(lseek64, off64_t)

EXPORT int ioctl(int fd, unsigned long request, ...)
{
	struct message m = { .op = IOCTL };
	va_list list;
	void *argument;
	int type, error;
	REAL(ioctl);

	va_start(list, request);
	argument = va_arg(list, void *);
	va_end(list);
	request &= 0xffffffff;
	type = _IOC_TYPE(request); /* of DRM, dma-bufs, sync files */
	if ((type == 'd' || type == 'b' || type == '>') && (m.file = file_of(fd, NULL))) {
		int in = _IOC_DIR(request) & _IOC_WRITE;

		m.request = request;
		m.address = (uintptr_t)argument;
		m.size = in ? _IOC_SIZE(request) : 0;
		error = call(&m, argument, m.size, argument, NULL);
		return error > 0 ? failed(error) : 0;
	}
	return real(fd, request, argument);
}

/* Not through dlsym: memory allocators map memory before they can serve dlsym. */
static void *map(void *at, size_t size, int prot, int flags, int fd, off_t offset)
{
	return (void *)syscall(SYS_mmap, at, size, prot, flags, fd, offset);
}

EXPORT void *mmap(void *at, size_t size, int prot, int flags, int fd, off_t offset)
{
	struct message m = { .op = MMAP, .request = offset, .address = prot, .size = size };
	int memory = -1, error;
	void *p;

	if (flags & MAP_ANONYMOUS || !(m.file = file_of(fd, NULL)))
		return map(at, size, prot, flags, fd, offset);
	error = (flags & MAP_TYPE) == MAP_PRIVATE ? EINVAL : call(&m, NULL, 0, NULL, &memory);
	if (error) {
		errno = error > 0 ? error : EBADF;
		return MAP_FAILED;
	}
	p = map(at, size, prot, flags, memory, m.request);
	error = errno;
	close(memory);
	errno = error;
	return p;
}

EXPORT void *mmap64(void *at, size_t size, int prot, int flags, int fd, off64_t offset)
{
	return mmap(at, size, prot, flags, fd, offset);
}
