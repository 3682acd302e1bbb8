package offsetadapter

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"offset-adapter/clients/go/offsetspb"
)

const nobody = "127.0.0.1:1"

func fieldOf(t *testing.T, err error) string {
	t.Helper()
	var refused *InvalidError
	if !errors.As(err, &refused) {
		t.Fatalf("not invalid: %v", err)
	}
	return refused.Field
}

func TestAnEmptyListOfShardsIsNotAll(t *testing.T) {
	client := newTestClient(t, nobody)
	_, removed := client.Remove(t.Context(), billing, Named())
	_, read := client.Read(t.Context(), billing, Shards{})
	_, deleted := client.Delete(t.Context(), billing, Named([]string{}...))
	_, committed := client.Commit(t.Context(), CommitOf(billing))
	for _, err := range []error{removed, read, deleted, committed, client.Persist(t.Context(), billing, Named())} {
		if field := fieldOf(t, err); field != "shards" {
			t.Error(field)
		}
	}
}

func TestWhatIsInvalidNamesItsField(t *testing.T) {
	client := newTestClient(t, nobody)
	for name, commit := range map[string]Commit{
		"shards[1].shard": CommitOf(billing, At("orders/0", 1), At("orders/0", 2)),
		"shards[0].shard": CommitOf(billing, Progress{}),
		"group":           CommitOf(Group{Name: "a\nb"}, At("s", 1)),
		"namespace":       CommitOf(Group{Namespace: "\xff", Name: "g"}, At("s", 1)),
	} {
		_, err := client.Commit(t.Context(), commit)
		if field := fieldOf(t, err); field != name {
			t.Errorf("%s, not %s: %v", field, name, err)
		}
	}
	_, err := client.Read(t.Context(), billing, Named("a", strings.Repeat("x", 256)))
	if field := fieldOf(t, err); field != "shards[1]" {
		t.Error(field)
	}
}

func TestAnAdapterThatIsNotThereIsALostCall(t *testing.T) {
	client := newTestClient(t, nobody, WithTimeout(50*time.Millisecond))
	_, committed := client.Commit(t.Context(), of("g", "s", 1))
	_, read := client.Read(t.Context(), billing, All())
	for _, err := range []error{committed, read} {
		if !isLost(err) || !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	}
}

func TestTheEndOfTheContextIsTheEndOfTheCall(t *testing.T) {
	client := newTestClient(t, nobody)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := client.Read(ctx, billing, All())
	if !isLost(err) || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestAnAddressThatIsNoneIsTold(t *testing.T) {
	for _, address := range []string{"", "localhost", "http://localhost:9520", "localhost:", ":9520", "unix:", "unix:adapter.sock", "::1:9520"} {
		if _, err := New(address); fieldOf(t, err) != "address" {
			t.Errorf("%q: %v", address, err)
		}
	}
}

func TestATokenDoesNotLeaveTheMachineInPlaintext(t *testing.T) {
	if _, err := New("10.0.0.1:9520", WithToken("secret")); fieldOf(t, err) != "token" {
		t.Error(err)
	}
	for _, address := range []string{"127.0.0.1:9520", "[::1]:9520", "localhost:9520", "unix:/run/a.sock"} {
		newTestClient(t, address, WithToken("secret"))
	}
	newTestClient(t, "10.0.0.1:9520", WithToken("secret"), WithTLS(&tls.Config{MinVersion: tls.VersionTLS12}))
}

func TestATokenIsSentWithADeleteAlone(t *testing.T) {
	fake := newFakeAdapter(t)
	var seen []string
	note := func(ctx context.Context) {
		given, _ := metadata.FromIncomingContext(ctx)
		seen = append(seen, fmt.Sprint(given.Get("authorization")))
	}
	fake.reads = func(ctx context.Context, _ *offsetspb.ReadOffsetsRequest) (*offsetspb.ReadOffsetsReply, error) {
		note(ctx)
		return &offsetspb.ReadOffsetsReply{}, nil
	}
	fake.deletes = func(ctx context.Context) error {
		note(ctx)
		return nil
	}
	client := newTestClient(t, fake.address, WithToken("secret"))
	if _, err := client.Read(t.Context(), billing, All()); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Delete(t.Context(), billing, All()); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(seen) != "[[] [Bearer secret]]" {
		t.Error(seen)
	}
}

func TestAReadIsRepeatedAndTakesUpAResetAndAPeekDoesNot(t *testing.T) {
	fake := newFakeAdapter(t)
	calls := 0
	var last *offsetspb.ReadOffsetsRequest
	fake.reads = func(_ context.Context, request *offsetspb.ReadOffsetsRequest) (*offsetspb.ReadOffsetsReply, error) {
		calls, last = calls+1, request
		if calls == 1 {
			return nil, status.Error(codes.Unavailable, "recovering")
		}
		return &offsetspb.ReadOffsetsReply{Offsets: []*offsetspb.ShardOffset{{Shard: "s", Offset: 1<<64 - 1, Epoch: 2}}}, nil
	}
	client := newTestClient(t, fake.address)
	found, err := client.Read(t.Context(), billing, Named("s", "absent"))
	if _, isThere := found["absent"]; err != nil || calls != 2 || isThere || found["s"].Offset != 1<<64-1 {
		t.Error(found, calls, err)
	}
	if last.Mode != offsetspb.ReadMode_STORE || last.KeepHold {
		t.Error(last)
	}
	if _, err := client.Peek(t.Context(), billing, All()); err != nil || !last.KeepHold {
		t.Error(last, err)
	}
}

func TestAnExhaustedAdapterSaysWhenToComeAgain(t *testing.T) {
	err := fromStatus(status.Error(codes.ResourceExhausted, "too much"), metadata.Pairs("grpc-retry-pushback-ms", "250"))
	var exhausted *ExhaustedError
	if !errors.As(err, &exhausted) || exhausted.RetryAfter != 250*time.Millisecond {
		t.Error(err)
	}
}

func TestAWatchBeginsAnewAndSaysSo(t *testing.T) {
	fake := newFakeAdapter(t)
	client := newTestClient(t, fake.address)
	heard := make(chan string)
	go func() {
		defer close(heard)
		for change, err := range client.WatchGroup(t.Context(), billing) {
			heard <- fmt.Sprintf("%T %v", change, err)
		}
	}()
	expect := func(wanted string) {
		t.Helper()
		if found := <-heard; found != wanted {
			t.Fatalf("%s, not %s", found, wanted)
		}
	}
	for _, end := range []error{status.Error(codes.Unavailable, "the adapter stops"), nil} {
		watch := <-fake.watches
		watch.replies <- &offsetspb.WatchOffsetsReply{Resync: true}
		expect("offsetadapter.Resync <nil>")
		watch.replies <- &offsetspb.WatchOffsetsReply{
			Changed: []*offsetspb.ShardOffset{{Shard: "a", Offset: 1}, {Shard: "b", Deleted: true}},
			Removed: []*offsetspb.GroupShards{{Group: "billing", Shards: []string{"c"}}},
		}
		expect("offsetadapter.Changed <nil>")
		expect("offsetadapter.Changed <nil>")
		expect("offsetadapter.Removed <nil>")
		watch.end <- end
		expect("offsetadapter.Disconnected <nil>")
	}
	watch := <-fake.watches
	watch.end <- status.Error(codes.ResourceExhausted, "too many watchers") // before it said anything: no more is lost
	watch = <-fake.watches
	watch.end <- status.Error(codes.Unimplemented, "no such call")
	if found := <-heard; !strings.HasPrefix(found, "<nil> no such call") {
		t.Error(found)
	}
	if _, isOpen := <-heard; isOpen {
		t.Error("goes on behind an error")
	}
}

func TestAWatchEndsWithItsContextOrItsLoop(t *testing.T) {
	fake := newFakeAdapter(t)
	client := newTestClient(t, fake.address)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { (<-fake.watches).replies <- &offsetspb.WatchOffsetsReply{Resync: true} }()
	last := error(io.EOF)
	for _, err := range client.Watch(ctx) {
		last = err
		cancel()
	}
	if !errors.Is(last, context.Canceled) {
		t.Error(last)
	}
	go func() { (<-fake.watches).replies <- &offsetspb.WatchOffsetsReply{Resync: true} }()
	for range client.Watch(t.Context()) {
		break
	}
}

func TestACallGoesThroughTLSOrNotAtAll(t *testing.T) {
	certified := httptest.NewTLSServer(nil) // for its certificate, of example.com
	t.Cleanup(certified.Close)
	fake := newFakeAdapter(t)
	fake.reads = func(context.Context, *offsetspb.ReadOffsetsRequest) (*offsetspb.ReadOffsetsReply, error) {
		return &offsetspb.ReadOffsetsReply{Offsets: []*offsetspb.ShardOffset{{Shard: "s", Offset: 7}}}, nil
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: certified.TLS.Certificates})))
	offsetspb.RegisterOffsetStoreServer(server, fake)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	known := x509.NewCertPool()
	known.AddCert(certified.Certificate())
	client := newTestClient(t, listener.Addr().String(), WithTLS(&tls.Config{RootCAs: known, ServerName: "example.com"}))
	if found, err := client.Read(t.Context(), billing, All()); err != nil || found["s"].Offset != 7 {
		t.Error(found, err)
	}
	short := WithTimeout(200 * time.Millisecond)
	for name, other := range map[string]*Client{
		"plaintext":         newTestClient(t, listener.Addr().String(), short),
		"unknown authority": newTestClient(t, listener.Addr().String(), short, WithTLS(&tls.Config{ServerName: "example.com"})),
		"another name":      newTestClient(t, listener.Addr().String(), short, WithTLS(&tls.Config{RootCAs: known, ServerName: "other"})),
	} {
		if _, err := other.Read(t.Context(), billing, All()); !isLost(err) {
			t.Error(name, err)
		}
	}
}
