// Pages of records: details below a row, the live tail, search with progress, forms.
"use strict";
addEventListener("DOMContentLoaded", () => { // after console.js
  const ui = window.console_ui;
  const ROWS_MAX = 1000; // in the browser; older ones leave the page
  const find = (selector, root = document) => root.querySelector(selector);

  // The field for an offset or a time is needed only for some starts.
  const start = find("[data-start]");
  if (start) {
    const at = find("[data-at]");
    const update = (changed) => {
      const needed = ["offset", "time", "as-of"].includes(start.value);
      at.hidden = !needed;
      at.querySelector("span").textContent = start.value === "offset" ? "Offset" : "Time";
      at.querySelector("input").placeholder = start.value === "offset" ? "17" : "15m · yesterday · 2026-11-14T08:30";
      if (changed) at.querySelector("input").value = "";
      // A position of a page stays only as long as its start does.
      if (["before", "from"].includes(start.value)) at.hidden = true;
    };
    start.addEventListener("change", () => { update(true); if (!at.hidden) at.querySelector("input").focus(); });
    update(false);
  }

  const kind = find("[data-search-kind]");
  if (kind) {
    const update = () => {
      for (const element of ui.all("[data-kind]")) element.dataset.kind = kind.value;
      const q = find("input[name=q]");
      q.placeholder = kind.value === "sql" ? q.dataset.placeholderSql : kind.value === "text" ? q.dataset.placeholderText : "";
    };
    kind.addEventListener("change", update);
    update();
  }

  // Details of a record, below its row.
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-unfold]");
    if (button) unfold(button);
  });
  async function unfold(button) {
    const row = button.closest("tr");
    const open = row.nextElementSibling;
    if (open?.classList.contains("details")) {
      open.remove();
      button.setAttribute("aria-expanded", "false");
      return;
    }
    const cell = ui.make("td", { colspan: row.children.length });
    const details = ui.make("tr", { class: "details" }, cell);
    row.after(details);
    button.setAttribute("aria-expanded", "true");
    cell.textContent = "Loading…";
    try {
      const answer = await fetch(`${button.dataset.unfold}?fragment=1`);
      const text = await answer.text();
      if (answer.ok) cell.innerHTML = text;
      else cell.textContent = `${answer.status}: the record cannot be shown.`;
    } catch { cell.textContent = "The console does not answer."; }
    ui.prepare(cell);
  }

  // Rows as HTML of the server, which escaped it.
  function rowsOf(html) {
    const body = document.createElement("tbody");
    body.innerHTML = html;
    ui.prepare(body);
    return [...body.children];
  }

  const problem = (place, text) => place.replaceChildren(...(text ? [ui.make("div", { class: "problem" }, text)] : []));
  const withParameter = (address, name, value) => {
    const url = new URL(address, location.origin);
    if (value) url.searchParams.set(name, value); else url.searchParams.delete(name);
    return url.pathname + url.search;
  };
  const number = (value) => value.toLocaleString("en");

  // The live tail.
  const tail = find("[data-tail]");
  if (tail) {
    const body = find("[data-tail-rows]");
    const count = find("[data-live-count]");
    const pause = find("[data-live-pause]");
    const trouble = find("[data-live-problem]");
    let at = new URL(tail.dataset.tail, location.origin).searchParams.get("at") ?? "";
    let shown = 0, skipped = 0, source = null;
    const tell = () => {
      count.textContent = shown || skipped
        ? `${number(shown)} shown${skipped ? `, ${number(skipped)} more came in between` : ""}`
        : "Waiting for records";
    };
    const connect = () => {
      source = new EventSource(withParameter(tail.dataset.tail, "at", at));
      source.addEventListener("records", (event) => {
        const found = JSON.parse(event.data);
        at = found.at || at;
        shown += found.count;
        skipped += found.skipped;
        const rows = rowsOf(found.html);
        for (const row of rows) row.classList.add("fresh");
        body.prepend(...rows);
        while (body.children.length > ROWS_MAX) body.lastElementChild.remove();
        problem(trouble, "");
        tell();
      });
      source.addEventListener("problem", (event) => problem(trouble, JSON.parse(event.data)));
      source.onerror = () => {
        source.close(); // a new one continues at the last position
        if (pause.dataset.paused || document.hidden) return;
        problem(trouble, "The console does not answer. Trying again…");
        setTimeout(() => { if (!pause.dataset.paused && source.readyState === EventSource.CLOSED) connect(); }, 2000);
      };
    };
    pause.addEventListener("click", () => {
      if (pause.dataset.paused) { delete pause.dataset.paused; pause.textContent = "Pause"; connect(); return; }
      pause.dataset.paused = "1";
      pause.textContent = "Continue";
      source?.close();
    });
    // In the background it reads nothing, and goes on where it was.
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) source?.close();
      else if (!pause.dataset.paused && source?.readyState === EventSource.CLOSED) connect();
    });
    find("[data-live-clear]").addEventListener("click", () => { body.replaceChildren(); shown = skipped = 0; tell(); });
    connect();
  }

  // Search: hits as they come, progress, cancel, continue.
  const results = find("[data-hits]");
  if (results) {
    const body = find("[data-hit-rows]");
    const bar = find("[data-progress]");
    const text = find("[data-progress-text]");
    const status = find("[data-search-status]");
    const trouble = find("[data-search-problem]");
    const cancel = find("[data-cancel]");
    const again = find("[data-continue]");
    let cursor = "", hits = 0, source = null, last = null;
    const span = (seconds) => seconds < 1 ? "less than 1 s" : seconds < 90 ? `${Math.round(seconds)} s` : `${Math.round(seconds / 60)} min`;
    const size = (bytes) => ui.shown(bytes, "bytes");
    function finish(words, can_continue) {
      source?.close();
      source = null;
      cancel.hidden = true;
      again.hidden = !(can_continue && cursor);
      const searched = last ? ` ${number(last.scanned)} of ${number(last.total)} offsets, ${size(last.bytes)} in ${span(last.seconds)}.` : "";
      text.textContent = `${words} ${number(hits)} ${hits === 1 ? "hit" : "hits"}.${searched}`;
      status.textContent = text.textContent;
      find("[data-no-hits]").hidden = hits > 0 || !trouble.matches(":empty");
      results.dataset.state = "done";
    }
    function connect() {
      results.dataset.state = "running";
      cancel.hidden = false;
      again.hidden = true;
      find("[data-no-hits]").hidden = true;
      problem(trouble, "");
      source = new EventSource(withParameter(results.dataset.hits, "cursor", cursor));
      source.addEventListener("hits", (event) => {
        const found = JSON.parse(event.data);
        hits += found.count;
        body.append(...rowsOf(found.html));
      });
      source.addEventListener("progress", (event) => {
        last = JSON.parse(event.data);
        cursor = last.cursor;
        bar.value = last.total ? last.scanned / last.total : 1;
        const rest = last.remaining === null || last.scanned >= last.total ? "" : `, ${span(last.remaining)} left`;
        text.textContent = `${number(hits)} ${hits === 1 ? "hit" : "hits"} · ${number(last.scanned)} of ${number(last.total)} offsets · ${ui.shown(last.rate, "rate")}${rest}`;
      });
      source.addEventListener("done", (event) => {
        const reason = JSON.parse(event.data);
        if (reason === "end") { cursor = ""; bar.value = 1; finish("Finished.", false); }
        else finish(reason === "limit" ? "Enough found." : "Cancelled.", true);
      });
      source.addEventListener("problem", (event) => { problem(trouble, JSON.parse(event.data)); finish("Stopped.", true); });
      source.onerror = () => { problem(trouble, "The connection to the console was lost."); finish("Stopped.", true); };
    }
    cancel.addEventListener("click", () => finish("Cancelled.", true));
    again.addEventListener("click", connect);
    addEventListener("pagehide", () => source?.close());
    connect();
  }

  // A file into the text of records to produce; its content never leaves the form otherwise.
  for (const input of ui.all("[data-file-into]")) {
    input.addEventListener("change", async () => {
      const target = document.getElementById(input.dataset.fileInto);
      if (input.files[0] && target) target.value = await input.files[0].text();
    });
  }
});
