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

enum { OPEN = 1, STAT, IOCTL, MMAP, CANCEL, DATA, DONE, PASS, READ, WRITE };

struct message { /* little endian, as both CPUs are; serve.py has the same */
	uint32_t op;
	int32_t error;
	uint64_t file;
	uint64_t request; /* ioctl number; mmap offset; device number of a node */
	uint64_t address; /* in this process */
	uint64_t size; /* of the payload, or of what `address` points to */
};

static char server[80]; /* abstract socket name without its first zero; empty: do nothing */
static char devices[256]; /* a folder that looks like /dev */

__attribute__((constructor)) static void start(void)
{
	const char *name = getenv("OPENNPU_EMULATE"), *folder = getenv("OPENNPU_EMULATE_DEV");

	if (name && strlen(name) < sizeof server)
		strcpy(server, name);
	if (folder && strlen(folder) < sizeof devices)
		strcpy(devices, folder);
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

	if (passed) {
		memset(&control, 0, sizeof control);
		h.msg_control = &control;
		h.msg_controllen = sizeof control;
	}
	r = recvmsg(fd, &h, MSG_CMSG_CLOEXEC);
	if (passed && r > 0 && (c = CMSG_FIRSTHDR(&h)) && c->cmsg_type == SCM_RIGHTS)
		memcpy(passed, CMSG_DATA(c), sizeof *passed);
	return r;
}

static int fill(int fd, uint64_t address, uint64_t size) /* the next message, to our memory */
{
	char rest[64];
	ssize_t r;

	do
		r = recv(fd, (void *)(uintptr_t)address, size, 0);
	while (r < 0 && errno == EINTR);
	if (r == (ssize_t)size)
		return 0;
	recv(fd, rest, sizeof rest, MSG_DONTWAIT | MSG_TRUNC); /* qemu-user leaves it there */
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
		ssize_t r = get(fd, &in, passed);

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
		} else {
			error = in.op == PASS ? -1 : in.error;
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

static int is_node(const char *path)
{
	return *server && (uintptr_t)path >= 4096 && /* else the kernel says EFAULT */
	       (!strncmp(path, "/dev/accel/", 11) || !strncmp(path, "/dev/dri/", 9));
}

static const char *folder(const char *path, char *buffer, size_t n) /* "/dev/dri" is in ours */
{
	size_t end = (uintptr_t)path >= 4096 ? strlen(path) : 0;

	while (end > 1 && path[end - 1] == '/')
		end--;
	if (!*devices || !((end == 10 && !memcmp(path, "/dev/accel", 10)) ||
			   (end == 8 && !memcmp(path, "/dev/dri", 8))))
		return path;
	snprintf(buffer, n, "%s%.*s", devices, (int)(end - 4), path + 4);
	return access(buffer, F_OK) ? path : buffer;
}

static int open_node(const char *path, int flags, int *fd) /* 0: not ours */
{
	struct message m = { .op = OPEN };
	int error;

	if (!is_node(path))
		return 0;
	*fd = -1;
	error = call(&m, path, strlen(path), NULL, fd);
	if (error < 0)
		return 0;
	if (error)
		*fd = failed(error);
	else if (!(flags & O_CLOEXEC))
		fcntl(*fd, F_SETFD, 0);
	return 1;
}

static int stat_node(const char *path, struct stat *st) /* 0: not ours */
{
	struct message m = { .op = STAT };

	if (!is_node(path) || call(&m, path, strlen(path), NULL, NULL))
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
		st->st_mode = S_IFCHR | 0666;
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

#define OPEN_FUNCTION(name) \
	EXPORT int name(const char *path, int flags, ...) \
	{ \
		char other[300]; \
		int fd; \
		REAL(name); \
		MODE(flags) \
		return open_node(path, flags, &fd) ? \
			       fd : \
			       real(folder(path, other, sizeof other), flags, mode); \
	}

#define OPENAT_FUNCTION(name) \
	EXPORT int name(int at, const char *path, int flags, ...) \
	{ \
		char other[300]; \
		int fd; \
		REAL(name); \
		MODE(flags) \
		return open_node(path, flags, &fd) ? \
			       fd : \
			       real(at, folder(path, other, sizeof other), flags, mode); \
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

EXPORT DIR *opendir(const char *path)
{
	char other[300];
	REAL(opendir);

	return real(folder(path, other, sizeof other));
}

#define STAT_FUNCTION(name, type) \
	EXPORT int name(const char *path, struct type *st) \
	{ \
		char other[300]; \
		REAL(name); \
		return stat_node(path, (struct stat *)st) ? \
			       0 : \
			       real(folder(path, other, sizeof other), st); \
	}

#define FSTATAT_FUNCTION(name, type) \
	EXPORT int name(int at, const char *path, struct type *st, int flags) \
	{ \
		char other[300]; \
		int r; \
		REAL(name); \
		if (stat_node(path, (struct stat *)st)) \
			return 0; \
		r = real(at, folder(path, other, sizeof other), st, flags); \
		if (!r && flags & AT_EMPTY_PATH && !*path) \
			as_node(at, (struct stat *)st); \
		return r; \
	}

#define FSTAT_FUNCTION(name, type) \
	EXPORT int name(int fd, struct type *st) \
	{ \
		int r; \
		REAL(name); \
		r = real(fd, st); \
		if (!r) \
			as_node(fd, (struct stat *)st); \
		return r; \
	}

_Static_assert(sizeof(struct stat) == sizeof(struct stat64), "a 64-bit system");
STAT_FUNCTION(stat, stat)
STAT_FUNCTION(stat64, stat64)
STAT_FUNCTION(lstat, stat)
STAT_FUNCTION(lstat64, stat64)
FSTATAT_FUNCTION(fstatat, stat)
FSTATAT_FUNCTION(fstatat64, stat64)
FSTAT_FUNCTION(fstat, stat)
FSTAT_FUNCTION(fstat64, stat64)

EXPORT int access(const char *path, int mode)
{
	struct stat st;
	REAL(access);

	return stat_node(path, &st) ? 0 : real(path, mode);
}

EXPORT int faccessat(int at, const char *path, int mode, int flags)
{
	struct stat st;
	REAL(faccessat);

	return stat_node(path, &st) ? 0 : real(at, path, mode, flags);
}

EXPORT int ioctl(int fd, unsigned long request, ...)
{
	struct message m = { .op = IOCTL };
	va_list list;
	void *argument;
	int error;
	REAL(ioctl);

	va_start(list, request);
	argument = va_arg(list, void *);
	va_end(list);
	request &= 0xffffffff;
	if (_IOC_TYPE(request) == 'd' && (m.file = file_of(fd, NULL))) {
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
	struct message m = { .op = MMAP, .request = offset, .size = size };
	int memory = -1, error;
	void *p;

	if (flags & MAP_ANONYMOUS || !(m.file = file_of(fd, NULL)))
		return map(at, size, prot, flags, fd, offset);
	error = call(&m, NULL, 0, NULL, &memory);
	if (error) {
		errno = error > 0 ? error : EBADF;
		return MAP_FAILED;
	}
	p = map(at, size, prot, flags, memory, 0);
	error = errno;
	close(memory);
	errno = error;
	return p;
}

EXPORT void *mmap64(void *at, size_t size, int prot, int flags, int fd, off64_t offset)
{
	return mmap(at, size, prot, flags, fd, offset);
}
