/* What the C workers share: the meter, the names on the wire and the words to the runner.
 *
 * The C side of peers/meter.py. Each program includes it once.
 */
#ifndef BENCH_METER_H
#define BENCH_METER_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { THREADS = 100 };         /* requests of the cell `threads` that wait at one time */
enum { WINDOW = 1000 };         /* publishes of the cell `jsasync` that wait for their acks */

#define SUBJECT "bench.load"    /* what the publisher sends and the subscribers hear */
#define SERVICE "bench.echo"    /* where the responder listens */
#define STREAM "BENCH"          /* a stream in memory, made anew for each sample */
#define STORED "bench.stored"   /* its subject */
#define ACK_NONE "none"         /* its consumers, when it is filled */
#define ACK_EACH "explicit"

enum { FETCH = 100 };           /* messages of each fetch of the cell `fetch-100` */

static void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

struct meter {
    double start, seconds, user, system;
};

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static double seconds_of(struct timeval value)
{
    return (double)value.tv_sec + (double)value.tv_usec * 1e-6;
}

static void meter_start(struct meter *meter)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    meter->user = seconds_of(usage.ru_utime);
    meter->system = seconds_of(usage.ru_stime);
    meter->start = seconds_now();
}

static void meter_stop(struct meter *meter)
{
    struct rusage usage;
    meter->seconds = seconds_now() - meter->start;
    getrusage(RUSAGE_SELF, &usage);
    meter->user = seconds_of(usage.ru_utime) - meter->user;
    meter->system = seconds_of(usage.ru_stime) - meter->system;
}

/* Prints the common part of a result; the caller adds its own fields and the end. */
static void print_meter(const struct meter *meter, long messages)
{
    printf("{\"messages\": %ld, \"seconds\": %.9f, \"cpu_user\": %.6f, \"cpu_sys\": %.6f",
           messages, meter->seconds, meter->user, meter->system);
}

/* A field of /proc/self/status in bytes, or -1 where there is no such file. */
static long status_bytes(const char *field)
{
    char line[256];
    long kilobytes = -1;
    size_t size = strlen(field);
    FILE *file = fopen("/proc/self/status", "r");
    if (file == NULL)
        return -1;
    while (fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, field, size) == 0 && line[size] == ':')
            kilobytes = strtol(line + size + 1, NULL, 10);
    fclose(file);
    return kilobytes < 0 ? -1 : kilobytes * 1024;
}

static void say_ready(void)
{
    puts("READY");
    fflush(stdout);
}

static int compare_doubles(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Ends a result with what the latencies, in seconds, come to; sorts them. */
static void print_latencies(double *latency, long count)
{
    qsort(latency, (size_t)count, sizeof *latency, compare_doubles);
    printf(", \"p50\": %.9f, \"p99\": %.9f, \"max\": %.9f}\n", latency[count / 2],
           latency[count * 99 / 100], latency[count - 1]);
}

/* The resident memory from which growth counts, or -1 where the system cannot tell. The
 * peak starts again there: what the start of the program needed is not the messages'. */
static long memory_start(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "w");
    if (file == NULL)
        return -1;
    fputs("5", file);
    return fclose(file) == 0 ? status_bytes("VmRSS") : -1;
}

/* Ends a result with how far the memory grew over what memory_start said. */
static void print_growth(long resident)
{
    if (resident >= 0)
        printf(", \"rss_growth\": %ld, \"peak_rss_growth\": %ld",
               status_bytes("VmRSS") - resident, status_bytes("VmHWM") - resident);
    puts("}");
}

#endif
