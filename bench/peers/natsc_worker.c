/* Runs one cell with the C client, nats.c: `natsc_worker URL CELL N SIZE`.
 *
 * `natsc_worker - version 0 0` prints the library's version. Built only where the compiler
 * finds the library and its header.
 */
#define _GNU_SOURCE
#include "../meter.h"

#include <nats/nats.h>
#include <pthread.h>

enum { PATIENCE_MS = 10000, MAX_SIZE = 8 * 1024 };

static char payload[MAX_SIZE];

static void check(natsStatus status, const char *doing)
{
    if (status != NATS_OK)
        die("%s: %s", doing, nats_GetLastError(NULL));
}

static natsMsg *next_message(natsSubscription *sub, int size)
{
    natsMsg *msg = NULL;
    check(natsSubscription_NextMsg(&msg, sub, PATIENCE_MS), "next message");
    if (natsMsg_GetDataLength(msg) != size)
        die("a message that nobody sent");
    return msg;
}

static void request(natsConnection *nc, int size)
{
    natsMsg *reply = NULL;
    check(natsConnection_Request(&reply, nc, SERVICE, payload, size, PATIENCE_MS), "request");
    if (natsMsg_GetDataLength(reply) != size)
        die("a reply that nobody asked for");
    natsMsg_Destroy(reply);
}

/* sub, memory, held: from the first message to the last, asked for one by one. */
static void run_subscriber(natsConnection *nc, long count, int size, int hold)
{
    natsSubscription *sub = NULL;
    natsMsg **held = NULL;
    struct meter meter;
    long resident;
    if (hold) {
        held = malloc((size_t)count * sizeof *held);
        if (held == NULL)
            die("out of memory");
        memset(held, 1, (size_t)count * sizeof *held);  /* its pages are not the messages' */
    }
    check(natsConnection_SubscribeSync(&sub, nc, SUBJECT), "subscribe");
    check(natsSubscription_SetPendingLimits(sub, -1, -1), "lift the limits");
    check(natsConnection_Flush(nc), "flush");
    resident = memory_start();
    say_ready();
    for (long i = 0; i < count; i++) {
        natsMsg *msg = next_message(sub, size);
        if (i == 0)
            meter_start(&meter);
        if (hold)
            held[i] = msg;
        else
            natsMsg_Destroy(msg);
    }
    meter_stop(&meter);
    print_meter(&meter, count);
    print_growth(resident);
}

static void run_publisher(natsConnection *nc, long count, int size)
{
    struct meter meter;
    request(nc, size);
    meter_start(&meter);
    for (long i = 0; i < count; i++)
        check(natsConnection_Publish(nc, SUBJECT, payload, size), "publish");
    request(nc, size);
    meter_stop(&meter);
    print_meter(&meter, count);
    puts("}");
}

struct caller {
    pthread_t thread;
    pthread_barrier_t *start;
    natsConnection *nc;
    double *latency;
    long count;
    int size;
};

static void *call(void *argument)
{
    struct caller *caller = argument;
    pthread_barrier_wait(caller->start);
    for (long i = 0; i < caller->count; i++) {
        double start = seconds_now();
        request(caller->nc, caller->size);
        caller->latency[i] = seconds_now() - start;
    }
    return NULL;
}

/* request, threads: each of so many threads sends its requests one after another. */
static void run_requests(natsConnection *nc, long count, int size, int threads)
{
    struct caller callers[THREADS];
    pthread_barrier_t start;
    struct meter meter;
    long each = count / threads;
    double *latency = malloc((size_t)(each * threads) * sizeof *latency);
    if (latency == NULL)
        die("out of memory");
    request(nc, size);
    pthread_barrier_init(&start, NULL, (unsigned)threads);
    /* The last caller is this thread itself, so one caller costs no extra thread. */
    for (int i = 0; i < threads; i++)
        callers[i] = (struct caller){.start = &start, .nc = nc, .size = size, .count = each,
                                     .latency = latency + i * each};
    for (int i = 0; i < threads - 1; i++)
        if (pthread_create(&callers[i].thread, NULL, call, &callers[i]) != 0)
            die("cannot start a thread");
    meter_start(&meter);
    call(&callers[threads - 1]);
    for (int i = 0; i < threads - 1; i++)
        pthread_join(callers[i].thread, NULL);
    meter_stop(&meter);
    print_meter(&meter, each * threads);
    print_latencies(latency, each * threads);
    free(latency);
}

static void publish_stored(jsCtx *js, int size)
{
    jsPubAck *ack = NULL;
    check(js_Publish(&ack, js, STORED, payload, size, NULL, NULL), "publish to the stream");
    jsPubAck_Destroy(ack);
}

/* jspub: one message, its ack, the next message. */
static void run_stored(natsConnection *nc, long count, int size)
{
    double *latency = malloc((size_t)count * sizeof *latency);
    jsCtx *js = NULL;
    struct meter meter;
    if (latency == NULL)
        die("out of memory");
    check(natsConnection_JetStream(&js, nc, NULL), "JetStream");
    publish_stored(js, size);
    meter_start(&meter);
    for (long i = 0; i < count; i++) {
        double start = seconds_now();
        publish_stored(js, size);
        latency[i] = seconds_now() - start;
    }
    meter_stop(&meter);
    print_meter(&meter, count);
    print_latencies(latency, count);
    free(latency);
    jsCtx_Destroy(js);
}

/* jsasync: as many without an ack as the window holds. */
static void run_window(natsConnection *nc, long count, int size)
{
    jsOptions options;
    jsPubOptions patience;
    jsCtx *js = NULL;
    struct meter meter;
    check(jsOptions_Init(&options), "options");
    check(jsPubOptions_Init(&patience), "options");
    options.PublishAsync.MaxPending = WINDOW;
    options.PublishAsync.StallWait = PATIENCE_MS;
    patience.MaxWait = PATIENCE_MS;
    check(natsConnection_JetStream(&js, nc, &options), "JetStream");
    publish_stored(js, size);
    meter_start(&meter);
    for (long i = 0; i < count; i++)
        check(js_PublishAsync(js, STORED, payload, size, NULL), "publish to the stream");
    check(js_PublishAsyncComplete(js, &patience), "wait for the acks");
    meter_stop(&meter);
    print_meter(&meter, count);
    puts("}");
    jsCtx_Destroy(js);
}

/* consume, fetch-100, next: pulls of so many messages follow each other. */
static void run_fetches(natsConnection *nc, long count, int size, int batch, int is_acking)
{
    double *latency = malloc((size_t)count * sizeof *latency);
    jsSubOptions options;
    natsSubscription *sub = NULL;
    jsCtx *js = NULL;
    struct meter meter;
    long arrived = 0, fetches = 0;
    if (latency == NULL)
        die("out of memory");
    check(natsConnection_JetStream(&js, nc, NULL), "JetStream");
    check(jsSubOptions_Init(&options), "options");
    options.Stream = STREAM;
    options.Consumer = is_acking ? ACK_EACH : ACK_NONE;
    options.Config.MemoryStorage = true; /* as it is: differences are refused */
    options.ManualAck = true;
    check(js_PullSubscribe(&sub, js, STORED, NULL, NULL, &options, NULL), "subscribe");
    meter_start(&meter);
    while (arrived < count) {
        natsMsgList found = {NULL, 0};
        int wanted = count - arrived < batch ? (int)(count - arrived) : batch;
        double start = seconds_now();
        check(natsSubscription_Fetch(&found, sub, wanted, PATIENCE_MS, NULL), "fetch");
        latency[fetches++] = seconds_now() - start;
        for (int i = 0; i < found.Count; i++) {
            if (natsMsg_GetDataLength(found.Msgs[i]) != size)
                die("a message that nobody sent");
            if (is_acking)
                check(natsMsg_Ack(found.Msgs[i], NULL), "ack");
        }
        arrived += found.Count;
        natsMsgList_Destroy(&found);
    }
    if (is_acking)
        check(natsConnection_Flush(nc), "flush");
    meter_stop(&meter);
    print_meter(&meter, count);
    print_latencies(latency, fetches);
    free(latency);
    natsSubscription_Destroy(sub);
    jsCtx_Destroy(js);
}

int main(int argc, char **argv)
{
    natsConnection *nc = NULL;
    const char *cell;
    long count;
    int size;
    if (argc != 5)
        die("use: natsc_worker URL CELL N SIZE");
    cell = argv[2];
    count = strtol(argv[3], NULL, 10);
    size = (int)strtol(argv[4], NULL, 10);
    if (size > MAX_SIZE)
        die("at most %d bytes a message", MAX_SIZE);
    memset(payload, 'x', sizeof payload);
    if (strcmp(cell, "version") == 0) {
        puts(nats_GetVersion());
        return 0;
    }
    check(natsConnection_ConnectTo(&nc, argv[1]), "connect");
    if (strcmp(cell, "sub") == 0 || strcmp(cell, "memory") == 0)
        run_subscriber(nc, count, size, 0);
    else if (strcmp(cell, "held") == 0)
        run_subscriber(nc, count, size, 1);
    else if (strcmp(cell, "pub") == 0)
        run_publisher(nc, count, size);
    else if (strcmp(cell, "request") == 0)
        run_requests(nc, count, size, 1);
    else if (strcmp(cell, "threads") == 0)
        run_requests(nc, count, size, THREADS);
    else if (strcmp(cell, "jspub") == 0)
        run_stored(nc, count, size);
    else if (strcmp(cell, "jsasync") == 0)
        run_window(nc, count, size);
    else if (strcmp(cell, "consume-500") == 0)
        run_fetches(nc, count, size, 500, 0);
    else if (strcmp(cell, "consume-5000") == 0)
        run_fetches(nc, count, size, 5000, 0);
    else if (strcmp(cell, "consume-500-ack") == 0)
        run_fetches(nc, count, size, 500, 1);
    else if (strcmp(cell, "fetch-100") == 0)
        run_fetches(nc, count, size, FETCH, 0);
    else if (strcmp(cell, "next") == 0)
        run_fetches(nc, count, size, 1, 0);
    else
        die("unknown cell: %s", cell);
    natsConnection_Destroy(nc);
    return 0;
}
