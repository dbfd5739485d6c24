/* Moves the time of day of a process that loads this first: adds the seconds, an int64, that the file
   MOVED_CLOCK_FILE holds. Apache Kafka has no setting for its clock, and nobody waits seven days in a test. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *moved;

__attribute__((constructor)) static void map_file(void) {
    const char *path = getenv("MOVED_CLOCK_FILE");
    int file = path ? open(path, O_RDONLY) : -1;
    void *page = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *moved, PROT_READ, MAP_SHARED, file, 0);
    moved = page == MAP_FAILED ? NULL : page;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && moved && clock == CLOCK_REALTIME) now->tv_sec += *moved;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int result = syscall(SYS_gettimeofday, now, zone);
    if (result == 0 && moved && now) now->tv_sec += *moved;
    return result;
}
