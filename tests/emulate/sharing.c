/* sharing WORDS: buffers by dma-buf, by name, and to another process.  WORDS: as for vendor. */
#include "npu.h"
#include <poll.h>
#include <sys/socket.h>

struct prime { uint32_t handle, flags; int32_t fd; };
struct flink { uint32_t handle, name; };
struct gem_open { uint32_t name, handle; uint64_t size; };
#define EXPORT _IOWR('d', 0x2d, struct prime)
#define IMPORT _IOWR('d', 0x2e, struct prime)
#define FLINK _IOWR('d', 0x0a, struct flink)
#define GEM_OPEN _IOWR('d', 0x0b, struct gem_open)
#define DMA_BUF_SYNC _IOW('b', 0, uint64_t)
#define CARD "/dev/dri/card1"

static int export(int fd, uint32_t handle, uint32_t flags)
{
	struct prime p = { .handle = handle, .flags = flags, .fd = -1 };

	return ioctl(fd, EXPORT, &p) ? -1 : p.fd;
}

static uint32_t import(int fd, int dmabuf) /* 0: errno */
{
	struct prime p = { .fd = dmabuf };

	return ioctl(fd, IMPORT, &p) ? 0 : p.handle;
}

static int gem_close(int fd, uint32_t handle)
{
	return ERRNO(ioctl(fd, DRM_GEM_CLOSE, &(struct drm_gem_close){ handle, 0 }));
}

static void handles(const char *node)
{
	int fd = open(node, O_RDWR), dmabuf, again, reader;
	uint64_t start = 3, end = 7, bad = 8, none = 4;
	struct create_bo c = { .size = 8192 };
	struct mem_create m = { .size = 8192, .flags = 0x403 };
	uint32_t handle, other;
	uint8_t *mem;
	struct stat st;

	MUST(fd >= 0);
	if (!strcmp(node, ACCEL)) {
		MUST(!ioctl(fd, ROCKET_CREATE_BO, &c));
		handle = c.handle;
	} else {
		MUST(!ioctl(fd, RKNPU_MEM_CREATE, &m));
		handle = m.handle;
	}
	dmabuf = export(fd, handle, O_CLOEXEC | O_RDWR);
	MUST(dmabuf >= 0);
	EXPECT(fcntl(dmabuf, F_GETFD) == FD_CLOEXEC);
	EXPECT(export(fd, 99, O_RDWR) < 0 && errno == ENOENT);
	EXPECT(export(fd, handle, O_APPEND) < 0 && errno == EINVAL);
	EXPECT(lseek(dmabuf, 0, SEEK_END) == 8192 && lseek(dmabuf, 0, SEEK_SET) == 0);
	EXPECT(lseek(dmabuf, 1, SEEK_SET) < 0 && errno == EINVAL);
	EXPECT(!fstat(dmabuf, &st) && !S_ISSOCK(st.st_mode));
	mem = mmap(NULL, 4096, 3, MAP_SHARED, dmabuf, 4096); /* a part: a dma-buf allows that */
	MUST(mem != MAP_FAILED);
	mem[5] = 42;
	EXPECT(mmap(NULL, 8192, 3, MAP_SHARED, dmabuf, 4096) == MAP_FAILED && errno == EINVAL);
	EXPECT(!ioctl(dmabuf, DMA_BUF_SYNC, &start) && !ioctl(dmabuf, DMA_BUF_SYNC, &end));
	EXPECT(ERRNO(ioctl(dmabuf, DMA_BUF_SYNC, &bad)) == EINVAL);
	EXPECT(ERRNO(ioctl(dmabuf, DMA_BUF_SYNC, &none)) == EINVAL);
	EXPECT(ERRNO(ioctl(dmabuf, DRM_GEM_CLOSE, &start)) == ENOTTY);
	EXPECT(ERRNO(ioctl(fd, DMA_BUF_SYNC, &start)) == ENOTTY);
	reader = export(fd, handle, 0);
	EXPECT(reader >= 0 && fcntl(reader, F_GETFD) == 0);
	EXPECT(mmap(NULL, 4096, 3, MAP_SHARED, reader, 0) == MAP_FAILED && errno == EACCES);
	close(reader);

	again = open(node, O_RDWR);
	EXPECT(import(fd, dmabuf) == handle); /* the file that made it knows it */
	EXPECT(import(fd, dmabuf) == handle);
	EXPECT((other = import(again, dmabuf)) != 0);
	EXPECT(import(again, dmabuf) == other);
	EXPECT(!import(fd, fd) && errno == EINVAL);
	EXPECT(!import(fd, 999) && errno == EBADF);
	EXPECT(!gem_close(fd, handle)); /* once, as often as it was imported */
	EXPECT(gem_close(fd, handle) == EINVAL);
	close(fd); /* dma-buf and foreign handle keep it alive */
	EXPECT(!gem_close(again, other));
	EXPECT((other = import(again, dmabuf)) != 0);
	EXPECT(mem[5] == 42);
	close(dmabuf);
	dmabuf = export(again, other, O_RDWR);
	mem = mmap(NULL, 8192, 3, MAP_SHARED, dmabuf, 0);
	EXPECT(mem != MAP_FAILED && mem[4096 + 5] == 42);
	close(dmabuf);
	close(again);
}

static int give(int s, int fd)
{
	union { struct cmsghdr h; char room[CMSG_SPACE(sizeof fd)]; } u = { 0 };
	struct iovec v = { "x", 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &u };

	m.msg_controllen = sizeof u;
	u.h = (struct cmsghdr){ CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS };
	memcpy(CMSG_DATA(&u.h), &fd, sizeof fd);
	return sendmsg(s, &m, 0) == 1;
}

static int take(int s)
{
	union { struct cmsghdr h; char room[CMSG_SPACE(sizeof(int))]; } u = { 0 };
	char byte;
	struct iovec v = { &byte, 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &u };
	int fd = -1;

	m.msg_controllen = sizeof u;
	if (recvmsg(s, &m, 0) == 1)
		memcpy(&fd, CMSG_DATA(&u.h), sizeof fd);
	return fd;
}

/* One process has the input and waits for the output, another one computes. */
static void processes(const char *words)
{
	struct bo list, x, w, y, code;
	int s[2], status, fd, dmabuf;
	size_t length;

	MUST(!socketpair(AF_UNIX, SOCK_STREAM, 0, s));
	if (!fork()) {
		struct mem_create m = { 0 };
		uint8_t *in;

		fd = open(CARD, O_RDWR);
		MUST(fd >= 0);
		dmabuf = take(s[1]);
		m.handle = import(fd, dmabuf); /* the vendor's way to an address */
		MUST(m.handle && !ioctl(fd, RKNPU_MEM_CREATE, &m));
		EXPECT(m.size == 4096 && m.dma == 0xffffe000 && m.object);
		in = mmap(NULL, m.size, 3, MAP_SHARED, dmabuf, 0);
		MUST(in != MAP_FAILED);
		w = vendor_bo(fd, W_BYTES, 0x403);
		y = vendor_bo(fd, Y_BYTES, 0x403);
		list = vendor_bo(fd, 4096, 0x40b);
		code = vendor_bo(fd, 4096, 0x403);
		EXPECT(w.dma == 0xffffd000 && y.dma == 0xffffc000);
		length = load(words, code.mem, 4096);
		*(struct vendor_task *)list.mem = (struct vendor_task){
			.int_mask = 0x300, .words = length / 8 - 4, .regcmd = code.dma };
		fill((uint8_t[X_BYTES]){ 0 }, w.mem, 21);
		{
			struct vendor_submit j = { .flags = 5, .timeout = 300, .number = 1 };

			j.tasks = list.object;
			j.cores = 1;
			j.part[0].number = 1;
			EXPECT(!ioctl(fd, RKNPU_SUBMIT, &j));
		}
		EXPECT(!wrong(in, w.mem, y.mem));
		_exit(failures != 0);
	}
	fd = open(RENDER, O_RDWR);
	MUST(fd >= 0);
	list = vendor_bo(fd, 4096, 0x40b); /* so that WORDS' address of x is that of x */
	x = vendor_bo(fd, X_BYTES, 0x403);
	fill(x.mem, (uint8_t[W_BYTES]){ 0 }, 21);
	dmabuf = export(fd, x.handle, O_RDWR);
	MUST(give(s[0], dmabuf));
	EXPECT(wait(&status) > 0 && status == 0);
	close(dmabuf);
	close(fd);
}

static void by_name(void)
{
	int a = open(CARD, O_RDWR), b = open(CARD, O_RDWR), render = open(RENDER, O_RDWR);
	struct bo bo = vendor_bo(a, 4096, 0x403);
	struct flink f = { .handle = bo.handle };
	struct gem_open o = { 0 };

	EXPECT(!ioctl(a, FLINK, &f) && f.name);
	o.name = f.name;
	EXPECT(!ioctl(b, GEM_OPEN, &o) && o.handle && o.size == 4096);
	EXPECT(!gem_close(a, bo.handle) && !gem_close(b, o.handle));
	EXPECT(ERRNO(ioctl(b, GEM_OPEN, &o)) == ENOENT); /* names die with the last handle */
	bo = vendor_bo(render, 4096, 0x403);
	f.handle = bo.handle;
	EXPECT(ERRNO(ioctl(render, FLINK, &f)) == EACCES);
	close(a);
	close(b);
	close(render);
}

/* A wait at a dma-buf is a wait for the job that writes it; a hung job is ended at 0.5 s. */
static void waits(void)
{
	int fd = open(ACCEL, O_RDWR), dmabuf;
	struct bo code = rocket_bo(fd, 4096), in = rocket_bo(fd, 4096), out = rocket_bo(fd, 4096);
	uint64_t start = 1;
	int64_t took = -now();

	dmabuf = export(fd, out.handle, O_RDWR);
	EXPECT(!rocket_submit(fd, (struct task){ code.dma, 112 }, &in, &out));
	EXPECT(!ioctl(dmabuf, DMA_BUF_SYNC, &start));
	took += now();
	EXPECT(took > 300000000 && took < 3000000000);
	close(dmabuf);
	close(fd);
}

int main(int argc, char **argv)
{
	MUST(argc == 2);
	processes(argv[1]); /* first, for the addresses */
	handles(ACCEL);
	handles(RENDER);
	by_name();
	waits();
	return failures != 0;
}
