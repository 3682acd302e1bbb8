package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// A value is (epoch, offset, live), in the order of the register: `live` false is a tombstone. Epoch 0 is unknown.
type value struct {
	epoch, offset uint64
	live          bool
}

func (v *value) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[]any{&v.epoch, &v.offset, &v.live})
}

// compare is negative if v is smaller, positive if it is larger.
func (v value) compare(other value) int {
	switch {
	case v.epoch != other.epoch:
		return sign(v.epoch > other.epoch)
	case v.offset != other.offset:
		return sign(v.offset > other.offset)
	case v.live != other.live:
		return sign(v.live)
	}
	return 0
}

func sign(larger bool) int {
	if larger {
		return 1
	}
	return -1
}

// A key is (namespace, group, shard).
type key [3]string

// A finding is what a read showed of a key.
type finding struct {
	key   key
	value value
}

func (f *finding) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[]any{&f.key, &f.value})
}

// An operation is a line of a history, as recorded.py writes it.
type operation struct {
	What   string   `json:"what"` // write, read or carry
	Began  float64  `json:"began"`
	Ended  *float64 `json:"ended"` // null: there was no answer
	Places []string `json:"places"`
	// Of a write: its key. Of a read: its keys, or null for all.
	Keys []key `json:"keys"`
	// Of a write: any of them may be stored. The answer may tell which one was, or a larger one that stands.
	Values   []value `json:"values"`
	Told     *value  `json:"told"`
	Standing *value  `json:"standing"`
	// Of a read: what it showed. Every other key of it was absent.
	Found []finding `json:"found"`
}

// histories calls each for every history. An empty line is between two.
func histories(input io.Reader, each func([]operation) error) error {
	lines := bufio.NewReaderSize(input, 1<<20)
	var history []operation
	for number := 1; ; number++ {
		line, err := lines.ReadString('\n')
		if text := strings.TrimSpace(line); text != "" {
			var read operation
			if err := json.Unmarshal([]byte(text), &read); err != nil {
				return fmt.Errorf("line %d: %w", number, err)
			}
			history = append(history, read)
		} else if history != nil {
			if err := each(history); err != nil {
				return err
			}
			history = nil
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
