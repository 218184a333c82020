import com.sun.management.OperatingSystemMXBean;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.Header;
import io.debezium.engine.format.Avro;
import io.debezium.engine.format.Json;
import io.debezium.engine.format.KeyValueHeaderChangeEventFormat;
import java.io.FileReader;
import java.io.PrintStream;
import java.io.Reader;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Properties;

/**
 * Runs Debezium's embedded engine: `DebeziumProgram properties print` prints each event as topic,
 * key, value, and name and value of each header, between tabs; with `avro` instead of `print`, keys
 * and values are what the Avro converter makes of them, as base64; `DebeziumProgram properties count
 * 1000` counts events, and prints count, milliseconds and CPU milliseconds at every thousandth.
 */
public class DebeziumProgram {
    private static long count = 0;

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        try (Reader reader = new FileReader(arguments[0], StandardCharsets.UTF_8)) {
            properties.load(reader);
        }
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        DebeziumEngine<?> engine = switch (arguments[1]) {
            case "print" -> printing(properties, out);
            case "avro" -> printingAvro(properties, out);
            default -> counting(properties, out, Long.parseLong(arguments[2]));
        };
        engine.run();
    }

    private static DebeziumEngine<ChangeEvent<String, String>> printing(
            Properties properties, PrintStream out) {
        return DebeziumEngine
            .create(KeyValueHeaderChangeEventFormat.of(Json.class, Json.class, Json.class))
            .using(properties)
            .using(DebeziumProgram::ended)
            .notifying((events, committer) -> {
                for (ChangeEvent<String, String> event : events) {
                    print(out, event, event.key(), event.value());
                    committer.markProcessed(event);
                }
                committer.markBatchFinished();
                out.flush();
            })
            .build();
    }

    private static DebeziumEngine<ChangeEvent<byte[], byte[]>> printingAvro(
            Properties properties, PrintStream out) {
        return DebeziumEngine
            .create(KeyValueHeaderChangeEventFormat.of(Avro.class, Avro.class, Json.class))
            .using(properties)
            .using(DebeziumProgram::ended)
            .notifying((events, committer) -> {
                for (ChangeEvent<byte[], byte[]> event : events) {
                    print(out, event, base64(event.key()), base64(event.value()));
                    committer.markProcessed(event);
                }
                committer.markBatchFinished();
                out.flush();
            })
            .build();
    }

    private static String base64(byte[] content) {
        return content == null ? "" : Base64.getEncoder().encodeToString(content);
    }

    private static void print(
            PrintStream out, ChangeEvent<?, ?> event, String key, String value) {
        out.print(event.destination() + "\t" + key + "\t" + value);
        for (Object given : event.headers()) {
            Header<?> header = (Header<?>) given;
            out.print("\t" + header.getKey() + "\t" + header.getValue());
        }
        out.println();
    }

    private static DebeziumEngine<ChangeEvent<String, String>> counting(
            Properties properties, PrintStream out, long every) {
        OperatingSystemMXBean system =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return DebeziumEngine.create(Json.class)
            .using(properties)
            .using(DebeziumProgram::ended)
            .notifying((events, committer) -> {
                for (ChangeEvent<String, String> event : events) {
                    if (++count % every == 0) {
                        out.println(count + "\t" + System.nanoTime() / 1_000_000 + "\t"
                            + system.getProcessCpuTime() / 1_000_000);
                    }
                    committer.markProcessed(event);
                }
                committer.markBatchFinished();
                out.flush();
            })
            .build();
    }

    private static void ended(boolean success, String message, Throwable error) {
        System.err.println(message);
        System.exit(success ? 0 : 1);
    }
}
