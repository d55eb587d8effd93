/* Waiting for a job that hangs: command words that are all zero never end. */
#include "npu.h"

static int fd, rings;
static struct bo code, x, y;

static void ring(int number)
{
	(void)number;
	rings++;
}

static void alarm_in(long us, int flags)
{
	struct sigaction a = { .sa_handler = ring, .sa_flags = flags };
	timer_t timer;
	struct sigevent e = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
	struct itimerspec t = { .it_value = { 0, us * 1000 } };

	sigaction(SIGUSR1, &a, NULL);
	MUST(!timer_create(CLOCK_MONOTONIC, &e, &timer));
	MUST(!timer_settime(timer, 0, &t, NULL));
}

int main(void)
{
	int64_t began, took;

	fd = open(ACCEL, O_RDWR);
	MUST(fd >= 0);
	code = rocket_bo(fd, 4096);
	x = rocket_bo(fd, 4096);
	y = rocket_bo(fd, 4096);
	EXPECT(!rocket_prep(fd, y.handle, 0)); /* nobody writes it */
	began = now();
	EXPECT(!rocket_submit(fd, (struct task){ code.dma, 16 }, &x, &y));
	EXPECT(now() - began < 100000000);
	EXPECT(ERRNO(rocket_prep(fd, y.handle, 0)) == EBUSY);
	EXPECT(ERRNO(rocket_prep(fd, y.handle, now() - 1)) == EBUSY);
	EXPECT(ERRNO(rocket_prep(fd, y.handle, -1)) == EBUSY);
	EXPECT(!rocket_prep(fd, x.handle, 0)); /* only read */

	took = -now();
	EXPECT(ERRNO(rocket_prep(fd, y.handle, now() + 60000000)) == ETIMEDOUT);
	took += now();
	EXPECT(took >= 60000000 && took < 200000000);

	alarm_in(50000, 0);
	EXPECT(ERRNO(rocket_prep(fd, y.handle, FOREVER)) == EINTR && rings == 1);
	alarm_in(50000, SA_RESTART);
	EXPECT(!rocket_prep(fd, y.handle, FOREVER) && rings == 2); /* the watchdog has ended it */
	took = now() - began;
	EXPECT(took >= 500000000 && took < 900000000);
	EXPECT(!rocket_prep(fd, y.handle, 0));
	return failures != 0;
}
