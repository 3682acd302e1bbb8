package offsetadapter

import (
	"context"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"offset-adapter/clients/go/offsetspb"
)

const patience = 60 * time.Second // of a busy machine

// fakeAdapter holds each request until a test answers it.
type fakeAdapter struct {
	offsetspb.UnimplementedOffsetStoreServer
	offsetspb.UnimplementedOffsetAdminServer
	address  string
	server   *grpc.Server
	requests chan *pending
	watches  chan *watching
	reads    func(context.Context, *offsetspb.ReadOffsetsRequest) (*offsetspb.ReadOffsetsReply, error)
	deletes  func(context.Context) error
}

type pending struct {
	*offsetspb.CommitOffsetsRequest
	answer chan answer
}

type answer struct {
	reply *offsetspb.CommitOffsetsReply
	err   error
}

type watching struct {
	replies chan *offsetspb.WatchOffsetsReply
	end     chan error
}

func (f *fakeAdapter) CommitOffsets(ctx context.Context, request *offsetspb.CommitOffsetsRequest) (*offsetspb.CommitOffsetsReply, error) {
	held := &pending{request, make(chan answer, 1)}
	f.requests <- held
	select {
	case given := <-held.answer:
		return given.reply, given.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (f *fakeAdapter) ReadOffsets(ctx context.Context, request *offsetspb.ReadOffsetsRequest) (*offsetspb.ReadOffsetsReply, error) {
	return f.reads(ctx, request)
}

func (f *fakeAdapter) DeleteOffsets(ctx context.Context, _ *offsetspb.DeleteOffsetsRequest) (*offsetspb.ChangeReply, error) {
	return &offsetspb.ChangeReply{}, f.deletes(ctx)
}

func (f *fakeAdapter) WatchOffsets(_ *offsetspb.WatchOffsetsRequest, stream offsetspb.OffsetStore_WatchOffsetsServer) error {
	mine := &watching{make(chan *offsetspb.WatchOffsetsReply), make(chan error)}
	f.watches <- mine
	for {
		select {
		case reply := <-mine.replies:
			if err := stream.Send(reply); err != nil {
				return err
			}
		case err := <-mine.end:
			return err
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (f *fakeAdapter) next(t *testing.T) *pending {
	t.Helper()
	select {
	case found := <-f.requests:
		return found
	case <-time.After(patience):
		t.Fatal("no request came")
		return nil
	}
}

func (p *pending) done() { p.answer <- answer{reply: &offsetspb.CommitOffsetsReply{}} }

func (p *pending) fail(err error) { p.answer <- answer{err: err} }

// offsets of the plain commits of a request, by group and shard.
func (p *pending) offsets() map[string]uint64 {
	found := map[string]uint64{}
	for _, group := range p.Groups {
		for at, shard := range group.ShardNames {
			found[group.Group+" "+shard] = group.Offsets[at]
		}
		for _, shard := range group.Shards {
			found[group.Group+" "+shard.Shard] = shard.GetOffset()
		}
	}
	return found
}

func newFakeAdapter(t *testing.T) *fakeAdapter {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.sock")
	pings := grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true})
	fake := &fakeAdapter{
		address: "unix:" + path, server: grpc.NewServer(pings), requests: make(chan *pending, 100), watches: make(chan *watching, 10),
	}
	offsetspb.RegisterOffsetStoreServer(fake.server, fake)
	offsetspb.RegisterOffsetAdminServer(fake.server, fake)
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var ended sync.WaitGroup
	ended.Go(func() { _ = fake.server.Serve(listener) })
	t.Cleanup(func() {
		fake.server.Stop()
		ended.Wait()
	})
	return fake
}

func newTestClient(t *testing.T, address string, options ...Option) *Client {
	t.Helper()
	client, err := New(address, append([]Option{WithTimeout(patience)}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

type result struct {
	done Committed
	err  error
}

// begin a commit, and wait until it is queued or sent, so that the next one is behind it.
func begin(t *testing.T, ctx context.Context, client *Client, commit Commit) <-chan result {
	t.Helper()
	wasBusy := client.commits.isBusy(commit) // with an earlier one of its shards: then it stays in the queue
	found := make(chan result, 1)
	go func() {
		done, err := client.Commit(ctx, commit)
		found <- result{done, err}
	}()
	until(t, func() bool { return client.commits.isQueued(commit) || (!wasBusy && client.commits.isBusy(commit)) })
	return found
}

func (c *commits) isBusy(commit Commit) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return isAnyIn(newEntry(context.Background(), commit).shards, c.busy)
}

func (c *commits) isQueued(commit Commit) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return slices.ContainsFunc(c.queue, func(each *entry) bool {
		return each.commit.Group == commit.Group.full() && each.commit.Offsets[0] == commit.Offsets[0]
	})
}

func until(t *testing.T, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("waited in vain")
		}
	}
}

func answerOf(t *testing.T, from <-chan result) result {
	t.Helper()
	select {
	case found := <-from:
		return found
	case <-time.After(patience):
		t.Fatal("no answer came")
		return result{}
	}
}
