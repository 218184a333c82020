import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;

import org.opensearch.common.settings.Settings;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;
import org.opensearch.transport.Netty4Plugin;

/** A single node of OpenSearch that answers on HTTP: DIRECTORY PORT. */
public final class OpenSearchProgram {
    private static final class SingleNode extends Node {
        SingleNode(Settings settings) {
            super(
                InternalSettingsPreparer.prepareEnvironment(settings, Map.of(), null, () -> "node"),
                List.of(Netty4Plugin.class),
                false);
        }
    }

    public static void main(String[] arguments) throws Exception {
        Path directory = Path.of(arguments[0]);
        Files.createDirectories(directory.resolve("config"));
        Settings settings = Settings.builder()
            .put("path.home", directory.toString())
            .put("discovery.type", "single-node")
            .put("node.name", "node")
            .put("http.host", "127.0.0.1")
            .put("http.port", arguments[1])
            .put("transport.host", "127.0.0.1")
            .put("transport.port", "0")
            .put("transport.type", "netty4")
            .put("http.type", "netty4")
            .put("cluster.routing.allocation.disk.threshold_enabled", false)
            .build();
        new SingleNode(settings).start();
        System.out.println("started");
        new CountDownLatch(1).await();
    }
}
