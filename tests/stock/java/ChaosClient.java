// A client of the chaos run on Kafka's own Java client: it does what it is told, line by line, and says what came of it.
//
// The supervisor writes the history; see tests/harness/chaos/workload/foreign.rs for the lines.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.InvalidOffsetException;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public final class ChaosClient {
    private static final PrintStream OUT = System.out;
    private static volatile Thread follower;

    private static synchronized void say(String line) {
        OUT.println(line);
        OUT.flush();
    }

    private static Properties common(String bootstrap) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("retry.backoff.ms", "20");
        settings.put("retry.backoff.max.ms", "100");
        settings.put("reconnect.backoff.ms", "20");
        settings.put("reconnect.backoff.max.ms", "200");
        settings.put("request.timeout.ms", "5000");
        settings.put("metadata.max.age.ms", "2000");
        return settings;
    }

    /** Produces the values of one op, each as a record. */
    private static void send(KafkaProducer<String, String> producer, String[] words) {
        String op = words[1];
        int partition = Integer.parseInt(words[3]);
        String[] values = words[4].split(",");
        for (int index = 0; index < values.length; index++) {
            int number = index;
            String text = String.format("%-64s", values[index]);
            try {
                producer.send(new ProducerRecord<>(words[2], partition, null, text), (metadata, error) -> {
                    if (error == null) {
                        say("A " + op + " " + number + " " + metadata.offset());
                    } else {
                        say("U " + op + " " + number + " " + String.valueOf(error).replace('\n', ' '));
                    }
                });
            } catch (KafkaException error) {
                say("U " + op + " " + number + " " + String.valueOf(error).replace('\n', ' '));
            }
        }
    }

    /** Reads these from their beginning until another thread takes over. */
    private static void follow(String bootstrap, String generation, List<TopicPartition> places) {
        Properties settings = common(bootstrap);
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "none");
        settings.put("fetch.max.wait.ms", "200");
        StringDeserializer text = new StringDeserializer();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings, text, text)) {
            consumer.assign(places);
            places.forEach(place -> consumer.seek(place, 0));
            while (follower == Thread.currentThread()) {
                try {
                    tell(generation, consumer.poll(Duration.ofMillis(200)));
                } catch (InvalidOffsetException error) {
                    for (TopicPartition place : error.partitions()) {
                        say("O " + generation + " " + place.topic() + " " + place.partition());
                    }
                    return;
                } catch (KafkaException error) {
                    System.err.println(error);
                }
            }
        }
    }

    private static void tell(String generation, ConsumerRecords<String, String> records) {
        for (TopicPartition place : records.partitions()) {
            StringBuilder line = new StringBuilder("P " + generation + " " + place.topic() + " " + place.partition());
            char before = ' ';
            for (ConsumerRecord<String, String> record : records.records(place)) {
                line.append(before).append(record.offset()).append(':').append(record.value().trim());
                before = ',';
            }
            say(line.toString());
        }
    }

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        Properties settings = common(bootstrap);
        settings.putAll(Map.of(
                "acks", "all", "enable.idempotence", "true", "linger.ms", "2", "delivery.timeout.ms", "300000",
                "max.block.ms", "60000"));
        StringSerializer text = new StringSerializer();
        KafkaProducer<String, String> producer = new KafkaProducer<>(settings, text, text);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("S")) {
                send(producer, words);
            } else if (words[0].equals("C")) {
                List<TopicPartition> places = new ArrayList<>();
                for (int word = 2; word < words.length; word++) {
                    int slash = words[word].lastIndexOf('/');
                    String topic = words[word].substring(0, slash);
                    places.add(new TopicPartition(topic, Integer.parseInt(words[word].substring(slash + 1))));
                }
                Thread next = new Thread(() -> follow(bootstrap, words[1], places));
                next.setDaemon(true);
                follower = next;
                next.start();
            }
        }
        Runtime.getRuntime().halt(0);
    }
}
