// The page of a pipeline: its graph, drawn from the list of its nodes, and charts that go on.
// dagre places the nodes; the list stays below as text, for readers without a picture.
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const WIDTH = 204;
  const LINE = 18;
  const TITLE_CHARACTERS = 24;
  const SCALE_MIN = 0.72; // smaller text is hard to read: then the graph scrolls
  const make = (name, attributes = {}, ...children) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  };

  // Words in lines that fit; what is too much ends with dots.
  function lines(text, most) {
    const found = [];
    let line = "";
    for (const word of text.split(/\s+/)) {
      if (line && `${line} ${word}`.length > TITLE_CHARACTERS) { found.push(line); line = word; }
      else line = line ? `${line} ${word}` : word;
    }
    found.push(line);
    const cut = found.slice(0, most).map((it) => (it.length > TITLE_CHARACTERS ? `${it.slice(0, TITLE_CHARACTERS - 1)}…` : it));
    if (found.length > most) cut[most - 1] = `${cut[most - 1].slice(0, TITLE_CHARACTERS - 1)}…`;
    return cut;
  }

  function read(list) {
    return [...list.querySelectorAll("[data-node]")].map((item) => ({
      id: item.dataset.node,
      kind: item.dataset.kind,
      inputs: item.dataset.inputs ? item.dataset.inputs.split(" ") : [],
      flow: item.dataset.flow,
      flowing: "flowing" in item.dataset,
      grows: "grows" in item.dataset,
      headline: item.querySelector("[data-headline]")?.textContent ?? "",
      title: lines(item.querySelector("[data-title]").textContent.trim(), 3),
      path: item.querySelector("[data-title] a")?.getAttribute("href") ?? "",
      facts: [...item.querySelectorAll("[data-fact]")].map((fact) => ({ text: fact.textContent.trim(), tone: fact.dataset.tone })),
    }));
  }

  const height = (node) => 20 + LINE * ((node.headline ? 1 : 0) + node.title.length + node.facts.length);

  function layout(nodes) {
    const narrow = matchMedia("(max-width: 44rem)").matches;
    const graph = new dagre.graphlib.Graph();
    graph.setGraph({ rankdir: narrow ? "TB" : "LR", nodesep: 22, ranksep: narrow ? 46 : 72, marginx: 8, marginy: 8 });
    graph.setDefaultEdgeLabel(() => ({}));
    for (const node of nodes) graph.setNode(node.id, { width: WIDTH, height: height(node) });
    for (const node of nodes) for (const input of node.inputs) graph.setEdge(input, node.id);
    dagre.layout(graph);
    return graph;
  }

  function drawNode(node, place) {
    const group = make("g", { class: `node ${node.kind}${node.grows ? " grows" : ""}`, transform: `translate(${place.x - WIDTH / 2} ${place.y - place.height / 2})` });
    group.append(make("rect", { width: WIDTH, height: place.height, rx: 7 }));
    group.append(make("rect", { class: "bar", width: 4, height: place.height - 14, x: 0, y: 7, rx: 2 }));
    let y = 10;
    const text = (content, kind) => {
      y += LINE;
      group.append(make("text", { x: 14, y: y - 5, class: kind }, content));
    };
    if (node.headline) text(node.headline, "headline");
    node.title.forEach((line) => text(line, "title"));
    node.facts.forEach((fact) => text(fact.text, `fact ${fact.tone}`));
    if (!node.path) return group;
    const link = make("a", { href: node.path }, group);
    return link;
  }

  function drawEdge(from, to, edge) {
    const points = edge.points;
    const [first, ...rest] = points;
    let path = `M ${first.x} ${first.y}`;
    for (let index = 0; index < rest.length - 1; index++) {
      const middle = { x: (rest[index].x + rest[index + 1].x) / 2, y: (rest[index].y + rest[index + 1].y) / 2 };
      const end = index === rest.length - 2 ? rest[index + 1] : middle;
      path += ` Q ${rest[index].x} ${rest[index].y} ${end.x} ${end.y}`;
    }
    if (rest.length === 1) path += ` L ${rest[0].x} ${rest[0].y}`;
    const flowing = to.kind !== "letters" && from.flowing && (to.kind !== "sink" || to.flowing);
    const group = make("g", { class: `edge ${to.kind}${flowing ? " flows" : ""}` });
    group.append(make("path", { d: path, "marker-end": "url(#arrow)" }));
    const flow = to.kind === "sink" ? to.flow : from.kind === "source" && to.kind !== "letters" ? from.flow : "";
    if (flow) {
      const at = points[Math.floor(points.length / 2)];
      group.append(make("text", { x: at.x, y: at.y - 7, class: "flow" }, flow));
    }
    return group;
  }

  let drawn = "";
  function draw() {
    const place = document.querySelector("[data-graph]");
    const list = document.getElementById(place?.dataset.graph ?? "");
    if (!place || !list || !window.dagre) return;
    const nodes = read(list);
    const narrow = matchMedia("(max-width: 44rem)").matches;
    const now = JSON.stringify([nodes, narrow, document.documentElement.clientWidth]);
    if (now === drawn) return;
    drawn = now;
    const byId = new Map(nodes.map((node) => [node.id, node]));
    const graph = layout(nodes);
    const { width, height: tall } = graph.graph();
    place.hidden = false; // it has a width then
    const scale = Math.max(SCALE_MIN, Math.min(1, (place.clientWidth - 20) / width));
    const svg = make("svg", { viewBox: `0 0 ${width} ${tall}`, width: width * scale, height: tall * scale, role: "group", "aria-label": "Steps of the pipeline; the list below says the same" });
    const arrow = make("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse" }, make("path", { d: "M 0 0 L 8 4 L 0 8 z" }));
    svg.append(make("defs", {}, arrow));
    for (const { v, w } of graph.edges()) svg.append(drawEdge(byId.get(v), byId.get(w), graph.edge(v, w)));
    for (const node of nodes) svg.append(drawNode(node, graph.node(node.id)));
    const left = place.scrollLeft;
    const first = !place.firstChild;
    place.replaceChildren(svg);
    place.scrollLeft = left;
    if (first) document.querySelector(".graph-text")?.removeAttribute("open");
  }

  // Charts: what came since, as the events that they listen to.
  let asked = 0;
  async function refreshCharts() {
    const place = document.querySelector("[data-history]");
    const target = document.querySelector("[data-live]");
    if (!place || !target || document.hidden || Date.now() - asked < 3000) return;
    asked = Date.now();
    try {
      const answer = await fetch(place.dataset.history, { headers: { Accept: "application/json" } });
      if (!answer.ok) return;
      for (const [name, chart] of Object.entries(await answer.json())) {
        target.dispatchEvent(new CustomEvent(`history-${name}`, { detail: { data: JSON.stringify(chart) } }));
      }
    } catch { /* the page says that the console cannot be reached */ }
  }

  document.addEventListener("htmx:after:swap", () => { draw(); refreshCharts(); });
  addEventListener("resize", draw);
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", draw);
  else draw();
})();
