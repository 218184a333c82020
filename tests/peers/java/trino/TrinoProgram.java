import com.fasterxml.jackson.databind.ObjectMapper;
import io.trino.testing.LocalQueryRunner;
import io.trino.testing.MaterializedRow;
import io.trino.testing.TestingSession;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/**
 * Runs queries on Trino without a server: each line of input is a query as a JSON string, each line
 * of output its rows, {"rows": [[...], ...]}, or {"error": "..."}. Values are numbers, booleans,
 * strings or null.
 */
public class TrinoProgram {
    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        System.setOut(System.err);
        ObjectMapper json = new ObjectMapper();
        LocalQueryRunner trino = LocalQueryRunner.create(TestingSession.testSessionBuilder().build());
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            out.println(json.writeValueAsString(answer(trino, json.readValue(line, String.class))));
            out.flush();
        }
        System.exit(0);
    }

    private static Map<String, Object> answer(LocalQueryRunner trino, String query) {
        try {
            List<List<Object>> rows = new ArrayList<>();
            for (MaterializedRow row : trino.execute(query).getMaterializedRows()) {
                List<Object> values = new ArrayList<>();
                for (Object value : row.getFields()) {
                    boolean isPlain = value == null || value instanceof Number || value instanceof Boolean;
                    values.add(isPlain ? value : value.toString());
                }
                rows.add(values);
            }
            return Map.of("rows", rows);
        } catch (RuntimeException error) {
            return Map.of("error", String.valueOf(error.getMessage()));
        }
    }
}
