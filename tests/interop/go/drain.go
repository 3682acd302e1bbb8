// The scenario `drain`: commits that go on while the adapter is stopped and started, until stdin ends.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/status"
)

const pause = 20 * time.Millisecond

type drain struct {
	client
	ending       atomic.Bool
	lock         sync.Mutex
	acknowledged map[string]uint64
	codes        tally
	within       time.Duration
	longest      time.Duration
	streamCodes  tally
}

func (c client) drain(within time.Duration) report {
	d := &drain{client: c, acknowledged: map[string]uint64{}, within: within}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		d.ending.Store(true)
	}()
	var workers sync.WaitGroup
	for at := range 8 {
		workers.Go(func() { d.unary(fmt.Sprintf("w-%d", at)) })
	}
	workers.Go(d.stream)
	workers.Wait()
	return report{
		"acknowledged": d.acknowledged, "codes": d.codes.counts(), "stream_codes": d.streamCodes.counts(),
		"longest_ms": d.longest.Milliseconds(),
	}
}

func (d *drain) took(since time.Time) {
	d.lock.Lock()
	defer d.lock.Unlock()
	d.longest = max(d.longest, time.Since(since))
}

func (d *drain) acknowledge(shard string, offset uint64) {
	d.lock.Lock()
	defer d.lock.Unlock()
	d.acknowledged[shard] = offset
}

func (d *drain) unary(shard string) {
	d.acknowledge(shard, 0)
	for offset := uint64(1); !d.ending.Load(); {
		begun := time.Now()
		code := d.send(commit(d.group, entry{shard: shard, offset: offset}), d.within)
		d.took(begun)
		d.codes.add(code)
		if code != 0 {
			time.Sleep(pause)
			continue
		}
		d.acknowledge(shard, offset)
		offset++
	}
}

func (d *drain) stream() {
	d.acknowledge("stream", 0)
	for offset := uint64(1); !d.ending.Load(); time.Sleep(pause) {
		call, cancel, err := d.open(context.Background())
		if err == nil {
			err = d.lockstep(call, &offset)
		}
		d.streamCodes.add(int(status.Code(err)))
		cancel()
	}
}

// lockstep goes on from an offset until the call or stdin ends, and returns what ended the call: nil for OK.
func (d *drain) lockstep(call stream, offset *uint64) error {
	for !d.ending.Load() {
		// An error of a send is io.EOF only: the call's status comes from receiving.
		_ = call.SendMsg(streamed(*offset, commit(d.group, entry{shard: "stream", offset: *offset})))
		found, err := receive(call)
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case found.Code != 0:
			d.streamCodes.add(int(found.Code))
			time.Sleep(pause)
		default:
			d.acknowledge("stream", *offset)
			*offset++
		}
	}
	_ = call.CloseSend()
	for {
		if _, err := receive(call); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}
