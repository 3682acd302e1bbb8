package offsetadapter

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// LostError: no answer came in time, or the adapter could not say: the call may have been carried out or not.
//
// Repeat it. Commits that only increase, reads, Persist and Remove were already repeated until the timeout. A commit with Overwrite
// was sent once, because a late repeat could undo what others committed since: read where the group stands first.
type LostError struct {
	Message string // the last reason
	cause   error  // what ended the caller's context, if it did
}

func (e *LostError) Error() string { return "not answered; it may be done or not: " + e.Message }

// Unwrap is context.Canceled or context.DeadlineExceeded when the call ended with its context.
func (e *LostError) Unwrap() error { return e.cause }

// MovedError: shards of the commit were reset, deleted, cloned or rewound by somebody else, so their offsets were not taken. All
// other shards of the commit are durable.
//
// Read these shards, and go on from there.
type MovedError struct {
	Shards []Moved
}

func (e *MovedError) Error() string {
	var text strings.Builder
	text.WriteString("not taken, since somebody moved these shards; read them, and go on from there:")
	for _, row := range e.Shards {
		if row.Deleted {
			fmt.Fprintf(&text, " %s (deleted, epoch %d)", row.Shard, row.Epoch)
		} else {
			fmt.Fprintf(&text, " %s (now %d, epoch %d)", row.Shard, row.Offset, row.Epoch)
		}
	}
	return text.String()
}

// FencedError: the generation of the commit has ended: a newer one of the group has committed. Nothing of the commit was done.
//
// Refuse the consumer (Kafka's ILLEGAL_GENERATION): it has to join its group again.
type FencedError struct {
	Message string // which generation has ended, and which one is the present one
}

func (e *FencedError) Error() string { return e.Message }

// InvalidError: the request breaks a rule. Nothing of it was done, and a repeat would fail alike.
//
// Correct the field.
type InvalidError struct {
	Field   string // such as shards[1].shard; empty if the text begins with none
	Message string // begins with the field
}

func (e *InvalidError) Error() string { return e.Message }

// ExhaustedError: the adapter has too much to do, its disk is full, or the answer would be too large. Nothing was done.
//
// Try again later; ask for fewer shards if the text says so.
type ExhaustedError struct {
	Message    string
	RetryAfter time.Duration // how long the adapter asks its clients to wait; 0: it does not say
}

func (e *ExhaustedError) Error() string { return e.Message }

// RefusedError: the adapter or the Meta Service does not take this: its settings, its version, or a rule of the Meta Service forbid
// it.
//
// A person has to look; the text is written for them.
type RefusedError struct {
	Message string
}

func (e *RefusedError) Error() string { return e.Message }

// DamagedError: the store of the adapter is damaged.
//
// A person has to look: `offset-adapter status`.
type DamagedError struct {
	Message string
}

func (e *DamagedError) Error() string { return e.Message }

// Retryable tells whether the same call may succeed later: after a LostError and an ExhaustedError. Behind a LostError of an
// Overwrite, read first.
func Retryable(err error) bool {
	var exhausted *ExhaustedError
	return isLost(err) || errors.As(err, &exhausted)
}

func isLost(err error) bool {
	var lost *LostError
	return errors.As(err, &lost)
}

func invalid(field, problem string) *InvalidError {
	return &InvalidError{Field: field, Message: field + ": " + problem}
}

// fromStatus is the only place where a status becomes an error.
func fromStatus(err error, trailer metadata.MD) error {
	found := status.Convert(err)
	message := found.Message()
	switch found.Code() {
	case codes.InvalidArgument:
		// `groups[0].` is of the request, of which the caller knows nothing: it names one group.
		message = strings.TrimPrefix(message, "groups[0].")
		field := ""
		for _, end := range []string{": ", " "} {
			if before, _, ok := strings.Cut(message, end); ok {
				field = before
				break
			}
		}
		return &InvalidError{Field: field, Message: message}
	case codes.FailedPrecondition:
		if strings.Contains(message, "ILLEGAL_GENERATION") {
			return &FencedError{Message: message}
		}
		return &RefusedError{Message: message}
	case codes.ResourceExhausted:
		exhausted := &ExhaustedError{Message: message}
		if values := trailer.Get("grpc-retry-pushback-ms"); len(values) > 0 {
			if pause, err := strconv.ParseUint(values[0], 10, 31); err == nil {
				exhausted.RetryAfter = time.Duration(pause) * time.Millisecond
			}
		}
		return exhausted
	case codes.DataLoss:
		return &DamagedError{Message: message}
	case codes.DeadlineExceeded:
		return &LostError{Message: message, cause: context.DeadlineExceeded}
	case codes.Unavailable, codes.Canceled, codes.Aborted, codes.Unknown, codes.Internal:
		// A call that was cut off ends with one of these, by the library and the moment. So does one that the server did not expect
		// to fail. Whether it was carried out is unknown in each case.
		return &LostError{Message: message}
	}
	return &RefusedError{Message: message}
}

// isCommon tells whether an error is of all commits of a request alike, such as a full disk: each by itself would only be told the
// same.
func isCommon(err error) bool {
	switch status.Code(err) {
	case codes.ResourceExhausted, codes.DataLoss, codes.Unauthenticated, codes.PermissionDenied:
		return true
	}
	return false
}
