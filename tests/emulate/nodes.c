/* nodes: the ways in which programs look for an NPU, and what its files then are. */
#include "npu.h"
#include <dirent.h>
#include <glob.h>
#include <poll.h>
#include <sys/sysmacros.h>

struct cap { uint64_t capability, value; };
#define GET_CAP _IOWR('d', 0x0c, struct cap)

static int content(const char *path, const char *want)
{
	char have[256] = "";
	FILE *f = fopen(path, "r");

	if (!f)
		return 0;
	have[fread(have, 1, sizeof have - 1, f)] = 0;
	fclose(f);
	return !strcmp(have, want);
}

static int has_accel(const struct dirent *e)
{
	return !strcmp(e->d_name, "accel0");
}

static int link_is(const char *path, const char *last)
{
	char to[PATH_MAX];
	ssize_t n = readlink(path, to, sizeof to - 1);

	if (n < 0)
		return 0;
	to[n] = 0;
	return strrchr(to, '/') && !strcmp(strrchr(to, '/') + 1, last);
}

static void names(void)
{
	char full[PATH_MAX];
	struct dirent **list, *e;
	struct statx sx;
	struct stat st;
	glob_t g;
	DIR *d;
	int fd, other, seen = 0;

	MUST(!glob("/dev/accel/accel*", 0, NULL, &g));
	EXPECT(g.gl_pathc == 1 && !strcmp(g.gl_pathv[0], ACCEL));
	globfree(&g);
	MUST(!glob("/dev/dri/renderD*", 0, NULL, &g));
	EXPECT(g.gl_pathc >= 1);
	globfree(&g);
	EXPECT(glob("/dev/accel/nothing*", 0, NULL, &g) == GLOB_NOMATCH);
	EXPECT(scandir("/dev/accel", &list, has_accel, alphasort) == 1);
	d = opendir("/dev/accel/");
	MUST(d);
	while ((e = readdir(d)))
		if (has_accel(e))
			seen += e->d_type == DT_CHR;
	EXPECT(seen == 1);
	fd = openat(dirfd(d), "accel0", O_RDWR); /* a name in a folder that is open */
	EXPECT(fd >= 0 && !rocket_bo(fd, 4096).dma);
	EXPECT(!fstatat(dirfd(d), "accel0", &st, 0) && S_ISCHR(st.st_mode));
	closedir(d);
	close(fd);
	EXPECT(!chdir("/dev/accel"));
	EXPECT((fd = open("./accel0", O_RDWR)) >= 0);
	close(fd);
	EXPECT(!chdir("/"));
	EXPECT((fd = open("//dev/./accel//accel0", O_RDWR)) >= 0);
	other = openat(AT_FDCWD, "dev/accel/accel0", O_RDWR);
	EXPECT(other >= 0);
	close(other);

	EXPECT(!statx(AT_FDCWD, ACCEL, 0, STATX_ALL, &sx) && S_ISCHR(sx.stx_mode));
	EXPECT(sx.stx_rdev_major == 261 && sx.stx_rdev_minor == 0);
	EXPECT(!statx(fd, "", AT_EMPTY_PATH, STATX_ALL, &sx) && S_ISCHR(sx.stx_mode));
	EXPECT(!lstat(ACCEL, &st) && st.st_rdev == makedev(261, 0));
	EXPECT(!lstat("/dev/dri/by-path/platform-fdab0000.npu-render", &st) && S_ISLNK(st.st_mode));
	EXPECT(!stat("/dev/dri/by-path/platform-fdab0000.npu-render", &st));
	EXPECT(st.st_rdev == makedev(226, 129));
	EXPECT(realpath("/dev/dri/by-path/platform-fdab0000.npu-card", full));
	EXPECT(!strcmp(full, "/dev/dri/card1"));
	EXPECT(open("/dev/accel/accel1", O_RDWR) < 0 && errno == ENOENT);
	EXPECT(open(ACCEL, O_RDWR | O_DIRECTORY) < 0 && errno == ENOTDIR);

	EXPECT(content("/sys/class/accel/accel0/dev", "261:0\n"));
	EXPECT(content("/sys/dev/char/226:129/uevent",
		       "MAJOR=226\nMINOR=129\nDEVNAME=dri/renderD129\nDEVTYPE=drm_minor\n"));
	EXPECT(!access("/sys/dev/char/226:1/device/drm", F_OK));
	EXPECT(link_is("/sys/class/drm/card1/device/driver", "RKNPU"));
	EXPECT(link_is("/sys/dev/char/226:129/device/subsystem", "platform"));
	EXPECT(realpath("/sys/class/drm/renderD129/device", full));
	EXPECT(!strcmp(full, "/sys/devices/platform/fdab0000.npu"));
	EXPECT(!access("/sys/bus/platform/drivers/rocket/fdad0000.npu/", F_OK));
	MUST((d = opendir("/sys/class/drm/card1/device/drm")));
	for (seen = 0; (e = readdir(d));)
		seen += !strcmp(e->d_name, "card1") || !strcmp(e->d_name, "renderD129");
	EXPECT(seen == 2);
	closedir(d);
	{
		FILE *f = fopen("/proc/device-tree/compatible", "r");
		char have[64] = "";

		MUST(f);
		EXPECT(fread(have, 1, sizeof have, f) == 16 && !strcmp(have, "rockchip,rk3588"));
		fclose(f);
	}
	close(fd);
}

static void identity(const char *path, const char *driver, int major_number)
{
	char name[16] = "", date[16] = "", desc[64] = "";
	struct drm_version v = { 0 };
	struct cap c = { 5, 0 };
	FILE *f = fopen(path, "r+");
	int fd;

	MUST(f);
	fd = fileno(f);
	EXPECT(!ioctl(fd, DRM_VERSION, &v)); /* first the lengths ... */
	EXPECT(v.name_len == strlen(driver) && v.date_len == 1 && v.desc_len < sizeof desc);
	EXPECT(v.desc_len > 0 && v.major == major_number);
	v.name = name; /* ... then the strings, without zeros at their ends */
	v.date = date;
	v.desc = desc;
	memset(desc, 'x', sizeof desc - 1);
	EXPECT(!ioctl(fd, DRM_VERSION, &v) && !strcmp(name, driver) && !strcmp(date, "0"));
	EXPECT(desc[v.desc_len] == 'x' && desc[v.desc_len - 1] != 'x');
	v.name = (char *)8;
	EXPECT(ERRNO(ioctl(fd, DRM_VERSION, &v)) == EFAULT);
	EXPECT(!ioctl(fd, GET_CAP, &c) && c.value == 3); /* PRIME: import and export */
	c.capability = 6;
	EXPECT(!ioctl(fd, GET_CAP, &c) && c.value == 1); /* times are monotonic */
	c.capability = 1;
	EXPECT(ERRNO(ioctl(fd, GET_CAP, &c)) == EOPNOTSUPP); /* no displays */
	fclose(f);
}

static void maps(void)
{
	int fd = open(ACCEL, O_RDWR | O_CLOEXEC), reader = open(ACCEL, O_RDONLY);
	struct create_bo c = { .size = 4 * 4096 }, r = { .size = 4096 };
	struct pollfd p = { .fd = fd, .events = POLLIN | POLLPRI };
	struct timespec t = { 0, 20000000 };
	uint8_t *a, *b, *place;

	EXPECT(fd >= 0 && reader >= 0);
	EXPECT(poll(&p, 1, 20) == 0); /* an NPU sends no events */
	EXPECT(ppoll(&p, 1, &t, NULL) == 0);
	MUST(!ioctl(fd, ROCKET_CREATE_BO, &c) && !ioctl(reader, ROCKET_CREATE_BO, &r));
	EXPECT(mmap(NULL, 5 * 4096, 3, MAP_SHARED, fd, c.offset) == MAP_FAILED && errno == EINVAL);
	EXPECT(mmap(NULL, 4096, 3, MAP_SHARED, fd, c.offset + 4096) == MAP_FAILED);
	EXPECT(mmap(NULL, 4096, 3, MAP_PRIVATE, fd, c.offset) == MAP_FAILED && errno == EINVAL);
	EXPECT(mmap(NULL, 4096, 3, MAP_SHARED, reader, r.offset) == MAP_FAILED && errno == EACCES);
	EXPECT(mmap(NULL, 4096, PROT_READ, MAP_SHARED, reader, r.offset) != MAP_FAILED);
	a = mmap(NULL, 4 * 4096, 3, MAP_SHARED, fd, c.offset);
	place = mmap(NULL, 8 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(a != MAP_FAILED && place != MAP_FAILED);
	b = mmap(place + 4096, 4 * 4096, 3, MAP_SHARED | MAP_FIXED, fd, c.offset);
	EXPECT(b == place + 4096);
	a[3 * 4096] = 7;
	EXPECT(b[3 * 4096] == 7);
	EXPECT(!munmap(b + 4096, 4096)); /* the rest stays */
	EXPECT(!ioctl(fd, DRM_GEM_CLOSE, &(struct drm_gem_close){ c.handle, 0 }));
	EXPECT(mmap(NULL, 4096, 3, MAP_SHARED, fd, c.offset) == MAP_FAILED);
	close(fd);
	b[2 * 4096] = 9; /* mappings outlive handle and file */
	EXPECT(a[2 * 4096] == 9);
	EXPECT(mmap(NULL, 4096, 3, MAP_SHARED, fd, c.offset) == MAP_FAILED && errno == EBADF);
	close(reader);
}

int main(int argc, char **argv)
{
	(void)argv;
	names();
	identity(ACCEL, "rocket", 0);
	identity(RENDER, "rknpu", 0);
	maps();
	return argc != 1 || failures != 0;
}
