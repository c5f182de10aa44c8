/*
 * Runs a program and records every change that it makes below one folder; injects one fault.
 *
 *   tracer ROOT TRACE MARKS FAULT -- PROGRAM [ARGUMENT...]
 *
 * ROOT    the folder: an absolute path without symbolic links. Other files are not recorded.
 * TRACE   the file that the records are written to, outside of ROOT.
 * MARKS   a file outside of ROOT. What the program writes to it is recorded between the changes, in order.
 * FAULT   "none", or CLASSES:NUMBER:ACTION[:on|:kill]
 *         CLASSES  which calls are counted: w write or resize, s sync, o open, n create, rename or delete a name,
 *                  r read (recorded only if it is counted)
 *         NUMBER   the call that the fault hits, counted from 1; with ":on" this one and all later ones; with
 *                  ":kill" SIGKILL before the call after it
 *         ACTION   an errno as a number, "short" (half of the write), or "kill" (SIGKILL before the call)
 *
 * A system call filter (seccomp) stops the program at the relevant calls; ptrace reads them. Calls that bypass the
 * C library are recorded too. One such call runs at a time, so the trace has the true order.
 *
 * A record: kind (1 byte), failed (1 byte), then path, second path, number (u64) and data; texts and data
 * follow their length (u32). Numbers are little-endian. Paths are relative to ROOT.
 *
 *   C create a file      W write data at an offset     L set the length      S sync a file or folder
 *   D create a folder    R rename                      U delete a name       O open without a change
 *   M mark               I read                        X a change that cannot be recorded: the trace is useless
 */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATH_BYTES 4096

static const char *root;
static size_t root_length;
static const char *marks;
static FILE *trace;

static struct {
    char classes[8];
    uint64_t number;
    int error;
    int is_short;
    int is_kill;
    int goes_on;
    int then_kill;
} fault;
static uint64_t counted;
static pid_t program;

static void die(const char *what)
{
    fprintf(stderr, "tracer: %s: %s\n", what, strerror(errno));
    exit(125);
}

/* One system call that a thread is about to make. */
struct call {
    pid_t thread;
    uint64_t number;
    uint64_t arguments[6];
};

/* ---- The memory and the files of the thread. ---- */

static size_t peek(pid_t thread, uint64_t address, void *to, size_t count)
{
    struct iovec here = {to, count}, there = {(void *)(uintptr_t)address, count};
    ssize_t got = process_vm_readv(thread, &here, 1, &there, 1, 0);
    return got < 0 ? 0 : (size_t)got;
}

static int peek_text(pid_t thread, uint64_t address, char *to)
{
    size_t done = 0;
    while (done < PATH_BYTES) {
        /* Never across the end of a page: the next one may not be mapped. */
        size_t count = 4096 - ((address + done) & 4095);
        if (count > PATH_BYTES - done)
            count = PATH_BYTES - done;
        if (peek(thread, address + done, to + done, count) != count)
            return 0;
        if (memchr(to + done, 0, count))
            return 1;
        done += count;
    }
    return 0;
}

static int link_of(const char *format, pid_t thread, int fd, char *to)
{
    char link[64];
    snprintf(link, sizeof link, format, thread, fd);
    ssize_t length = readlink(link, to, PATH_BYTES - 1);
    if (length < 0)
        return 0;
    to[length] = 0;
    return 1;
}

static int path_of_fd(pid_t thread, uint64_t fd, char *to)
{
    return link_of("/proc/%d/fd/%d", thread, (int)fd, to);
}

static int path_at(pid_t thread, uint64_t folder, uint64_t address, char *to)
{
    static char name[PATH_BYTES], base[PATH_BYTES];
    if (!peek_text(thread, address, name))
        return 0;
    if (name[0] == '/') {
        strcpy(to, name);
        return 1;
    }
    int known = (int)folder == AT_FDCWD ? link_of("/proc/%d/cwd", thread, 0, base)
                                        : path_of_fd(thread, folder, base);
    return known && snprintf(to, PATH_BYTES, "%s/%s", base, name) < PATH_BYTES;
}

static int is_below_root(const char *path)
{
    return strncmp(path, root, root_length) == 0 && (path[root_length] == '/' || path[root_length] == 0);
}

/* The offset of a plain write. */
static uint64_t position_of(pid_t thread, uint64_t fd)
{
    char name[64], line[128];
    unsigned long long position = 0, flags = 0;
    snprintf(name, sizeof name, "/proc/%d/fdinfo/%d", thread, (int)fd);
    FILE *info = fopen(name, "r");
    if (!info)
        die(name);
    while (fgets(line, sizeof line, info)) {
        sscanf(line, "pos: %llu", &position);
        sscanf(line, "flags: %llo", &flags);
    }
    fclose(info);
    if (flags & O_APPEND) {
        struct stat found;
        snprintf(name, sizeof name, "/proc/%d/fd/%d", thread, (int)fd);
        if (stat(name, &found))
            die(name);
        position = (unsigned long long)found.st_size;
    }
    return position;
}

/* ---- Records. ---- */

static void put_bytes(const void *bytes, size_t count)
{
    uint32_t length = (uint32_t)count;
    fwrite(&length, sizeof length, 1, trace);
    fwrite(bytes, 1, count, trace);
}

static const char *relative(const char *path)
{
    if (!is_below_root(path))
        return path;
    return path[root_length] ? path + root_length + 1 : "";
}

static void record(char kind, int failed, const char *path, const char *second, uint64_t number,
                   const void *data, size_t count)
{
    fputc(kind, trace);
    fputc(failed, trace);
    put_bytes(relative(path), strlen(relative(path)));
    put_bytes(relative(second), strlen(relative(second)));
    fwrite(&number, sizeof number, 1, trace);
    put_bytes(data, count);
}

static void unsupported(const char *what, const char *path)
{
    fprintf(stderr, "tracer: cannot record %s of %s\n", what, path);
    record('X', 0, path, "", 0, what, strlen(what));
}

/* ---- The call: skipped, or executed while all others wait. ---- */

static void skip(const struct call *call, int error)
{
#if defined(__x86_64__)
    struct user_regs_struct registers;
    if (ptrace(PTRACE_GETREGS, call->thread, 0, &registers))
        die("get registers");
    registers.orig_rax = (unsigned long long)-1;
    registers.rax = (unsigned long long)-error;
    if (ptrace(PTRACE_SETREGS, call->thread, 0, &registers))
        die("set registers");
#elif defined(__aarch64__)
    struct user_regs_struct registers;
    struct iovec all = {&registers, sizeof registers};
    int none = -1;
    struct iovec number = {&none, sizeof none};
    if (ptrace(PTRACE_GETREGSET, call->thread, NT_PRSTATUS, &all))
        die("get registers");
    registers.regs[0] = (unsigned long long)-error;
    if (ptrace(PTRACE_SETREGSET, call->thread, NT_PRSTATUS, &all) ||
        ptrace(PTRACE_SETREGSET, call->thread, NT_ARM_SYSTEM_CALL, &number))
        die("set registers");
#else
#error "this processor is not supported"
#endif
    ptrace(PTRACE_CONT, call->thread, 0, 0);
}

/* Sets the third argument: the number of bytes to write. */
static void shorten(const struct call *call, uint64_t count)
{
    struct user_regs_struct registers;
    struct iovec all = {&registers, sizeof registers};
    if (ptrace(PTRACE_GETREGSET, call->thread, NT_PRSTATUS, &all))
        die("get registers");
#if defined(__x86_64__)
    registers.rdx = count;
#elif defined(__aarch64__)
    registers.regs[2] = count;
#endif
    if (ptrace(PTRACE_SETREGSET, call->thread, NT_PRSTATUS, &all))
        die("set registers");
}

/* Executes the call. Returns its result, or -EINTR if the thread has ended. The thread stays stopped. */
static int64_t carry_out(const struct call *call)
{
    int signal = 0;
    for (;;) {
        int status;
        ptrace(PTRACE_SYSCALL, call->thread, 0, signal);
        if (waitpid(call->thread, &status, __WALL) < 0)
            return -EINTR;
        if (WIFEXITED(status) || WIFSIGNALED(status))
            return -EINTR;
        if (WSTOPSIG(status) == (SIGTRAP | 0x80))
            break;
        signal = status >> 16 ? 0 : WSTOPSIG(status);
    }
    struct __ptrace_syscall_info info;
    if (ptrace(PTRACE_GET_SYSCALL_INFO, call->thread, sizeof info, &info) < 0)
        return -EINTR;
    return info.exit.rval;
}

static void resume(const struct call *call)
{
    ptrace(PTRACE_CONT, call->thread, 0, 0);
}

/* Returns true if the fault hits this call. */
static int is_hit(char class)
{
    if (!strchr(fault.classes, class))
        return 0;
    counted++;
    if (fault.then_kill && counted > fault.number)
        kill(program, SIGKILL);
    return counted == fault.number || (fault.goes_on && counted > fault.number);
}

/* Returns true if the fault replaced the call, which is then over. */
static int is_refused(const struct call *call, char class, char kind, const char *path)
{
    if (!is_hit(class))
        return 0;
    if (fault.is_kill) {
        kill(program, SIGKILL);
        return 1;
    }
    if (!fault.error)
        return 0;
    record(kind, 1, path, "", 0, "", 0);
    skip(call, fault.error);
    return 1;
}

/* ---- The calls. ---- */

static char path[PATH_BYTES], second[PATH_BYTES];

static void on_open(const struct call *call, uint64_t folder, uint64_t name, uint64_t flags)
{
    struct stat found;
    if (!path_at(call->thread, folder, name, path) || !is_below_root(path)) {
        resume(call);
        return;
    }
    if ((flags & O_TMPFILE) == O_TMPFILE)
        unsupported("a file without a name", path);
    if (is_refused(call, 'o', 'O', path))
        return;
    int existed = stat(path, &found) == 0;
    int64_t answer = carry_out(call);
    if (answer >= 0) {
        if (!existed)
            record('C', 0, path, "", 0, "", 0);
        else if (flags & O_TRUNC)
            record('L', 0, path, "", 0, "", 0);
        else
            record('O', 0, path, "", 0, "", 0);
    }
    resume(call);
}

static void on_read(const struct call *call)
{
    if (path_of_fd(call->thread, call->arguments[0], path) && is_below_root(path)) {
        if (is_refused(call, 'r', 'I', path))
            return;
        record('I', 0, path, "", 0, "", 0);
    }
    resume(call);
}

/* `vector`: the second argument is a list of buffers; `offset`: the position, unless it is the file's own. */
static void on_write(const struct call *call, int vector, const uint64_t *offset)
{
    uint64_t fd = call->arguments[0], buffer = call->arguments[1], count = call->arguments[2];
    if (!path_of_fd(call->thread, fd, path)) {
        resume(call);
        return;
    }
    int is_mark = strcmp(path, marks) == 0;
    if (!is_mark && !is_below_root(path)) {
        resume(call);
        return;
    }
    if (!is_mark) {
        uint64_t before = counted;
        if (is_refused(call, 'w', 'W', path))
            return;
        int hit = counted != before &&
                  (counted == fault.number || (fault.goes_on && counted > fault.number));
        if (hit && fault.is_short && !vector && count > 1) {
            count /= 2;
            shorten(call, count);
        }
    }
    uint64_t at = is_mark ? 0 : offset ? *offset : position_of(call->thread, fd);
    static char *data;
    static size_t room;
    struct iovec parts[1024];
    size_t parts_count = 1;
    parts[0].iov_base = (void *)(uintptr_t)buffer;
    parts[0].iov_len = count;
    if (vector) {
        parts_count = count < 1024 ? count : 1024;
        peek(call->thread, buffer, parts, parts_count * sizeof parts[0]);
    }
    int64_t written = carry_out(call);
    if (written > 0) {
        if (room < (size_t)written) {
            room = (size_t)written;
            data = realloc(data, room);
            if (!data)
                die("memory");
        }
        size_t done = 0;
        for (size_t part = 0; part < parts_count && done < (size_t)written; part++) {
            size_t length = parts[part].iov_len;
            if (length > (size_t)written - done)
                length = (size_t)written - done;
            if (peek(call->thread, (uint64_t)(uintptr_t)parts[part].iov_base, data + done, length) != length)
                die("what was written cannot be read");
            done += length;
        }
        if (is_mark)
            record('M', 0, "", "", 0, data, done);
        else
            record('W', 0, path, "", at, data, done);
    }
    resume(call);
}

static void on_length(const struct call *call, uint64_t fd, uint64_t length, int only_longer)
{
    struct stat found;
    if (!path_of_fd(call->thread, fd, path) || !is_below_root(path)) {
        resume(call);
        return;
    }
    if (is_refused(call, 'w', 'L', path))
        return;
    int64_t answer = carry_out(call);
    if (answer == 0) {
        if (only_longer && (stat(path, &found) || (uint64_t)found.st_size != length))
            length = (uint64_t)found.st_size;
        record('L', 0, path, "", length, "", 0);
    }
    resume(call);
}

static void on_sync(const struct call *call)
{
    if (!path_of_fd(call->thread, call->arguments[0], path) || !is_below_root(path)) {
        resume(call);
        return;
    }
    if (is_refused(call, 's', 'S', path))
        return;
    int64_t answer = carry_out(call);
    record('S', answer != 0, path, "", 0, "", 0);
    resume(call);
}

/* A name that is created or deleted. */
static void on_name(const struct call *call, char kind, uint64_t folder, uint64_t name)
{
    if (!path_at(call->thread, folder, name, path) || !is_below_root(path)) {
        resume(call);
        return;
    }
    if (is_refused(call, 'n', kind, path))
        return;
    if (carry_out(call) == 0)
        record(kind, 0, path, "", 0, "", 0);
    resume(call);
}

static void on_rename(const struct call *call, uint64_t folder, uint64_t from, uint64_t other, uint64_t to,
                      uint64_t flags)
{
    if (!path_at(call->thread, folder, from, path) || !path_at(call->thread, other, to, second) ||
        (!is_below_root(path) && !is_below_root(second))) {
        resume(call);
        return;
    }
    if (!is_below_root(path) || !is_below_root(second) || (flags & ~1u))
        unsupported("a rename", path);
    if (is_refused(call, 'n', 'R', path))
        return;
    if (carry_out(call) == 0)
        record('R', 0, path, second, 0, "", 0);
    resume(call);
}

/* A call that changes files in a way that is not recorded. */
static void on_unsupported(const struct call *call, const char *what, uint64_t fd)
{
    if (path_of_fd(call->thread, fd, path) && is_below_root(path))
        unsupported(what, path);
    resume(call);
}

static void on_call(const struct call *call)
{
    const uint64_t *a = call->arguments;
    const uint64_t here = (uint64_t)AT_FDCWD;
    switch (call->number) {
#ifdef __NR_open
    case __NR_open:      on_open(call, here, a[0], a[1]); return;
    case __NR_creat:     on_open(call, here, a[0], O_CREAT | O_WRONLY | O_TRUNC); return;
    case __NR_mkdir:     on_name(call, 'D', here, a[0]); return;
    case __NR_rmdir:
    case __NR_unlink:    on_name(call, 'U', here, a[0]); return;
    case __NR_rename:    on_rename(call, here, a[0], here, a[1], 0); return;
    case __NR_link:
    case __NR_symlink:
        if (path_at(call->thread, here, a[1], path) && is_below_root(path))
            unsupported("a link", path);
        resume(call);
        return;
#endif
    case __NR_openat:    on_open(call, a[0], a[1], a[2]); return;
    case __NR_mkdirat:   on_name(call, 'D', a[0], a[1]); return;
    case __NR_unlinkat:  on_name(call, 'U', a[0], a[1]); return;
#ifdef __NR_renameat
    case __NR_renameat:  on_rename(call, a[0], a[1], a[2], a[3], 0); return;
#endif
    case __NR_renameat2: on_rename(call, a[0], a[1], a[2], a[3], a[4]); return;
    case __NR_read:
    case __NR_readv:
    case __NR_pread64:
    case __NR_preadv:
    case __NR_preadv2:   on_read(call); return;
    case __NR_write:     on_write(call, 0, NULL); return;
    case __NR_writev:    on_write(call, 1, NULL); return;
    case __NR_pwrite64:  on_write(call, 0, &a[3]); return;
    case __NR_pwritev:
    case __NR_pwritev2:  on_write(call, 1, &a[3]); return;
    case __NR_ftruncate: on_length(call, a[0], a[1], 0); return;
    case __NR_fallocate:
        if (a[1] != 0) {
            on_unsupported(call, "a hole", a[0]);
            return;
        }
        on_length(call, a[0], a[2] + a[3], 1);
        return;
    case __NR_fsync:
    case __NR_fdatasync: on_sync(call); return;
    case __NR_mmap:
        /* Written without a call, so the trace of this file is not complete. */
        if (path_of_fd(call->thread, a[4], path) && is_below_root(path) &&
            (strlen(path) < 4 || strcmp(path + strlen(path) - 4, "-shm")))
            unsupported("a writable mapping", path);
        resume(call);
        return;
    case __NR_copy_file_range: on_unsupported(call, "a copy", a[2]); return;
    case __NR_sendfile:        on_unsupported(call, "a copy", a[0]); return;
    case __NR_splice:          on_unsupported(call, "a copy", a[2]); return;
    case __NR_linkat:
    case __NR_symlinkat:
    case __NR_openat2:
    case __NR_truncate:
    case __NR_sync:
    case __NR_syncfs:
    case __NR_io_uring_setup:
        unsupported("a system call", "the program");
        resume(call);
        return;
    default:
        resume(call);
    }
}

/* ---- The program. ---- */

static const int WATCHED[] = {
#ifdef __NR_open
    __NR_open, __NR_creat, __NR_mkdir, __NR_rmdir, __NR_unlink, __NR_rename, __NR_link, __NR_symlink,
#endif
#ifdef __NR_renameat
    __NR_renameat,
#endif
    __NR_openat, __NR_openat2, __NR_mkdirat, __NR_unlinkat, __NR_renameat2, __NR_linkat, __NR_symlinkat,
    __NR_write, __NR_writev, __NR_pwrite64, __NR_pwritev, __NR_pwritev2, __NR_ftruncate, __NR_truncate,
    __NR_fallocate, __NR_fsync, __NR_fdatasync, __NR_sync, __NR_syncfs, __NR_copy_file_range, __NR_sendfile,
    __NR_splice, __NR_io_uring_setup,
};
#define WATCHED_COUNT (sizeof WATCHED / sizeof WATCHED[0])
/* Stopped at only if they are counted, because there are many of them. */
static const int READS[] = {__NR_read, __NR_readv, __NR_pread64, __NR_preadv, __NR_preadv2};
#define READS_COUNT (sizeof READS / sizeof READS[0])

static void install_filter(void)
{
    struct sock_filter code[2 * (WATCHED_COUNT + READS_COUNT) + 16];
    unsigned short at = 0;
    code[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    size_t count = WATCHED_COUNT + (strchr(fault.classes, 'r') ? READS_COUNT : 0);
    for (size_t each = 0; each < count; each++) {
        int number = each < WATCHED_COUNT ? WATCHED[each] : READS[each - WATCHED_COUNT];
        code[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, 1);
        code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
    }
    /* Only writable shared mappings are relevant. */
    code[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_mmap, 0, 5);
    code[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2]));
    code[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_WRITE, 0, 3);
    code[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[3]));
    code[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, MAP_SHARED, 0, 1);
    code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
    code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog filter = {at, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
        die("install the filter");
}

static void read_fault(const char *text)
{
    char action[32] = "", on[8] = "";
    unsigned long long number;
    if (strcmp(text, "none") == 0)
        return;
    if (sscanf(text, "%7[wsonr]:%llu:%31[^:]:%7s", fault.classes, &number, action, on) < 3) {
        fprintf(stderr, "tracer: not a fault: %s\n", text);
        exit(125);
    }
    fault.number = number;
    fault.is_short = strcmp(action, "short") == 0;
    fault.is_kill = strcmp(action, "kill") == 0;
    fault.error = fault.is_short || fault.is_kill ? 0 : atoi(action);
    fault.goes_on = strcmp(on, "on") == 0;
    fault.then_kill = strcmp(on, "kill") == 0;
}

int main(int count, char **arguments)
{
    if (count < 7 || strcmp(arguments[5], "--")) {
        fprintf(stderr, "usage: tracer ROOT TRACE MARKS FAULT -- PROGRAM [ARGUMENT...]\n");
        return 125;
    }
    root = arguments[1];
    root_length = strlen(root);
    marks = arguments[3];
    read_fault(arguments[4]);
    trace = fopen(arguments[2], "we");
    if (!trace)
        die(arguments[2]);
    program = fork();
    if (program < 0)
        die("fork");
    if (program == 0) {
        if (ptrace(PTRACE_TRACEME, 0, 0, 0))
            die("be traced");
        raise(SIGSTOP);
        install_filter();
        execvp(arguments[6], arguments + 6);
        die(arguments[6]);
    }
    int status, code = 125;
    if (waitpid(program, &status, __WALL) < 0 || !WIFSTOPPED(status))
        die("the program did not start");
    long options = PTRACE_O_EXITKILL | PTRACE_O_TRACESECCOMP | PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE |
                   PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACEEXEC;
    if (ptrace(PTRACE_SETOPTIONS, program, 0, options))
        die("set options");
    ptrace(PTRACE_CONT, program, 0, 0);
    for (;;) {
        pid_t thread = waitpid(-1, &status, __WALL);
        if (thread < 0)
            break;
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            if (thread == program)
                code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            continue;
        }
        int event = status >> 16, signal = WSTOPSIG(status);
        if (event == PTRACE_EVENT_SECCOMP) {
            struct __ptrace_syscall_info info;
            struct call call = {.thread = thread};
            if (ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof info, &info) < 0)
                continue;
            call.number = info.seccomp.nr;
            memcpy(call.arguments, info.seccomp.args, sizeof call.arguments);
            on_call(&call);
        } else {
            /* A new thread begins with SIGSTOP; events and traps are not passed to the program. */
            int pass = event || signal == SIGSTOP || signal == SIGTRAP ? 0 : signal;
            ptrace(PTRACE_CONT, thread, 0, pass);
        }
    }
    if (fclose(trace))
        die(arguments[2]);
    return code;
}
