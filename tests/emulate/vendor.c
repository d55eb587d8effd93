/* vendor WORDS: the vendor ABI.  WORDS: for x, w, y at the three pages below the topmost. */
#include "npu.h"
#include <poll.h>

struct fence_info { char object[32], driver[32]; int32_t status; uint32_t flags; uint64_t time; };
struct sync_info {
	char name[32];
	int32_t status;
	uint32_t flags, count, pad;
	uint64_t fences;
};
struct sync_merge { char name[32]; int32_t fd2, fence; uint32_t flags, pad; };
#define SYNC_MERGE _IOWR('>', 3, struct sync_merge)
#define SYNC_INFO _IOWR('>', 4, struct sync_info)

static int fd;
static struct bo list, x, w, y, code;
static size_t length;
static char kept[4096];

static int run(uint32_t cores, uint32_t flags, struct vendor_submit *s)
{
	*s = (struct vendor_submit){ .flags = flags, .timeout = 300, .number = 1, .cores = cores };
	s->tasks = list.object;
	s->fence = -1;
	for (int i = 0; i < 5; i++)
		s->part[i].number = 1;
	memset(y.mem, 0, Y_BYTES);
	return ERRNO(ioctl(fd, RKNPU_SUBMIT, s));
}

static int ready(int fence, int ms) /* 1: the sync file is signalled */
{
	struct pollfd p = { .fd = fence, .events = POLLIN };

	return poll(&p, 1, ms) == 1 && p.revents == POLLIN;
}

static void fences(void)
{
	struct vendor_submit s;
	struct fence_info one[2];
	struct sync_info info = { .count = 2, .fences = (uintptr_t)one };
	struct sync_merge merge = { .name = "both" };
	int first, second;

	EXPECT(run(1, 0x17, &s) == 0 && s.fence >= 0); /* non-blocking, with a fence */
	first = s.fence;
	EXPECT(fcntl(first, F_GETFD) == FD_CLOEXEC);
	EXPECT(ready(first, 5000) && !wrong(x.mem, w.mem, y.mem));
	EXPECT(ready(first, 0)); /* for good */
	EXPECT(!ioctl(first, SYNC_INFO, &info) && info.status == 1 && info.count == 1);
	EXPECT(one[0].status == 1 && one[0].time > 0);

	memset(code.mem, 0, length); /* a job that hangs */
	EXPECT(run(2, 0x17, &s) == 0 && s.fence >= 0);
	second = s.fence;
	merge.fd2 = second;
	EXPECT(!ioctl(first, SYNC_MERGE, &merge) && merge.fence >= 0);
	EXPECT(!ready(second, 100) && !ready(merge.fence, 0));
	EXPECT(!ioctl(second, SYNC_INFO, &info) && info.status == 0);
	EXPECT(ready(merge.fence, 2000));
	info.count = 2;
	EXPECT(!ioctl(merge.fence, SYNC_INFO, &info));
	EXPECT(info.status == -ETIMEDOUT && info.count == 2);
	memcpy(code.mem, kept, length);

	s = (struct vendor_submit){ .flags = 5 | 8, .timeout = 300, .number = 1, .cores = 1 };
	s.tasks = list.object;
	s.part[0].number = 1;
	s.fence = merge.fence;
	memset(y.mem, 0, Y_BYTES);
	EXPECT(!ioctl(fd, RKNPU_SUBMIT, &s) && !wrong(x.mem, w.mem, y.mem));
	s.fence = fd; /* a file, but no sync file */
	EXPECT(ERRNO(ioctl(fd, RKNPU_SUBMIT, &s)) == EINVAL);
	s.fence = 999;
	EXPECT(ERRNO(ioctl(fd, RKNPU_SUBMIT, &s)) == EBADF);
	close(first);
	close(second);
	close(merge.fence);
}

static int action(uint32_t number, uint32_t value) /* what it returns, or -1 */
{
	struct action a = { number, value };

	return ioctl(fd, RKNPU_ACTION, &a) ? -1 : (int)a.value;
}

/* The same addresses in another IOMMU domain are other memory. */
static void domains(void)
{
	struct mem_create c[5] = { { .flags = 0x40b } };
	struct bo b[5];
	struct vendor_submit s = { .flags = 5, .timeout = 300, .number = 1, .cores = 1 };

	EXPECT(action(24, 0) == 0);
	EXPECT(action(25, 16) == -1 && errno == EINVAL);
	EXPECT(action(25, 15) == 15 && action(24, 0) == 15);
	c[0].size = 1;
	c[0].domain = 16;
	EXPECT(ERRNO(ioctl(fd, RKNPU_MEM_CREATE, &c[0])) == EINVAL);
	for (int i = 0; i < 5; i++) {
		struct mem_map m = { 0 };

		c[i].size = 4096;
		c[i].domain = 3;
		MUST(!ioctl(fd, RKNPU_MEM_CREATE, &c[i]));
		m.handle = c[i].handle;
		MUST(!ioctl(fd, RKNPU_MEM_MAP, &m));
		b[i].mem = mmap(NULL, 4096, 3, MAP_SHARED, fd, m.offset);
		MUST(b[i].mem != MAP_FAILED);
	}
	EXPECT(c[0].dma == list.dma && c[3].dma == y.dma && c[4].dma == code.dma);
	memcpy(b[4].mem, code.mem, length);
	memcpy(b[0].mem, list.mem, 4096);
	fill(b[1].mem, b[2].mem, 99);
	memset(y.mem, 0, Y_BYTES);
	s.domain = 3;
	s.tasks = c[0].object;
	s.part[0].number = 1;
	EXPECT(!ioctl(fd, RKNPU_SUBMIT, &s) && !wrong(b[1].mem, b[2].mem, b[3].mem));
	EXPECT(!y.mem[0] && !memcmp(y.mem, y.mem + 1, Y_BYTES - 1));
	EXPECT(action(24, 0) == 3);
	for (int i = 0; i < 5; i++)
		ioctl(fd, RKNPU_MEM_DESTROY, &(struct mem_map){ c[i].handle, 0, 0 });
}

int main(int argc, char **argv)
{
	static const uint32_t cores[] = { 0, 1, 2, 4, 3, 7 };
	struct vendor_task *task;
	struct vendor_submit s;
	struct action a = { 0, 0 };
	struct drm_version v = { 0 };
	char name[8] = "";
	int64_t took;

	MUST(argc == 2);
	fd = open(RENDER, O_RDWR);
	MUST(fd >= 0);
	v.name = name;
	v.name_len = 3; /* the kernel copies no more than there is room for */
	EXPECT(!ioctl(fd, DRM_VERSION, &v) && !strcmp(name, "rkn") && v.name_len == 5);
	EXPECT(!ioctl(fd, RKNPU_ACTION, &a) && a.value == 1179210309);
	a.action = 1;
	EXPECT(!ioctl(fd, RKNPU_ACTION, &a) && a.value == 908);
	a.action = 99;
	EXPECT(ERRNO(ioctl(fd, RKNPU_ACTION, &a)) == EINVAL);
	list = vendor_bo(fd, 4096, 0x40b);
	x = vendor_bo(fd, X_BYTES, 0x403);
	w = vendor_bo(fd, W_BYTES, 0x403);
	y = vendor_bo(fd, Y_BYTES, 0x403);
	code = vendor_bo(fd, 4096, 0x403);
	EXPECT(list.dma == 0xfffff000 && y.dma == 0xffffc000);
	length = load(argv[1], code.mem, 4096);
	memcpy(kept, code.mem, length);
	task = (struct vendor_task *)list.mem;
	*task = (struct vendor_task){ .enable = 0x1d, .int_mask = 0x300, .int_clear = 0x1ffff };
	task->words = length / 8 - 4;
	task->regcmd = code.dma;
	fill(x.mem, w.mem, 11);
	for (unsigned i = 0; i < sizeof cores / sizeof *cores; i++) {
		EXPECT(run(cores[i], 5, &s) == 0);
		EXPECT(s.counter == 1 && s.elapsed > 0 && task->int_status & 0x300);
		EXPECT(!wrong(x.mem, w.mem, y.mem));
	}
	EXPECT(run(1, 7, &s) == 0); /* non-blocking */
	took = now();
	while (wrong(x.mem, w.mem, y.mem) && now() - took < 2000000000)
		usleep(1000);
	EXPECT(!wrong(x.mem, w.mem, y.mem));

	EXPECT(run(8, 5, &s) == EINVAL);
	EXPECT(run(5, 5, &s) == ETIMEDOUT);
	EXPECT(run(1, 4, &s) == EINVAL);
	fences();
	domains();
	s = (struct vendor_submit){ .flags = 5, .number = 1, .tasks = 0x1234, .cores = 1 };
	EXPECT(ERRNO(ioctl(fd, RKNPU_SUBMIT, &s)) == EINVAL);
	s.tasks = x.object;
	EXPECT(ERRNO(ioctl(fd, RKNPU_SUBMIT, &s)) == EINVAL);
	s.tasks = list.object;
	s.part[0].start = 1000000;
	s.part[0].number = 1;
	EXPECT(ERRNO(ioctl(fd, RKNPU_SUBMIT, &s)) == EINVAL);
	EXPECT(ERRNO(ioctl(fd, RKNPU_SUBMIT, NULL)) == EFAULT);
	EXPECT(ERRNO(ioctl(fd, RKNPU_MEM_CREATE, &(struct mem_create){ 0 })) == EINVAL);
	EXPECT(ERRNO(ioctl(fd, RKNPU_MEM_CREATE, &(struct mem_create){ .size = -1ull })) == ENOMEM);
	EXPECT(ERRNO(ioctl(fd, RKNPU_MEM_MAP, &(struct mem_map){ 99, 0, 0 })) == EINVAL);
	EXPECT(ERRNO(ioctl(fd, RKNPU_MEM_SYNC, &(struct mem_sync){ 1, 0, x.object, 0, 4096 })) == 0);
	EXPECT(ERRNO(ioctl(fd, RKNPU_MEM_SYNC, &(struct mem_sync){ 1, 0, 5, 0, 4096 })) == EINVAL);
	{ /* the shorter structure of older headers is filled up by DRM */
		struct mem_create c = { .size = 4096, .flags = 0x403 };
		unsigned long old = _IOC(_IOC_READ | _IOC_WRITE, 'd', 0x42, 40);

		c.domain = 77;
		EXPECT(!ioctl(fd, old, &c) && c.handle && c.dma && c.domain == 77);
	}

	memset(code.mem, 0, length); /* a job that hangs is ended after its time-out */
	took = -now();
	EXPECT(run(1, 5, &s) == ETIMEDOUT && s.counter <= 1);
	took += now();
	EXPECT(took >= 300000000 && took < 700000000);
	load(argv[1], code.mem, 4096);
	EXPECT(run(1, 5, &s) == 0 && !wrong(x.mem, w.mem, y.mem));
	EXPECT(!ioctl(fd, RKNPU_MEM_DESTROY, &(struct mem_map){ x.handle, 0, 0 }));
	EXPECT(ERRNO(ioctl(fd, RKNPU_MEM_DESTROY, &(struct mem_map){ x.handle, 0, 0 })) == EINVAL);
	return failures != 0;
}
