// What pages need besides htmx: dialogs, copying, keys, local times, JSON trees, charts.
// Pages' own scripts find helpers in `window.console_ui`. No inline code: see guards.py.
"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const make = (name, attributes = {}, ...children) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  };

  // Dialogs, menu, copying: one listener for all, also for what is swapped in later.
  document.addEventListener("click", (event) => {
    const at = (selector) => event.target.closest(selector);
    let found;
    if ((found = at("[data-opens]"))) document.getElementById(found.dataset.opens)?.showModal();
    else if (at("[data-closes]")) at("dialog").close();
    else if (at("[data-help]")) document.getElementById("help").showModal();
    else if ((found = at("[data-menu]"))) {
      const open = found.closest(".side").classList.toggle("open");
      found.setAttribute("aria-expanded", open);
    } else if ((found = at("[data-copy]"))) copy(found);
    else if (event.target instanceof HTMLDialogElement && event.target.open) {
      const box = event.target.getBoundingClientRect();
      const inside = event.clientX >= box.left && event.clientX <= box.right
        && event.clientY >= box.top && event.clientY <= box.bottom;
      if (!inside && event.detail > 0) event.target.close();
    }
  });

  async function copy(button) {
    const text = button.dataset.copy;
    try {
      await navigator.clipboard.writeText(text);
    } catch { // without TLS, browsers have no clipboard but for localhost
      const area = make("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    const before = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = before; }, 1500);
  }

  // A name that must be typed: the button waits for it, and the server checks it again.
  document.addEventListener("input", (event) => {
    const expected = event.target.dataset?.expects;
    if (expected === undefined) return;
    event.target.setCustomValidity(event.target.value === expected ? "" : "Type the name exactly");
  });

  // Keys: `/` to search, `g` and a letter for pages, `j` and `k` for rows.
  let afterG = 0;
  const isTyping = (element) => element.closest("input, textarea, select, [contenteditable]");
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    if (document.querySelector("dialog[open]")) return;
    const key = event.key;
    if (afterG && Date.now() - afterG < 1500) {
      afterG = 0;
      const link = document.querySelector(`[data-shortcut="${CSS.escape(key)}"]`);
      if (link) { event.preventDefault(); link.click(); return; }
    }
    if (key === "g") afterG = Date.now();
    else if (key === "/") {
      const search = document.querySelector("[data-search]");
      if (search) { event.preventDefault(); search.focus(); search.select(); }
    } else if (key === "?") document.getElementById("help")?.showModal();
    else if (key === "j" || key === "k") move(key === "j" ? 1 : -1);
    else if (key === "Enter" && event.target === document.body) {
      document.querySelector("tr.chosen a")?.click();
    }
  });

  function move(step) {
    const rows = all("main tbody tr");
    if (!rows.length) return;
    const now = rows.findIndex((row) => row.classList.contains("chosen"));
    const next = Math.max(0, Math.min(rows.length - 1, now < 0 ? 0 : now + step));
    rows.forEach((row, index) => row.classList.toggle("chosen", index === next));
    rows[next].scrollIntoView({ block: "nearest" });
  }

  // Moments in the browser's time zone; UTC stays in the title.
  const pad = (number, width = 2) => String(number).padStart(width, "0");
  function localTimes(root) {
    for (const element of all("time[data-ms]", root)) {
      const when = new Date(Number(element.dataset.ms));
      if (Number.isNaN(when.getTime())) continue;
      element.textContent = `${when.getFullYear()}-${pad(when.getMonth() + 1)}-${pad(when.getDate())} `
        + `${pad(when.getHours())}:${pad(when.getMinutes())}:${pad(when.getSeconds())}.${pad(when.getMilliseconds(), 3)}`;
    }
  }

  // JSON as a tree of <details>. Numbers keep their digits: the text is split, not parsed.
  const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null|[{}[\],:]/g;
  const TREE_CHARACTERS_MAX = 200_000;
  const TREE_DEPTH_MAX = 100;
  function jsonTree(element) {
    if (element.dataset.drawn) return;
    element.dataset.drawn = "1";
    const text = element.textContent;
    if (text.length > TREE_CHARACTERS_MAX) return;
    try { JSON.parse(text); } catch { return; }
    const tokens = text.match(TOKEN);
    const open = Number(element.dataset.json);
    let at = 0;
    const value = (depth) => {
      const token = tokens[at++];
      if (token !== "{" && token !== "[") {
        return make("span", { class: token[0] === '"' ? "string" : "literal" }, token);
      }
      const end = token === "{" ? "}" : "]";
      if (tokens[at] === end) { at++; return make("span", {}, token + end); }
      if (depth > TREE_DEPTH_MAX) throw new Error("too deep");
      const inside = make("span", { class: "inside" });
      let count = 0;
      do {
        const line = make("div");
        if (token === "{") { line.append(make("span", { class: "key" }, tokens[at]), ": "); at += 2; }
        line.append(value(depth + 1));
        if (tokens[at] === ",") line.append(",");
        inside.append(line);
        count++;
      } while (tokens[at++] === ",");
      const summary = make("summary", {}, token, make("small", {}, ` ${count} `));
      const details = make("details", depth < open ? { open: "" } : {}, summary, inside);
      return make("span", {}, details, end);
    };
    try { element.replaceChildren(value(0)); } catch { element.textContent = text; }
  }

  // Charts: uPlot, with the colours of the page.
  const COLOURS = ["--accent", "--info", "--warn", "--bad", "--good", "--muted"];
  function colour(name) {
    const probe = make("span");
    document.body.append(probe);
    probe.style.color = `var(${name})`;
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  }
  const SIZES = ["B", "KB", "MB", "GB", "TB"];
  function shown(value, unit) {
    if (value == null) return "–";
    if (unit === "bytes" || unit === "bytes-rate") {
      let index = 0;
      while (Math.abs(value) >= 1024 && index < SIZES.length - 1) { value /= 1024; index++; }
      return `${+value.toFixed(value < 10 && index ? 1 : 0)} ${SIZES[index]}${unit === "bytes" ? "" : "/s"}`;
    }
    const text = Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(value);
    return unit === "rate" ? `${text}/s` : unit === "ms" ? `${text} ms` : text;
  }
  const BINARY = Array.from({ length: 50 }, (_, power) => 2 ** power);
  const clock = (seconds, exact) => {
    const when = new Date(seconds * 1000);
    return `${pad(when.getHours())}:${pad(when.getMinutes())}${exact ? `:${pad(when.getSeconds())}` : ""}`;
  };
  // At least half a minute. Of one sample, uPlot would draw the day that begins with it.
  const span = (times, first, last) => {
    const newest = times.length < 2 ? times[0] ?? last : last;
    return times.length < 2 || last - first < 30 ? [newest - 30, newest] : [first, last];
  };
  async function chart(figure) {
    if (figure.dataset.drawn || !window.uPlot) return;
    figure.dataset.drawn = "1";
    const plot = figure.querySelector(".plot");
    const unit = figure.dataset.unit;
    const reading = figure.querySelector(".reading");
    let drawn = null;
    let data = null;
    const read = (index) => { // what the cursor is at, or else the newest value
      if (!reading || !data.times.length) return;
      const at = index ?? data.times.length - 1;
      const values = data.series.map((it) => shown(it.values[at], unit)).join(", ");
      reading.textContent = index == null ? values : `${clock(data.times[at], true)}  ${values}`;
    };
    const draw = (next) => {
      data = next;
      const columns = [data.times, ...data.series.map((it) => it.values)];
      read(null);
      if (drawn && drawn.series.length === columns.length) { drawn.setData(columns); return; }
      drawn?.destroy();
      const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
      drawn = new uPlot({
        width: Math.max(200, plot.clientWidth),
        height: 180,
        cursor: { y: false },
        legend: { show: data.series.length > 1, live: false },
        hooks: { setCursor: [(it) => read(it.cursor.idx)] },
        scales: { x: { range: (_, first, last) => span(data.times, first, last) }, y: { range: (_, least, most) => [Math.min(0, least ?? 0), Math.max(most ?? 0, 1) * 1.08] } },
        axes: [
          { ...axis, size: 30, values: (_, times, __, ___, step) => times.map((it) => clock(it, step < 60)) },
          { ...axis, size: 64, incrs: unit.startsWith("bytes") ? BINARY : undefined, values: (_, values) => values.map((it) => shown(it, unit)) },
        ],
        series: [{}, ...data.series.map((it, index) => ({
          label: it.label, stroke: colour(COLOURS[index % COLOURS.length]), width: 1.6, points: { show: () => data.times.length === 1 }, // a line needs two
          value: (_, value) => shown(value, unit),
        }))],
      }, columns, plot);
    };
    new ResizeObserver(() => drawn?.setSize({ width: Math.max(200, plot.clientWidth), height: 180 })).observe(plot);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      drawn?.destroy();
      drawn = null;
      if (data) draw(data);
    });
    if (figure.dataset.event) {
      document.querySelector("[data-live]")?.addEventListener(figure.dataset.event, (event) => draw(JSON.parse(event.detail.data)));
    }
    try {
      const answer = await fetch(figure.dataset.chart, { headers: { Accept: "application/json" } });
      if (answer.ok) draw(await answer.json());
    } catch { /* the page says that the console cannot be reached */ }
  }

  function prepare(root) {
    // Moments that are typed mean the browser's time zone.
    for (const field of all("[data-zone]", root)) field.value = String(-new Date().getTimezoneOffset());
    localTimes(root);
    all("pre[data-json]", root).forEach(jsonTree);
    all("[data-chart]", root).forEach(chart);
  }

  // Live parts: what htmx swapped in, and a console that cannot be reached. htmx reconnects a stream
  // that was there once; the first connection is tried again here. An answer that is no stream, such
  // as a refusal, would otherwise take the place of the page.
  const GONE = "The console does not answer. What you see may be out of date.";
  const LOGGED_OUT = "You are logged out. Reload the page to log in.";
  const RETRY_MS = 500;
  const RETRY_MS_MAX = 10_000;
  let failed = 0;
  function warn(text) {
    const place = document.getElementById("live-problem");
    if (place && !place.querySelector("[data-unreachable]")) place.append(make("div", { class: "problem", "data-unreachable": "" }, text));
  }
  const isLive = (element) => element instanceof Element && element.matches("[data-live]");
  const isStreaming = (element) => Boolean(element._htmx?.sse);
  function connect(element) {
    if (!element.isConnected || isStreaming(element)) return;
    if (document.hidden) document.addEventListener("visibilitychange", () => connect(element), { once: true });
    else htmx.ajax("GET", element.getAttribute("hx-sse:connect"), { source: element });
  }
  document.addEventListener("htmx:after:swap", () => prepare(document));
  document.addEventListener("htmx:after:request", (event) => {
    if (!isLive(event.target)) return;
    event.preventDefault();
    const { text, response } = event.detail.ctx;
    const said = new DOMParser().parseFromString(text, "text/html").body.textContent.trim();
    warn(response.status === 401 ? LOGGED_OUT : said || GONE);
  });
  document.addEventListener("htmx:finally:request", (event) => {
    if (!isLive(event.target) || isStreaming(event.target)) return;
    warn(GONE);
    setTimeout(connect, Math.min(RETRY_MS * 2 ** failed++, RETRY_MS_MAX), event.target);
  });
  document.addEventListener("htmx:sse:error", (event) => warn(event.detail.status === 401 ? LOGGED_OUT : GONE));
  document.addEventListener("htmx:sse:after:connection", () => {
    failed = 0;
    all("[data-unreachable]").forEach((note) => note.remove());
  });

  window.console_ui = { all, make, prepare, shown, colour, span };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", () => prepare(document));
  else prepare(document);
})();
