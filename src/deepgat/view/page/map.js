"use strict";
// The map of all nodes, drawn by sigma with WebGL.

const MOST_MAP_EDGES = 40_000;
const POINT = N < 500 ? 5 : N < 3000 ? 3.5 : N < 12_000 ? 2.4 : 1.8;
const COLORS = {
  predicted: "Predicted class",
  label: "True class",
  error: "Errors",
  confidence: "Confidence",
  settled: "Layer",
};
const PAN = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
let sigma = null;

function colorOf(node) {
  switch (state.color) {
    case "label": return LABEL[node] < 0 ? QUIET[theme()] : classColor(LABEL[node]);
    case "error": return LABEL[node] < 0 ? QUIET[theme()] : isWrong(node) ? WRONG[theme()] : RIGHT[theme()];
    case "confidence": return rampColor(CONFIDENCE[LAST][node] / 255);
    case "settled": return rampColor(LAST ? SETTLED[node] / LAST : 0);
    default: return classColor(CLASS[node]);
  }
}

function paintMap() {
  if (!sigma) return;
  const chosen = state.selection?.set;
  const pale = QUIET[theme()];
  sigma.getGraph().updateEachNodeAttributes((key, attributes) => {
    const node = Number(key);
    const dim = chosen !== undefined && !chosen.has(node);
    attributes.color = dim ? pale : colorOf(node);
    const loud = (chosen !== undefined && !dim) || (state.color === "error" && isWrong(node));
    attributes.size = dim ? 0.7 * POINT : loud ? 1.5 * POINT : POINT;
    attributes.zIndex = dim ? 0 : loud ? 2 : 1;
    return attributes;
  }, { attributes: ["color", "size", "zIndex"] });
  drawRing();
}

// The node that the other panel shows has a ring around it.
function drawRing() {
  if (!sigma) return;
  const at = sigma.getNodeDisplayData(String(state.node));
  const ring = byId("ring");
  if (!at) return;
  const { x, y } = sigma.framedGraphToViewport(at);
  const { width, height } = sigma.getDimensions();
  ring.hidden = x < 0 || y < 0 || x > width || y > height;
  ring.style.transform = `translate(${x}px, ${y}px)`;
}

function showTip(node) {
  const tip = byId("map-tip");
  if (node === null) { tip.hidden = true; return; }
  const said = [`predicted ${className(CLASS[node])} (${percent(CONFIDENCE[LAST][node] / 255, 0)})`];
  if (LABEL[node] >= 0) said.push(isWrong(node) ? `is ${className(LABEL[node])}` : "right");
  if (PART[node]) said.push(`${partName(node)} node`);
  tip.replaceChildren(el("strong", {}, el("bdi", {}, nodeName(node))), el("span", {}, said.join(" · ")));
  tip.hidden = false;
  const { x, y } = sigma.framedGraphToViewport(sigma.getNodeDisplayData(String(node)));
  const { width } = sigma.getDimensions();
  tip.style.left = `${Math.min(Math.max(x - tip.offsetWidth / 2, 4), Math.max(4, width - tip.offsetWidth - 4))}px`;
  tip.style.top = `${y > 70 ? y - tip.offsetHeight - 12 : y + 14}px`;
}

function setEdges(on) {
  const graph = sigma.getGraph();
  graph.clearEdges();
  if (!on) return;
  const color = EDGE[theme()];
  for (let node = 0; node < N; node++) {
    for (let edge = PTR[node]; edge < PTR[node + 1]; edge++) {
      const other = SOURCE[edge];
      if (other !== node && !graph.hasEdge(other, node)) graph.addEdge(other, node, { color, size: 0.5 });
    }
  }
}

function hasWebGL() {
  return Boolean(document.createElement("canvas").getContext("webgl2"));
}

function startSigma(frame) {
  const graph = new graphology.UndirectedGraph({ allowSelfLoops: false });
  for (let node = 0; node < N; node++) {
    graph.addNode(String(node), { x: POSITION[2 * node] / 65535, y: POSITION[2 * node + 1] / 65535, size: POINT, color: "#888888", zIndex: 1 });
  }
  sigma = new Sigma(graph, frame, {
    renderLabels: false, hideEdgesOnMove: true, defaultEdgeType: "line", zIndex: true, stagePadding: 24,
    minCameraRatio: 0.01, maxCameraRatio: 2, allowInvalidContainer: true, defaultDrawNodeHover: () => {},
    nodeProgramClasses: { circle: Sigma.rendering.NodePointProgram }, // a third of the work of the default
    inertiaDuration: calm.matches ? 0 : 200,
  });
  sigma.on("enterNode", ({ node }) => { frame.classList.add("over"); showTip(Number(node)); });
  sigma.on("leaveNode", () => { frame.classList.remove("over"); showTip(null); });
  sigma.on("clickNode", ({ node }) => change({ node: Number(node) }));
  sigma.on("afterRender", drawRing);
}

function moveMap(action) {
  const camera = sigma.getCamera();
  const options = { duration: calm.matches ? 0 : 200 };
  if (action === "in") camera.animatedZoom(options);
  else if (action === "out") camera.animatedUnzoom(options);
  else if (action === "fit") camera.animatedReset(options);
  else {
    const { x, y, ratio } = camera.getState();
    camera.animate({ x: x + 0.15 * ratio * action[0], y: y + 0.15 * ratio * action[1] }, options);
  }
}

function canColor(name) {
  if (name === "label" || name === "error") return HAS_LABELS;
  return name !== "settled" || LAST > 0;
}

function buildColors() {
  const row = el("div", { class: "choices", role: "radiogroup", "aria-label": "Colour of the nodes" });
  for (const [name, title] of Object.entries(COLORS).filter(([name]) => canColor(name))) {
    const input = el("input", { type: "radio", name: "color", value: name, onchange: () => change({ color: name }) });
    input.checked = name === state.color;
    row.append(el("label", {}, input, el("span", {}, title)));
  }
  return row;
}

function legendItem(color, title, size, test) {
  return el("li", {}, el("button", { type: "button", class: "chip", onclick: () => select(title, test) },
    swatch(color), el("bdi", {}, short(title, 40)), el("span", { class: "quiet" }, number(size))));
}

function tally(values, size) {
  const sums = new Array(size).fill(0);
  for (const value of values) if (value >= 0) sums[value]++;
  return sums;
}

const MOST_LEGEND = 40;
function drawLegend() {
  const list = el("ul", { class: "chips", "aria-label": "Legend: choose an entry to select its nodes" });
  const said = [];
  if (state.color === "predicted" || state.color === "label") {
    const values = state.color === "label" ? LABEL : CLASS;
    tally(values, C).forEach((size, place) => {
      if (place < MOST_LEGEND) list.append(legendItem(classColor(place), className(place), size, (node) => values[node] === place));
    });
    if (C > MOST_LEGEND) said.push(`The other ${C - MOST_LEGEND} classes are not listed.`);
    if (C > 10) said.push("Colours repeat after ten classes: choose a class to see it alone.");
  } else if (state.color === "error") {
    const wrong = tally(Array.from({ length: N }, (_, node) => (LABEL[node] < 0 ? 2 : Number(isWrong(node)))), 3);
    list.append(legendItem(RIGHT[theme()], "right", wrong[0], (node) => LABEL[node] >= 0 && !isWrong(node)));
    list.append(legendItem(WRONG[theme()], "wrong", wrong[1], isWrong));
    if (wrong[2]) list.append(legendItem(QUIET[theme()], "class unknown", wrong[2], (node) => LABEL[node] < 0));
  } else if (state.color === "confidence") {
    for (const [low, high] of [[0, 50], [50, 70], [70, 90], [90, 99], [99, 100]]) {
      const test = (node) => {
        const sure = CONFIDENCE[LAST][node] / 2.55;
        return sure >= low && (sure < high || high === 100);
      };
      let size = 0;
      for (let node = 0; node < N; node++) size += test(node);
      list.append(legendItem(rampColor((low + high) / 200), `${low}–${high}%`, size, test));
    }
  } else {
    tally(SETTLED, LAST + 1).forEach((size, place) => {
      const title = `layer ${DATA.predictions.layers[place]}`;
      list.append(legendItem(rampColor(place / LAST), title, size, (node) => SETTLED[node] === place));
    });
    said.push("The first layer from which a node's predicted class no longer changes.");
  }
  byId("legend").replaceChildren(list, ...(said.length ? [el("p", { class: "note" }, said.join(" "))] : []));
}

const MOST_LISTED = 48;
function drawSelection() {
  const box = byId("selection");
  const chosen = state.selection;
  box.hidden = chosen === null;
  if (chosen === null) return;
  const nodes = chosen.nodes.slice(0, MOST_LISTED).map((node) => el("li", {}, nodeButton(node)));
  const more = chosen.nodes.length - nodes.length;
  box.replaceChildren(
    el("p", { class: "selected", role: "status" }, el("strong", {}, count(chosen.nodes.length, "node")), ": ",
      el("bdi", {}, chosen.title), " ",
      el("button", { type: "button", class: "link", onclick: () => change({ selection: null }) }, "Clear")),
    el("ul", { class: "chips scroll", "aria-label": "Selected nodes" }, ...nodes,
      more > 0 ? el("li", { class: "quiet" }, `and ${number(more)} more`) : null));
}

function buildMap() {
  const card = byId("map");
  card.append(buildColors());
  const frame = el("div", { id: "canvas", tabindex: "0", role: "application", "aria-label": `Map of ${count(N, "node")}: arrows move, plus and minus zoom, 0 shows all` });
  const holder = el("div", { class: "frame" }, frame);
  const legend = el("div", { id: "legend" });
  const selection = el("div", { id: "selection", hidden: true });
  card.append(holder, legend, selection);
  listen(["color"], drawLegend);
  listen(["selection"], drawSelection);
  drawLegend();
  if (!hasWebGL()) {
    holder.replaceChildren(el("p", { class: "note empty" }, "The map needs WebGL, which this browser does not offer. Everything else works without it."));
    return;
  }
  startSigma(frame);
  const buttons = [["in", "+", "Zoom in"], ["out", "−", "Zoom out"], ["fit", "⤢", "Show all"]];
  holder.append(
    el("div", { id: "ring", hidden: true, "aria-hidden": "true" }),
    el("div", { id: "map-tip", class: "tip", hidden: true }),
    el("div", { class: "zoom" }, ...buttons.map(([action, text, title]) =>
      el("button", { type: "button", title, "aria-label": title, onclick: () => moveMap(action) }, text))));
  let awake = false; // the wheel scrolls the page until the map is clicked
  holder.addEventListener("pointerdown", () => { awake = true; });
  holder.addEventListener("pointerleave", () => { awake = false; });
  holder.addEventListener("wheel", (event) => { if (!awake && !event.ctrlKey) event.stopPropagation(); }, { capture: true, passive: true });
  frame.addEventListener("keydown", (event) => {
    const action = PAN[event.key] ?? { "+": "in", "=": "in", "-": "out", 0: "fit" }[event.key];
    if (!action) return;
    event.preventDefault();
    moveMap(action);
  });
  if (SOURCE.length <= MOST_MAP_EDGES) {
    const box = el("input", { type: "checkbox", onchange: () => setEdges(box.checked) });
    box.checked = SOURCE.length <= MOST_MAP_EDGES / 2;
    holder.append(el("label", { class: "edges" }, box, " Edges"));
    const redraw = () => setEdges(box.checked);
    redraw();
    darkMode.addEventListener("change", redraw);
  }
  listen(["color", "selection"], paintMap);
  listen(["node"], drawRing);
  paintMap();
}
