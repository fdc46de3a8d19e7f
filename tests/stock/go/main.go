// A client of the chaos run on franz-go: it does what it is told, line by line, and says what came of it.
//
// The supervisor writes the history; see tests/harness/chaos/workload/foreign.rs for the lines.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

var (
	out     = bufio.NewWriterSize(os.Stdout, 1<<16)
	outLock sync.Mutex
)

// say writes one line; nothing of it waits.
func say(format string, arguments ...any) {
	outLock.Lock()
	defer outLock.Unlock()
	fmt.Fprintf(out, format+"\n", arguments...)
	out.Flush()
}

func client(bootstrap string, more ...kgo.Opt) *kgo.Client {
	options := append([]kgo.Opt{
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		kgo.MetadataMinAge(50 * time.Millisecond),
		kgo.MetadataMaxAge(2 * time.Second),
		kgo.RetryBackoffFn(func(int) time.Duration { return 50 * time.Millisecond }),
		kgo.DialTimeout(time.Second),
		kgo.RequestTimeoutOverhead(2 * time.Second),
	}, more...)
	made, err := kgo.NewClient(options...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return made
}

// send produces the values of one op, each as a record.
func send(producer *kgo.Client, op, topic, partition, values string) {
	index, err := strconv.Atoi(partition)
	if err != nil {
		panic(err)
	}
	for number, value := range strings.Split(values, ",") {
		record := &kgo.Record{Topic: topic, Partition: int32(index), Value: []byte(fmt.Sprintf("%-64s", value))}
		producer.Produce(context.Background(), record, func(record *kgo.Record, err error) {
			if err != nil {
				say("U %s %d %s", op, number, strings.ReplaceAll(err.Error(), "\n", " "))
			} else {
				say("A %s %d %d", op, number, record.Offset)
			}
		})
	}
}

// follow reads these from their beginning until the context ends.
func follow(ctx context.Context, bootstrap, generation string, places []string) {
	from := map[string]map[int32]kgo.Offset{}
	for _, place := range places {
		topic, partition, _ := strings.Cut(place, "/")
		index, err := strconv.Atoi(partition)
		if err != nil {
			panic(err)
		}
		if from[topic] == nil {
			from[topic] = map[int32]kgo.Offset{}
		}
		from[topic][int32(index)] = kgo.NewOffset().At(0)
	}
	consumer := client(bootstrap,
		kgo.ConsumePartitions(from),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchMaxWait(200*time.Millisecond),
		kgo.KeepRetryableFetchErrors(),
	)
	defer consumer.Close()
	for ctx.Err() == nil {
		fetches := consumer.PollFetches(ctx)
		fetches.EachError(func(topic string, partition int32, err error) {
			if errors.Is(err, kerr.OffsetOutOfRange) {
				say("O %s %s %d", generation, topic, partition)
			}
		})
		fetches.EachPartition(func(read kgo.FetchTopicPartition) {
			if len(read.Records) == 0 {
				return
			}
			records := make([]string, len(read.Records))
			for at, record := range read.Records {
				records[at] = fmt.Sprintf("%d:%s", record.Offset, strings.TrimSpace(string(record.Value)))
			}
			say("P %s %s %d %s", generation, read.Topic, read.Partition, strings.Join(records, ","))
		})
	}
}

func main() {
	bootstrap := os.Args[1]
	producer := client(bootstrap,
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(2*time.Millisecond),
		kgo.MaxBufferedRecords(100_000),
	)
	stop := func() {}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 1<<20), 1<<20)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		switch words[0] {
		case "S":
			send(producer, words[1], words[2], words[3], words[4])
		case "C":
			stop()
			ctx, cancel := context.WithCancel(context.Background())
			stop = cancel
			go follow(ctx, bootstrap, words[1], words[2:])
		}
	}
}
