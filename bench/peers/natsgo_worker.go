// Runs one cell with the Go client, nats.go: `natsgo_worker URL CELL N SIZE`.
//
// `natsgo_worker - version 0 0` prints the library's version. Built only where there is a
// `go` command and it finds the modules that go.mod names.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The names on the wire and the numbers, as in meter.py.
const (
	subject  = "bench.load"
	service  = "bench.echo"
	stream   = "BENCH"
	stored   = "bench.stored"
	ackNone  = "none"
	ackEach  = "explicit"
	callers  = 100
	window   = 1000
	fetched  = 100
	patience = 10 * time.Second
)

type sample map[string]float64

// What a worker is asked to do, and the connection to do it with.
type job struct {
	nc      *nats.Conn
	count   int
	size    int
	payload []byte
}

func main() {
	if len(os.Args) != 5 {
		die("use: natsgo_worker URL CELL N SIZE")
	}
	url, cell := os.Args[1], os.Args[2]
	if cell == "version" {
		fmt.Println(nats.Version)
		return
	}
	count, err := strconv.Atoi(os.Args[3])
	check(err, "number of messages")
	size, err := strconv.Atoi(os.Args[4])
	check(err, "size of a message")
	run, known := cells[cell]
	if !known {
		die("unknown cell: " + cell)
	}
	// Nobody would notice them while a handler waits for a message that never comes.
	nc, err := nats.Connect(url,
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			check(err, "connection")
		}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { check(err, "connection") }),
	)
	check(err, "connect")
	line, err := json.Marshal(run(job{nc, count, size, bytes.Repeat([]byte{'x'}, size)}))
	check(err, "sample")
	fmt.Println(string(line))
}

var cells = map[string]func(job) sample{
	"request":         func(j job) sample { return j.request(1) },
	"threads":         func(j job) sample { return j.request(callers) },
	"sub":             func(j job) sample { return j.subscribe(nil) },
	"memory":          func(j job) sample { return j.subscribe(nil) },
	"held":            func(j job) sample { return j.subscribe(j.room()) },
	"pub":             job.publish,
	"jspub":           job.store,
	"jsasync":         job.storeWithFutures,
	"consume-500":     func(j job) sample { return j.consume(500, ackNone) },
	"consume-5000":    func(j job) sample { return j.consume(5000, ackNone) },
	"consume-500-ack": func(j job) sample { return j.consume(500, ackEach) },
	"fetch-100":       job.fetch,
	"next":            job.next,
}

// A handler has a queue without a limit; SubscribeSync has a channel, which must have one.
func (j job) subscribe(held []*nats.Msg) sample {
	var m meter
	arrived := 0
	done := make(chan sample)
	sub, err := j.nc.Subscribe(subject, func(msg *nats.Msg) {
		if arrived == 0 {
			m = startMeter()
		}
		j.look(msg.Data)
		if held != nil {
			held[arrived] = msg
		}
		if arrived++; arrived == j.count {
			done <- m.sample(j.count)
		}
	})
	check(err, "subscribe")
	check(sub.SetPendingLimits(-1, -1), "lift the limits")
	check(j.nc.Flush(), "flush")
	resident := startMemory()
	fmt.Println("READY")
	s := <-done
	if resident != nil {
		now := status()
		s["rss_growth"] = now["VmRSS"] - resident["VmRSS"]
		s["peak_rss_growth"] = now["VmHWM"] - resident["VmRSS"]
	}
	return s
}

// room is where messages are kept; its pages are touched, they are not the messages'.
func (j job) room() []*nats.Msg {
	held := make([]*nats.Msg, j.count)
	clear(held)
	return held
}

func (j job) publish() sample {
	j.ask()
	m := startMeter()
	for range j.count {
		check(j.nc.Publish(subject, j.payload), "publish")
	}
	j.ask()
	return m.sample(j.count)
}

// request: each of so many goroutines sends its requests one after another.
func (j job) request(callers int) sample {
	each := j.count / callers
	latencies := make([]time.Duration, each*callers)
	j.ask()
	var waiting sync.WaitGroup
	start := make(chan struct{})
	for i := range callers {
		mine := latencies[i*each : (i+1)*each]
		waiting.Go(func() {
			<-start
			for k := range mine {
				begin := time.Now()
				j.ask()
				mine[k] = time.Since(begin)
			}
		})
	}
	m := startMeter()
	close(start)
	waiting.Wait()
	return m.sample(len(latencies)).with(latencies)
}

func (j job) ask() {
	reply, err := j.nc.Request(service, j.payload, patience)
	check(err, "request")
	j.look(reply.Data)
}

// store: one message, its ack, the next message.
func (j job) store() sample {
	js := j.jetstream()
	latencies := make([]time.Duration, j.count)
	j.storeOne(js, 1)
	m := startMeter()
	for i := range latencies {
		begin := time.Now()
		j.storeOne(js, i+2)
		latencies[i] = time.Since(begin)
	}
	return m.sample(j.count).with(latencies)
}

func (j job) storeOne(js jetstream.JetStream, seq int) {
	ack, err := js.Publish(context.Background(), stored, j.payload)
	check(err, "publish to the stream")
	j.expect(ack, seq)
}

// storeWithFutures: as many without an ack as the window holds.
func (j job) storeWithFutures() sample {
	js := j.jetstream(jetstream.WithPublishAsyncMaxPending(window))
	j.storeOne(js, 1)
	m := startMeter()
	var last jetstream.PubAckFuture
	for range j.count {
		last = j.storeLater(js)
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-time.After(patience):
		die("the acks do not come")
	}
	s := m.sample(j.count)
	select {
	case ack := <-last.Ok():
		j.expect(ack, j.count+1)
	case err := <-last.Err():
		check(err, "publish to the stream")
	}
	return s
}

// storeLater tries again when the window stayed full for a while: the option to wait longer
// costs a map of headers for each message.
func (j job) storeLater(js jetstream.JetStream) jetstream.PubAckFuture {
	for {
		future, err := js.PublishAsync(stored, j.payload)
		if !errors.Is(err, jetstream.ErrTooManyStalledMsgs) {
			check(err, "publish to the stream")
			return future
		}
	}
}

func (j job) consume(limit int, name string) sample {
	consumer := j.consumer(name)
	arrived := 0
	done := make(chan struct{})
	m := startMeter()
	_, err := consumer.Consume(func(msg jetstream.Msg) {
		j.look(msg.Data())
		if name == ackEach {
			check(msg.Ack(), "ack")
		}
		if arrived++; arrived == j.count {
			close(done)
		}
	}, jetstream.PullMaxMessages(limit), jetstream.StopAfter(j.count))
	check(err, "consume")
	<-done
	if name == ackEach {
		check(j.nc.Flush(), "flush")
	}
	return m.sample(j.count)
}

func (j job) fetch() sample {
	consumer := j.consumer(ackNone)
	latencies := make([]time.Duration, j.count/fetched)
	arrived := 0
	m := startMeter()
	for i := range latencies {
		begin := time.Now()
		found, err := consumer.Fetch(fetched, jetstream.FetchMaxWait(patience))
		check(err, "fetch")
		for msg := range found.Messages() {
			j.look(msg.Data())
			arrived++
		}
		check(found.Error(), "fetch")
		latencies[i] = time.Since(begin)
	}
	s := m.sample(arrived).with(latencies)
	if arrived != len(latencies)*fetched {
		die("a fetch brought less than was asked for")
	}
	return s
}

func (j job) next() sample {
	consumer := j.consumer(ackNone)
	latencies := make([]time.Duration, j.count)
	m := startMeter()
	for i := range latencies {
		begin := time.Now()
		msg, err := consumer.Next(jetstream.FetchMaxWait(patience))
		check(err, "next message")
		latencies[i] = time.Since(begin)
		j.look(msg.Data())
	}
	return m.sample(j.count).with(latencies)
}

func (j job) jetstream(options ...jetstream.JetStreamOpt) jetstream.JetStream {
	js, err := jetstream.New(j.nc, options...)
	check(err, "JetStream")
	return js
}

func (j job) consumer(name string) jetstream.Consumer {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	consumer, err := j.jetstream().Consumer(ctx, stream, name)
	check(err, "consumer")
	return consumer
}

// look ends the worker if a payload is not one that was sent.
func (j job) look(data []byte) {
	if len(data) != j.size {
		die("a message that nobody sent")
	}
}

func (j job) expect(ack *jetstream.PubAck, seq int) {
	if ack.Sequence != uint64(seq) {
		die(fmt.Sprintf("stored as message %d, not %d", ack.Sequence, seq))
	}
}

// Clock and CPU time of the whole process, all threads.
type meter struct {
	start time.Time
	usage syscall.Rusage
}

func startMeter() meter {
	var m meter
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &m.usage), "getrusage")
	m.start = time.Now()
	return m
}

// sample is what was used since the start, for so many messages.
func (m meter) sample(messages int) sample {
	seconds := time.Since(m.start).Seconds()
	var usage syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &usage), "getrusage")
	return sample{
		"messages": float64(messages),
		"seconds":  seconds,
		"cpu_user": float64(usage.Utime.Nano()-m.usage.Utime.Nano()) / 1e9,
		"cpu_sys":  float64(usage.Stime.Nano()-m.usage.Stime.Nano()) / 1e9,
	}
}

// with adds median, 99th percentile and maximum of latencies; sorts them.
func (s sample) with(latencies []time.Duration) sample {
	slices.Sort(latencies)
	count := len(latencies)
	s["p50"] = latencies[count/2].Seconds()
	s["p99"] = latencies[count*99/100].Seconds()
	s["max"] = latencies[count-1].Seconds()
	return s
}

// startMemory is the resident memory from which growth counts, nil where the system cannot
// tell. The peak starts again there: what the start needed is not the messages'.
func startMemory() map[string]float64 {
	if os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) != nil {
		return nil
	}
	return status()
}

// status is what the system says of this process in kilobytes, in bytes.
func status() map[string]float64 {
	text, err := os.ReadFile("/proc/self/status")
	check(err, "memory")
	found := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) == 3 && words[2] == "kB" {
			kilobytes, err := strconv.Atoi(words[1])
			check(err, "memory")
			found[strings.TrimSuffix(words[0], ":")] = float64(kilobytes) * 1024
		}
	}
	return found
}

func check(err error, doing string) {
	if err != nil {
		die(doing + ": " + err.Error())
	}
}

func die(text string) {
	fmt.Fprintln(os.Stderr, text)
	os.Exit(1)
}
