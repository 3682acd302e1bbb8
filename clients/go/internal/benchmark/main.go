// Commits per second of this client, and of the bare generated stub with one call a commit, in turns.
//
//	benchmark ADDRESS CONSUMERS SECONDS ROUNDS
//
// Each consumer has a shard of its own, and commits as soon as it is answered. Prints "bare begin" and "bare RATE" around each window,
// and the same for "client", and ends with its stdin. benchmarks/clients.py runs it.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	offsetadapter "offset-adapter/clients/go"
	"offset-adapter/clients/go/offsetspb"
)

const timeout = 30 * time.Second

type side func(ctx context.Context, group, shard string, offset uint64) error

func main() {
	log.SetFlags(0)
	if len(os.Args) != 5 {
		log.Fatal("usage: benchmark ADDRESS CONSUMERS SECONDS ROUNDS")
	}
	var given [3]float64
	for at, text := range os.Args[2:] {
		number, err := strconv.ParseFloat(text, 64)
		if err != nil {
			log.Fatal(err)
		}
		given[at] = number
	}
	consumers, window, rounds := int(given[0]), time.Duration(given[1]*float64(time.Second)), int(given[2])

	client, err := offsetadapter.New(os.Args[1], offsetadapter.WithTimeout(timeout))
	if err != nil {
		log.Fatal(err)
	}
	connection, err := grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	stub := offsetspb.NewOffsetStoreClient(connection)
	sides := map[string]side{
		"bare": func(ctx context.Context, group, shard string, offset uint64) error {
			_, err := stub.CommitOffsets(ctx, &offsetspb.CommitOffsetsRequest{Groups: []*offsetspb.GroupCommits{{
				Group: group, Shards: []*offsetspb.ShardCommit{{Shard: shard, Offset: &offset}},
			}}})
			return err
		},
		"client": func(ctx context.Context, group, shard string, offset uint64) error {
			_, err := client.Commit(ctx, offsetadapter.CommitOf(offsetadapter.Group{Name: group}, offsetadapter.At(shard, offset)))
			return err
		},
	}
	for range rounds {
		for _, name := range []string{"bare", "client"} {
			rate(sides[name], name, consumers, window/2) // a warm-up
			fmt.Println(name, "begin")
			fmt.Println(name, rate(sides[name], name, consumers, window))
		}
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
}

var offsets atomic.Uint64 // rise for ever, so that each commit changes something

// rate is commits per second.
func rate(commit side, group string, consumers int, window time.Duration) float64 {
	var all sync.WaitGroup
	var count atomic.Uint64
	begin := time.Now()
	for at := range consumers {
		all.Go(func() {
			shard := fmt.Sprint("shard-", at)
			ctx, cancel := context.WithTimeout(context.Background(), window+timeout)
			defer cancel()
			for time.Since(begin) < window {
				if err := commit(ctx, group, shard, offsets.Add(1)); err != nil {
					log.Fatal(err)
				}
				count.Add(1)
			}
		})
	}
	all.Wait()
	return float64(count.Load()) / time.Since(begin).Seconds()
}
