/* rocket_jobs WORDS THREADS PROCESSES JOBS: matrix products, each thread with its own file.
 * WORDS: command words for buffers at IOVA 0 (words), 0x1000 (x), 0x2000 (w), 0x3000 (y). */
#include "npu.h"

static char words[4096];
static size_t length;
static int jobs;

static void *run(void *arg)
{
	int fd = open(ACCEL, O_RDWR | O_CLOEXEC), id = (int)(intptr_t)arg;
	struct bo code, x, w, y;

	MUST(fd >= 0);
	code = rocket_bo(fd, 4096);
	x = rocket_bo(fd, X_BYTES);
	w = rocket_bo(fd, W_BYTES);
	y = rocket_bo(fd, Y_BYTES);
	EXPECT(code.dma == 0 && x.dma == 0x1000 && w.dma == 0x2000 && y.dma == 0x3000);
	memcpy(code.mem, words, length);
	for (int i = 0; i < jobs; i++) {
		fill(x.mem, w.mem, 1000 * id + i);
		memset(y.mem, 0xaa, Y_BYTES);
		EXPECT(!rocket_submit(fd, (struct task){ code.dma, length / 8 }, &x, &y));
		EXPECT(!rocket_prep(fd, y.handle, now() + 5000000000ll));
		EXPECT(wrong(x.mem, w.mem, y.mem) == 0);
	}
	EXPECT(!close(fd));
	EXPECT(wrong(x.mem, w.mem, y.mem) == 0); /* mappings outlive the file */
	return NULL;
}

int main(int argc, char **argv)
{
	int threads, processes, status;
	pthread_t t[16];

	MUST(argc == 5);
	length = load(argv[1], words, sizeof words);
	threads = atoi(argv[2]);
	processes = atoi(argv[3]);
	jobs = atoi(argv[4]);
	for (int p = 1; p < processes; p++)
		if (!fork()) {
			run((void *)(intptr_t)(100 * p));
			_exit(failures != 0);
		}
	for (int i = 0; i < threads; i++)
		MUST(!pthread_create(&t[i], NULL, run, (void *)(intptr_t)i));
	for (int i = 0; i < threads; i++)
		pthread_join(t[i], NULL);
	while (wait(&status) > 0)
		EXPECT(status == 0);
	return failures != 0;
}
