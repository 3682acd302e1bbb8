// The scenarios, but for `drain`: each does what ../clients.md says, and reports what it saw.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
)

var scenarios = map[string]func(client, [2]float64) report{
	"unary":            func(c client, n [2]float64) report { return c.unary(int(n[0])) },
	"large":            func(c client, _ [2]float64) report { return c.large() },
	"concurrent_large": func(c client, _ [2]float64) report { return c.concurrentLarge() },
	"big_reply":        func(c client, _ [2]float64) report { return c.bigReply() },
	"invalid":          func(c client, _ [2]float64) report { return c.invalid() },
	"unknown":          func(c client, _ [2]float64) report { return c.unknown() },
	"deadline":         func(c client, _ [2]float64) report { return c.deadline() },
	"cancel":           func(c client, n [2]float64) report { return c.cancel(int(n[0])) },
	"stream":           func(c client, n [2]float64) report { return c.stream(uint64(n[0])) },
	"bidi_refused":     func(c client, _ [2]float64) report { return c.bidiRefused() },
	"many":             func(c client, n [2]float64) report { return c.many(int(n[0]), int(n[1])) },
	"compressed":       func(c client, _ [2]float64) report { return c.compressed() },
	"metadata":         func(c client, _ [2]float64) report { return c.metadata() },
	"server_stream":    func(c client, _ [2]float64) report { return c.serverStream() },
	"keepalive":        func(c client, n [2]float64) report { return c.keepalive(n[0]) },
	"drain":            func(c client, _ [2]float64) report { return c.drain(5 * time.Second) },
	"restarts":         func(c client, _ [2]float64) report { return c.drain(time.Minute) },
}

func (c client) unary(count int) report {
	var codes tally
	for at := range count {
		codes.add(c.commit("s-0", uint64(at+1)))
	}
	return report{"codes": codes.counts()}
}

func (c client) large() report {
	below, above := c.send(bulk(c.group, 1000), deadline), c.send(bulk(c.group, 1050), deadline)
	return report{"codes": []int{below, above, c.commit("after", 1)}}
}

func (c client) concurrentLarge() report {
	var codes tally
	var calls sync.WaitGroup
	for at := range 16 {
		calls.Go(func() { codes.add(c.send(bulk(fmt.Sprintf("%s-%d", c.group, at), 256), deadline)) })
	}
	calls.Wait()
	return report{"codes": codes.counts()}
}

func (c client) bigReply() report {
	code := c.send(bulk(c.group, 500), deadline)
	reads := make([]report, 4)
	var calls sync.WaitGroup
	for at := range reads {
		calls.Go(func() {
			answer, found := c.ask(readOffsets, read(c.group))
			rows, size := rowsOf(answer), 0
			for _, row := range rows {
				size += len(row.metadata)
			}
			reads[at] = report{"code": found.Code(), "rows": len(rows), "metadata_bytes": size}
		})
	}
	calls.Wait()
	return report{"commit": code, "reads": reads}
}

// twice names a shard two times, which is refused.
func (c client) twice() []byte {
	return commit(c.group, entry{shard: "s-0", offset: 1}, entry{shard: "s-0", offset: 1})
}

func (c client) invalid() report {
	_, found := c.ask(commitOffsets, c.twice())
	return report{"code": found.Code(), "message": found.Message(), "after": c.commit("s-0", 1)}
}

func (c client) unknown() report {
	_, method := c.ask("/offsets.v1.OffsetStore/NoSuchMethod", []byte{})
	_, service := c.ask("/no.such.Service/Method", []byte{})
	return report{"codes": []int{int(method.Code()), int(service.Code()), c.commit("s-0", 1)}}
}

func (c client) deadline() report {
	call, cancel := c.started(200 * time.Millisecond)
	defer cancel()
	_, err := receive(call)
	after := c.commit("s-0", 1)
	var short tally
	for at := range 20 {
		short.add(c.send(commit(c.group, entry{shard: "s-1", offset: uint64(at + 1)}), time.Millisecond))
	}
	return report{"stream": ended(err), "after": after, "short": short.counts(), "last": c.commit("s-0", 2)}
}

func (c client) cancel(rounds int) report {
	answered := 0
	var codes tally
	for at := range rounds {
		call, cancel := c.started(deadline)
		id := uint64(at + 1)
		_ = call.SendMsg(streamed(id, commit(c.group, entry{shard: "s-0", offset: id})))
		if _, err := receive(call); err == nil {
			answered++
		}
		cancel()
		_, err := receive(call)
		codes.add(ended(err))
	}
	return report{"answered": answered, "codes": codes.counts(), "after": c.commit("s-0", uint64(rounds+1))}
}

func (c client) stream(count uint64) report {
	call, cancel := c.started(deadline)
	defer cancel()
	go func() {
		for id := uint64(1); id <= count; id++ {
			if call.SendMsg(streamed(id, commit(c.group, entry{shard: fmt.Sprintf("s-%d", id%100), offset: id}))) != nil {
				return // what ended the call is told by receiving
			}
		}
		_ = call.CloseSend()
	}()
	covers, replies, refused, ordered := uint64(0), 0, 0, true
	for {
		found, err := receive(call)
		if err != nil {
			return report{"code": ended(err), "covers": covers, "replies": replies, "refused": refused, "ordered": ordered}
		}
		covers += found.Covers
		replies++
		if found.Code != 0 {
			refused++
		}
		ordered = ordered && found.ID == covers
	}
}

func (c client) bidiRefused() report {
	call, cancel := c.started(deadline)
	defer cancel()
	replies := []reply{}
	for at, request := range [][]byte{
		commit(c.group, entry{shard: "s-0", offset: 1}), c.twice(), commit(c.group, entry{shard: "s-0", offset: 3}),
	} {
		_ = call.SendMsg(streamed(uint64(at+1), request))
		found, err := receive(call)
		if err != nil {
			log.Fatal(err)
		}
		replies = append(replies, found)
	}
	_ = call.CloseSend()
	_, err := receive(call)
	return report{"code": ended(err), "replies": replies}
}

func (c client) many(count, inFlight int) report {
	var codes tally
	numbers := make(chan int)
	var workers sync.WaitGroup
	for range inFlight {
		workers.Go(func() {
			for at := range numbers {
				codes.add(c.commit(fmt.Sprintf("s-%d", at), uint64(at)))
			}
		})
	}
	for at := range count {
		numbers <- at + 1
	}
	close(numbers)
	workers.Wait()
	answer, _ := c.ask(readOffsets, read(c.group))
	rows, sum := rowsOf(answer), uint64(0)
	for _, row := range rows {
		sum += row.offset
	}
	return report{"codes": codes.counts(), "rows": len(rows), "sum": sum}
}

func (c client) compressed() report {
	_, found := c.ask(commitOffsets, bulk(c.group, 4), grpc.UseCompressor(gzip.Name))
	return report{"code": found.Code(), "message": found.Message(), "after": c.commit("s-0", 2)}
}

func (c client) metadata() report {
	filled := func(offset uint64, size int) (int, string) {
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		defer cancel()
		ctx = metadata.AppendToOutgoingContext(ctx, "x-filler", strings.Repeat("X", size))
		_, found := c.call(ctx, commitOffsets, commit(c.group, entry{shard: "s-0", offset: offset}))
		return int(found.Code()), found.Message()
	}
	small, _ := filled(1, 4096)
	large, message := filled(2, 20480)
	return report{"small": small, "large": large, "message": message, "after": c.commit("s-0", 3)}
}

func (c client) serverStream() report {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	call, err := c.channel.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, watch)
	if err != nil {
		log.Fatal(err)
	}
	_ = call.SendMsg(text(nil, 1, "offsets.v1.OffsetStore"))
	_ = call.CloseSend()
	var message []byte
	if err := call.RecvMsg(&message); err != nil && err != io.EOF {
		log.Fatal(err)
	}
	health := uint64(0)
	each(message, func(_ protowire.Number, value uint64, _ []byte) { health = value })
	cancel()
	code := ended(call.RecvMsg(&message))
	return report{"status": health, "code": code, "after": c.commit("s-0", 1)}
}

func (c client) keepalive(seconds float64) report {
	var codes tally
	codes.add(c.commit("s-0", 1))
	time.Sleep(time.Duration(seconds * float64(time.Second)))
	codes.add(c.commit("s-0", 2))
	return report{"codes": codes.counts()}
}
