// Package offsetadapter commits, reads, hands over and watches consumer offsets at the offset adapter that runs beside a message
// broker. What was committed is on the adapter's disk, and soon in the Meta Service.
//
// What a client has to do is in clients/SPEC.md.
package offsetadapter

import (
	"context"
	"crypto/tls"
	"net"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"offset-adapter/clients/go/offsetspb"
)

const (
	defaultTimeout = 5 * time.Second // Kafka's commit timeout
	connectTimeout = 2 * time.Second
	pingEvery      = 10 * time.Second // a connection whose other end is gone is noticed, also by a watch
	pingTimeout    = 10 * time.Second
	maxReply       = 64 << 20 // bytes: the adapter is trusted, and limits its replies itself
)

// Client of one adapter, for any number of goroutines: they share its connection and its requests.
//
// It connects with the first call, and again whenever the connection is lost, so the adapter may start later, and restart at any time.
type Client struct {
	connection *grpc.ClientConn
	service    offsetspb.OffsetStoreClient
	admin      offsetspb.OffsetAdminClient
	commits    *commits
	timeout    time.Duration
	token      string
}

// Option is a setting of a client.
type Option func(*settings)

type settings struct {
	timeout time.Duration
	token   string
	tls     *tls.Config
}

// WithTimeout sets how long a call may take with all its attempts, if its context does not end before; 5 s without this.
func WithTimeout(timeout time.Duration) Option { return func(s *settings) { s.timeout = timeout } }

// WithToken gives the adapter's token (`admin.token_file`), for Delete over TCP. No other call needs or sends it.
func WithToken(token string) Option { return func(s *settings) { s.token = token } }

// WithTLS uses TLS. RootCAs is the authority that signed the adapter's certificate, Certificates has an identity, where the adapter
// asks its clients for one (`server.tls.client_ca`), ServerName the name in its certificate, if that is not the host.
func WithTLS(config *tls.Config) Option { return func(s *settings) { s.tls = config } }

// New makes a client of unix:/path/to/socket or host:port. It connects with the first call. An InvalidError tells what is wrong with
// the address or the token.
func New(address string, options ...Option) (*Client, error) {
	given := settings{timeout: defaultTimeout}
	for _, option := range options {
		option(&given)
	}
	target, isLocal, err := targetOf(address)
	if err != nil {
		return nil, err
	}
	if given.token != "" && !isLocal && given.tls == nil {
		return nil, invalid("token", "it would go to "+address+" in plaintext: use TLS, or the adapter's Unix socket")
	}
	secure := insecure.NewCredentials()
	if given.tls != nil {
		secure = credentials.NewTLS(given.tls)
	}
	connection, err := grpc.NewClient(target,
		grpc.WithTransportCredentials(secure),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		// By default it waits for a second after the first attempt, and for two minutes in the end: an adapter restarts within seconds.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: firstPause, Multiplier: 2, Jitter: 0.2, MaxDelay: longestPause},
			MinConnectTimeout: connectTimeout,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: pingTimeout, PermitWithoutStream: true}),
		// A call waits for the connection instead of failing while there is none, and ends at its deadline.
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxReply), grpc.WaitForReady(true)),
	)
	if err != nil {
		return nil, invalid("address", err.Error())
	}
	service := offsetspb.NewOffsetStoreClient(connection)
	return &Client{
		connection: connection, service: service, admin: offsetspb.NewOffsetAdminClient(connection),
		commits: newCommits(service), timeout: given.timeout, token: given.token,
	}, nil
}

// targetOf is the target for gRPC, and whether it is on this machine.
func targetOf(address string) (target string, isLocal bool, err error) {
	if path, isUnix := strings.CutPrefix(address, "unix:"); isUnix && strings.HasPrefix(path, "/") {
		return address, true, nil
	}
	host, port, err := net.SplitHostPort(address)
	number, problem := strconv.ParseUint(port, 10, 16)
	if err != nil || problem != nil || number == 0 || host == "" || strings.Contains(address, "/") {
		return "", false, invalid("address", address+" is none: it is host:port or unix:/path")
	}
	ip := net.ParseIP(host)
	// Each attempt to connect asks for the name again: an adapter may come back at another address.
	return "passthrough:///" + address, host == "localhost" || (ip != nil && ip.IsLoopback()), nil
}

// Close ends the connection. Calls that are under way end with a LostError.
func (c *Client) Close() error {
	c.commits.close()
	return c.connection.Close()
}

// Commit offsets. When it returns nil, they are durable as the policy of their group demands: on the adapter's disk, or in the Meta
// Service.
//
// Commits that are made at the same time share requests, so make many at once, from any number of goroutines. Of one shard they are
// carried out in the order in which they were made. A commit whose request was lost is sent again until the timeout, so it survives
// a restart of the adapter; one with Overwrite is sent once.
//
// When the context ends first, the commit may have been carried out or not, as after any LostError. What was not sent by then is not
// sent any more.
//
// With a MovedError all shards of the commit that it does not name are durable.
func (c *Client) Commit(ctx context.Context, commit Commit) (Committed, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	return c.commits.commit(ctx, commit)
}

// Read where a consumer begins: shard -> the larger of what the adapter and the Meta Service have (STORE).
//
// A shard without an offset is left out: absent is not 0. It also takes up what an operator reset: from then on commits without an
// epoch are taken again. So call it only for a consumer that will go on from the answer. It is lost also while the Meta Service does
// not answer.
func (c *Client) Read(ctx context.Context, group Group, shards Shards) (map[string]Stored, error) {
	return c.read(ctx, group, shards, false)
}

// Peek is Read for monitors and people: what an operator reset is not taken up by it.
func (c *Client) Peek(ctx context.Context, group Group, shards Shards) (map[string]Stored, error) {
	return c.read(ctx, group, shards, true)
}

func (c *Client) read(ctx context.Context, group Group, shards Shards, keepHold bool) (map[string]Stored, error) {
	wanted, err := shards.of(group)
	if err != nil {
		return nil, err
	}
	reply, err := call(ctx, c, c.service.ReadOffsets, &offsetspb.ReadOffsetsRequest{
		Groups: []*offsetspb.GroupShards{wanted}, Mode: offsetspb.ReadMode_STORE, KeepHold: keepHold,
	})
	if err != nil {
		return nil, err
	}
	found := make(map[string]Stored, len(reply.Offsets))
	for _, row := range reply.Offsets {
		found[row.Shard] = Stored{
			Offset: row.Offset, Epoch: row.Epoch, Metadata: row.Metadata, CommittedAt: row.CommittedAtMs,
			Topic: row.Topic, Partition: row.Partition, Held: row.Held,
		}
	}
	return found, nil
}

// Persist returns when the Meta Service has at least the present offsets of these shards.
func (c *Client) Persist(ctx context.Context, group Group, shards Shards) error {
	wanted, err := shards.of(group)
	if err != nil {
		return err
	}
	_, err = call(ctx, c, c.service.PersistOffsets, &offsetspb.PersistOffsetsRequest{Groups: []*offsetspb.GroupShards{wanted}})
	return err
}

// Remove hands shards over: when it returns, the Meta Service has their offsets, and this adapter no longer. It returns how many the
// last attempt removed; 0 also when an attempt whose answer was lost had removed them.
//
// End their commits first: one that is made meanwhile brings the shard back to this adapter. After an error some of the shards may
// have been removed; the Meta Service has those.
func (c *Client) Remove(ctx context.Context, group Group, shards Shards) (uint64, error) {
	wanted, err := shards.of(group)
	if err != nil {
		return 0, err
	}
	reply, err := call(ctx, c, c.service.RemoveOffsets, &offsetspb.RemoveOffsetsRequest{Groups: []*offsetspb.GroupShards{wanted}})
	return reply.GetRemoved(), err
}

// Delete offsets for good: in the Meta Service, and at this adapter, which does not send them again. It returns how many. After an
// error some may have been deleted.
//
// An administrator's call (OffsetAdmin): over the adapter's Unix socket for the user that runs it, elsewhere with a token or a
// certificate. Consumers hear of it as of a reset.
func (c *Client) Delete(ctx context.Context, group Group, shards Shards) (uint64, error) {
	named, err := shards.of(group)
	if err != nil {
		return 0, err
	}
	if c.token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.token)
	}
	reply, err := call(ctx, c, c.admin.DeleteOffsets, &offsetspb.DeleteOffsetsRequest{
		Namespace: named.Namespace, Group: named.Group, Shards: named.Shards, Execute: true,
	})
	deleted := uint64(0)
	for _, row := range reply.GetRows() {
		if row.Changed {
			deleted++
		}
	}
	return deleted, err
}

// call makes a call that may be repeated, until it is answered or the timeout is over.
func call[Q, R any](ctx context.Context, c *Client, method func(context.Context, Q, ...grpc.CallOption) (R, error), request Q) (R, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	attempts := pauses{}
	for {
		var trailer metadata.MD
		reply, err := method(ctx, request, grpc.Trailer(&trailer))
		if err == nil {
			return reply, nil
		}
		var nothing R
		problem := fromStatus(err, trailer)
		lost, isLost := problem.(*LostError)
		if !isLost || c.isClosed() {
			return nothing, problem
		}
		select {
		case <-ctx.Done():
			lost.cause = ctx.Err()
			return nothing, lost
		case <-time.After(attempts.next()):
		}
	}
}

func (c *Client) isClosed() bool { return c.connection.GetState() == connectivity.Shutdown }
