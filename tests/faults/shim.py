"""A small library for LD_PRELOAD that makes the disk report errors and the wall clock jump.

`FAULT_FLAG` names a file: while it exists, writes below a checkpoint fail with errno `FAULT_WRITE`, and fsync with
`FAULT_SYNC`. With `FAULT_CLOCK` the wall clock is a day ahead or behind, alternating each second. The monotonic clock
and everything else are unchanged.
"""

import subprocess
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int fault(const char *name) {
    const char *flag = getenv("FAULT_FLAG"), *code = getenv(name);
    return flag && code && access(flag, F_OK) == 0 ? atoi(code) : 0;
}

static int in_checkpoint(int file) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return strstr(path, "checkpoints/.tmp-") != NULL;
}

ssize_t write(int file, const void *data, size_t size) {
    static ssize_t (*real)(int, const void *, size_t);
    if (!real) real = dlsym(RTLD_NEXT, "write");
    int code = fault("FAULT_WRITE");
    if (code && in_checkpoint(file)) { errno = code; return -1; }
    return real(file, data, size);
}

int fsync(int file) {
    static int (*real)(int);
    if (!real) real = dlsym(RTLD_NEXT, "fsync");
    int code = fault("FAULT_SYNC");
    if (code && in_checkpoint(file)) { errno = code; return -1; }
    return real(file);
}

static long jump(long now) { return getenv("FAULT_CLOCK") ? (now % 2 ? 86400 : -86400) : 0; }

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(clock, now);
    if (status == 0 && clock == CLOCK_REALTIME) now->tv_sec += jump(now->tv_sec);
    return status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    static int (*real)(struct timeval *, void *);
    if (!real) real = dlsym(RTLD_NEXT, "gettimeofday");
    int status = real(now, zone);
    if (status == 0) now->tv_sec += jump(now->tv_sec);
    return status;
}

time_t time(time_t *place) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (place) *place = now.tv_sec;
    return now.tv_sec;
}
"""


def build(folder: Path) -> Path:
    """Compile the library and return its path."""
    (folder / "shim.c").write_text(SOURCE)
    library = folder / "shim.so"
    command = ["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(folder / "shim.c"), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return library
