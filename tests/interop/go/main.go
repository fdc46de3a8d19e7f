// What programs with Go's clients do: `sarama`, `kafka-go` or `franz-go`, then the brokers. One line a step: ok or FAIL, the step,
// what came of it.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/compress"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const patience = 90 * time.Second

var (
	brokers []string
	topic   = fmt.Sprintf("go-%x", time.Now().UnixNano()&0xffffff)
	group   = "g-" + topic
)

func step(name string, act func() (any, error)) {
	told, err := act()
	if err != nil {
		fmt.Printf("FAIL\t%s\t%.200s\n", name, err.Error())
		return
	}
	fmt.Printf("ok\t%s\t%.100s\n", name, fmt.Sprint(told))
}

// Only whether it failed.
func done(err error) (any, error) { return "", err }

func main() {
	brokers = strings.Split(os.Args[2], ",")
	switch os.Args[1] {
	case "sarama":
		withSarama()
	case "kafka-go":
		withKafkaGo()
	case "franz-go":
		withFranzGo()
	}
}

type reader struct {
	wanted int
	read   int
	all    chan struct{}
	mutex  sync.Mutex
}

func (r *reader) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (r *reader) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (r *reader) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			session.MarkMessage(message, "")
			r.mutex.Lock()
			r.read++
			if r.read == r.wanted {
				close(r.all)
			}
			r.mutex.Unlock()
		case <-session.Context().Done():
			return nil
		}
	}
}

func withSarama() {
	config := func() *sarama.Config {
		config := sarama.NewConfig()
		config.Version = sarama.V3_6_0_0
		config.Producer.Return.Successes = true
		config.Producer.RequiredAcks = sarama.WaitForAll
		config.Producer.Retry.Max = 30
		config.Metadata.Retry.Max = 30
		config.Admin.Retry.Max = 30
		config.Consumer.Offsets.Initial = sarama.OffsetOldest
		return config
	}
	admin, err := sarama.NewClusterAdmin(brokers, config())
	if err != nil {
		fmt.Printf("FAIL\tconnect\t%v\n", err)
		return
	}
	step("create topic", func() (any, error) {
		return done(admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: 3, ReplicationFactor: 3}, false))
	})
	step("describe topics", func() (any, error) {
		told, err := admin.DescribeTopics([]string{topic})
		return len(told), err
	})
	step("describe configs", func() (any, error) {
		told, err := admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: topic})
		return len(told), err
	})
	step("alter configs one by one", func() (any, error) {
		value := "100000"
		entries := map[string]sarama.IncrementalAlterConfigsEntry{
			"retention.ms": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &value},
		}
		return done(admin.IncrementalAlterConfig(sarama.TopicResource, topic, entries, false))
	})
	step("create partitions", func() (any, error) { return done(admin.CreatePartitions(topic, 4, nil, false)) })
	codecs := []sarama.CompressionCodec{sarama.CompressionNone, sarama.CompressionGZIP, sarama.CompressionSnappy,
		sarama.CompressionLZ4, sarama.CompressionZSTD}
	send := func(config *sarama.Config) (any, error) {
		producer, err := sarama.NewSyncProducer(brokers, config)
		if err != nil {
			return nil, err
		}
		defer producer.Close()
		for n := range 30 {
			message := &sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder(fmt.Sprint(n)), Value: sarama.StringEncoder("v")}
			if _, _, err := producer.SendMessage(message); err != nil {
				return nil, err
			}
		}
		return 30, nil
	}
	for _, codec := range codecs {
		step("produce, "+codec.String(), func() (any, error) {
			config := config()
			config.Producer.Compression = codec
			return send(config)
		})
	}
	step("produce, idempotent", func() (any, error) {
		config := config()
		config.Producer.Idempotent = true
		config.Net.MaxOpenRequests = 1
		return send(config)
	})
	step("consume as a group, commit", func() (any, error) {
		members, err := sarama.NewConsumerGroup(brokers, group, config())
		if err != nil {
			return nil, err
		}
		defer members.Close()
		r := &reader{wanted: 30 * (len(codecs) + 1), all: make(chan struct{})}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		go func() {
			for ctx.Err() == nil {
				_ = members.Consume(ctx, []string{topic}, r)
			}
		}()
		select {
		case <-r.all:
			return r.wanted, nil
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d", r.read, r.wanted)
		}
	})
	step("list groups", func() (any, error) {
		told, err := admin.ListConsumerGroups()
		if _, found := told[group]; !found && err == nil {
			err = fmt.Errorf("%s is missing in %v", group, told)
		}
		return "", err
	})
	step("list group offsets", func() (any, error) {
		told, err := admin.ListConsumerGroupOffsets(group, nil)
		if err != nil {
			return nil, err
		}
		return len(told.Blocks[topic]), nil
	})
	step("delete group", func() (any, error) { return done(admin.DeleteConsumerGroup(group)) })
	step("delete records", func() (any, error) { return done(admin.DeleteRecords(topic, map[int32]int64{0: 2})) })
	step("describe log dirs", func() (any, error) {
		told, err := admin.DescribeLogDirs([]int32{1, 2, 3})
		return len(told), err
	})
	step("delete topic", func() (any, error) { return done(admin.DeleteTopic(topic)) })
	_ = admin.Close()
}

func withKafkaGo() {
	client := &kafka.Client{Addr: kafka.TCP(brokers...), Timeout: patience}
	ctx, cancel := context.WithTimeout(context.Background(), 4*patience)
	defer cancel()
	step("create topic", func() (any, error) {
		topics := []kafka.TopicConfig{{Topic: topic, NumPartitions: 3, ReplicationFactor: 3}}
		told, err := client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: topics})
		if err == nil {
			err = told.Errors[topic]
		}
		return done(err)
	})
	codecs := map[string]kafka.Compression{"none": compress.None, "gzip": kafka.Gzip, "snappy": kafka.Snappy, "lz4": kafka.Lz4,
		"zstd": kafka.Zstd}
	for name, codec := range codecs {
		step("produce, "+name, func() (any, error) {
			writer := &kafka.Writer{Addr: kafka.TCP(brokers...), Topic: topic, RequiredAcks: kafka.RequireAll, Compression: codec,
				MaxAttempts: 60, BatchTimeout: 10 * time.Millisecond}
			defer writer.Close()
			var messages []kafka.Message
			for n := range 30 {
				messages = append(messages, kafka.Message{Key: []byte(fmt.Sprint(n)), Value: []byte("v")})
			}
			return 30, writer.WriteMessages(ctx, messages...)
		})
	}
	step("consume as a group, commit", func() (any, error) {
		r := kafka.NewReader(kafka.ReaderConfig{Brokers: brokers, GroupID: group, Topic: topic, StartOffset: kafka.FirstOffset,
			MaxWait: 200 * time.Millisecond})
		defer r.Close()
		soon, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		for n := range 30 * len(codecs) {
			if _, err := r.ReadMessage(soon); err != nil {
				return nil, fmt.Errorf("%d of %d: %w", n, 30*len(codecs), err)
			}
		}
		return 30 * len(codecs), nil
	})
	step("list offsets", func() (any, error) {
		asked := map[string][]kafka.OffsetRequest{topic: {kafka.FirstOffsetOf(0), kafka.LastOffsetOf(0)}}
		told, err := client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: asked})
		if err != nil {
			return nil, err
		}
		return told.Topics[topic][0].LastOffset, nil
	})
	step("list groups", func() (any, error) {
		told, err := client.ListGroups(ctx, &kafka.ListGroupsRequest{})
		if err != nil {
			return nil, err
		}
		return len(told.Groups), told.Error
	})
	step("delete topic", func() (any, error) {
		told, err := client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{topic}})
		if err == nil {
			err = told.Errors[topic]
		}
		return done(err)
	})
}

func withFranzGo() {
	ctx, cancel := context.WithTimeout(context.Background(), 4*patience)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.DefaultProduceTopic(topic))
	if err != nil {
		fmt.Printf("FAIL\tconnect\t%v\n", err)
		return
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	step("create topic", func() (any, error) {
		_, err := admin.CreateTopic(ctx, 3, 3, nil, topic)
		return done(err)
	})
	codecs := map[string]kgo.CompressionCodec{"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(),
		"snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression()}
	for name, codec := range codecs {
		step("produce, "+name, func() (any, error) {
			one, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.DefaultProduceTopic(topic), kgo.ProducerBatchCompression(codec))
			if err != nil {
				return nil, err
			}
			defer one.Close()
			var records []*kgo.Record
			for n := range 30 {
				records = append(records, kgo.KeyStringRecord(fmt.Sprint(n), "v"))
			}
			return 30, one.ProduceSync(ctx, records...).FirstErr()
		})
	}
	step("consume as a group, commit", func() (any, error) {
		member, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit())
		if err != nil {
			return nil, err
		}
		defer member.Close()
		soon, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		read, wanted := 0, 30*len(codecs)
		for read < wanted && soon.Err() == nil {
			read += len(member.PollFetches(soon).Records())
		}
		if read < wanted {
			return nil, fmt.Errorf("%d of %d", read, wanted)
		}
		return read, member.CommitUncommittedOffsets(soon)
	})
	step("describe groups", func() (any, error) {
		told, err := admin.DescribeGroups(ctx, group)
		if err != nil {
			return nil, err
		}
		return told[group].State, told[group].Err
	})
	step("lag", func() (any, error) {
		told, err := admin.Lag(ctx, group)
		if err != nil {
			return nil, err
		}
		lag := told[group]
		return lag.Lag.Total(), lag.Error()
	})
	step("describe topic configs", func() (any, error) {
		told, err := admin.DescribeTopicConfigs(ctx, topic)
		if err != nil {
			return nil, err
		}
		return len(told[0].Configs), told[0].Err
	})
	step("alter configs one by one", func() (any, error) {
		value := "100000"
		told, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &value}}, topic)
		if err != nil {
			return nil, err
		}
		return "", told[0].Err
	})
	step("list offsets", func() (any, error) {
		told, err := admin.ListEndOffsets(ctx, topic)
		if err != nil {
			return nil, err
		}
		return len(told[topic]), told.Error()
	})
	step("delete group", func() (any, error) {
		told, err := admin.DeleteGroups(ctx, group)
		if err != nil {
			return nil, err
		}
		return "", told.Error()
	})
	step("delete topic", func() (any, error) {
		told, err := admin.DeleteTopics(ctx, topic)
		if err != nil {
			return nil, err
		}
		return "", told.Error()
	})
}
