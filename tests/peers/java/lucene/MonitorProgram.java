import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.lucene.analysis.Analyzer;
import org.apache.lucene.analysis.standard.StandardAnalyzer;
import org.apache.lucene.document.Document;
import org.apache.lucene.document.DoublePoint;
import org.apache.lucene.document.Field;
import org.apache.lucene.document.StringField;
import org.apache.lucene.document.TextField;
import org.apache.lucene.index.Term;
import org.apache.lucene.monitor.MatchingQueries;
import org.apache.lucene.monitor.Monitor;
import org.apache.lucene.monitor.MonitorConfiguration;
import org.apache.lucene.monitor.MonitorQuery;
import org.apache.lucene.monitor.QueryMatch;
import org.apache.lucene.monitor.TermFilteredPresearcher;
import org.apache.lucene.search.BooleanClause.Occur;
import org.apache.lucene.search.BooleanQuery;
import org.apache.lucene.search.Query;
import org.apache.lucene.search.TermQuery;

/**
 * Lucene Monitor with stored queries, event by event, which is its fastest form.
 *
 * <p>Lines of standard input: the queries, as {"id": "q1", "clauses": [clause, ...]} with clauses
 * {"occur": "must" or "not", "field": "auction", "term": "3"} or {..., "field": "price", "low": 1.5,
 * "high": null}; an empty line; events as {"text": "...", "price": 2.5, "auction": 3}; an empty
 * line. Strings are analysed, integers are terms, and other numbers are points. Then, each line
 * asks for a round over all events: "match" answers {"seconds": CPU, "hits": count}, and "show" the
 * ids of the queries that match each event.
 */
public final class MonitorProgram {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final Analyzer ANALYZER = new StandardAnalyzer();

  public static void main(String[] arguments) throws Exception {
    BufferedReader in =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    Monitor monitor =
        new Monitor(
            ANALYZER, new TermFilteredPresearcher(), new MonitorConfiguration());
    List<MonitorQuery> queries = new ArrayList<>();
    for (String line = in.readLine(); !line.isEmpty(); line = in.readLine()) {
      JsonNode query = JSON.readTree(line);
      queries.add(new MonitorQuery(query.get("id").asText(), query(query.get("clauses"))));
    }
    monitor.register(queries);
    List<Document> events = new ArrayList<>();
    for (String line = in.readLine(); !line.isEmpty(); line = in.readLine()) {
      events.add(document(JSON.readTree(line)));
    }
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      System.out.println(
          line.equals("show") ? JSON.writeValueAsString(ids(monitor, events)) : run(monitor, events));
    }
  }

  private static Query query(JsonNode clauses) {
    BooleanQuery.Builder builder = new BooleanQuery.Builder();
    for (JsonNode clause : clauses) {
      Occur occur = clause.get("occur").asText().equals("not") ? Occur.MUST_NOT : Occur.MUST;
      builder.add(clause(clause), occur);
    }
    return builder.build();
  }

  private static Query clause(JsonNode clause) {
    String field = clause.get("field").asText();
    if (clause.has("term")) {
      return new TermQuery(new Term(field, clause.get("term").asText()));
    }
    double low = clause.get("low").asDouble(Double.NEGATIVE_INFINITY);
    double high = clause.get("high").asDouble(Double.POSITIVE_INFINITY);
    return DoublePoint.newRangeQuery(field, low, high);
  }

  private static Document document(JsonNode event) {
    Document document = new Document();
    event
        .fields()
        .forEachRemaining(
            it -> {
              JsonNode value = it.getValue();
              if (value.isTextual()) {
                document.add(new TextField(it.getKey(), value.asText(), Field.Store.NO));
              } else if (value.isIntegralNumber()) {
                document.add(new StringField(it.getKey(), value.asText(), Field.Store.NO));
              } else if (value.isNumber()) {
                document.add(new DoublePoint(it.getKey(), value.asDouble()));
              }
            });
    return document;
  }

  private static String run(Monitor monitor, List<Document> events) throws Exception {
    var bean =
        (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    long started = bean.getProcessCpuTime();
    long hits = 0;
    for (Document event : events) {
      hits += monitor.match(event, QueryMatch.SIMPLE_MATCHER).getMatchCount();
    }
    double seconds = (bean.getProcessCpuTime() - started) / 1e9;
    return "{\"seconds\": " + seconds + ", \"hits\": " + hits + "}";
  }

  private static List<List<String>> ids(Monitor monitor, List<Document> events) throws Exception {
    List<List<String>> found = new ArrayList<>();
    for (Document event : events) {
      MatchingQueries<QueryMatch> matches = monitor.match(event, QueryMatch.SIMPLE_MATCHER);
      List<String> ids = new ArrayList<>();
      matches.getMatches().forEach(it -> ids.add(it.getQueryId()));
      found.add(ids);
    }
    return found;
  }
}
