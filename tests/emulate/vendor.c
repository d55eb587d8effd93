/* vendor WORDS: the vendor ABI.  WORDS: for x, w, y at the three pages below the topmost. */
#include "npu.h"

static int fd;
static struct bo list, x, w, y, code;
static size_t length;

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
	EXPECT(run(1, 5 | 0x10, &s) == EINVAL); /* fences are not built in */
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
