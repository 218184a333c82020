import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.connector.source.lib.NumberSequenceSource;
import org.apache.flink.cep.CEP;
import org.apache.flink.cep.functions.PatternProcessFunction;
import org.apache.flink.cep.nfa.aftermatch.AfterMatchSkipStrategy;
import org.apache.flink.cep.pattern.Pattern;
import org.apache.flink.cep.pattern.conditions.IterativeCondition;
import org.apache.flink.cep.pattern.conditions.SimpleCondition;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;

/**
 * Flink CEP: one job for each line "pattern keys rows until" of the input. Rows are computed and have
 * a watermark of a second. State is on the heap, with a checkpoint every ten seconds. Matches that
 * ended before `until` are counted.
 */
public class FlinkPatterns {
    /** A row. Public fields and an empty constructor: Flink serializes it without Kryo. */
    public static class Row {
        public long id;
        public long key;
        public long u;

        public Row() {}

        Row(long id, long keys) {
            this.id = id;
            this.key = id * 7919 % keys;
            this.u = ((id % 1000003) * (id % 1000003) * 31 + id * 17) % 100003 % 100;
        }
    }

    // The local cluster runs in this process.
    static final AtomicLong matches = new AtomicLong();
    static final AtomicLong rows = new AtomicLong();
    static final AtomicLong began = new AtomicLong();
    static final AtomicLong ended = new AtomicLong();

    static class Count extends PatternProcessFunction<Row, Long> {
        final String last;
        final long until;

        Count(String last, long until) {
            this.last = last;
            this.until = until;
        }

        @Override
        public void processMatch(Map<String, List<Row>> found, Context context, Collector<Long> out) {
            long end = found.get(last).get(0).id;
            if (end >= until) return;
            matches.incrementAndGet();
            for (List<Row> some : found.values()) rows.addAndGet(some.size());
            began.addAndGet(found.get("A").get(0).id);
            ended.addAndGet(end);
            out.collect(end);
        }
    }

    /** The row compared with the one before it in the match. */
    static class Compared extends IterativeCondition<Row> {
        final boolean rises;

        Compared(boolean rises) {
            this.rises = rises;
        }

        @Override
        public boolean filter(Row row, Context<Row> context) throws Exception {
            Row before = null;
            for (Row it : context.getEventsForPattern("B")) before = it;
            if (before == null) before = context.getEventsForPattern("A").iterator().next();
            return rises ? row.u > before.u : row.u < before.u;
        }
    }

    static Pattern<Row, Row> pattern(String name) {
        AfterMatchSkipStrategy skip = AfterMatchSkipStrategy.skipPastLastEvent();
        Pattern<Row, Row> begin = Pattern.<Row>begin("A", skip);
        Pattern<Row, Row> found;
        switch (name) {
            case "p1":
                found = begin.where(SimpleCondition.of(row -> row.u < 10))
                    .next("B").where(SimpleCondition.of(row -> row.u >= 10 && row.u < 60))
                    .oneOrMore().consecutive().greedy()
                    .next("C").where(SimpleCondition.of(row -> row.u >= 60));
                break;
            case "p2":
                found = begin.where(SimpleCondition.of(row -> row.u < 3))
                    .next("B").where(SimpleCondition.of(row -> row.u >= 95));
                break;
            case "v":
                found = begin.next("B").where(new Compared(false))
                    .oneOrMore().consecutive().greedy()
                    .next("C").where(new Compared(true));
                break;
            default:
                throw new IllegalArgumentException(name);
        }
        return found.within(Duration.ofMinutes(1));
    }

    static void run(String name, long keys, long count, long until, String directory) throws Exception {
        Configuration settings = new Configuration();
        settings.setString("execution.checkpointing.interval", "10 s");
        settings.setString("execution.checkpointing.dir", "file://" + directory);
        StreamExecutionEnvironment environment =
            StreamExecutionEnvironment.createLocalEnvironment(1, settings);
        environment.getConfig().enableObjectReuse();
        for (AtomicLong it : List.of(matches, rows, began, ended)) it.set(0);
        var events = environment
            .fromSource(new NumberSequenceSource(0, count - 1), WatermarkStrategy.noWatermarks(), "numbers")
            .map(id -> new Row(id, keys)).returns(Row.class)
            .assignTimestampsAndWatermarks(
                WatermarkStrategy.<Row>forBoundedOutOfOrderness(Duration.ofSeconds(1))
                    .withTimestampAssigner((row, before) -> row.id))
            .keyBy(row -> row.key);
        CEP.pattern(events, pattern(name))
            .process(new Count(name.equals("p2") ? "B" : "C", until), TypeInformation.of(Long.class))
            .sinkTo(new DiscardingSink<>());
        environment.execute(name);
        System.out.printf("{\"matches\": %d, \"rows\": %d, \"began\": %d, \"ended\": %d}%n",
            matches.get(), rows.get(), began.get(), ended.get());
        System.out.flush();
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] it = line.split(" ");
            run(it[0], Long.parseLong(it[1]), Long.parseLong(it[2]), Long.parseLong(it[3]), arguments[0]);
        }
    }
}
