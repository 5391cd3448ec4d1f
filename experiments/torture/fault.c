/* Fails the n-th call of a kind for paths of ours, under LD_PRELOAD.

   TORTURE_FAULT is "CALL:ERRNO:N:PATH:HITS". The N-th CALL ("any" for all kinds) fails with ERRNO, if
   PATH is a part of its path. With N = 0, all of them fail, with N = -1 none. The file HITS gets a line
   for each call that failed, or with -1 would have failed. A call on a descriptor counts for the path
   with which it was opened. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST 1024
static char opened[MOST];
static int wanted = -2, error, seen;
static char call[32], part[512], hits[512];

static void begin(void)
{
    const char *text = getenv("TORTURE_FAULT");
    wanted = -1;
    if (text == NULL)
        return;
    if (sscanf(text, "%31[^:]:%d:%d:%511[^:]:%511s", call, &error, &wanted, part, hits) != 5)
        abort();
}

static int fails(const char *name, int ours)
{
    if (wanted == -2)
        begin();
    if (!ours || call[0] == 0 || (strcmp(name, call) != 0 && strcmp("any", call) != 0))
        return 0;
    seen++;
    if (wanted != 0 && wanted != -1 && wanted != seen)
        return 0;
    /* Raw calls: these are not counted. */
    int to = syscall(SYS_openat, AT_FDCWD, hits, O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (to >= 0) {
        syscall(SYS_write, to, name, strlen(name));
        syscall(SYS_write, to, "\n", 1);
        syscall(SYS_close, to);
    }
    if (wanted == -1)
        return 0;
    errno = error;
    return 1;
}

static int is_ours(const char *path)
{
    if (wanted == -2)
        begin();
    if (path == NULL || part[0] == 0 || strstr(path, part) == NULL)
        return 0;
    /* site reads the .pth file before any code of ours runs. If that fails, it does what it does with
       any package's. */
    const char *end = strrchr(path, '.');
    return end == NULL || (strcmp(end, ".pth") != 0 && strcmp(end, ".start") != 0);
}

static int is_open(int descriptor)
{
    return descriptor >= 0 && descriptor < MOST && opened[descriptor];
}

static int remember(int descriptor, const char *path)
{
    if (descriptor >= 0 && descriptor < MOST)
        opened[descriptor] = is_ours(path);
    return descriptor;
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (real == NULL) \
        real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

#define OPEN(name) \
    int name(const char *path, int flags, ...) \
    { \
        REAL(int, #name, const char *, int, ...); \
        va_list rest; \
        va_start(rest, flags); \
        int mode = va_arg(rest, int); \
        va_end(rest); \
        if (fails("open", is_ours(path))) \
            return -1; \
        return remember(real(path, flags, mode), path); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int directory, const char *path, int flags, ...) \
    { \
        REAL(int, #name, int, const char *, int, ...); \
        va_list rest; \
        va_start(rest, flags); \
        int mode = va_arg(rest, int); \
        va_end(rest); \
        if (fails("open", is_ours(path))) \
            return -1; \
        return remember(real(directory, path, flags, mode), path); \
    }
OPENAT(openat)
OPENAT(openat64)

ssize_t read(int descriptor, void *to, size_t size)
{
    REAL(ssize_t, "read", int, void *, size_t);
    return fails("read", is_open(descriptor)) ? -1 : real(descriptor, to, size);
}

/* With "write", calls on standard error count too: we write there. */
ssize_t write(int descriptor, const void *from, size_t size)
{
    REAL(ssize_t, "write", int, const void *, size_t);
    return fails("write", is_open(descriptor) || descriptor == 2) ? -1 : real(descriptor, from, size);
}

off_t lseek(int descriptor, off_t offset, int whence)
{
    REAL(off_t, "lseek", int, off_t, int);
    return fails("lseek", is_open(descriptor)) ? -1 : real(descriptor, offset, whence);
}

off64_t lseek64(int descriptor, off64_t offset, int whence)
{
    REAL(off64_t, "lseek64", int, off64_t, int);
    return fails("lseek", is_open(descriptor)) ? -1 : real(descriptor, offset, whence);
}

int close(int descriptor)
{
    REAL(int, "close", int);
    int ours = is_open(descriptor);
    if (ours)
        opened[descriptor] = 0;
    /* As Linux does: the descriptor is closed, and the call reports an error. */
    int done = real(descriptor);
    return fails("close", ours) ? -1 : done;
}

#define STATUS(name, kind, type) \
    int name(const char *path, struct type *to) \
    { \
        REAL(int, #name, const char *, struct type *); \
        return fails(kind, is_ours(path)) ? -1 : real(path, to); \
    }
STATUS(stat, "stat", stat)
STATUS(lstat, "lstat", stat)
STATUS(stat64, "stat", stat64)
STATUS(lstat64, "lstat", stat64)

int fstat(int descriptor, struct stat *to)
{
    REAL(int, "fstat", int, struct stat *);
    return fails("fstat", is_open(descriptor)) ? -1 : real(descriptor, to);
}

int fstat64(int descriptor, struct stat64 *to)
{
    REAL(int, "fstat64", int, struct stat64 *);
    return fails("fstat", is_open(descriptor)) ? -1 : real(descriptor, to);
}

int fstatat(int directory, const char *path, struct stat *to, int flags)
{
    REAL(int, "fstatat", int, const char *, struct stat *, int);
    return fails("stat", is_ours(path)) ? -1 : real(directory, path, to, flags);
}

int fstatat64(int directory, const char *path, struct stat64 *to, int flags)
{
    REAL(int, "fstatat64", int, const char *, struct stat64 *, int);
    return fails("stat", is_ours(path)) ? -1 : real(directory, path, to, flags);
}

int access(const char *path, int mode)
{
    REAL(int, "access", const char *, int);
    return fails("access", is_ours(path)) ? -1 : real(path, mode);
}

ssize_t readlink(const char *path, char *to, size_t size)
{
    REAL(ssize_t, "readlink", const char *, char *, size_t);
    return fails("readlink", is_ours(path)) ? -1 : real(path, to, size);
}

DIR *opendir(const char *path)
{
    REAL(DIR *, "opendir", const char *);
    return fails("opendir", is_ours(path)) ? NULL : real(path);
}

char *getcwd(char *to, size_t size)
{
    REAL(char *, "getcwd", char *, size_t);
    return fails("getcwd", 1) ? NULL : real(to, size);
}

int mkdir(const char *path, mode_t mode)
{
    REAL(int, "mkdir", const char *, mode_t);
    return fails("mkdir", is_ours(path)) ? -1 : real(path, mode);
}

int rename(const char *from, const char *to)
{
    REAL(int, "rename", const char *, const char *);
    return fails("rename", is_ours(from)) ? -1 : real(from, to);
}
