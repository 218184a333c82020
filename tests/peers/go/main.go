// franz-go as a program: see tests/peers/programs.py for what it is asked.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sort"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type record struct {
	Partition *int32       `json:"partition"`
	Offset    *int64       `json:"offset"`
	Timestamp *int64       `json:"timestamp"`
	Key       []byte       `json:"key"`
	Value     []byte       `json:"value"`
	Headers   [][2]*string `json:"headers"`
}

type command struct {
	Action       string            `json:"action"`
	Bootstrap    string            `json:"bootstrap"`
	Topic        string            `json:"topic"`
	Group        string            `json:"group"`
	Records      []json.RawMessage `json:"records"`
	Compression  string            `json:"compression"`
	Acks         string            `json:"acks"`
	Idempotent   bool              `json:"idempotent"`
	Count        int               `json:"count"`
	Source       string            `json:"source"`
	Target       string            `json:"target"`
	Identity     string            `json:"transactional_id"`
	Transactions []transaction     `json:"transactions"`
	Explicit     bool              `json:"explicit"`
	Config       map[string]any    `json:"config"`
}

type transaction struct {
	Commit  bool     `json:"commit"`
	Records []record `json:"records"`
}

var output sync.Mutex

func say(answer any) {
	output.Lock()
	defer output.Unlock()
	line, _ := json.Marshal(answer)
	os.Stdout.Write(append(line, '\n'))
}

func main() {
	commands := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := commands.ReadBytes('\n')
		if err != nil {
			return
		}
		var c command
		if err := json.Unmarshal(line, &c); err != nil {
			say(map[string]string{"error": err.Error()})
			continue
		}
		var answer any
		switch c.Action {
		case "produce":
			answer, err = produce(c)
		case "consume":
			answer, err = consume(c)
		case "transact":
			answer, err = transact(c)
		case "transform":
			answer, err = transform(c)
		case "conditional":
			answer, err = conditional(c)
		case "share":
			say(map[string]bool{"joined": true})
			if err := share(c, commands); err != nil {
				say(map[string]string{"error": err.Error()})
			}
			return
		default:
			say(map[string]bool{"joined": true})
			if err := member(c, commands); err != nil {
				say(map[string]string{"error": err.Error()})
			}
			return
		}
		if err != nil {
			answer = map[string]string{"error": err.Error()}
		}
		say(answer)
	}
}

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

var acks = map[string]kgo.Acks{"all": kgo.AllISRAcks(), "1": kgo.LeaderAck(), "0": kgo.NoAck()}

// Keyed records go where the key says, others where the record says.
type partitioner struct{ byKey kgo.TopicPartitioner }

func (p partitioner) ForTopic(topic string) kgo.TopicPartitioner {
	return partitioner{kgo.StickyKeyPartitioner(nil).ForTopic(topic)}
}
func (p partitioner) RequiresConsistency(*kgo.Record) bool { return true }
func (p partitioner) Partition(r *kgo.Record, n int) int {
	if r.Partition >= 0 {
		return int(r.Partition)
	}
	return p.byKey.Partition(r, n)
}

func produce(c command) (any, error) {
	options := []kgo.Opt{
		kgo.SeedBrokers(c.Bootstrap),
		kgo.ProducerBatchCompression(codecs[c.Compression]),
		kgo.RequiredAcks(acks[c.Acks]),
		kgo.RecordPartitioner(partitioner{}),
		kgo.ProducerLinger(20 * time.Millisecond),
		kgo.RecordDeliveryTimeout(100 * time.Second),
	}
	if !c.Idempotent {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	records := make([]*kgo.Record, 0, len(c.Records))
	for _, raw := range c.Records {
		var fields record
		if err := json.Unmarshal(raw, &fields); err != nil {
			return nil, err
		}
		records = append(records, toProduce(c.Topic, fields))
	}
	results := client.ProduceSync(context.Background(), records...)
	if err := results.FirstErr(); err != nil {
		return nil, err
	}
	positions := make([][2]int64, 0, len(records))
	for _, r := range records {
		positions = append(positions, [2]int64{int64(r.Partition), r.Offset})
	}
	return map[string]any{"positions": positions}, nil
}

func toProduce(topic string, fields record) *kgo.Record {
	r := &kgo.Record{Topic: topic, Key: fields.Key, Value: fields.Value, Partition: -1}
	if fields.Partition != nil {
		r.Partition = *fields.Partition
	}
	if fields.Timestamp != nil {
		r.Timestamp = time.UnixMilli(*fields.Timestamp)
	}
	for _, h := range fields.Headers {
		header := kgo.RecordHeader{Key: *h[0]}
		if h[1] != nil {
			json.Unmarshal([]byte(`"`+*h[1]+`"`), &header.Value)
		}
		r.Headers = append(r.Headers, header)
	}
	return r
}

func toRecord(r *kgo.Record) record {
	timestamp := r.Timestamp.UnixMilli()
	fields := record{Partition: &r.Partition, Offset: &r.Offset, Timestamp: &timestamp, Key: r.Key, Value: r.Value}
	for _, h := range r.Headers {
		name := h.Key
		pair := [2]*string{&name, nil}
		if h.Value != nil {
			var value string
			encoded, _ := json.Marshal(h.Value)
			json.Unmarshal(encoded, &value)
			pair[1] = &value
		}
		fields.Headers = append(fields.Headers, pair)
	}
	return fields
}

func consume(c command) (any, error) {
	options := []kgo.Opt{
		kgo.SeedBrokers(c.Bootstrap),
		kgo.ConsumeTopics(c.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxWait(100 * time.Millisecond),
	}
	if c.Config["isolation.level"] == "read_committed" {
		options = append(options, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Second)
	defer cancel()
	records := []record{}
	for len(records) < c.Count {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			return nil, fmt.Errorf("only %d records came: %w", len(records), err)
		}
		fetches.EachRecord(func(r *kgo.Record) { records = append(records, toRecord(r)) })
	}
	return map[string]any{"records": records}, nil
}

func transact(c command) (any, error) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(c.Bootstrap),
		kgo.TransactionalID(c.Identity),
		kgo.RecordPartitioner(partitioner{}),
	)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ctx := context.Background()
	for _, t := range c.Transactions {
		if err := client.BeginTransaction(); err != nil {
			return nil, err
		}
		for _, fields := range t.Records {
			client.Produce(ctx, toProduce(c.Topic, fields), nil)
		}
		if err := client.Flush(ctx); err != nil {
			return nil, err
		}
		if err := client.EndTransaction(ctx, kgo.TransactionEndTry(t.Commit)); err != nil {
			return nil, err
		}
	}
	return map[string]int{"transactions": len(c.Transactions)}, nil
}

func transform(c command) (any, error) {
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(c.Bootstrap),
		kgo.TransactionalID(c.Identity),
		kgo.ConsumerGroup(c.Group),
		kgo.ConsumeTopics(c.Source),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.FetchMaxWait(100*time.Millisecond),
		kgo.RequireStableFetchOffsets(),
	)
	if err != nil {
		return nil, err
	}
	defer session.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Second)
	defer cancel()
	done, ended := 0, 0
	for done < c.Count {
		fetches := session.PollRecords(ctx, 10)
		if err := fetches.Err0(); err != nil {
			return nil, err
		}
		if fetches.Empty() {
			continue
		}
		if err := session.Begin(); err != nil {
			return nil, err
		}
		count := 0
		fetches.EachRecord(func(r *kgo.Record) {
			count++
			session.Produce(ctx, &kgo.Record{Topic: c.Target, Value: bytes.ToUpper(r.Value)}, nil)
		})
		ended++
		committed, err := session.End(ctx, kgo.TransactionEndTry(ended != 2))
		if err != nil {
			return nil, err
		}
		if committed {
			done += count
		}
	}
	return map[string]int{"transactions": ended}, nil
}

func member(c command, input io.Reader) error {
	owned := map[int32]bool{}
	var lock sync.Mutex
	tell := func(partitions map[string][]int32, add bool) {
		lock.Lock()
		defer lock.Unlock()
		for _, partition := range partitions[c.Topic] {
			if add {
				owned[partition] = true
			} else {
				delete(owned, partition)
			}
		}
		list := []int{}
		for partition := range owned {
			list = append(list, int(partition))
		}
		sort.Ints(list)
		say(map[string][]int{"assigned": list})
	}
	options := []kgo.Opt{
		kgo.SeedBrokers(c.Bootstrap),
		kgo.ConsumerGroup(c.Group),
		kgo.ConsumeTopics(c.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxWait(100 * time.Millisecond),
		kgo.HeartbeatInterval(300 * time.Millisecond),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, p map[string][]int32) { tell(p, true) }),
		kgo.OnPartitionsRevoked(func(ctx context.Context, client *kgo.Client, p map[string][]int32) {
			client.CommitUncommittedOffsets(ctx)
			tell(p, false)
		}),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, p map[string][]int32) { tell(p, false) }),
	}
	if c.Config["group.protocol"] == "consumer" {
		options = append(options, kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer()))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, input)
		cancel()
	}()
	for ctx.Err() == nil {
		fetches := client.PollFetches(ctx)
		fetches.EachRecord(func(r *kgo.Record) { say(map[string]record{"record": toRecord(r)}) })
	}
	client.Close()
	return nil
}
