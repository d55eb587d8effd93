/* Both drivers' ioctls (public facts about their uAPI), and what the test programs share. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct drm_version {
	int major, minor, patch;
	size_t name_len;
	char *name;
	size_t date_len;
	char *date;
	size_t desc_len;
	char *desc;
};
struct drm_gem_close { uint32_t handle, pad; };
#define DRM_VERSION _IOWR('d', 0x00, struct drm_version)
#define DRM_GEM_CLOSE _IOW('d', 0x09, struct drm_gem_close)

struct create_bo { uint32_t size, handle; uint64_t dma, offset; };
struct submit { uint64_t jobs; uint32_t count, stride; uint64_t reserved; };
struct prep { uint32_t handle, reserved; int64_t deadline; };
struct fini { uint32_t handle, reserved; };
struct task { uint32_t regcmd, words; };
struct job {
	uint64_t tasks, in, out;
	uint32_t task_count, task_stride, in_count, out_count;
	uint32_t flags, reserved; /* since 1.1 */
	uint64_t unknown;
};
#define JOB_V1 40
#define JOB_V11 48
struct range { uint64_t offset, size; };
struct prep_ranges { uint32_t handle, count; uint64_t ranges; int64_t deadline; uint64_t reserved; };
#define ROCKET_CREATE_BO _IOWR('d', 0x40, struct create_bo)
#define ROCKET_SUBMIT _IOW('d', 0x41, struct submit)
#define ROCKET_PREP_BO _IOW('d', 0x42, struct prep)
#define ROCKET_FINI_BO _IOW('d', 0x43, struct fini)
#define ROCKET_PREP_RANGES _IOW('d', 0x44, struct prep_ranges)

struct action { uint32_t action, value; };
struct mem_create {
	uint32_t handle, flags;
	uint64_t size, object, dma, sram;
	int32_t domain;
	uint32_t cores;
};
struct mem_map { uint32_t handle, reserved; uint64_t offset; };
struct mem_sync { uint32_t flags, reserved; uint64_t object, offset, size; };
struct vendor_submit {
	uint32_t flags, timeout, start, number, counter;
	int32_t priority;
	uint64_t tasks;
	uint32_t domain, reserved;
	uint64_t base;
	int64_t elapsed;
	uint32_t cores;
	int32_t fence;
	struct { uint32_t start, number; } part[5];
};
struct vendor_task {
	uint32_t flags, op, enable, int_mask, int_clear, int_status, words, offset;
	uint64_t regcmd;
} __attribute__((packed));
#define RKNPU_ACTION _IOWR('d', 0x40, struct action)
#define RKNPU_SUBMIT _IOWR('d', 0x41, struct vendor_submit)
#define RKNPU_MEM_CREATE _IOWR('d', 0x42, struct mem_create)
#define RKNPU_MEM_MAP _IOWR('d', 0x43, struct mem_map)
#define RKNPU_MEM_DESTROY _IOWR('d', 0x44, struct mem_map)
#define RKNPU_MEM_SYNC _IOWR('d', 0x45, struct mem_sync)

#define ACCEL "/dev/accel/accel0"
#define RENDER "/dev/dri/renderD129"
#define FOREVER INT64_MAX

static int failures __attribute__((unused));

#define EXPECT(what) \
	do { \
		errno = 0; \
		if (!(what)) { \
			fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #what, errno); \
			__atomic_add_fetch(&failures, 1, __ATOMIC_SEQ_CST); \
		} \
	} while (0)

#define MUST(what) \
	do { \
		if (!(what)) { \
			fprintf(stderr, "%s:%d: %s: %m\n", __FILE__, __LINE__, #what); \
			exit(1); \
		} \
	} while (0)

/* The errno of a call, 0 if it passes. */
#define ERRNO(call) ((call) < 0 ? errno : 0)

static inline int64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static inline size_t load(const char *path, void *to, size_t room)
{
	FILE *f = fopen(path, "rb");
	size_t n;

	MUST(f);
	n = fread(to, 1, room, f);
	fclose(f);
	return n;
}

struct bo { uint32_t handle; uint64_t dma, object; uint8_t *mem; size_t size; };

static inline struct bo rocket_bo(int fd, size_t size)
{
	struct create_bo c = { .size = size };
	struct bo b = { .size = size };

	MUST(!ioctl(fd, ROCKET_CREATE_BO, &c));
	b.handle = c.handle;
	b.dma = c.dma;
	b.mem = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, c.offset);
	MUST(b.mem != MAP_FAILED);
	return b;
}

static inline struct bo vendor_bo(int fd, size_t size, uint32_t flags)
{
	struct mem_create c = { .size = size, .flags = flags };
	struct mem_map m = { 0 };
	struct bo b = { .size = size };

	MUST(!ioctl(fd, RKNPU_MEM_CREATE, &c));
	b.handle = m.handle = c.handle;
	b.dma = c.dma;
	b.object = c.object;
	MUST(!ioctl(fd, RKNPU_MEM_MAP, &m));
	b.mem = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, m.offset);
	MUST(b.mem != MAP_FAILED);
	return b;
}

static inline int rocket_submit(int fd, struct task t, const struct bo *in, const struct bo *out)
{
	struct job j = { .tasks = (uintptr_t)&t, .task_count = 1, .task_stride = sizeof t };
	struct submit s = { .jobs = (uintptr_t)&j, .count = 1, .stride = JOB_V1 };

	j.in = (uintptr_t)&in->handle;
	j.out = (uintptr_t)&out->handle;
	j.in_count = j.out_count = 1;
	return ioctl(fd, ROCKET_SUBMIT, &s);
}

static inline int rocket_prep(int fd, uint32_t handle, int64_t deadline)
{
	struct prep p = { .handle = handle, .deadline = deadline };

	return ioctl(fd, ROCKET_PREP_BO, &p);
}

/* An int8 matrix product [M, K] x [N, K] -> int32 [M, N], its cubes and its oracle. */
enum { M = 4, K = 64, N = 32, X_BYTES = M * K, W_BYTES = N * K, Y_BYTES = M * N * 4 };

static inline void fill(uint8_t *x, uint8_t *w, unsigned seed)
{
	for (int i = 0; i < X_BYTES; i++)
		x[i] = rand_r(&seed);
	for (int i = 0; i < W_BYTES; i++)
		w[i] = rand_r(&seed);
}

static inline int wrong(const uint8_t *x, const uint8_t *w, const uint8_t *y)
{
	int bad = 0;

	for (int m = 0; m < M; m++)
		for (int n = 0; n < N; n++) {
			int32_t sum = 0, have;

			for (int k = 0; k < K; k++) /* atoms of 16 channels; kernels of 32 channels */
				sum += (int8_t)x[(k / 16 * M + m) * 16 + k % 16] *
				       (int8_t)w[(k / 32 * N + n) * 32 + k % 32];
			memcpy(&have, y + ((n / 4 * M + m) * 4 + n % 4) * 4, 4);
			bad += have != sum;
		}
	return bad;
}
