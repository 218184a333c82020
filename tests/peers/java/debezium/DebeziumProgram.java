import com.sun.management.OperatingSystemMXBean;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.FileReader;
import java.io.PrintStream;
import java.io.Reader;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.Properties;

/**
 * Runs Debezium's embedded engine: `DebeziumProgram properties print` prints each event as topic,
 * key and value between tabs; `DebeziumProgram properties count 1000` counts events, and prints
 * count, milliseconds and CPU milliseconds at every thousandth.
 */
public class DebeziumProgram {
    private static long count = 0;

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        try (Reader reader = new FileReader(arguments[0], StandardCharsets.UTF_8)) {
            properties.load(reader);
        }
        boolean prints = arguments[1].equals("print");
        long every = prints ? 0 : Long.parseLong(arguments[2]);
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        OperatingSystemMXBean system =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class)
            .using(properties)
            .using((success, message, error) -> {
                System.err.println(message);
                System.exit(success ? 0 : 1);
            })
            .notifying((events, committer) -> {
                for (ChangeEvent<String, String> event : events) {
                    if (prints) {
                        out.println(event.destination() + "\t" + event.key() + "\t" + event.value());
                    } else if (++count % every == 0) {
                        out.println(count + "\t" + System.nanoTime() / 1_000_000 + "\t"
                            + system.getProcessCpuTime() / 1_000_000);
                    }
                    committer.markProcessed(event);
                }
                committer.markBatchFinished();
                out.flush();
            })
            .build();
        engine.run();
    }
}
