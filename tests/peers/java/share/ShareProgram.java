import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Java's share consumer as a program: see tests/peers/share_consumers.py for what it is asked. */
public class ShareProgram {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final KafkaShareConsumer<String, String> consumer;
    private final Map<Long, ConsumerRecord<String, String>> held = new HashMap<>();
    private ArrayNode told = JSON.createArrayNode();

    private ShareProgram(JsonNode command) {
        Properties config = new Properties();
        config.put("bootstrap.servers", command.get("bootstrap").asText());
        config.put("group.id", command.get("group").asText());
        config.put("share.acknowledgement.mode", command.get("explicit").asBoolean() ? "explicit" : "implicit");
        command.get("config").fields()
            .forEachRemaining(entry -> config.put(entry.getKey(), entry.getValue().asText()));
        consumer = new KafkaShareConsumer<>(config, new StringDeserializer(), new StringDeserializer());
        consumer.setAcknowledgementCommitCallback((offsets, error) -> offsets.forEach((partition, ofPartition) -> {
            ArrayNode entry = told.addArray().add(partition.partition());
            ofPartition.stream().sorted().forEach(entry.addArray()::add);
            entry.add(nameOf(error));
        }));
        consumer.subscribe(List.of(command.get("topic").asText()));
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        ShareProgram program = new ShareProgram(JSON.readTree(commands.readLine()));
        say(JSON.createObjectNode().put("joined", true));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            try {
                say(program.answer(JSON.readTree(line)));
            } catch (Exception error) {
                say(JSON.createObjectNode().put("error", error.toString()));
            }
        }
        program.consumer.close();
    }

    private ObjectNode answer(JsonNode command) {
        switch (command.get("do").asText()) {
            case "poll":
                return poll(Duration.ofMillis(command.get("timeout_ms").asLong()));
            case "acknowledge":
                for (JsonNode type : command.get("types")) {
                    consumer.acknowledge(held.get(place(type.get(0).asInt(), type.get(1).asLong())),
                        AcknowledgeType.forId((byte) type.get(2).asInt()));
                }
                return JSON.createObjectNode().put("acknowledged", command.get("types").size());
            case "commit":
                return commit();
            default:
                consumer.commitAsync();  // callbacks come from within calls
                ObjectNode answer = JSON.createObjectNode();
                answer.set("callbacks", told);
                told = JSON.createArrayNode();
                return answer;
        }
    }

    private ObjectNode poll(Duration timeout) {
        ObjectNode answer = JSON.createObjectNode();
        ArrayNode records = answer.putArray("records");
        for (ConsumerRecord<String, String> record : consumer.poll(timeout)) {
            held.put(place(record.partition(), record.offset()), record);
            records.addObject()
                .put("partition", record.partition())
                .put("offset", record.offset())
                .put("value", record.value())
                .put("delivery_count", record.deliveryCount().orElseThrow());
        }
        return answer;
    }

    private ObjectNode commit() {
        ObjectNode answer = JSON.createObjectNode();
        ArrayNode partitions = answer.putArray("partitions");
        consumer.commitSync(Duration.ofSeconds(30)).forEach((partition, error) ->
            partitions.addArray().add(partition.partition()).add(nameOf(error.orElse(null))));
        return answer;
    }

    private static long place(int partition, long offset) {
        return ((long) partition << 48) + offset;
    }

    private static String nameOf(Exception error) {
        return error == null ? null : Errors.forException(error).name();
    }

    private static void say(ObjectNode answer) throws Exception {
        System.out.println(JSON.writeValueAsString(answer));
    }
}
