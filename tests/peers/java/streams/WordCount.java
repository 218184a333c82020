import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * Kafka Streams counts words exactly once: lines of text in, (word, count so far) out.
 *
 * Arguments: bootstrap servers, application id, state directory, source topic, target topic. Says each
 * of its states in a line on stdout; ends when stdin does. Nothing is cached: a word that comes n times
 * gives n records, counted from 1 to n.
 */
public class WordCount {
    public static void main(String[] arguments) throws Exception {
        Properties config = new Properties();
        config.put("bootstrap.servers", arguments[0]);
        config.put("application.id", arguments[1]);
        config.put("state.dir", arguments[2]);
        config.put("processing.guarantee", "exactly_once_v2");
        config.put("group.protocol", "classic");
        config.put("statestore.cache.max.bytes", "0");
        config.put("commit.interval.ms", "100");
        config.put("main.consumer.auto.offset.reset", "earliest");
        config.put("main.consumer.session.timeout.ms", "6000");
        config.put("main.consumer.heartbeat.interval.ms", "500");
        config.put("reconnect.backoff.max.ms", "200");
        config.put("num.stream.threads", "2");
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(arguments[3], Consumed.with(Serdes.String(), Serdes.String()))
            .flatMapValues(line -> List.of(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
            .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts")
                .withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()))
            .toStream()
            .mapValues(count -> Long.toString(count))
            .to(arguments[4], Produced.with(Serdes.String(), Serdes.String()));
        try (KafkaStreams streams = new KafkaStreams(builder.build(), config)) {
            streams.setStateListener((now, before) -> say(now.toString()));
            streams.start();
            new String(System.in.readAllBytes(), StandardCharsets.UTF_8);
            streams.close(Duration.ofSeconds(20));
        }
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
