/* emulate_roundtrip WORDS N: nanoseconds of a bare socket ping-pong between two processes, and
 * of SUBMIT and PREP_BO of one small job, N times in turn. */
#include <sys/socket.h>
#include "../tests/emulate/npu.h"

static int compare(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	int pair[2], fd, n;
	int64_t *bare, *whole;
	struct bo code, data, out;
	struct task t;
	char message[64] = "";

	MUST(argc == 3);
	n = atoi(argv[2]);
	bare = calloc(n, sizeof *bare);
	whole = calloc(n, sizeof *whole);
	MUST(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair));
	if (!fork()) {
		close(pair[0]);
		while (recv(pair[1], message, sizeof message, 0) > 0)
			MUST(send(pair[1], message, sizeof message, 0) > 0);
		_exit(0);
	}
	close(pair[1]);
	fd = open(ACCEL, O_RDWR);
	MUST(fd >= 0);
	code = rocket_bo(fd, 4096);
	data = rocket_bo(fd, 4096);
	out = rocket_bo(fd, 4096);
	MUST(code.dma == 0 && data.dma == 0x1000 && out.dma == 0x2000);
	t = (struct task){ 0, load(argv[1], code.mem, 4096) / 8 };
	for (int i = 0; i < 8; i++) /* numbers in fp16 */
		data.mem[2 * i + 1] = 0x3c + i;
	for (int i = 0; i < n; i++) {
		int64_t began = now();

		MUST(send(pair[0], message, sizeof message, 0) > 0);
		MUST(recv(pair[0], message, sizeof message, 0) > 0);
		bare[i] = now() - began;
		memset(out.mem, 0, 16);
		began = now();
		MUST(!rocket_submit(fd, t, &data, &out));
		MUST(!rocket_prep(fd, out.handle, FOREVER));
		whole[i] = now() - began;
		MUST(!memcmp(out.mem, data.mem, 16));
	}
	qsort(bare, n, sizeof *bare, compare);
	qsort(whole, n, sizeof *whole, compare);
	printf("%lld %lld\n", (long long)bare[n / 2], (long long)whole[n / 2]);
	return 0;
}
