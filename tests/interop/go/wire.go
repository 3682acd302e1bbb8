// The messages of offsets.v1 that the scenarios need, as bytes.
package main

import (
	"bytes"
	"fmt"
	"log"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

const (
	commitOffsets = "/offsets.v1.OffsetStore/CommitOffsets"
	streamCommits = "/offsets.v1.OffsetStore/StreamCommits"
	readOffsets   = "/offsets.v1.OffsetStore/ReadOffsets"
	watch         = "/grpc.health.v1.Health/Watch"
)

// raw hands bytes through. Its name makes the content type `application/grpc+proto`.
type raw struct{}

func (raw) Name() string                    { return "proto" }
func (raw) Marshal(v any) ([]byte, error)   { return v.([]byte), nil }
func (raw) Unmarshal(b []byte, v any) error { *v.(*[]byte) = bytes.Clone(b); return nil }

// entry is a ShardCommit.
type entry struct {
	shard    string
	offset   uint64
	metadata string
}

// reply is a StreamCommitsReply without what it superseded.
type reply struct {
	ID      uint64 `json:"id"`
	Code    uint64 `json:"code"`
	Covers  uint64 `json:"covers"`
	Message string `json:"message"`
}

func number(to []byte, field protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(to, field, protowire.VarintType), value)
}

func text[T string | []byte](to []byte, field protowire.Number, value T) []byte {
	return protowire.AppendBytes(protowire.AppendTag(to, field, protowire.BytesType), []byte(value))
}

func commit(group string, entries ...entry) []byte {
	commits := text(nil, 2, group)
	for _, entry := range entries {
		shard := number(text(nil, 1, entry.shard), 2, entry.offset)
		if entry.metadata != "" {
			shard = text(shard, 3, entry.metadata)
		}
		commits = text(commits, 3, shard)
	}
	return text(nil, 1, commits)
}

// bulk is about 4,111 bytes for each of count shards.
func bulk(group string, count int) []byte {
	entries := make([]entry, count)
	for at := range entries {
		entries[at] = entry{fmt.Sprintf("s-%d", at), 1, strings.Repeat("m", 4096)}
	}
	return commit(group, entries...)
}

// streamed is a StreamCommitsRequest.
func streamed(id uint64, request []byte) []byte {
	return text(number(nil, 1, id), 2, request)
}

// read asks for what is in memory of a group.
func read(group string) []byte {
	return number(text(nil, 1, text(nil, 2, group)), 2, 1)
}

// each shows a message's fields in their order: a varint as value, the rest as data.
func each(message []byte, see func(field protowire.Number, value uint64, data []byte)) {
	for len(message) > 0 {
		field, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			log.Fatal(protowire.ParseError(size))
		}
		message = message[size:]
		var value uint64
		var data []byte
		switch kind {
		case protowire.VarintType:
			value, size = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			data, size = protowire.ConsumeBytes(message)
		default:
			size = protowire.ConsumeFieldValue(field, kind, message)
		}
		if size < 0 {
			log.Fatal(protowire.ParseError(size))
		}
		see(field, value, data)
		message = message[size:]
	}
}

func replyOf(message []byte) (found reply) {
	each(message, func(field protowire.Number, value uint64, data []byte) {
		switch field {
		case 1:
			found.ID = value
		case 3:
			found.Code = value
		case 4:
			found.Message = string(data)
		case 5:
			found.Covers = value
		}
	})
	return found
}

// rowsOf are the offsets of a ReadOffsetsReply.
func rowsOf(message []byte) (rows []entry) {
	each(message, func(_ protowire.Number, _ uint64, row []byte) {
		var found entry
		each(row, func(field protowire.Number, value uint64, data []byte) {
			switch field {
			case 3:
				found.shard = string(data)
			case 5:
				found.offset = value
			case 6:
				found.metadata = string(data)
			}
		})
		rows = append(rows, found)
	})
	return rows
}
