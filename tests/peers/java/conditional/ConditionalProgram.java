import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Conditional appends with ordinary producers: BOOTSTRAP KIND..., where a KIND is "plain",
 * "idempotent" or "transactional", and writes to the topic java-KIND. Prints a line for each
 * record: kind, step, "ok" or the class of the exception, and its message.
 */
public final class ConditionalProgram {
    private final KafkaProducer<String, String> producer;
    private final String topic;
    private final String kind;

    private ConditionalProgram(String bootstrap, String kind) {
        String topic = "java-" + kind;
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("acks", "all");
        settings.put("linger.ms", "50"); // so that the records of a step share a batch
        settings.put("enable.idempotence", Boolean.toString(!kind.equals("plain")));
        if (kind.equals("transactional")) {
            settings.put("transactional.id", topic);
        }
        this.producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        this.topic = topic;
        this.kind = kind;
    }

    public static void main(String[] arguments) throws Exception {
        for (int i = 1; i < arguments.length; i++) {
            new ConditionalProgram(arguments[0], arguments[i]).run();
        }
    }

    private void run() throws Exception {
        if (kind.equals("transactional")) {
            producer.initTransactions();
        }
        step("first", "a", 1);
        step("stale", "a", 1);
        step("next", "a", 2);
        step("mixed", "b", 1, "a", 2);
        step("after", "b", 1, "a", 3);
        producer.close();
    }

    /** Sends keys with their versions, all in one batch, and in one transaction if it has them. */
    private void step(String name, Object... keysAndVersions) throws Exception {
        boolean hasTransactions = kind.equals("transactional");
        if (hasTransactions) {
            producer.beginTransaction();
        }
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (int i = 0; i < keysAndVersions.length; i += 2) {
            String version = keysAndVersions[i + 1].toString();
            ProducerRecord<String, String> record =
                    new ProducerRecord<>(topic, 0, (String) keysAndVersions[i], name);
            record.headers()
                    .add("millstream-version", version.getBytes(StandardCharsets.UTF_8));
            sent.add(producer.send(record));
        }
        boolean isRefused = false;
        for (Future<RecordMetadata> it : sent) {
            try {
                it.get();
                print(name, "ok", "");
            } catch (ExecutionException refused) {
                isRefused = true;
                Throwable cause = refused.getCause();
                print(name, cause.getClass().getSimpleName(), cause.getMessage());
            }
        }
        if (hasTransactions && isRefused) {
            producer.abortTransaction();
        } else if (hasTransactions) {
            producer.commitTransaction();
        }
    }

    private void print(String step, String result, String message) {
        System.out.println(String.join("\t", kind, step, result, message));
    }
}
