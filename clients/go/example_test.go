package offsetadapter_test

import (
	"errors"
	"fmt"

	offsetadapter "offset-adapter/clients/go"
)

func ExampleRetryable() {
	for _, err := range []error{&offsetadapter.LostError{Message: "not answered in time"}, &offsetadapter.FencedError{Message: "old"}} {
		fmt.Println(offsetadapter.Retryable(err))
	}
	// Output:
	// true
	// false
}

func ExampleMovedError() {
	err := error(&offsetadapter.MovedError{Shards: []offsetadapter.Moved{{Shard: "orders/0", Offset: 10, Epoch: 2, Held: true}}})
	var moved *offsetadapter.MovedError
	fmt.Println(errors.As(err, &moved), err)
	// Output:
	// true not taken, since somebody moved these shards; read them, and go on from there: orders/0 (now 10, epoch 2)
}
