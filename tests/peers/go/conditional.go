// Conditional appends with an ordinary producer: see tests/conformance/test_conditional_clients.py.
package main

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type versioned struct{ key, version string }

// Each step is a batch, and a transaction if there is a transactional id.
var steps = []struct {
	name    string
	records []versioned
}{
	{"first", []versioned{{"a", "1"}}},
	{"stale", []versioned{{"a", "1"}}},
	{"next", []versioned{{"a", "2"}}},
	{"mixed", []versioned{{"b", "1"}, {"a", "2"}}},
	{"after", []versioned{{"b", "1"}, {"a", "3"}}},
}

// The step of each record, and "ok" or the error.
func conditional(c command) (any, error) {
	options := []kgo.Opt{
		kgo.SeedBrokers(c.Bootstrap),
		kgo.DefaultProduceTopic(c.Topic),
		kgo.ProducerLinger(50 * time.Millisecond),
		kgo.RecordDeliveryTimeout(100 * time.Second),
	}
	if c.Identity != "" {
		options = append(options, kgo.TransactionalID(c.Identity))
	} else if !c.Idempotent {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	answers := [][2]string{}
	for _, step := range steps {
		if c.Identity != "" {
			if err := client.BeginTransaction(); err != nil {
				return nil, err
			}
		}
		records := []*kgo.Record{}
		for _, it := range step.records {
			header := kgo.RecordHeader{Key: "millstream-version", Value: []byte(it.version)}
			records = append(records, &kgo.Record{
				Key: []byte(it.key), Value: []byte(step.name), Headers: []kgo.RecordHeader{header},
			})
		}
		results := client.ProduceSync(context.Background(), records...)
		for _, result := range results {
			answer := "ok"
			if result.Err != nil {
				answer = result.Err.Error()
			}
			answers = append(answers, [2]string{step.name, answer})
		}
		if c.Identity != "" {
			end := kgo.TransactionEndTry(results.FirstErr() == nil)
			if err := client.EndTransaction(context.Background(), end); err != nil {
				return nil, err
			}
		}
	}
	return map[string]any{"answers": answers}, nil
}
