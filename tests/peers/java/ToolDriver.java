import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs the main methods of Apache Kafka's tools, one after another, in one JVM.
 *
 * A command is a line of JSON on stdin: {"main": class, "args": [...], "stdin": text}; its answer a
 * line on stdout: {"code": exit code, "stdout": text, "stderr": text}. Tools leave through Kafka's
 * own Exit class, whose procedures can be replaced: the first exit code counts (some tools catch
 * every Throwable, ours too, and exit again), and shutdown hooks run when the tool is done.
 */
public class ToolDriver {
    private static final ObjectMapper JSON = new ObjectMapper();

    private static final class ToolExit extends Error {
        private static final long serialVersionUID = 1L;
    }

    /** Standard streams that are swapped for each tool: Scala's Console keeps the first one it saw. */
    private static final class Switch extends OutputStream {
        volatile OutputStream target = OutputStream.nullOutputStream();

        @Override
        public void write(int b) throws IOException {
            target.write(b);
        }

        @Override
        public void write(byte[] bytes, int offset, int length) throws IOException {
            target.write(bytes, offset, length);
        }
    }

    private static volatile InputStream input = InputStream.nullInputStream();

    private static final class SwitchInput extends InputStream {
        @Override
        public int read() throws IOException {
            return input.read();
        }

        @Override
        public int read(byte[] bytes, int offset, int length) throws IOException {
            return input.read(bytes, offset, length);
        }

        @Override
        public int available() throws IOException {
            return input.available();
        }
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader commands =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        Switch out = new Switch();
        Switch err = new Switch();
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        System.setIn(new SwitchInput());
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            Map<?, ?> command = JSON.readValue(line, Map.class);
            ByteArrayOutputStream stdout = new ByteArrayOutputStream();
            ByteArrayOutputStream stderr = new ByteArrayOutputStream();
            out.target = stdout;
            err.target = stderr;
            int code = run(command);
            System.out.flush();
            System.err.flush();
            answers.println(JSON.writeValueAsString(Map.of(
                "code", code,
                "stdout", stdout.toString(StandardCharsets.UTF_8),
                "stderr", stderr.toString(StandardCharsets.UTF_8))));
        }
        Runtime.getRuntime().halt(0);
    }

    private static int run(Map<?, ?> command) {
        String[] args = ((List<?>) command.get("args")).toArray(new String[0]);
        input = new ByteArrayInputStream(
            ((String) command.get("stdin")).getBytes(StandardCharsets.UTF_8));
        AtomicReference<Integer> exitCode = new AtomicReference<>();
        List<Runnable> hooks = new ArrayList<>();
        Exit.Procedure leave = (code, message) -> {
            exitCode.compareAndSet(null, code);
            throw new ToolExit();
        };
        Exit.setExitProcedure(leave);
        Exit.setHaltProcedure(leave);
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        try {
            Class.forName((String) command.get("main"))
                .getMethod("main", String[].class)
                .invoke(null, (Object) args);
        } catch (Throwable thrown) {
            if (exitCode.compareAndSet(null, 1)) {
                thrown.printStackTrace();
            }
        }
        hooks.forEach(Runnable::run);
        exitCode.compareAndSet(null, 0);
        return exitCode.get();
    }
}
