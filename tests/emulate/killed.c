/* killed: dies while a job of its own is running. */
#include "npu.h"

int main(void)
{
	int fd = open(ACCEL, O_RDWR);
	struct bo code, x, y;

	MUST(fd >= 0);
	code = rocket_bo(fd, 4096);
	x = rocket_bo(fd, 4096);
	y = rocket_bo(fd, 4096);
	setpgid(0, 0);
	for (int i = 0; i < 20; i++) /* each would hang for half a second */
		MUST(!rocket_submit(fd, (struct task){ code.dma, 16 }, &x, &y));
	if (!fork()) {
		rocket_prep(fd, y.handle, FOREVER);
		_exit(0);
	}
	usleep(20000);
	kill(0, SIGKILL);
	return 0;
}
