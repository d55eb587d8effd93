/* files WORDS: what becomes of a node's file descriptor, and how nodes are found. */
#include <dirent.h>
#include "npu.h"

static char words[4096];
static size_t length;

static int works(int fd, struct bo *b)
{
	fill(b[1].mem, b[2].mem, 3);
	memset(b[3].mem, 0, Y_BYTES);
	return !rocket_submit(fd, (struct task){ b[0].dma, length / 8 }, &b[1], &b[3]) &&
	       !rocket_prep(fd, b[3].handle, FOREVER) && !wrong(b[1].mem, b[2].mem, b[3].mem);
}

int main(int argc, char **argv)
{
	static const size_t sizes[4] = { 4096, X_BYTES, W_BYTES, Y_BYTES };
	int fd, other, status;
	struct bo b[4];
	struct stat st;
	DIR *folder;
	int found = 0;

	if (argc == 3) { /* after exec: the descriptor is still that file */
		struct fini f = { 1, 0 };

		EXPECT(!ioctl(atoi(argv[2]), ROCKET_FINI_BO, &f));
		EXPECT(!rocket_prep(atoi(argv[2]), 1, 0));
		return failures != 0;
	}
	MUST(argc == 2);
	length = load(argv[1], words, sizeof words);
	folder = opendir("/dev/accel");
	MUST(folder);
	for (struct dirent *e; (e = readdir(folder));)
		found += !strcmp(e->d_name, "accel0");
	EXPECT(found == 1);
	EXPECT(!access(ACCEL, R_OK | W_OK));
	EXPECT(!stat(ACCEL, &st) && S_ISCHR(st.st_mode));
	EXPECT(open((char *)8, O_RDWR) < 0 && errno == EFAULT);

	fd = open(ACCEL, O_RDWR | O_CLOEXEC);
	EXPECT(fd == 4); /* the lowest that is free, as ever: 3 is the folder */
	EXPECT(fcntl(fd, F_GETFD) == FD_CLOEXEC);
	EXPECT(!fstat(fd, &st) && S_ISCHR(st.st_mode));
	for (int i = 0; i < 4; i++)
		b[i] = rocket_bo(fd, sizes[i]);
	memcpy(b[0].mem, words, length);
	EXPECT(works(fd, b));
	other = dup(fd);
	EXPECT(works(other, b));
	close(fd);
	EXPECT(works(other, b));
	MUST(dup2(other, 77) == 77);
	close(other);
	EXPECT(works(77, b));
	if (!fork()) { /* files are shared with a child, handles and memory too */
		EXPECT(works(77, b));
		_exit(failures != 0);
	}
	EXPECT(wait(&status) > 0 && status == 0);
	if (!fork()) {
		execl(argv[0], argv[0], argv[1], "77", NULL);
		_exit(9);
	}
	EXPECT(wait(&status) > 0 && status == 0);
	for (int i = 150; i < 400; i++)
		close(i); /* programs do; our connections must not be mistaken for theirs */
	EXPECT(works(77, b));
	other = open(ACCEL, O_RDWR); /* another file: another address space, other handles */
	EXPECT(fcntl(other, F_GETFD) == 0);
	EXPECT(ERRNO(rocket_prep(other, b[3].handle, 0)) == ENOENT);
	EXPECT(rocket_bo(other, 4096).dma == 0);
	return failures != 0;
}
