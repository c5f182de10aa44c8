/*
 * Runs a program, and counts the system calls of all its threads.
 *
 *   counter COUNTS PROGRAM [ARGUMENT...]
 *
 * COUNTS  the file for the counts: 64-bit numbers, in the order of the numbers of the system calls. It is up to date at
 *         any moment.
 *
 * A system call filter (seccomp) stops the program at every call, and ptrace reads the number of the call. This needs no
 * privileges.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
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
#include <sys/wait.h>
#include <unistd.h>

#define CALLS 1024

static void die(const char *what)
{
    fprintf(stderr, "counter: %s: %s\n", what, strerror(errno));
    exit(125);
}

/* Stops the program at every call. The message of the event is the number of the call. */
static void install_filter(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, CALLS - 1),
        BPF_STMT(BPF_ALU | BPF_OR | BPF_K, SECCOMP_RET_TRACE),
        BPF_STMT(BPF_RET | BPF_A, 0),
    };
    struct sock_fprog filter = {sizeof code / sizeof code[0], code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
        die("install the filter");
}

static volatile uint64_t *map_counts(const char *name)
{
    int file = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, CALLS * sizeof(uint64_t)))
        die(name);
    void *counts = mmap(NULL, CALLS * sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (counts == MAP_FAILED)
        die(name);
    close(file);
    return counts;
}

int main(int count, char **arguments)
{
    if (count < 3) {
        fprintf(stderr, "usage: counter COUNTS PROGRAM [ARGUMENT...]\n");
        return 125;
    }
    volatile uint64_t *counts = map_counts(arguments[1]);
    pid_t program = fork();
    if (program < 0)
        die("fork");
    if (program == 0) {
        if (ptrace(PTRACE_TRACEME, 0, 0, 0))
            die("be traced");
        raise(SIGSTOP);
        install_filter();
        execvp(arguments[2], arguments + 2);
        die(arguments[2]);
    }
    int status, code = 125;
    if (waitpid(program, &status, __WALL) < 0 || !WIFSTOPPED(status))
        die("the program did not start");
    long options = PTRACE_O_EXITKILL | PTRACE_O_TRACESECCOMP | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK |
                   PTRACE_O_TRACEVFORK | PTRACE_O_TRACEEXEC;
    if (ptrace(PTRACE_SETOPTIONS, program, 0, options))
        die("set options");
    ptrace(PTRACE_CONT, program, 0, 0);
    for (;;) {
        pid_t thread = waitpid(-1, &status, __WALL);
        if (thread < 0)
            return code;
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            if (thread == program)
                code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            continue;
        }
        int event = status >> 16, signal = WSTOPSIG(status);
        unsigned long call;
        if (event == PTRACE_EVENT_SECCOMP && ptrace(PTRACE_GETEVENTMSG, thread, 0, &call) == 0)
            counts[call % CALLS]++;
        /* A new thread begins with SIGSTOP; events and traps are not passed to the program. */
        int pass = event || signal == SIGSTOP || signal == SIGTRAP ? 0 : signal;
        ptrace(PTRACE_CONT, thread, 0, pass);
    }
}
