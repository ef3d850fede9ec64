"use strict";
// One node: facts, neighbourhood, what every layer predicts, and whom it listens to.

const MOST_ROWS = 10;
let view = null;

function changesOf(node) {
  const turns = [];
  for (let place = 1; place <= LAST; place++) {
    if (PREDICTED[place][node] !== PREDICTED[place - 1][node]) turns.push(place);
  }
  return turns;
}

function mindText(node) {
  if (!LAST) return "Only the last layer of this system predicts.";
  const turns = changesOf(node);
  if (!turns.length) return "No layer changed its mind.";
  const told = turns.slice(0, 4).map((place) =>
    `${className(PREDICTED[place - 1][node])} → ${className(PREDICTED[place][node])} in layer ${DATA.predictions.layers[place]}`);
  const more = turns.length > 4 ? `, and ${turns.length - 4} more` : "";
  return `Changed its mind ${turns.length === 1 ? "once" : `${turns.length} times`}: ${told.join(", ")}${more}.`;
}

function classTag(place, word) {
  return el("div", { class: "fact" }, el("dt", {}, word), el("dd", {}, place < 0 ? el("span", { class: "quiet" }, "unknown")
    : el("span", { class: "tag" }, swatch(classColor(place)), el("bdi", {}, className(place)))));
}

function facts(node) {
  const verdict = LABEL[node] < 0 ? null : el("span", { class: isWrong(node) ? "badge wrong" : "badge right" }, isWrong(node) ? "wrong" : "right");
  return el("dl", { class: "facts" }, classTag(CLASS[node], "predicted"), classTag(LABEL[node], "true class"),
    el("div", { class: "fact" }, el("dt", {}, "confidence"), el("dd", {}, percent(CONFIDENCE[LAST][node] / 255, 0))),
    el("div", { class: "fact" }, el("dt", {}, "part"), el("dd", {}, partName(node) || "none", " ", verdict)));
}

function bar(share, title) {
  const inner = el("span", { class: "bar" });
  inner.style.width = `${Math.max(0, Math.min(100, 100 * share))}%`;
  return el("span", { class: "track", title }, inner);
}

function likeliest(node) {
  const k = DATA.predictions.likeliest;
  const rows = Array.from({ length: k }, (_, i) => [LIKELIEST[node * k + i], LIKELIEST_SHARE[node * k + i] / 255]);
  return el("table", { class: "plain" }, el("caption", {}, "Likeliest classes after the last layer"),
    el("tbody", {}, ...rows.map(([place, share]) => el("tr", {},
      el("th", { scope: "row" }, el("span", { class: "tag" }, swatch(classColor(place)), el("bdi", {}, className(place)))),
      el("td", { class: "wide" }, bar(share, percent(share))), el("td", { class: "num" }, percent(share, 0))))));
}

function layerStrip(node) {
  const list = el("ol", { class: "strip", "aria-label": "Prediction of every layer" });
  DATA.predictions.layers.forEach((layer, place) => {
    const now = PREDICTED[place][node];
    const turned = place > 0 && PREDICTED[place - 1][node] !== now;
    const sure = CONFIDENCE[place][node] / 255;
    const button = el("button", {
      type: "button", class: turned ? "turned" : "", "data-layer": layer, onclick: () => change({ layer }),
      "aria-label": `Layer ${layer}: ${className(now)}, ${percent(sure, 0)}${turned ? ", changed" : ""}`,
      title: `Layer ${layer}: ${className(now)}, ${percent(sure)}`,
    }, el("span", { class: "layer" }, String(layer)), swatch(classColor(now)), el("bdi", { class: "name" }, short(className(now), 9)), bar(sure));
    list.append(el("li", {}, button));
  });
  return list;
}

function neighborTable(node) {
  const weight = attentionOf(state.layer);
  const place = Math.max(predictionAt(state.layer), 0);
  let edges = listened(node);
  if (weight) edges.sort((a, b) => weight(b) - weight(a));
  const more = edges.length - MOST_ROWS;
  edges = edges.slice(0, MOST_ROWS);
  const loop = selfEdge(node);
  if (weight && loop >= 0) edges.unshift(loop);
  const most = weight ? Math.max(...edges.map(weight), 1e-9) : 1;
  const rows = edges.map((edge) => {
    const other = SOURCE[edge];
    return el("tr", {}, el("th", { scope: "row" }, other === node ? "itself" : nodeButton(other)),
      el("td", {}, el("bdi", {}, short(className(PREDICTED[place][other]), 24))),
      ...(weight ? [el("td", { class: "wide" }, bar(weight(edge) / most)), el("td", { class: "num" }, percent(weight(edge)))] : []));
  });
  const head = el("tr", {}, el("th", { scope: "col" }, "node"), el("th", { scope: "col" }, "predicted"),
    ...(weight ? [el("th", { scope: "col" }, "attention"), el("td", { class: "spare" })] : []));
  const caption = weight ? `Whom it listens to in layer ${state.layer}` : "Its neighbours";
  return el("table", { class: "plain" }, el("caption", {}, caption + (more > 0 ? `; ${number(more)} more are not listed` : "")),
    el("thead", {}, head), el("tbody", {}, ...rows));
}

function edgeText() {
  if (DATA.attention === null) {
    const why = DATA.attention_missing ? "This page does not hold the attention. " : `${DATA.system.name} has no attention. `;
    return `${why}Edges are drawn plainly.`;
  }
  if (attentionOf(state.layer) === null) {
    return state.layer === 0 ? "Before the first layer there is no attention: edges are drawn plainly."
      : "This page does not hold the attention of this layer: edges are drawn plainly.";
  }
  if (DATA.attention.fixed) return `Edge width is the weight of a neighbour, which in ${DATA.system.name} follows from the graph and is not learned.`;
  return "Edge width is attention; the ring around the node is what it pays to itself.";
}

function drawLayer() {
  if (!view) return;
  view.update(state.layer);
  byId("layer-output").textContent = `layer ${state.layer}`;
  byId("layer-slider").value = String(STEPS.indexOf(state.layer));
  byId("edge-text").textContent = edgeText();
  for (const button of document.querySelectorAll(".strip button")) {
    button.setAttribute("aria-pressed", String(Number(button.dataset.layer) === DATA.predictions.layers[predictionAt(state.layer)]));
  }
  byId("neighbors").replaceChildren(neighborTable(state.node));
}

function slider() {
  const input = el("input", {
    id: "layer-slider", type: "range", min: "0", max: String(STEPS.length - 1), step: "1", list: null,
    oninput: (event) => change({ layer: STEPS[Number(event.target.value)] }),
  });
  return el("div", { class: "slider" }, el("label", { for: "layer-slider" }, "Layer"), input, el("output", { id: "layer-output", for: "layer-slider" }));
}

function hopChoice() {
  const row = el("div", { class: "choices small", role: "radiogroup", "aria-label": "Size of the neighbourhood" });
  for (const hops of [1, 2]) {
    const input = el("input", { type: "radio", name: "hops", value: String(hops), onchange: () => change({ hops }) });
    input.checked = state.hops === hops;
    row.append(el("label", {}, input, el("span", {}, count(hops, "hop"))));
  }
  return row;
}

function drawNode() {
  const node = state.node;
  const card = byId("node");
  const title = el("h2", { id: "node-title" }, "Node ", el("bdi", {}, nodeName(node)));
  const parts = [title, facts(node)];
  view = null;
  if (isWhole(node)) {
    view = drawNeighborhood(node, state.hops);
    const hidden = view.hidden ? ` ${count(view.hidden, "neighbour")} with less weight ${view.hidden === 1 ? "is" : "are"} not drawn.` : "";
    parts.push(el("div", { class: "bar-row" }, slider(), hopChoice()), view.picture,
      el("p", { class: "note" }, el("span", { id: "edge-text" }), hidden));
  } else {
    parts.push(el("p", { class: "note empty" }, "This page does not hold the edges of this node: it is the neighbour of a node that was drawn at random."));
  }
  parts.push(el("h3", {}, "What every layer predicts"), el("p", { id: "mind" }, mindText(node)));
  if (LAST) parts.push(layerStrip(node));
  parts.push(el("div", { class: "tables" }, likeliest(node), el("div", { id: "neighbors" })));
  card.replaceChildren(...parts);
  drawLayer();
}

function buildNode() {
  listen(["node", "hops"], drawNode);
  listen(["layer"], drawLayer);
  drawNode();
}
