// Checks histories of offsets with Porcupine, read from the standard input as recorded.py writes them. For each history it writes
// a line: the keys that no order of the operations explains, and those for which the time was over.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

type verdict struct {
	Operations int   `json:"operations"`
	Keys       int   `json:"keys"`
	Illegal    []key `json:"illegal"`
	Unknown    []key `json:"unknown"`
}

func main() {
	timeout := flag.Duration("timeout", time.Minute, "of the search for one key")
	plain := flag.Bool("plain", false, "by the plain model, which knows no unknown epochs; for a few operations alone")
	flag.Parse()
	answers := json.NewEncoder(os.Stdout)
	err := histories(os.Stdin, func(history []operation) error { return answers.Encode(check(history, *timeout, *plain)) })
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func check(history []operation, timeout time.Duration, plain bool) verdict {
	found := verdict{Illegal: []key{}, Unknown: []key{}}
	rank := ranks(history)
	for _, each := range keys(history) {
		found.Keys++
		register := newRegister(history, each, rank, plain)
		found.Operations += len(register.operations)
		switch register.check(timeout) {
		case porcupine.Illegal:
			found.Illegal = append(found.Illegal, each)
		case porcupine.Unknown:
			found.Unknown = append(found.Unknown, each)
		case porcupine.Ok:
		}
	}
	return found
}

// keys of all operations, in the order in which they come.
func keys(history []operation) []key {
	var all []key
	known := map[key]bool{}
	add := func(each key) {
		if !known[each] {
			known[each] = true
			all = append(all, each)
		}
	}
	for _, each := range history {
		for _, named := range each.Keys {
			add(named)
		}
		for _, found := range each.Found {
			add(found.key)
		}
	}
	return all
}

// ranks of all instants, from 0 on.
func ranks(history []operation) map[float64]int64 {
	var all []float64
	for _, each := range history {
		all = append(all, each.Began)
		if each.Ended != nil {
			all = append(all, *each.Ended)
		}
	}
	slices.Sort(all)
	rank := map[float64]int64{}
	for _, each := range slices.Compact(all) {
		rank[each] = int64(len(rank))
	}
	return rank
}
