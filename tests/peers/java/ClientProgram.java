import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The Java client as a program: see tests/peers/programs.py for what it is asked. */
public class ClientProgram {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final BufferedReader COMMANDS =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));

    public static void main(String[] arguments) throws Exception {
        for (String line = COMMANDS.readLine(); line != null; line = COMMANDS.readLine()) {
            JsonNode command = JSON.readTree(line);
            try {
                switch (command.get("action").asText()) {
                    case "produce":
                        say(produce(command));
                        break;
                    case "consume":
                        say(consume(command));
                        break;
                    case "transact":
                        say(transact(command));
                        break;
                    case "transform":
                        say(transform(command));
                        break;
                    default:
                        say(JSON.createObjectNode().put("joined", true));
                        member(command);
                        return;
                }
            } catch (Exception error) {
                say(JSON.createObjectNode().put("error", error.toString()));
            }
        }
    }

    private static ObjectNode produce(JsonNode command) throws Exception {
        Properties config = new Properties();
        config.put("bootstrap.servers", command.get("bootstrap").asText());
        config.put("compression.type", command.get("compression").asText());
        config.put("acks", command.get("acks").asText());
        config.put("enable.idempotence", command.get("idempotent").asText());
        config.put("linger.ms", "20");
        addConfig(command, config);
        ArrayNode positions = JSON.createArrayNode();
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (JsonNode fields : command.get("records")) {
                sent.add(producer.send(toProduce(command.get("topic").asText(), fields)));
            }
            producer.flush();
            for (Future<RecordMetadata> future : sent) {
                RecordMetadata metadata = future.get(30, TimeUnit.SECONDS);
                positions.addArray().add(metadata.partition()).add(metadata.offset());
            }
        }
        ObjectNode answer = JSON.createObjectNode();
        answer.set("positions", positions);
        return answer;
    }

    private static KafkaProducer<byte[], byte[]> transactionalProducer(JsonNode command) {
        Properties config = new Properties();
        config.put("bootstrap.servers", command.get("bootstrap").asText());
        config.put("transactional.id", command.get("transactional_id").asText());
        addConfig(command, config);
        KafkaProducer<byte[], byte[]> producer =
            new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer());
        producer.initTransactions();
        return producer;
    }

    private static ObjectNode transact(JsonNode command) {
        try (KafkaProducer<byte[], byte[]> producer = transactionalProducer(command)) {
            for (JsonNode transaction : command.get("transactions")) {
                producer.beginTransaction();
                for (JsonNode fields : transaction.get("records")) {
                    producer.send(toProduce(command.get("topic").asText(), fields));
                }
                if (transaction.get("commit").asBoolean()) {
                    producer.commitTransaction();
                } else {
                    producer.flush();
                    producer.abortTransaction();
                }
            }
        }
        return JSON.createObjectNode().put("transactions", command.get("transactions").size());
    }

    private static ObjectNode transform(JsonNode command) {
        ((ObjectNode) command.get("config"))
            .put("isolation.level", "read_committed")
            .put("enable.auto.commit", "false")
            .put("max.poll.records", "10");
        int done = 0;
        int ended = 0;
        try (KafkaConsumer<byte[], byte[]> consumer =
                    consumer(command, command.get("group").asText());
                KafkaProducer<byte[], byte[]> producer =
                    transactionalProducer(((ObjectNode) command.deepCopy()).set("config", JSON.createObjectNode()))) {
            consumer.subscribe(List.of(command.get("source").asText()));
            while (done < command.get("count").asInt()) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofSeconds(1));
                if (records.isEmpty()) {
                    continue;
                }
                producer.beginTransaction();
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    String capitals = new String(record.value(), StandardCharsets.UTF_8).toUpperCase();
                    producer.send(new ProducerRecord<>(command.get("target").asText(),
                        capitals.getBytes(StandardCharsets.UTF_8)));
                }
                producer.sendOffsetsToTransaction(positions(consumer, records), consumer.groupMetadata());
                ended++;
                if (ended == 2) {
                    producer.abortTransaction();
                    records.partitions().forEach(partition ->
                        consumer.seek(partition, records.records(partition).get(0).offset()));
                } else {
                    producer.commitTransaction();
                    done += records.count();
                }
            }
        }
        return JSON.createObjectNode().put("transactions", ended);
    }

    private static Map<TopicPartition, OffsetAndMetadata> positions(
            KafkaConsumer<?, ?> consumer, ConsumerRecords<?, ?> records) {
        Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
        records.partitions().forEach(partition ->
            positions.put(partition, new OffsetAndMetadata(consumer.position(partition))));
        return positions;
    }

    private static ProducerRecord<byte[], byte[]> toProduce(String topic, JsonNode fields) {
        Integer partition = fields.get("partition").isNull() ? null : fields.get("partition").asInt();
        Long timestamp = fields.get("timestamp").isNull() ? null : fields.get("timestamp").asLong();
        ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(
            topic, partition, timestamp, bytes(fields.get("key")), bytes(fields.get("value")));
        for (JsonNode header : fields.get("headers")) {
            record.headers().add(header.get(0).asText(), bytes(header.get(1)));
        }
        return record;
    }

    private static ObjectNode consume(JsonNode command) {
        int count = command.get("count").asInt();
        ArrayNode records = JSON.createArrayNode();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(command, null)) {
            List<TopicPartition> partitions = new ArrayList<>();
            consumer.partitionsFor(command.get("topic").asText())
                .forEach(info -> partitions.add(new TopicPartition(info.topic(), info.partition())));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            long deadline = System.currentTimeMillis() + 100_000;
            while (records.size() < count) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    records.add(fields(record));
                }
                if (System.currentTimeMillis() > deadline) {
                    throw new IllegalStateException("only " + records.size() + " records came");
                }
            }
        }
        ObjectNode answer = JSON.createObjectNode();
        answer.set("records", records);
        return answer;
    }

    private static void member(JsonNode command) throws Exception {
        try (KafkaConsumer<byte[], byte[]> consumer =
                consumer(command, command.get("group").asText())) {
            subscribe(consumer, command);
            AtomicBoolean ended = endOfInput();
            Set<Integer> owned = null;
            while (!ended.get()) {
                Iterable<ConsumerRecord<byte[], byte[]>> records =
                    consumer.poll(Duration.ofMillis(100));
                Set<Integer> now = new TreeSet<>();
                consumer.assignment().forEach(partition -> now.add(partition.partition()));
                if (!now.equals(owned)) {
                    owned = now;
                    ObjectNode event = JSON.createObjectNode();
                    owned.forEach(event.putArray("assigned")::add);
                    say(event);
                }
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    ObjectNode event = JSON.createObjectNode();
                    event.set("record", fields(record));
                    say(event);
                }
            }
        }
    }

    /** With "server.pattern" the topic is an expression for the broker, which 3.9 does not know. */
    private static void subscribe(KafkaConsumer<?, ?> consumer, JsonNode command) throws Exception {
        String topic = command.get("topic").asText();
        if (!command.get("config").has("server.pattern")) {
            consumer.subscribe(List.of(topic));
            return;
        }
        Class<?> pattern = Class.forName("org.apache.kafka.clients.consumer.SubscriptionPattern");
        consumer.getClass().getMethod("subscribe", pattern)
            .invoke(consumer, pattern.getConstructor(String.class).newInstance(topic));
    }

    /** A pipe's end shows only to a blocking read, so a thread waits for it. */
    private static AtomicBoolean endOfInput() {
        AtomicBoolean ended = new AtomicBoolean();
        Thread watcher = new Thread(() -> {
            COMMANDS.lines().forEach(line -> { });
            ended.set(true);
        });
        watcher.setDaemon(true);
        watcher.start();
        return ended;
    }

    private static KafkaConsumer<byte[], byte[]> consumer(JsonNode command, String group) {
        Properties config = new Properties();
        config.put("bootstrap.servers", command.get("bootstrap").asText());
        config.put("auto.offset.reset", "earliest");
        if (group == null) {
            config.put("enable.auto.commit", "false");
        } else {
            config.put("group.id", group);
        }
        addConfig(command, config);
        return new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static void addConfig(JsonNode command, Properties config) {
        command.get("config").fields()
            .forEachRemaining(entry -> config.put(entry.getKey(), entry.getValue().asText()));
    }

    private static ObjectNode fields(ConsumerRecord<byte[], byte[]> record) {
        ObjectNode fields = JSON.createObjectNode();
        fields.put("partition", record.partition());
        fields.put("offset", record.offset());
        fields.put("timestamp", record.timestamp());
        fields.put("key", text(record.key()));
        fields.put("value", text(record.value()));
        ArrayNode headers = fields.putArray("headers");
        for (Header header : record.headers()) {
            headers.addArray().add(header.key()).add(text(header.value()));
        }
        return fields;
    }

    private static byte[] bytes(JsonNode text) {
        return text.isNull() ? null : Base64.getDecoder().decode(text.asText());
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }

    private static synchronized void say(ObjectNode answer) throws Exception {
        System.out.println(JSON.writeValueAsString(answer));
    }
}
