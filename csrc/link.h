/* Non-blocking socket calls and a monotonic clock, the same on POSIX and Windows. */
#ifndef JSCLIENT_LINK_H
#define JSCLIENT_LINK_H

#include <stddef.h>
#include <stdint.h>

#define JSC_AGAIN (-1)  /* nothing to read, or no room to write */
#define JSC_ERROR (-2)  /* *error holds the system's number */

#ifdef _WIN32
#include <winsock2.h>
#include <windows.h>
typedef SOCKET jsc_socket;

static inline int jsc_clip(size_t size) {
    return size > 0x40000000 ? 0x40000000 : (int)size;
}

static inline ptrdiff_t jsc_failed(int *error) {
    *error = WSAGetLastError();
    return *error == WSAEWOULDBLOCK ? JSC_AGAIN : JSC_ERROR;
}

static inline ptrdiff_t jsc_recv(jsc_socket fd, char *at, size_t size, int *error) {
    int got = recv(fd, at, jsc_clip(size), 0);
    return got >= 0 ? got : jsc_failed(error);
}

static inline ptrdiff_t jsc_send(jsc_socket fd, const char *at, size_t size, int *error) {
    int sent = send(fd, at, jsc_clip(size), 0);
    return sent >= 0 ? sent : jsc_failed(error);
}

/* See below. */
static inline int jsc_await(jsc_socket fd, jsc_socket bell, double seconds) {
    WSAPOLLFD awaited[2] = {{fd, POLLRDNORM, 0}, {bell, POLLRDNORM, 0}};
    int limit = seconds > 1e6 ? -1 : (int)(seconds * 1e3) + 1;
    if (WSAPoll(awaited, 2, limit) <= 0) return 0;
    return awaited[1].revents != 0;
}

/* See below: its clock is too coarse. */
static inline int jsc_rest(jsc_socket bell, double seconds) {
    (void)bell;
    (void)seconds;
    return 0;
}

static inline int64_t jsc_now_ns(void) {
    LARGE_INTEGER ticks, rate;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&rate);
    return (int64_t)((double)ticks.QuadPart * 1e9 / (double)rate.QuadPart);
}

#else
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <time.h>
typedef int jsc_socket;

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 /* Python ignores SIGPIPE */
#endif

static inline ptrdiff_t jsc_failed(int *error) {
    *error = errno;
    /* An interrupted call moved nothing: the caller looks again. */
    if (*error == EAGAIN || *error == EWOULDBLOCK || *error == EINTR) return JSC_AGAIN;
    return JSC_ERROR;
}

static inline ptrdiff_t jsc_recv(jsc_socket fd, char *at, size_t size, int *error) {
    ssize_t got = recv(fd, at, size, MSG_DONTWAIT);
    return got >= 0 ? got : jsc_failed(error);
}

static inline ptrdiff_t jsc_send(jsc_socket fd, const char *at, size_t size, int *error) {
    ssize_t sent = send(fd, at, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    return sent >= 0 ? sent : jsc_failed(error);
}

/* Waits until there is something to read, for that long at most, or for a signal. Whether
   the bell was rung. */
static inline int jsc_await(jsc_socket fd, jsc_socket bell, double seconds) {
    struct pollfd awaited[2] = {{fd, POLLIN, 0}, {bell, POLLIN, 0}};
#ifdef __linux__
    struct timespec limit;
    if (seconds > 1e6) seconds = 1e6; /* the caller looks at the clock again */
    limit.tv_sec = (time_t)seconds;
    limit.tv_nsec = (long)((seconds - (double)limit.tv_sec) * 1e9);
    if (ppoll(awaited, 2, &limit, NULL) <= 0) return 0;
#else
    if (poll(awaited, 2, seconds > 1e6 ? -1 : (int)(seconds * 1e3) + 1) <= 0) return 0;
#endif
    return awaited[1].revents != 0;
}

/* Sleeps for that long at most, less than a second, or until the bell is rung or for a signal,
   whatever there is to read. Whether the bell was rung. Not where a poll takes milliseconds. */
static inline int jsc_rest(jsc_socket bell, double seconds) {
#ifdef __linux__
    struct pollfd awaited = {bell, POLLIN, 0};
    struct timespec limit = {0, (long)(seconds * 1e9)};
    return ppoll(&awaited, 1, &limit, NULL) > 0;
#else
    (void)bell;
    (void)seconds;
    return 0;
#endif
}

static inline int64_t jsc_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Cheap and coarse, for what is told in heartbeats. */
static inline int64_t jsc_coarse_ns(void) {
#ifdef CLOCK_MONOTONIC_COARSE
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
#else
    return jsc_now_ns();
#endif
}
#endif

#ifdef _WIN32
static inline int64_t jsc_coarse_ns(void) { return jsc_now_ns(); }
#endif

#endif
