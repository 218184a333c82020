import com.sun.management.OperatingSystemMXBean;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.Header;
import io.debezium.engine.format.Json;
import io.debezium.engine.format.KeyValueHeaderChangeEventFormat;
import java.io.FileReader;
import java.io.PrintStream;
import java.io.Reader;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.Properties;

/**
 * Runs Debezium's embedded engine: `DebeziumProgram properties print` prints each event as topic,
 * key, value, and name and value of each header, between tabs; `DebeziumProgram properties count 1000` counts events, and prints
 * count, milliseconds and CPU milliseconds at every thousandth.
 */
public class DebeziumProgram {
    private static long count = 0;

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        try (Reader reader = new FileReader(arguments[0], StandardCharsets.UTF_8)) {
            properties.load(reader);
        }
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        DebeziumEngine<ChangeEvent<String, String>> engine = arguments[1].equals("print")
            ? printing(properties, out)
            : counting(properties, out, Long.parseLong(arguments[2]));
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
                    out.print(event.destination() + "\t" + event.key() + "\t" + event.value());
                    for (Object given : event.headers()) {
                        Header<?> header = (Header<?>) given;
                        out.print("\t" + header.getKey() + "\t" + header.getValue());
                    }
                    out.println();
                    committer.markProcessed(event);
                }
                committer.markBatchFinished();
                out.flush();
            })
            .build();
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
