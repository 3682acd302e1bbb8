// Handles the lines of a file, one message each, and commits after every one.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	offsetadapter "offset-adapter/clients/go"
)

const shard = "orders/0" // a name of your choice; a shard is one log that is read in order

var group = offsetadapter.Group{Name: "billing"}

// Log is in place of your broker's client.
type Log struct{ path string }

// poll returns the messages from offset on, perhaps none, and the log's end: the offset that the next message will get.
func (l Log) poll(offset uint64) (messages []string, end uint64, err error) {
	time.Sleep(50 * time.Millisecond)
	text, err := os.ReadFile(l.path)
	lines := strings.Split(string(text), "\n")
	end = uint64(len(lines) - 1) // what is behind the last line end is not a message yet
	return lines[min(offset, end):end], end, err
}

func handle(message string) { fmt.Println("handled", message) }

// consume goes on from position, until a commit fails.
func consume(ctx context.Context, client *offsetadapter.Client, from Log, position, epoch uint64) error {
	for {
		messages, end, err := from.poll(position)
		if err != nil {
			return err
		}
		for _, message := range messages {
			handle(message)
			position++
			progress := offsetadapter.At(shard, position).InEpoch(epoch)
			progress.Bounds = &offsetadapter.Bounds{High: end}
			if _, err := client.Commit(ctx, offsetadapter.CommitOf(group, progress)); err != nil { // durable when it returns
				return err
			}
		}
	}
}

func main() {
	ctx := context.Background()
	client, err := offsetadapter.New("127.0.0.1:9520")
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	for {
		stored, err := client.Read(ctx, group, offsetadapter.Named(shard))
		if err != nil {
			log.Fatal(err)
		}
		begin := stored[shard] // nothing stored is not 0: where a new group begins is your choice; here it is 0
		err = consume(ctx, client, Log{os.Args[1]}, begin.Offset, begin.Epoch)
		var moved *offsetadapter.MovedError
		if !errors.As(err, &moved) {
			log.Fatal(err)
		}
		fmt.Println(moved) // somebody reset the group: nothing was stored, go on where it stands
	}
}
