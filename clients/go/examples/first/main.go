// A first program: it reads where to begin, and commits after every message.
//
//	go run ./examples/first unix:/run/offset-adapter/adapter.sock
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	offsetadapter "offset-adapter/clients/go"
)

func main() {
	address := "unix:/run/offset-adapter/adapter.sock"
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	client, err := offsetadapter.New(address)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	if err := consume(context.Background(), client, 3); err != nil {
		log.Fatal(err)
	}
}

func consume(ctx context.Context, client *offsetadapter.Client, messages int) error {
	group := offsetadapter.Group{Name: "billing"}
	next, err := begin(ctx, client, group)
	if err != nil {
		return err
	}
	fmt.Println("begins at", next)
	for range messages {
		// ... handle message `next` here ...
		next++
		_, err := client.Commit(ctx, offsetadapter.CommitOf(group, offsetadapter.At("orders/0", next)))
		var moved *offsetadapter.MovedError
		switch {
		case errors.As(err, &moved): // an operator reset the group: go on from there
			if next, err = begin(ctx, client, group); err != nil {
				return err
			}
		case err != nil:
			return err
		default:
			fmt.Println("committed", next)
		}
	}
	return nil
}

// begin is where the group stands; absent is not 0, and begins there here, at the beginning of the log.
func begin(ctx context.Context, client *offsetadapter.Client, group offsetadapter.Group) (uint64, error) {
	stored, err := client.Read(ctx, group, offsetadapter.Named("orders/0"))
	return stored["orders/0"].Offset, err
}
