// The scenarios of ../clients.md with grpc-go: one program, one channel, one report.
package main

import (
	"context"
	"encoding/json"
	"io"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

const deadline = 30 * time.Second

var bidirectional = &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}

type report map[string]any
type stream = grpc.ClientStream

// tally counts codes, from many goroutines.
type tally struct {
	lock  sync.Mutex
	count map[int]int
}

func (t *tally) add(code int) {
	t.lock.Lock()
	defer t.lock.Unlock()
	if t.count == nil {
		t.count = map[int]int{}
	}
	t.count[code]++
}

func (t *tally) counts() map[int]int { return t.count }

// client is one channel; the scenarios are its methods.
type client struct {
	channel *grpc.ClientConn
	group   string
}

// call makes a unary call.
func (c client) call(ctx context.Context, method string, request []byte, options ...grpc.CallOption) ([]byte, *status.Status) {
	var answer []byte
	err := c.channel.Invoke(ctx, method, request, &answer, options...)
	return answer, status.Convert(err)
}

// ask makes a unary call with the usual deadline.
func (c client) ask(method string, request []byte, options ...grpc.CallOption) ([]byte, *status.Status) {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	return c.call(ctx, method, request, options...)
}

// send commits, and returns the code.
func (c client) send(request []byte, within time.Duration) int {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	_, found := c.call(ctx, commitOffsets, request)
	return int(found.Code())
}

// commit commits one offset, and returns the code.
func (c client) commit(shard string, offset uint64) int {
	return c.send(commit(c.group, entry{shard: shard, offset: offset}), deadline)
}

// open starts a StreamCommits, which cancel ends.
func (c client) open(ctx context.Context) (stream, context.CancelFunc, error) {
	ctx, cancel := context.WithCancel(ctx)
	call, err := c.channel.NewStream(ctx, bidirectional, streamCommits)
	return call, cancel, err
}

// started is open with a deadline, for where it has to succeed.
func (c client) started(within time.Duration) (stream, context.CancelFunc) {
	ctx, done := context.WithTimeout(context.Background(), within)
	call, cancel, err := c.open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	return call, func() { cancel(); done() }
}

func receive(call stream) (reply, error) {
	var message []byte
	err := call.RecvMsg(&message)
	return replyOf(message), err
}

// ended is the code of a call that is at its end, from what receiving said.
func ended(err error) int {
	if err == io.EOF {
		return 0
	}
	return int(status.Code(err))
}

func options(scenario string) []grpc.DialOption {
	always := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})),
	}
	switch scenario {
	case "keepalive":
		pings := keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 2 * time.Second, PermitWithoutStream: true}
		return append(always, grpc.WithKeepaliveParams(pings))
	case "drain":
		again := backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 200 * time.Millisecond}
		return append(always, grpc.WithConnectParams(grpc.ConnectParams{Backoff: again, MinConnectTimeout: time.Second}))
	}
	return always
}

func main() {
	log.SetFlags(0)
	if len(os.Args) < 4 {
		log.Fatal("usage: client SCENARIO ADDRESS GROUP [NUMBERS]")
	}
	scenario, address, group := os.Args[1], os.Args[2], os.Args[3]
	numbers := [2]float64{}
	for at, text := range os.Args[4:] {
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			log.Fatal(err)
		}
		numbers[at] = value
	}
	if !strings.HasPrefix(address, "unix:") {
		address = "passthrough:///" + address
	}
	channel, err := grpc.NewClient(address, options(scenario)...)
	if err != nil {
		log.Fatal(err)
	}
	run, known := scenarios[scenario]
	if !known {
		log.Fatalf("no such scenario: %s", scenario)
	}
	found := run(client{channel, group}, numbers)
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		log.Fatal(err)
	}
}
