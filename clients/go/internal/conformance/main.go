// The driver of tests/conformance: commands as lines of JSON on stdin, answers on stdout. clients/SPEC.md says what they are.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"os"
	"strconv"
	"sync"
	"time"

	offsetadapter "offset-adapter/clients/go"
)

type command struct {
	ID         int      `json:"id"`
	Call       string   `json:"call"`
	Of         int      `json:"of"`
	Namespace  string   `json:"namespace"`
	Group      string   `json:"group"`
	Shards     []string `json:"shards"`
	Overwrite  bool     `json:"overwrite"`
	Generation *uint64  `json:"generation"`
	Member     string   `json:"member"`
	Offsets    []struct {
		Shard    string `json:"shard"`
		Offset   uint64 `json:"offset"`
		Epoch    uint64 `json:"epoch"`
		Metadata string `json:"metadata"`
	} `json:"offsets"`
}

type line map[string]any

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: conformance ADDRESS SECONDS")
	}
	seconds, err := strconv.ParseFloat(os.Args[2], 64)
	if err != nil {
		log.Fatal(err)
	}
	client, err := offsetadapter.New(os.Args[1], offsetadapter.WithTimeout(time.Duration(seconds*float64(time.Second))))
	if err != nil {
		log.Fatal(err)
	}
	serve(client, os.Stdin)
}

// serve the commands until the end.
func serve(client *offsetadapter.Client, input io.Reader) {
	calls := sync.Map{} // id -> what drops the call
	answer(line{"ready": true})
	lines := bufio.NewReader(input)
	for {
		text, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var given command
		if err := json.Unmarshal(text, &given); err != nil {
			log.Fatal(err)
		}
		if given.Call == "drop" {
			if drop, isThere := calls.Load(given.Of); isThere {
				drop.(context.CancelFunc)()
			}
			answer(line{"id": given.ID})
			continue
		}
		ctx, cancel := context.WithCancel(context.Background())
		calls.Store(given.ID, cancel)
		go func() {
			defer calls.Delete(given.ID)
			defer cancel()
			if given.Call == "watch" {
				tell(ctx, client, given.ID)
				return
			}
			found, err := call(ctx, client, given)
			if err != nil {
				found = failed(err)
			}
			if !errors.Is(err, context.Canceled) { // of a call that was dropped nobody waits for the answer
				found["id"] = given.ID
				answer(found)
			}
		}()
	}
}

var printing sync.Mutex

// answer prints one line; only whole lines are written, from any goroutine.
func answer(found line) {
	text, err := json.Marshal(found)
	if err != nil {
		log.Fatal(err)
	}
	printing.Lock()
	defer printing.Unlock()
	if _, err := os.Stdout.Write(append(text, '\n')); err != nil {
		os.Exit(0)
	}
}

func call(ctx context.Context, client *offsetadapter.Client, given command) (line, error) {
	group := offsetadapter.Group{Namespace: given.Namespace, Name: given.Group}
	shards := offsetadapter.All()
	if given.Shards != nil {
		shards = offsetadapter.Named(given.Shards...)
	}
	switch given.Call {
	case "commit":
		done, err := client.Commit(ctx, commitOf(group, given))
		behind := []line{}
		for _, row := range done.Behind {
			behind = append(behind, line{"shard": row.Shard, "offset": row.Offset, "epoch": row.Epoch})
		}
		raised := line{}
		for shard, epoch := range done.Raised {
			raised[shard] = epoch
		}
		return line{"behind": behind, "raised": raised}, err
	case "persist":
		return line{}, client.Persist(ctx, group, shards)
	case "remove":
		removed, err := client.Remove(ctx, group, shards)
		return line{"removed": removed}, err
	case "delete":
		deleted, err := client.Delete(ctx, group, shards)
		return line{"deleted": deleted}, err
	}
	read := client.Read
	if given.Call == "peek" {
		read = client.Peek
	}
	found, err := read(ctx, group, shards)
	rows := line{}
	for shard, row := range found {
		rows[shard] = line{"offset": row.Offset, "epoch": row.Epoch, "held": row.Held, "metadata": row.Metadata}
	}
	return line{"offsets": rows}, err
}

func commitOf(group offsetadapter.Group, given command) offsetadapter.Commit {
	commit := offsetadapter.Commit{Group: group, Overwrite: given.Overwrite}
	for _, row := range given.Offsets {
		progress := offsetadapter.At(row.Shard, row.Offset)
		progress.Epoch, progress.Metadata = row.Epoch, row.Metadata
		commit.Offsets = append(commit.Offsets, progress)
	}
	if given.Generation != nil {
		commit.Member = &offsetadapter.Member{Generation: *given.Generation, ID: given.Member}
	}
	return commit
}

func standing(offset uint64, isDeleted bool) any {
	if isDeleted {
		return nil
	}
	return offset
}

func failed(err error) line {
	found := line{"message": err.Error()}
	switch problem := err.(type) {
	case *offsetadapter.LostError:
		found["error"] = "lost"
	case *offsetadapter.MovedError:
		rows := []line{}
		for _, row := range problem.Shards {
			rows = append(rows, line{"shard": row.Shard, "offset": standing(row.Offset, row.Deleted), "epoch": row.Epoch, "held": row.Held})
		}
		found["error"], found["moved"] = "moved", rows
	case *offsetadapter.FencedError:
		found["error"] = "fenced"
	case *offsetadapter.InvalidError:
		found["error"], found["field"] = "invalid", problem.Field
	case *offsetadapter.ExhaustedError:
		found["error"] = "exhausted"
	case *offsetadapter.RefusedError:
		found["error"] = "refused"
	case *offsetadapter.DamagedError:
		found["error"] = "damaged"
	}
	return found
}

func tell(ctx context.Context, client *offsetadapter.Client, id int) {
	for change, err := range client.Watch(ctx) {
		if err != nil {
			found := failed(err)
			found["id"] = id
			answer(found)
			return
		}
		switch change := change.(type) {
		case offsetadapter.Disconnected:
			answer(line{"id": id, "change": "disconnected"})
		case offsetadapter.Resync:
			answer(line{"id": id, "change": "resync"})
		case offsetadapter.Changed:
			answer(line{
				"id": id, "change": "changed", "group": change.Group.Name, "shard": change.Shard,
				"offset": standing(change.Offset, change.Deleted), "epoch": change.Epoch, "held": change.Held,
			})
		case offsetadapter.Removed:
			shards := append([]string{}, change.Shards...)
			answer(line{"id": id, "change": "removed", "group": change.Group.Name, "shards": shards})
		}
	}
}
