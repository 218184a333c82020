import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Properties;
import java.util.UUID;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Calls and serves as Spring does, with Apache's clients.
 *
 * <p>call BOOTSTRAP TOPIC REPLY_TOPIC REPLY_PARTITION VALUE... does what ReplyingKafkaTemplate does: it sends each value
 * and prints its reply, or "error: " and the header. serve BOOTSTRAP TOPIC GROUP does what a listener with @SendTo does:
 * it replies with the value in capitals until stdin ends.
 */
public class RpcProgram {
    private static final Duration POLL = Duration.ofMillis(100);
    private static final long PATIENCE_MS = 60_000;

    public static void main(String[] arguments) throws Exception {
        List<String> rest = Arrays.asList(arguments).subList(2, arguments.length);
        if (arguments[0].equals("call")) {
            call(arguments[1], rest.get(0), rest.get(1), Integer.parseInt(rest.get(2)), rest.subList(3, rest.size()));
        } else {
            serve(arguments[1], rest.get(0), rest.get(1));
        }
    }

    private static void call(String bootstrap, String topic, String replyTopic, int partition, List<String> values)
            throws Exception {
        try (KafkaConsumer<String, String> consumer = consumer(bootstrap, "java-caller");
                KafkaProducer<String, String> producer = producer(bootstrap)) {
            TopicPartition place = new TopicPartition(replyTopic, partition);
            consumer.assign(List.of(place));
            consumer.seekToEnd(List.of(place));
            consumer.position(place);
            for (String value : values) {
                byte[] correlationId = newCorrelationId();
                ProducerRecord<String, String> request = new ProducerRecord<>(topic, value);
                request.headers().add("kafka_correlationId", correlationId);
                request.headers().add("kafka_replyTopic", replyTopic.getBytes(StandardCharsets.UTF_8));
                request.headers().add("kafka_replyPartition", ByteBuffer.allocate(4).putInt(partition).array());
                producer.send(request).get();
                System.out.println(await(consumer, correlationId));
            }
        }
    }

    private static String await(KafkaConsumer<String, String> consumer, byte[] correlationId) {
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (System.currentTimeMillis() < deadline) {
            for (ConsumerRecord<String, String> reply : consumer.poll(POLL)) {
                Header found = reply.headers().lastHeader("kafka_correlationId");
                if (found == null || !Arrays.equals(found.value(), correlationId)) {
                    continue;
                }
                Header error = reply.headers().lastHeader("millstream-error");
                return error == null ? reply.value() : "error: " + new String(error.value(), StandardCharsets.UTF_8);
            }
        }
        return "no reply";
    }

    private static void serve(String bootstrap, String topic, String group) throws Exception {
        Thread main = Thread.currentThread();
        try (KafkaConsumer<String, String> consumer = consumer(bootstrap, group);
                KafkaProducer<String, String> producer = producer(bootstrap)) {
            consumer.subscribe(List.of(topic));
            while (System.in.available() == 0 && !main.isInterrupted()) {
                for (ConsumerRecord<String, String> request : consumer.poll(POLL)) {
                    reply(producer, request);
                }
                if (!consumer.assignment().isEmpty()) {
                    System.out.println("ready");
                }
            }
        }
    }

    private static void reply(KafkaProducer<String, String> producer, ConsumerRecord<String, String> request)
            throws Exception {
        String topic = new String(
                request.headers().lastHeader("kafka_replyTopic").value(), StandardCharsets.UTF_8);
        Header partition = request.headers().lastHeader("kafka_replyPartition");
        ProducerRecord<String, String> reply = new ProducerRecord<>(
                topic,
                partition == null ? null : ByteBuffer.wrap(partition.value()).getInt(),
                null,
                request.value().toUpperCase(Locale.ROOT));
        reply.headers().add(request.headers().lastHeader("kafka_correlationId"));
        producer.send(reply).get();
    }

    private static byte[] newCorrelationId() {
        UUID id = UUID.randomUUID();
        return ByteBuffer.allocate(16)
                .putLong(id.getMostSignificantBits())
                .putLong(id.getLeastSignificantBits())
                .array();
    }

    private static KafkaConsumer<String, String> consumer(String bootstrap, String group) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("group.id", group);
        config.put("enable.auto.commit", "false");
        config.put("auto.offset.reset", "earliest");
        return new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer());
    }

    private static KafkaProducer<String, String> producer(String bootstrap) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        return new KafkaProducer<>(config, new StringSerializer(), new StringSerializer());
    }
}
