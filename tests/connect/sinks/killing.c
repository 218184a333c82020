/* Kills the process before the n-th change of a file below a directory.
 *
 * Preloaded (LD_PRELOAD) by test_crash.py. KILL_BELOW names the directory, KILL_AT the change: the
 * process gets SIGKILL instead of making it, so the changes before it are on disk and no later one
 * is. Changes are counted across threads. Without KILL_AT, or with 0, nothing is killed.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static atomic_long changes;

static void count_change(void)
{
    const char *fatal = getenv("KILL_AT");
    if (fatal != NULL && atol(fatal) > 0 && atomic_fetch_add(&changes, 1) + 1 == atol(fatal))
        kill(getpid(), SIGKILL);
}

static int is_below(const char *path)
{
    const char *directory = getenv("KILL_BELOW");
    if (directory == NULL || path == NULL)
        return 0;
    size_t length = strlen(directory);
    return strncmp(path, directory, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

static int is_descriptor_below(int descriptor)
{
    char link_path[64], target[PATH_MAX];
    snprintf(link_path, sizeof link_path, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link_path, target, sizeof target - 1);
    if (length < 0)
        return 0;
    target[length] = '\0';
    return is_below(target);
}

/* A relative path is below the directory if the directory that it is relative to is. */
static int is_path_below(int directory, const char *path)
{
    if (path == NULL || path[0] == '/' || directory == AT_FDCWD)
        return is_below(path);
    return is_descriptor_below(directory);
}

static void before_path(int directory, const char *path)
{
    if (is_path_below(directory, path))
        count_change();
}

static void before_descriptor(int descriptor)
{
    if (is_descriptor_below(descriptor))
        count_change();
}

/* Opening changes a file only if it creates or truncates it. */
static void before_open(int directory, const char *path, int flags)
{
    if (flags & (O_CREAT | O_TRUNC))
        before_path(directory, path);
}

static mode_t mode_of(int flags, va_list rest)
{
    return flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0;
}

#define OPEN(name)                                  \
    int name(const char *path, int flags, ...)      \
    {                                               \
        va_list rest;                               \
        va_start(rest, flags);                      \
        mode_t mode = mode_of(flags, rest);         \
        va_end(rest);                               \
        before_open(AT_FDCWD, path, flags);         \
        return REAL(name)(path, flags, mode);       \
    }

#define OPENAT(name)                                               \
    int name(int directory, const char *path, int flags, ...)      \
    {                                                              \
        va_list rest;                                              \
        va_start(rest, flags);                                     \
        mode_t mode = mode_of(flags, rest);                        \
        va_end(rest);                                              \
        before_open(directory, path, flags);                       \
        return REAL(name)(directory, path, flags, mode);           \
    }

#define ON_DESCRIPTOR(result, name, parameters, arguments) \
    result name parameters                                 \
    {                                                      \
        before_descriptor(descriptor);                     \
        return REAL(name) arguments;                       \
    }

#define ON_PATH(name, directory, parameters, arguments) \
    int name parameters                                 \
    {                                                   \
        before_path(directory, path);                   \
        return REAL(name) arguments;                    \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

ON_DESCRIPTOR(ssize_t, write, (int descriptor, const void *data, size_t size), (descriptor, data, size))
ON_DESCRIPTOR(ssize_t, writev, (int descriptor, const struct iovec *parts, int count), (descriptor, parts, count))
ON_DESCRIPTOR(ssize_t, pwrite, (int descriptor, const void *data, size_t size, off_t at), (descriptor, data, size, at))
ON_DESCRIPTOR(ssize_t, pwrite64, (int descriptor, const void *data, size_t size, off64_t at), (descriptor, data, size, at))
ON_DESCRIPTOR(int, ftruncate, (int descriptor, off_t size), (descriptor, size))
ON_DESCRIPTOR(int, ftruncate64, (int descriptor, off64_t size), (descriptor, size))
ON_DESCRIPTOR(int, fsync, (int descriptor), (descriptor))
ON_DESCRIPTOR(int, fdatasync, (int descriptor), (descriptor))

ON_PATH(rename, AT_FDCWD, (const char *from, const char *path), (from, path))
ON_PATH(renameat, to, (int at, const char *from, int to, const char *path), (at, from, to, path))
ON_PATH(renameat2, to, (int at, const char *from, int to, const char *path, unsigned int flags), (at, from, to, path, flags))
ON_PATH(link, AT_FDCWD, (const char *from, const char *path), (from, path))
ON_PATH(linkat, to, (int at, const char *from, int to, const char *path, int flags), (at, from, to, path, flags))
ON_PATH(symlink, AT_FDCWD, (const char *from, const char *path), (from, path))
ON_PATH(unlink, AT_FDCWD, (const char *path), (path))
ON_PATH(unlinkat, directory, (int directory, const char *path, int flags), (directory, path, flags))
ON_PATH(rmdir, AT_FDCWD, (const char *path), (path))
ON_PATH(mkdir, AT_FDCWD, (const char *path, mode_t mode), (path, mode))
ON_PATH(mkdirat, directory, (int directory, const char *path, mode_t mode), (directory, path, mode))
