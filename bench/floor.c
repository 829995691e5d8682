/* The floor: what the work costs when a C program does it on a bare socket.
 *
 *     floor URL sub      N SIZE             count N messages of SIZE bytes
 *     floor URL memory   N SIZE             the same; the peak of the resident memory matters
 *     floor URL held     N SIZE             the same, and keep a copy of each message
 *     floor URL pub      N SIZE             publish N messages in large writes, then a request
 *     floor URL load     N SIZE             the same with a PING instead of the request
 *     floor URL request  N SIZE             N requests, one after another
 *     floor URL threads  N SIZE             N requests, a hundred at a time
 *     floor URL jspub    N SIZE             N publishes to a stream, each after the last's ack
 *     floor URL jsasync  N SIZE             N publishes to a stream, a thousand without an ack
 *     floor URL jsall    N SIZE             the same
 *     floor URL jsrows   N SIZE             the same, each with an id of its own
 *     floor URL consume-500     N SIZE      N messages of a stream, 500 of them asked for
 *     floor URL consume-500-ack N SIZE      the same, each acknowledged
 *     floor URL consume-5000    N SIZE      the same, 5000 of them asked for, without acks
 *     floor URL batches-5000    N SIZE      the same
 *     floor URL push            N SIZE      the same, pushed, with flow control
 *     floor URL fetch-100       N SIZE      the same, by a hundred at a time
 *     floor URL next            N SIZE      the same, one after another
 *     floor URL stream   0 0                make that stream anew
 *     floor URL filled   N SIZE             the same, with messages and consumers
 *     floor URL echo     0 0                answer requests until the process is ended
 *     floor URL info     0 0                print the server's INFO
 *     floor -   parse    N SIZE             parse N messages that are in memory
 *     floor -   create   N SIZE             make N private copies of a message
 *
 * One thread, blocking calls, no library. It parses what a client has to parse (every field
 * of a MSG line, frames cut anywhere) and does nothing a client could leave out, so a client
 * cannot well be cheaper. The result is one line of JSON, as from every other worker.
 */
#define _GNU_SOURCE
#include "meter.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    BUFFER = 256 * 1024,        /* one receive; every frame here is far smaller */
    WRITE_AT = 64 * 1024,       /* gathered bytes worth a system call */
    MAX_FRAME = 8 * 1024
};

/* ---- the connection ------------------------------------------------------------------- */

struct connection {
    int fd;
    long pongs;
    size_t begin, end;          /* bytes received and not yet parsed */
    size_t gathered;            /* bytes not yet sent */
    char *in, *out;
};

struct message {
    const char *subject, *reply, *header, *payload;
    size_t subject_size, reply_size, header_size, size;     /* size: of the payload */
    long sid;
};

static void connection_init(struct connection *connection)
{
    memset(connection, 0, sizeof *connection);
    connection->fd = -1;
    connection->in = malloc(BUFFER);
    connection->out = malloc(WRITE_AT + THREADS * MAX_FRAME);
    if (connection->in == NULL || connection->out == NULL)
        die("out of memory");
}

static void send_all(struct connection *connection, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t sent = send(connection->fd, bytes, size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            die("send: %s", strerror(errno));
        bytes += sent;
        size -= (size_t)sent;
    }
}

static void send_text(struct connection *connection, const char *text)
{
    send_all(connection, text, strlen(text));
}

static void gather(struct connection *connection, const char *bytes, size_t size)
{
    memcpy(connection->out + connection->gathered, bytes, size);
    connection->gathered += size;
}

static void send_gathered(struct connection *connection)
{
    send_all(connection, connection->out, connection->gathered);
    connection->gathered = 0;
}

/* Receives once behind what is still unparsed. */
static void receive(struct connection *connection)
{
    ssize_t got;
    if (connection->begin > 0) {
        connection->end -= connection->begin;
        memmove(connection->in, connection->in + connection->begin, connection->end);
        connection->begin = 0;
    }
    if (connection->end == BUFFER)
        die("a frame does not fit into %d bytes", BUFFER);
    do
        got = recv(connection->fd, connection->in + connection->end, BUFFER - connection->end, 0);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        die("recv: %s", strerror(errno));
    if (got == 0)
        die("the server closed the connection");
    connection->end += (size_t)got;
}

static inline int parse_number(const char *at, size_t size, size_t *number)
{
    *number = 0;
    for (size_t i = 0; i < size; i++) {
        if (at[i] < '0' || at[i] > '9' || i > 9)
            return 0;
        *number = *number * 10 + (size_t)(at[i] - '0');
    }
    return 1;
}

/* The fields of `subject sid [reply] [header size] size`; returns 0 if the line has others. */
static inline int parse_line(const char *at, const char *stop, int has_header,
                             struct message *message)
{
    const char *field[5];
    size_t length[5], sid;
    int count = 0, most = 4 + has_header;
    for (;;) {
        const char *begin = at;
        while (at < stop && *at != ' ')
            at++;
        if (at == begin || count == most)
            return 0;
        field[count] = begin;
        length[count++] = (size_t)(at - begin);
        if (at == stop)
            break;
        at++;
    }
    if (count < most - 1)
        return 0;
    message->subject = field[0];
    message->subject_size = length[0];
    message->reply = count == most ? field[2] : NULL;
    message->reply_size = count == most ? length[2] : 0;
    message->header_size = 0;
    if (!parse_number(field[1], length[1], &sid)
        || !parse_number(field[count - 1], length[count - 1], &message->size)
        || (has_header && !parse_number(field[count - 2], length[count - 2],
                                        &message->header_size))
        || message->header_size > message->size)
        return 0;
    message->sid = (long)sid;
    message->size -= message->header_size;
    return 1;
}

/* Takes the next whole message, and 0 when more bytes are needed for one. PING is answered
 * and PONG counted on the way; a message's pointers hold until the next receive. */
static inline int next_message(struct connection *connection, struct message *message)
{
    for (;;) {
        const char *line = connection->in + connection->begin;
        const char *limit = connection->in + connection->end;
        const char *newline = memchr(line, '\n', (size_t)(limit - line));
        if (newline == NULL)
            return 0;
        if (newline - line < 4 || newline[-1] != '\r')
            die("bad line: %.*s", (int)(newline - line), line);
        if (memcmp(line, "MSG ", 4) == 0 || memcmp(line, "HMSG", 4) == 0) {
            int has_header = *line == 'H';
            if (!parse_line(line + 4 + has_header, newline - 1, has_header, message))
                die("bad message line: %.*s", (int)(newline - line), line);
            if ((size_t)(limit - newline) < message->header_size + message->size + 3)
                return 0;
            message->header = newline + 1;
            message->payload = message->header + message->header_size;
            if (memcmp(message->payload + message->size, "\r\n", 2) != 0)
                die("a payload does not end where its line says");
            connection->begin = (size_t)(message->payload + message->size + 2 - connection->in);
            return 1;
        }
        if (memcmp(line, "PING", 4) == 0)
            send_text(connection, "PONG\r\n");
        else if (memcmp(line, "PONG", 4) == 0)
            connection->pongs++;
        else if (memcmp(line, "INFO", 4) != 0)
            die("the server said: %.*s", (int)(newline - line), line);
        connection->begin = (size_t)(newline + 1 - connection->in);
    }
}

/* Waits until the server has handled all that was sent. No messages may be on their way. */
static void flush(struct connection *connection)
{
    struct message message;
    long pongs = connection->pongs;
    send_text(connection, "PING\r\n");
    while (connection->pongs == pongs) {
        receive(connection);
        if (next_message(connection, &message))
            die("a message came before it was asked for");
    }
}

/* Opens the link and reads INFO, which stays at the start of `in`, ended by a zero byte. */
static void open_link(struct connection *connection, const char *url)
{
    char host[256];
    struct addrinfo hints, *found, *address;
    int one = 1, failure;
    const char *begin = strncmp(url, "nats://", 7) == 0 ? url + 7 : url;
    const char *colon = strrchr(begin, ':');
    char *newline;
    if (colon == NULL || (size_t)(colon - begin) >= sizeof host)
        die("not a URL: %s", url);
    memcpy(host, begin, (size_t)(colon - begin));
    host[colon - begin] = '\0';
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    failure = getaddrinfo(host, colon + 1, &hints, &found);
    if (failure != 0)
        die("%s: %s", url, gai_strerror(failure));
    for (address = found; address != NULL; address = address->ai_next) {
        connection->fd = socket(address->ai_family, SOCK_STREAM, 0);
        if (connection->fd >= 0
            && connect(connection->fd, address->ai_addr, address->ai_addrlen) == 0)
            break;
        if (connection->fd >= 0)
            close(connection->fd);
        connection->fd = -1;
    }
    freeaddrinfo(found);
    if (connection->fd < 0)
        die("cannot connect to %s: %s", url, strerror(errno));
    setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    do
        receive(connection);
    while ((newline = memchr(connection->in, '\n', connection->end)) == NULL);
    *newline = '\0';
    connection->begin = (size_t)(newline + 1 - connection->in);
    if (strncmp(connection->in, "INFO ", 5) != 0)
        die("not a NATS server: %s", connection->in);
}

static void connect_to(struct connection *connection, const char *url)
{
    open_link(connection, url);
    send_text(connection, "CONNECT {\"verbose\":false,\"pedantic\":false,\"lang\":\"c\","
                          "\"name\":\"floor\",\"protocol\":1,\"headers\":true}\r\n");
    flush(connection);
}

/* ---- the cells ------------------------------------------------------------------------ */

/* sub, memory, held: from the arrival of the first message to the last. */
static void run_subscriber(struct connection *connection, long count, size_t size, int hold)
{
    struct message message;
    struct meter meter;
    char **held = NULL;
    long arrived = 0, resident;
    if (hold) {
        held = malloc((size_t)count * sizeof *held);
        if (held == NULL)
            die("out of memory");
        memset(held, 1, (size_t)count * sizeof *held);  /* its pages are not the messages' */
    }
    send_text(connection, "SUB " SUBJECT " 1\r\n");
    flush(connection);
    resident = memory_start();
    say_ready();
    receive(connection);
    meter_start(&meter);
    for (;;) {
        while (next_message(connection, &message)) {
            if (message.sid != 1 || message.size != size)
                die("a message that nobody sent");
            if (hold) {
                /* One block with subject and payload, as the leanest client could have it. */
                char *copy = malloc(message.subject_size + message.size);
                if (copy == NULL)
                    die("out of memory");
                memcpy(copy, message.subject, message.subject_size);
                memcpy(copy + message.subject_size, message.payload, message.size);
                held[arrived] = copy;
            }
            arrived++;
        }
        if (arrived >= count)
            break;
        receive(connection);
    }
    meter_stop(&meter);
    print_meter(&meter, count);
    print_growth(resident);
}

static void wait_for_message(struct connection *connection)
{
    struct message message;
    while (!next_message(connection, &message))
        receive(connection);
}

/* pub, load: the clock stops when the server has handled everything. */
static void run_publisher(struct connection *connection, long count, size_t size, int is_load)
{
    char payload[MAX_FRAME], line[64], request[128];
    struct meter meter;
    size_t line_size, request_size;
    long id = (long)getpid();
    request_size = (size_t)snprintf(request, sizeof request, "SUB _INBOX.floor%ld 1\r\n", id);
    if (!is_load)
        gather(connection, request, request_size);
    request_size = (size_t)snprintf(request, sizeof request,
                                    "PUB " SERVICE " _INBOX.floor%ld 0\r\n\r\n", id);
    memset(payload, 'x', size);
    memcpy(payload + size, "\r\n", 2);
    meter_start(&meter);
    line_size = (size_t)snprintf(line, sizeof line, "PUB " SUBJECT " %zu\r\n", size);
    for (long i = 0; i < count; i++) {
        gather(connection, line, line_size);
        gather(connection, payload, size + 2);
        if (connection->gathered >= WRITE_AT)
            send_gathered(connection);
    }
    if (!is_load)
        gather(connection, request, request_size);
    send_gathered(connection);
    if (is_load)
        flush(connection);
    else
        wait_for_message(connection);
    meter_stop(&meter);
    print_meter(&meter, count);
    puts("}");
}

/* request, threads: `in_flight` requests wait for their replies at any one time. */
static void run_requests(struct connection *connection, long count, size_t size, long in_flight)
{
    char frame[THREADS][MAX_FRAME];
    size_t frame_size[THREADS];
    double started[THREADS];
    double *latency = malloc((size_t)count * sizeof *latency);
    struct message message;
    struct meter meter;
    char inbox[64];
    long sent = 0, answered = 0;
    size_t inbox_size = (size_t)snprintf(inbox, sizeof inbox, "_INBOX.floor%ld.", (long)getpid());
    if (latency == NULL)
        die("out of memory");
    for (long slot = 0; slot < in_flight; slot++) {
        int used = snprintf(frame[slot], MAX_FRAME, "PUB " SERVICE " %s%ld %zu\r\n",
                            inbox, slot, size);
        memset(frame[slot] + used, 'x', size);
        memcpy(frame[slot] + used + size, "\r\n", 2);
        frame_size[slot] = (size_t)used + size + 2;
    }
    snprintf(connection->out, MAX_FRAME, "SUB %s* 1\r\n", inbox);
    send_text(connection, connection->out);
    flush(connection);

    meter_start(&meter);
    for (; sent < in_flight && sent < count; sent++) {
        started[sent] = seconds_now();
        gather(connection, frame[sent], frame_size[sent]);
    }
    while (answered < count) {
        send_gathered(connection);
        receive(connection);
        while (next_message(connection, &message)) {
            long slot = strtol(message.subject + inbox_size, NULL, 10);
            double now = seconds_now();
            if (slot < 0 || slot >= in_flight || message.size != size)
                die("a reply that nobody asked for");
            latency[answered++] = now - started[slot];
            if (sent < count) {
                started[slot] = now;
                gather(connection, frame[slot], frame_size[slot]);
                sent++;
            }
        }
    }
    meter_stop(&meter);
    print_meter(&meter, count);
    print_latencies(latency, count);
    free(latency);
}

/* An ack of the stream, as little of it as tells it from an error. */
static void check_ack(const struct message *message)
{
    static const char start[] = "{\"stream\":\"" STREAM "\"";
    if (message->size < sizeof start || memcmp(message->payload, start, sizeof start - 1) != 0)
        die("no ack: %.*s", (int)message->size, message->payload);
}

static size_t make_publish(char *frame, const char *inbox, size_t size)
{
    size_t used = (size_t)sprintf(frame, "PUB " STORED " %s %zu\r\n", inbox, size);
    memset(frame + used, 'x', size);
    memcpy(frame + used + size, "\r\n", 2);
    return used + size + 2;
}

static void open_inbox(struct connection *connection, char *inbox)
{
    char line[128];
    sprintf(inbox, "_INBOX.floor%ld", (long)getpid());
    snprintf(line, sizeof line, "SUB %s 1\r\n", inbox);
    send_text(connection, line);
    flush(connection);
}

/* jspub: one message, its ack, the next message. */
static void run_stored(struct connection *connection, long count, size_t size)
{
    char frame[MAX_FRAME], inbox[64];
    double *latency = malloc((size_t)count * sizeof *latency);
    struct message message;
    struct meter meter;
    size_t frame_size;
    if (latency == NULL)
        die("out of memory");
    open_inbox(connection, inbox);
    frame_size = make_publish(frame, inbox, size);
    meter_start(&meter);
    for (long i = 0; i < count; i++) {
        double start = seconds_now();
        send_all(connection, frame, frame_size);
        while (!next_message(connection, &message))
            receive(connection);
        latency[i] = seconds_now() - start;
        check_ack(&message);
    }
    meter_stop(&meter);
    print_meter(&meter, count);
    print_latencies(latency, count);
    free(latency);
}

/* A frame with an id; *number is where its digits are. */
static size_t make_identified(char *frame, const char *inbox, size_t size, char **number)
{
    static const char head[] = "NATS/1.0\r\nNats-Expected-Stream: " STREAM "\r\n"
                               "Nats-Msg-Id: bench-0-0-0000000000000000000000-0\r\n\r\n";
    size_t head_size = sizeof head - 1;
    size_t used = (size_t)sprintf(frame, "HPUB " STORED " %s %zu %zu\r\n%s", inbox, head_size,
                                  head_size + size, head);
    *number = frame + used - 28;
    memset(frame + used, 'x', size);
    memcpy(frame + used + size, "\r\n", 2);
    return used + size + 2;
}

/* Publishes with as many without an ack as the window holds; the inbox is open. */
static void store_all(struct connection *connection, long count, size_t size, int has_ids)
{
    char frame[MAX_FRAME], inbox[64], *number = NULL;
    struct message message;
    size_t frame_size;
    long sent = 0, stored = 0;
    sprintf(inbox, "_INBOX.floor%ld", (long)getpid());
    frame_size = has_ids ? make_identified(frame, inbox, size, &number)
                         : make_publish(frame, inbox, size);
    while (stored < count) {
        while (sent < count && sent - stored < WINDOW) {
            for (long rest = sent, i = 21; has_ids && i >= 0; i--, rest /= 10)
                number[i] = (char)('0' + rest % 10);
            gather(connection, frame, frame_size);
            sent++;
            if (connection->gathered >= WRITE_AT)
                send_gathered(connection);
        }
        send_gathered(connection);
        receive(connection);
        while (next_message(connection, &message)) {
            check_ack(&message);
            stored++;
        }
    }
}

/* jsasync, jsall, jsrows. */
static void run_window(struct connection *connection, long count, size_t size, int has_ids)
{
    char inbox[64];
    struct meter meter;
    open_inbox(connection, inbox);
    meter_start(&meter);
    store_all(connection, count, size, has_ids);
    meter_stop(&meter);
    print_meter(&meter, count);
    puts("}");
}

/* ---- consuming from a stream ------------------------------------------------------------ */

/* Asks the consumer for so many messages. */
static void gather_pull(struct connection *connection, const char *consumer, const char *inbox,
                        long batch)
{
    char body[128], line[512];
    int body_size, used;
    body_size = snprintf(body, sizeof body, "{\"batch\":%ld,\"expires\":30000000000,"
                         "\"idle_heartbeat\":15000000000}", batch);
    used = snprintf(line, sizeof line, "PUB $JS.API.CONSUMER.MSG.NEXT." STREAM ".%s %s %d\r\n"
                    "%s\r\n", consumer, inbox, body_size, body);
    gather(connection, line, (size_t)used);
}

/* Whether it is a message of the stream; a heartbeat is not, any other status is the end. */
static inline int is_stored(const struct message *message, size_t size)
{
    if (message->reply_size > 8 && memcmp(message->reply, "$JS.ACK.", 8) == 0) {
        if (message->size != size)
            die("a message that nobody sent");
        return 1;
    }
    if (message->header_size < 12 || memcmp(message->header, "NATS/1.0 ", 9) != 0)
        die("neither a message nor a status");
    if (memcmp(message->header + 9, "100", 3) != 0)
        die("a pull ended: %.*s", (int)message->header_size, message->header);
    return 0;
}

/* consume, batches: asks for more when half of it has come. */
static void run_consumer(struct connection *connection, long count, size_t size, long limit,
                         int is_acking)
{
    const char *consumer = is_acking ? ACK_EACH : ACK_NONE;
    char inbox[64], line[512];
    struct message message;
    struct meter meter;
    long arrived = 0, asked = 0;
    open_inbox(connection, inbox);
    meter_start(&meter);
    while (arrived < count) {
        if (asked < count && asked - arrived <= limit / 2) {
            long batch = limit - (asked - arrived);
            batch = batch < count - asked ? batch : count - asked;
            gather_pull(connection, consumer, inbox, batch);
            asked += batch;
        }
        send_gathered(connection);
        receive(connection);
        while (next_message(connection, &message)) {
            if (!is_stored(&message, size))
                continue;
            arrived++;
            if (is_acking) {
                int used = snprintf(line, sizeof line, "PUB %.*s 4\r\n+ACK\r\n",
                                    (int)message.reply_size, message.reply);
                gather(connection, line, (size_t)used);
            }
        }
    }
    send_gathered(connection);
    if (is_acking)
        flush(connection);
    meter_stop(&meter);
    print_meter(&meter, count);
    puts("}");
}

/* push: a consumer of its own, whose requests of flow control are answered. */
static void run_push(struct connection *connection, long count, size_t size)
{
    char inbox[64], body[512], line[1024];
    struct message message;
    struct meter meter;
    long arrived = 0;
    int used;
    open_inbox(connection, inbox);
    meter_start(&meter);
    used = snprintf(body, sizeof body, "{\"stream_name\":\"" STREAM "\",\"config\":{"
                    "\"name\":\"push\",\"deliver_subject\":\"%s.push\",\"ack_policy\":\"none\","
                    "\"mem_storage\":true,\"flow_control\":true,"
                    "\"idle_heartbeat\":5000000000}}", inbox);
    used = snprintf(line, sizeof line, "SUB %s.push 2\r\nPUB $JS.API.CONSUMER.CREATE." STREAM
                    ".push %s %d\r\n%s\r\n", inbox, inbox, used, body);
    gather(connection, line, (size_t)used);
    while (arrived < count) {
        send_gathered(connection);
        receive(connection);
        while (next_message(connection, &message)) {
            if (message.sid == 1) {
                if (memmem(message.payload, message.size, "\"error\":", 8) != NULL)
                    die("%.*s", (int)message.size, message.payload);
            } else if (is_stored(&message, size)) {
                arrived++;
            } else if (message.reply_size) {
                used = snprintf(line, sizeof line, "PUB %.*s 0\r\n\r\n",
                                (int)message.reply_size, message.reply);
                gather(connection, line, (size_t)used);
            }
        }
    }
    meter_stop(&meter);
    print_meter(&meter, count);
    puts("}");
}

/* next, fetch-100: so many at a time, one request after another. */
static void run_fetches(struct connection *connection, long count, size_t size, long batch)
{
    long fetches = count / batch;
    double *latency = malloc((size_t)fetches * sizeof *latency);
    char inbox[64];
    struct message message;
    struct meter meter;
    if (latency == NULL || fetches == 0)
        die("too few messages, or too many");
    open_inbox(connection, inbox);
    meter_start(&meter);
    for (long i = 0; i < fetches; i++) {
        double start = seconds_now();
        long left = batch;
        gather_pull(connection, ACK_NONE, inbox, batch);
        send_gathered(connection);
        while (left > 0) {
            receive(connection);
            while (next_message(connection, &message))
                left -= is_stored(&message, size);
        }
        latency[i] = seconds_now() - start;
    }
    meter_stop(&meter);
    print_meter(&meter, fetches * batch);
    print_latencies(latency, fetches);
    free(latency);
}

/* ---- what has to be there --------------------------------------------------------------- */

static void call_api(struct connection *connection, const char *verb, const char *body,
                     int may_fail)
{
    struct message message;
    char line[512], inbox[64];
    sprintf(inbox, "_INBOX.floor%ld", (long)getpid());
    snprintf(line, sizeof line, "PUB $JS.API.%s %s %zu\r\n%s\r\n", verb, inbox, strlen(body),
             body);
    send_text(connection, line);
    while (!next_message(connection, &message))
        receive(connection);
    if (!may_fail && memmem(message.payload, message.size, "\"error\":", 8) != NULL)
        die("%s: %.*s", verb, (int)message.size, message.payload);
}

/* stream: empty, in memory, and never fuller than that. */
static void make_stream(struct connection *connection, const char *url, long most)
{
    char inbox[64], config[256];
    open_link(connection, url);
    if (strstr(connection->in, "\"jetstream\":true") == NULL)
        die("the server has no JetStream");
    close(connection->fd);
    connection->begin = connection->end = 0;
    connect_to(connection, url);
    open_inbox(connection, inbox);
    snprintf(config, sizeof config, "{\"name\":\"" STREAM "\",\"subjects\":[\"" STORED "\"],"
             "\"storage\":\"memory\",\"retention\":\"limits\",\"max_msgs\":%ld}", most);
    call_api(connection, "STREAM.DELETE." STREAM, "", 1);
    call_api(connection, "STREAM.CREATE." STREAM, config, 0);
}

static void make_consumer(struct connection *connection, const char *ack_policy)
{
    char verb[128], config[256];
    snprintf(verb, sizeof verb, "CONSUMER.CREATE." STREAM ".%s", ack_policy);
    snprintf(config, sizeof config, "{\"stream_name\":\"" STREAM "\",\"config\":{\"name\":\"%s\","
             "\"ack_policy\":\"%s\",\"mem_storage\":true,\"max_ack_pending\":20000}}",
             ack_policy, ack_policy);
    call_api(connection, verb, config, 0);
}

/* filled: with so many messages, and a consumer for each kind of cell. */
static void make_filled(struct connection *connection, const char *url, long count, size_t size)
{
    make_stream(connection, url, count + 1);
    store_all(connection, count, size, 0);
    make_consumer(connection, ACK_NONE);
    make_consumer(connection, ACK_EACH);
}

static void run_echo(struct connection *connection)
{
    struct message message;
    char line[512];
    send_text(connection, "SUB " SERVICE " 1\r\n");
    flush(connection);
    say_ready();
    for (;;) {
        receive(connection);
        while (next_message(connection, &message)) {
            int used;
            if (message.reply == NULL || message.reply_size > 400 || message.size > MAX_FRAME)
                die("not a request");
            used = snprintf(line, sizeof line, "PUB %.*s %zu\r\n", (int)message.reply_size,
                            message.reply, message.size);
            gather(connection, line, (size_t)used);
            gather(connection, message.payload, message.size + 2);
            if (connection->gathered >= WRITE_AT)
                send_gathered(connection);
        }
        if (connection->gathered > 0)
            send_gathered(connection);
    }
}

/* parse: as many whole frames as one receive holds, put into the buffer as a receive would. */
static void run_parse(struct connection *connection, long count, size_t size)
{
    char *block = malloc(WRITE_AT);
    struct message message;
    struct meter meter;
    size_t filled = 0, checked = 0;
    long done = 0;
    if (block == NULL)
        die("out of memory");
    while (filled + size + 64 < WRITE_AT) {
        filled += (size_t)sprintf(block + filled, "MSG " SUBJECT " 1 %zu\r\n", size);
        memset(block + filled, 'x', size);
        memcpy(block + filled + size, "\r\n", 2);
        filled += size + 2;
    }
    meter_start(&meter);
    while (done < count) {
        memcpy(connection->in, block, filled);
        connection->begin = 0;
        connection->end = filled;
        while (next_message(connection, &message)) {
            checked += message.size;
            done++;
        }
    }
    meter_stop(&meter);
    if (checked != (size_t)done * size)
        die("parsed %zu bytes of payload", checked);
    print_meter(&meter, done);
    puts("}");
    free(block);
}

/* create: a private copy of line and payload in one block, freed a read's worth at a time. */
static void run_create(long count, size_t size)
{
    enum { ALIVE = 512 };
    char *alive[ALIVE] = {NULL};
    char frame[MAX_FRAME];
    struct meter meter;
    size_t whole = size + sizeof "MSG " SUBJECT " 1 128\r\n";
    memset(frame, 'x', whole);
    meter_start(&meter);
    for (long i = 0; i < count; i++) {
        char *volatile *place = &alive[i % ALIVE];
        free(*place);
        *place = malloc(whole);
        if (*place == NULL)
            die("out of memory");
        memcpy(*place, frame, whole);
    }
    meter_stop(&meter);
    print_meter(&meter, count);
    puts("}");
}

int main(int argc, char **argv)
{
    struct connection connection;
    const char *url, *work;
    long count;
    size_t size;
    if (argc != 5)
        die("use: floor URL WORK N SIZE");
    url = argv[1];
    work = argv[2];
    count = strtol(argv[3], NULL, 10);
    size = (size_t)strtol(argv[4], NULL, 10);
    if (size > MAX_FRAME - 256)
        die("at most %d bytes a message", MAX_FRAME - 256);
    connection_init(&connection);
    if (strcmp(work, "parse") == 0) {
        run_parse(&connection, count, size);
        return 0;
    }
    if (strcmp(work, "create") == 0) {
        run_create(count, size);
        return 0;
    }
    if (strcmp(work, "info") == 0) {
        open_link(&connection, url);
        puts(connection.in + 5);
        return 0;
    }
    if (strcmp(work, "stream") == 0) {
        make_stream(&connection, url, 100000);
        return 0;
    }
    if (strcmp(work, "filled") == 0) {
        make_filled(&connection, url, count, size);
        return 0;
    }
    connect_to(&connection, url);
    if (strcmp(work, "sub") == 0 || strcmp(work, "memory") == 0)
        run_subscriber(&connection, count, size, 0);
    else if (strcmp(work, "held") == 0)
        run_subscriber(&connection, count, size, 1);
    else if (strcmp(work, "pub") == 0)
        run_publisher(&connection, count, size, 0);
    else if (strcmp(work, "load") == 0)
        run_publisher(&connection, count, size, 1);
    else if (strcmp(work, "request") == 0)
        run_requests(&connection, count, size, 1);
    else if (strcmp(work, "threads") == 0)
        run_requests(&connection, count, size, THREADS);
    else if (strcmp(work, "jspub") == 0)
        run_stored(&connection, count, size);
    else if (strcmp(work, "jsasync") == 0 || strcmp(work, "jsall") == 0)
        run_window(&connection, count, size, 0);
    else if (strcmp(work, "jsrows") == 0)
        run_window(&connection, count, size, 1);
    else if (strcmp(work, "consume-500") == 0)
        run_consumer(&connection, count, size, 500, 0);
    else if (strcmp(work, "consume-500-ack") == 0)
        run_consumer(&connection, count, size, 500, 1);
    else if (strcmp(work, "consume-5000") == 0 || strcmp(work, "batches-5000") == 0)
        run_consumer(&connection, count, size, 5000, 0);
    else if (strcmp(work, "push") == 0)
        run_push(&connection, count, size);
    else if (strcmp(work, "fetch-100") == 0)
        run_fetches(&connection, count, size, FETCH);
    else if (strcmp(work, "next") == 0)
        run_fetches(&connection, count, size, 1);
    else if (strcmp(work, "echo") == 0)
        run_echo(&connection);
    else
        die("unknown work: %s", work);
    return 0;
}
