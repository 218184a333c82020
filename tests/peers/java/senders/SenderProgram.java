import com.timgroup.statsd.NonBlockingStatsDClientBuilder;
import com.timgroup.statsd.StatsDClient;
import java.nio.charset.StandardCharsets;
import org.zeromq.SocketType;
import org.zeromq.ZContext;
import org.zeromq.ZMQ;

/**
 * Other implementations of what bridges receive and send.
 *
 *   SenderProgram statsd HOST PORT NUMBER        Datadog's client
 *   SenderProgram push ADDRESS NUMBER            JeroMQ: messages of two frames
 *   SenderProgram pull ADDRESS NUMBER            JeroMQ: prints what comes
 */
public final class SenderProgram {
    public static void main(String[] args) throws Exception {
        switch (args[0]) {
            case "statsd" -> statsd(args[1], Integer.parseInt(args[2]), Integer.parseInt(args[3]));
            case "push" -> push(args[1], Integer.parseInt(args[2]));
            case "pull" -> pull(args[1], Integer.parseInt(args[2]));
            default -> throw new IllegalArgumentException(args[0]);
        }
    }

    private static void statsd(String host, int port, int number) {
        try (StatsDClient client =
                new NonBlockingStatsDClientBuilder()
                        .prefix("shop")
                        .hostname(host)
                        .port(port)
                        .blocking(true) // nothing is dropped, and close waits
                        .enableTelemetry(false)
                        .enableAggregation(false)
                        .originDetectionEnabled(false)
                        .build()) {
            for (int i = 0; i < number; i++) {
                client.count("orders", 2, "env:test");
                client.recordGaugeValue("load", i);
                client.recordExecutionTime("latency", i);
                client.recordDistributionValue("size", i, "env:test");
                client.recordSetValue("users", "user" + i % 3);
            }
        }
    }

    private static void push(String address, int number) {
        try (ZContext context = new ZContext()) {
            ZMQ.Socket out = context.createSocket(SocketType.PUSH);
            out.setLinger(60_000);
            out.connect(address);
            for (int i = 0; i < number; i++) {
                out.sendMore("k" + i % 3);
                out.send("value " + i);
            }
        }
    }

    private static void pull(String address, int number) {
        try (ZContext context = new ZContext()) {
            ZMQ.Socket in = context.createSocket(SocketType.PULL);
            in.connect(address);
            for (int i = 0; i < number; i++) {
                String key = new String(in.recv(), StandardCharsets.UTF_8);
                System.out.println(key + " " + new String(in.recv(), StandardCharsets.UTF_8));
            }
        }
    }
}
