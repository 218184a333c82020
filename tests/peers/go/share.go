// franz-go's share consumer as a program: see tests/peers/share_consumers.py for what it is asked.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

type shareCommand struct {
	Do        string     `json:"do"`
	TimeoutMs int        `json:"timeout_ms"`
	Types     [][3]int64 `json:"types"`
}

type delivered struct {
	Partition     int32  `json:"partition"`
	Offset        int64  `json:"offset"`
	Value         string `json:"value"`
	DeliveryCount int32  `json:"delivery_count"`
}

type place struct {
	partition int32
	offset    int64
}

type shareConsumer struct {
	client   *kgo.Client
	explicit bool
	held     map[place]*kgo.Record
	lock     sync.Mutex
	told     []kgo.ShareAckResult // since the last time that somebody asked for them
	sent     []kgo.ShareAckResult // since the last commit
}

func share(c command, commands *bufio.Reader) error {
	consumer := &shareConsumer{explicit: c.Explicit, held: map[place]*kgo.Record{}}
	options := []kgo.Opt{
		kgo.SeedBrokers(c.Bootstrap),
		kgo.ShareGroup(c.Group),
		kgo.ConsumeTopics(c.Topic),
		kgo.ShareAckCallback(consumer.tell),
		kgo.MaxConcurrentFetches(0), // it fetches when it is polled, no sooner, like the others
	}
	if records, set := c.Config["max.poll.records"].(float64); set {
		options = append(options, kgo.ShareMaxRecords(int32(records)))
	}
	if c.Config["share.acquire.mode"] == "record_limit" {
		options = append(options, kgo.ShareMaxRecordsStrict())
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	consumer.client = client
	for {
		line, err := commands.ReadBytes('\n')
		if err != nil {
			client.Close()
			return nil
		}
		var asked shareCommand
		if err := json.Unmarshal(line, &asked); err != nil {
			return err
		}
		answer, err := consumer.do(asked)
		if err != nil {
			answer = map[string]string{"error": err.Error()}
		}
		say(answer)
	}
}

func (s *shareConsumer) tell(_ *kgo.Client, results kgo.ShareAckResults) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.told = append(s.told, results...)
	s.sent = append(s.sent, results...)
}

func (s *shareConsumer) do(asked shareCommand) (any, error) {
	switch asked.Do {
	case "poll":
		return s.poll(time.Duration(asked.TimeoutMs) * time.Millisecond)
	case "acknowledge":
		for _, it := range asked.Types {
			s.held[place{int32(it[0]), it[1]}].Ack(kgo.AckStatus(it[2]))
		}
		return map[string]int{"acknowledged": len(asked.Types)}, nil
	case "commit":
		return s.commit()
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	callbacks := [][3]any{}
	for _, it := range s.told {
		callbacks = append(callbacks, [3]any{it.Partition, []int{}, nameOf(it.Err)})
	}
	s.told = nil
	return map[string]any{"callbacks": callbacks}, nil
}

func (s *shareConsumer) poll(timeout time.Duration) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	fetches := s.client.PollFetches(ctx)
	for _, failed := range fetches.Errors() {
		if !errors.Is(failed.Err, context.DeadlineExceeded) {
			return nil, failed.Err
		}
	}
	records := []delivered{}
	s.held = map[place]*kgo.Record{}
	fetches.EachRecord(func(r *kgo.Record) {
		s.held[place{r.Partition, r.Offset}] = r
		records = append(records, delivered{r.Partition, r.Offset, string(r.Value), r.DeliveryCount()})
	})
	return map[string]any{"records": records}, nil
}

func (s *shareConsumer) commit() (any, error) {
	if !s.explicit {
		s.client.MarkAcks(kgo.AckAccept)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Second)
	defer cancel()
	if err := s.client.FlushAcks(ctx); err != nil {
		return nil, err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	partitions := [][2]any{}
	for _, it := range s.sent {
		partitions = append(partitions, [2]any{it.Partition, nameOf(it.Err)})
	}
	s.sent = nil
	return map[string]any{"partitions": partitions}, nil
}

func nameOf(err error) any {
	var known *kerr.Error
	if errors.As(err, &known) {
		return known.Message
	}
	if err != nil {
		return err.Error()
	}
	return nil
}
