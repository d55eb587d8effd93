/* rocket_errors WORDS MINOR: the errno of everything that can be wrong; MINOR 0 is stock Linux. */
#include "npu.h"

static int fd, stock;
static struct bo code, x, w, y;
static struct task tasks[2];
static uint32_t in, out;
static struct job good, job;
static struct submit submit;

static void reset(void)
{
	tasks[1] = tasks[0];
	in = x.handle;
	out = y.handle;
	job = good;
	submit = (struct submit){ .jobs = (uintptr_t)&job, .count = 1, .stride = JOB_V1 };
	memset(y.mem, 0, Y_BYTES);
}

/* Whether SUBMIT gives `number` and nothing runs; stock Linux swallows errors of single jobs. */
static int refused(int number, int per_job)
{
	int have = ERRNO(ioctl(fd, ROCKET_SUBMIT, &submit)), want = per_job && stock ? 0 : number, ran;

	rocket_prep(fd, y.handle, FOREVER);
	ran = y.mem[0] || y.mem[1] || y.mem[2];
	if (have != want || ran)
		fprintf(stderr, "errno %d instead of %d, ran %d\n", have, want, ran);
	reset();
	return have == want && !ran;
}

int main(int argc, char **argv)
{
	struct drm_version v = { 0 };
	char name[64] = "";
	void *gone;
	int minor;

	MUST(argc == 3);
	minor = atoi(argv[2]);
	stock = minor == 0;
	fd = open(ACCEL, O_RDWR);
	MUST(fd >= 0);
	v.name = name;
	v.name_len = sizeof name;
	EXPECT(!ioctl(fd, DRM_VERSION, &v));
	EXPECT(!strcmp(name, "rocket") && v.name_len == 6 && v.minor == minor);
	EXPECT(v.major == (minor != 0));
	code = rocket_bo(fd, 4096);
	x = rocket_bo(fd, X_BYTES);
	w = rocket_bo(fd, W_BYTES);
	y = rocket_bo(fd, Y_BYTES);
	fill(x.mem, w.mem, 7);
	tasks[0] = (struct task){ 0, load(argv[1], code.mem, 4096) / 8 };
	good = (struct job){ (uintptr_t)tasks, (uintptr_t)&in, (uintptr_t)&out, 1, 8, 1, 1, 0, 0, 0 };
	reset();
	gone = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	/* as it should be */
	EXPECT(!ioctl(fd, ROCKET_SUBMIT, &submit) && !rocket_prep(fd, y.handle, FOREVER));
	EXPECT(!wrong(x.mem, w.mem, y.mem));
	reset();

	/* the whole submit */
	EXPECT((submit.reserved = 1, refused(EINVAL, 0)));
	EXPECT((submit.stride = JOB_V1 - 1, refused(EINVAL, 0)));
	EXPECT((submit.jobs = 0, refused(EFAULT, 0)));
	EXPECT((submit.jobs = (uintptr_t)gone, refused(EFAULT, 0)));
	EXPECT((submit.jobs = -8ull, refused(EFAULT, 0)));
	EXPECT((submit.jobs = 1ull << 63, refused(EFAULT, 0)));
	EXPECT((submit.count = 0, refused(0, 0)));
	EXPECT((submit.count = UINT32_MAX, refused(ENOMEM, 0)));

	/* one job */
	EXPECT((job.task_count = 0, refused(EINVAL, 1)));
	EXPECT((job.task_count = UINT32_MAX, refused(ENOMEM, 1)));
	EXPECT((job.task_stride = 7, refused(EINVAL, 1)));
	EXPECT((job.tasks = (uintptr_t)gone, refused(EFAULT, 1)));
	EXPECT((job.tasks = 0, refused(EFAULT, 1)));
	EXPECT((job.in = (uintptr_t)gone, refused(EFAULT, 1)));
	EXPECT((job.out = 16, refused(EFAULT, 1)));
	EXPECT((job.out_count = UINT32_MAX, refused(ENOMEM, 1)));
	EXPECT((in = 999, refused(ENOENT, 1)));
	EXPECT((out = 0, refused(ENOENT, 1)));
	EXPECT((in = y.handle, refused(0, 1))); /* in both lists: success, and nothing runs */
	tasks[1].words = 0;
	EXPECT((job.task_count = 2, refused(EINVAL, 1)));

	/* what a later interface knows, or nobody */
	if (!stock) {
		EXPECT((submit.stride = JOB_V11, job.flags = 8, refused(EINVAL, 1)));
		EXPECT((submit.stride = JOB_V11, job.reserved = 1, refused(EINVAL, 1)));
		EXPECT((submit.stride = sizeof job, job.unknown = 1, refused(E2BIG, 1)));
	}
	submit.stride = sizeof job; /* zeros behind what is known are fine, stock never looks */
	job.flags = stock;
	job.unknown = stock;
	EXPECT(!ioctl(fd, ROCKET_SUBMIT, &submit) && !rocket_prep(fd, y.handle, FOREVER));
	EXPECT(!wrong(x.mem, w.mem, y.mem));
	reset();

	/* buffers */
	EXPECT(ERRNO(ioctl(fd, ROCKET_CREATE_BO, &(struct create_bo){ 0 })) == EINVAL);
	EXPECT(ERRNO(ioctl(fd, ROCKET_CREATE_BO, gone)) == EFAULT);
	EXPECT(ERRNO(ioctl(fd, ROCKET_CREATE_BO, NULL)) == EFAULT);
	EXPECT(ERRNO(rocket_prep(fd, 999, 0)) == ENOENT);
	EXPECT(ERRNO(ioctl(fd, ROCKET_PREP_BO, &(struct prep){ y.handle, 1, 0 })) == EINVAL);
	EXPECT(ERRNO(ioctl(fd, ROCKET_FINI_BO, &(struct fini){ y.handle, 0 })) == 0);
	EXPECT(ERRNO(ioctl(fd, DRM_GEM_CLOSE, &(struct drm_gem_close){ 999, 0 })) == EINVAL);
	EXPECT(ERRNO(ioctl(fd, DRM_GEM_CLOSE, &(struct drm_gem_close){ w.handle, 0 })) == 0);
	EXPECT(ERRNO(ioctl(fd, DRM_GEM_CLOSE, &(struct drm_gem_close){ w.handle, 0 })) == EINVAL);
	EXPECT((in = w.handle, refused(ENOENT, 1)));
	EXPECT(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EINVAL);
	{
		struct create_bo c = { .size = 1 };

		EXPECT(!ioctl(fd, ROCKET_CREATE_BO, &c));
		EXPECT(mmap(NULL, 8192, PROT_READ, MAP_SHARED, fd, c.offset) == MAP_FAILED);
		EXPECT(mmap(NULL, 1, PROT_READ, MAP_SHARED, fd, c.offset) != MAP_FAILED);
	}

	/* the ranged syncs */
	{
		struct range r[2] = { { 0, 64 }, { 64, 64 } };
		struct prep_ranges p = { y.handle, 2, (uintptr_t)r, 0, 0 };
		int have = minor >= 5;

		EXPECT(ERRNO(ioctl(fd, ROCKET_PREP_RANGES, &p)) == (have ? 0 : EINVAL));
		r[1].offset = 63;
		EXPECT(ERRNO(ioctl(fd, ROCKET_PREP_RANGES, &p)) == EINVAL);
		p.ranges = (uintptr_t)gone;
		EXPECT(ERRNO(ioctl(fd, ROCKET_PREP_RANGES, &p)) == (have ? EFAULT : EINVAL));
	}

	/* no such call */
	EXPECT(ERRNO(ioctl(fd, _IOWR('d', 0x7f, int), &in)) == EINVAL);
	EXPECT(ERRNO(ioctl(fd, _IOWR('x', 0x40, int), &in)) == ENOTTY);
	EXPECT(ERRNO(ioctl(-1, ROCKET_PREP_BO, &in)) == EBADF);
	EXPECT(open("/dev/accel/accel7", O_RDWR) < 0 && errno == ENOENT);
	close(fd);
	EXPECT(ERRNO(rocket_prep(fd, y.handle, 0)) == EBADF);
	return failures != 0;
}
