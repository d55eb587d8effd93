/* garbage NODE SEED COUNT: ioctls and mappings with random numbers, bytes and pointers. */
#include "npu.h"

static uint64_t state;

static uint64_t any(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static uint64_t number(void *memory)
{
	static const uint64_t edges[] = { 0, 1, 2, 3, 8, 40, 48, 4096, 0x7fffffff, 0xffffffff,
					  1ull << 32, 1ull << 63, -1ull, -4096ull };

	switch (any() % 5) {
	case 0: return edges[any() % (sizeof edges / sizeof *edges)];
	case 1: return any() % 8; /* a handle */
	case 2: return (uintptr_t)memory + any() % 4096;
	case 3: return any();
	default: return any() % 65536;
	}
}

int main(int argc, char **argv)
{
	uint8_t *memory = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int fd, count;

	MUST(argc == 4 && memory != MAP_FAILED && !munmap(memory + 4096, 4096));
	fd = open(argv[1], O_RDWR);
	MUST(fd >= 0);
	state = strtoull(argv[2], NULL, 10) * 2654435761u + 1;
	count = atoi(argv[3]);
	for (int i = 0; i < count; i++) {
		unsigned size = any() % 3 ? any() % 128 : any() % 16384;
		unsigned nr = any() % 4 ? 0x40 + any() % 7 : any() % 256;
		unsigned long request = _IOC(any() % 4, 'd', nr, size);
		uint64_t *argument = (uint64_t *)(memory + 8 * (any() % 512));

		if (nr == 0x42 && any() % 4) /* mostly short waits and small buffers */
			request = any() % 2 ? ROCKET_PREP_BO : RKNPU_MEM_CREATE;
		for (int k = 0; k < 64; k++)
			memcpy(memory + 64 * k, &(uint64_t){ number(memory) }, 8);
		for (int k = 0; k < 16 && argument + k < (uint64_t *)(memory + 4096); k++)
			argument[k] = any() % 2 ? number(memory) : number(memory) << 32 | number(memory);
		if (any() % 16 == 0)
			argument = (uint64_t *)number(memory);
		ioctl(fd, request, argument);
		if (any() % 8 == 0) {
			size_t length = number(memory) % (1 << 20) + 1;
			void *p = mmap(NULL, length, PROT_READ, MAP_SHARED, fd, number(memory) & -4096ull);

			if (p != MAP_FAILED)
				munmap(p, length);
		}
	}
	return 0;
}
