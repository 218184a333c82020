import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.common.utils.SecurityUtils;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

/**
 * Asks Apache Kafka's StandardAuthorizer. One line of JSON per case:
 *
 *   {"entries": [[type, name, pattern, principal, host, operation, permission], ...],
 *    "super_users": "User:a", "by_default": false,
 *    "questions": [[principal, host, operation, type, name or null], ...]}
 *
 * answered by a line of one character per question, 1 or 0. Without a name, the question is about
 * any resource of the type.
 */
public class AuthorizerProgram {
    record Client(KafkaPrincipal principal, InetAddress clientAddress)
            implements AuthorizableRequestContext {
        public String listenerName() { return "PLAINTEXT"; }
        public SecurityProtocol securityProtocol() { return SecurityProtocol.PLAINTEXT; }
        public int requestType() { return 0; }
        public int requestVersion() { return 9; }
        public String clientId() { return "test"; }
        public int correlationId() { return 1; }
    }

    public static void main(String[] args) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        String line;
        while ((line = in.readLine()) != null) {
            System.out.println(answer(mapper.readTree(line)));
        }
    }

    static String answer(JsonNode world) throws Exception {
        StandardAuthorizer authorizer = new StandardAuthorizer();
        authorizer.configure(Map.of(
            "node.id", "1",
            "super.users", world.get("super_users").asText(),
            "allow.everyone.if.no.acl.found", world.get("by_default").asText()));
        authorizer.withPluginMetrics(new PluginMetricsImpl(new Metrics(), Map.of()));
        Map<Uuid, StandardAcl> acls = new HashMap<>();
        for (JsonNode it : world.get("entries")) {
            acls.put(Uuid.randomUuid(), new StandardAcl(
                ResourceType.fromCode((byte) it.get(0).asInt()), it.get(1).asText(),
                PatternType.fromCode((byte) it.get(2).asInt()), it.get(3).asText(),
                it.get(4).asText(), AclOperation.fromCode((byte) it.get(5).asInt()),
                AclPermissionType.fromCode((byte) it.get(6).asInt())));
        }
        authorizer.loadSnapshot(acls);
        authorizer.completeInitialLoad();
        StringBuilder answers = new StringBuilder();
        for (JsonNode it : world.get("questions")) {
            Client client = new Client(SecurityUtils.parseKafkaPrincipal(it.get(0).asText()),
                InetAddress.getByName(it.get(1).asText()));
            AclOperation operation = AclOperation.fromCode((byte) it.get(2).asInt());
            ResourceType type = ResourceType.fromCode((byte) it.get(3).asInt());
            AuthorizationResult result = it.get(4).isNull()
                ? authorizer.authorizeByResourceType(client, operation, type)
                : authorizer.authorize(client, List.of(new Action(operation,
                    new ResourcePattern(type, it.get(4).asText(), PatternType.LITERAL),
                    1, true, true))).get(0);
            answers.append(result == AuthorizationResult.ALLOWED ? '1' : '0');
        }
        return answers.toString();
    }
}
