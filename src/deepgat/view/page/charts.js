"use strict";
// The confusion matrix, the charts by layer, and the leaderboard.

const MOST_MATRIX = 24;
const PARTS = { 3: "Test nodes", 2: "Validation nodes", 1: "Training nodes", 0: "All labelled nodes" };

function confusions(part) {
  const cells = new Map();
  const rows = new Array(C).fill(0);
  for (let node = 0; node < N; node++) {
    if (LABEL[node] < 0 || (part && PART[node] !== part)) continue;
    const key = LABEL[node] * C + CLASS[node];
    cells.set(key, (cells.get(key) ?? 0) + 1);
    rows[LABEL[node]]++;
  }
  return { cells, rows };
}

function selectCell(part, label, predicted) {
  const where = part ? PARTS[part].toLowerCase() : "labelled nodes";
  const what = label === predicted ? `${where} of class ${className(label)}, predicted right` : `${where} of class ${className(label)}, predicted ${className(predicted)}`;
  select(what, (node) => LABEL[node] === label && CLASS[node] === predicted && (!part || PART[node] === part));
  byId("map").scrollIntoView({ block: "nearest", behavior: calm.matches ? "instant" : "smooth" });
}

function matrix(part) {
  const { cells, rows } = confusions(part);
  const head = el("tr", {}, el("td", { class: "corner" }), ...DATA.classes.map((name) => el("th", { scope: "col", title: name }, el("bdi", {}, short(name, C > 12 ? 4 : 7)))));
  const body = DATA.classes.map((name, label) => el("tr", {}, el("th", { scope: "row", title: name }, el("bdi", {}, short(name, 12))),
    ...DATA.classes.map((other, predicted) => {
      const size = cells.get(label * C + predicted) ?? 0;
      if (!size) return el("td", { class: "zero" }, "·");
      const button = el("button", {
        type: "button", "data-label": label, "data-predicted": predicted, onclick: () => selectCell(part, label, predicted),
        "aria-label": `${count(size, "node")} of class ${name} predicted ${other}`, class: label === predicted ? "good" : "bad",
      }, String(size));
      const share = size / rows[label];
      button.style.setProperty("--share", `${Math.round(label === predicted ? 8 + 47 * share : 14 + 56 * Math.min(1, 3 * share))}%`);
      return el("td", {}, button);
    })));
  const table = el("table", { class: C > 12 ? "matrix dense" : "matrix" }, el("caption", {}, "Rows: true class. Columns: predicted class. Choose a cell to select its nodes."),
    el("thead", {}, head), el("tbody", {}, ...body));
  table.style.minWidth = `${C * 1.75 + 2.5}rem`;
  return el("div", { class: "matrix-frame" }, table);
}

function worstPairs(part) {
  const { cells } = confusions(part);
  const pairs = [...cells].map(([key, size]) => [Math.floor(key / C), key % C, size]).filter(([a, b]) => a !== b)
    .sort((a, b) => b[2] - a[2]).slice(0, 20);
  return el("table", { class: "plain" }, el("caption", {}, `${C} classes are too many for a matrix: the most frequent confusions`),
    el("thead", {}, el("tr", {}, ...["true class", "predicted", "nodes"].map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, ...pairs.map(([label, predicted, size]) => el("tr", {}, el("td", {}, el("bdi", {}, className(label))), el("td", {}, el("bdi", {}, className(predicted))),
      el("td", {}, el("button", { type: "button", class: "link", onclick: () => selectCell(part, label, predicted) }, number(size)))))));
}

function buildConfusion() {
  const card = byId("confusion");
  const there = [3, 2, 1].filter((part) => LABEL.some((label, node) => label >= 0 && PART[node] === part));
  if (!HAS_LABELS) {
    card.append(el("p", { class: "note" }, "No class of this graph is known, so nothing can be compared."));
    return;
  }
  const holder = el("div", {});
  const draw = (part) => holder.replaceChildren(C > MOST_MATRIX ? worstPairs(part) : matrix(part));
  const choice = el("select", { "aria-label": "Nodes that the matrix counts", onchange: () => draw(Number(choice.value)) },
    ...[...there, 0].map((part) => el("option", { value: String(part) }, PARTS[part])));
  card.append(el("div", { class: "bar-row" }, choice), holder);
  draw(Number(choice.value));
}

// ---------------------------------------------------------------- by layer

const ticksOf = (low, high) => [low, (low + high) / 2, high];

function chart({ title, text, points, top, format, bars, onpick }) {
  const [width, height, left, bottom] = [340, 190, 46, 28];
  const layers = points.map(([layer]) => layer);
  const [first, last] = [Math.min(...layers), Math.max(...layers)];
  const most = top ?? (Math.max(...points.map(([, value]) => value)) || 1);
  const x = (layer) => left + 14 + ((width - left - 28) * (layer - first)) / Math.max(1, last - first);
  const y = (value) => 12 + (height - bottom - 12) * (1 - value / most);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}: ${points.map(([layer, value]) => `layer ${layer} ${format(value)}`).join(", ")}` });
  for (const value of ticksOf(0, most)) {
    picture.append(svg("line", { class: "grid", x1: left, x2: width - 4, y1: y(value), y2: y(value) }),
      svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, format(value)));
  }
  const step = Math.max(1, Math.ceil((last - first) / 8));
  for (let layer = first; layer <= last; layer += step) picture.append(svg("text", { x: x(layer), y: height - 10, "text-anchor": "middle" }, String(layer)));
  if (bars) {
    const thick = Math.min(26, (0.7 * (width - left - 28)) / Math.max(1, last - first));
    for (const [layer, value] of points) {
      const pick = () => onpick(layer);
      picture.append(svg("rect", {
        class: "column", x: x(layer) - thick / 2, y: y(value), width: thick, height: y(0) - y(value) + 0.01, tabindex: value ? "0" : null, role: "button",
        "aria-label": `${number(value)} nodes changed in layer ${layer}`, onclick: pick, onkeydown: (event) => { if (event.key === "Enter") pick(); },
      }, svg("title", {}, `layer ${layer}: ${format(value)}`)));
    }
    picture.setAttribute("role", "group");
  } else {
    picture.append(svg("polyline", { class: "line", points: points.map(([layer, value]) => `${x(layer)},${y(value)}`).join(" ") }));
    for (const [layer, value] of points) {
      picture.append(svg("circle", { class: "point", cx: x(layer), cy: y(value), r: 3.5 }, svg("title", {}, `layer ${layer}: ${format(value)}`)));
    }
  }
  return el("figure", {}, el("figcaption", {}, el("strong", {}, title), el("span", { class: "quiet" }, text)), picture);
}

function measure(name) {
  return DATA.smoothing.filter((row) => Number.isFinite(row[name])).map((row) => [row.layer, row[name]]);
}

const small = (value) => (value === 0 ? "0" : Math.abs(value) < 0.01 || Math.abs(value) >= 10_000 ? value.toExponential(1) : String(Number(value.toPrecision(2))));

function turnedIn(place) {
  return (node) => PREDICTED[place][node] !== PREDICTED[place - 1][node];
}

function buildDepth() {
  const card = byId("depth");
  const figures = el("div", { class: "figures" });
  const add = (title, text, name, options = {}) => {
    const points = measure(name);
    if (points.length > 1) figures.append(chart({ title, text, points, format: small, ...options }));
  };
  add("Relative Dirichlet energy", "How much neighbours differ, for the size of the states; 0 is over-smoothed", "relative_energy");
  add("MAD", "Mean cosine distance of neighbours; 0 is over-smoothed", "neighbor_distance");
  add("Accuracy of every layer", "Micro-F1 of its own prediction on test nodes", "micro_f1", { top: 1, format: (value) => percent(value, 0) });
  if (LAST > 0) {
    const points = [];
    for (let place = 1; place <= LAST; place++) {
      let size = 0;
      const test = turnedIn(place);
      for (let node = 0; node < N; node++) size += test(node);
      points.push([DATA.predictions.layers[place], size]);
    }
    const pick = (layer) => {
      const place = DATA.predictions.layers.indexOf(layer);
      select(`changed their class in layer ${layer}`, turnedIn(place));
      byId("map").scrollIntoView({ block: "nearest", behavior: calm.matches ? "instant" : "smooth" });
    };
    figures.append(chart({ title: "Who changed its mind", text: "Nodes whose class a layer changed; choose a column to select them", points, format: (value) => number(Math.round(value)), bars: true, onpick: pick }));
  }
  card.append(figures);
  if (!figures.children.length) card.append(el("p", { class: "note" }, "There are too few layers to compare, or none was kept."));
  else card.append(numbersTable());
}

function numbersTable() {
  const columns = { layer: "layer", energy: "Dirichlet energy", relative_energy: "relative", neighbor_distance: "MAD", micro_f1: "micro-F1" };
  const cell = (row, name) => (row[name] === undefined || row[name] === null ? "–" : name === "layer" ? String(row.layer) : name === "micro_f1" ? percent(row[name]) : small(row[name]));
  return el("details", {}, el("summary", {}, "The numbers"), el("div", { class: "matrix-frame" }, el("table", { class: "plain" },
    el("thead", {}, el("tr", {}, ...Object.values(columns).map((title) => el("th", { scope: "col" }, title)))),
    el("tbody", {}, ...DATA.smoothing.map((row) => el("tr", {}, ...Object.keys(columns).map((name) => el("td", { class: "num" }, cell(row, name)))))))));
}

// ---------------------------------------------------------------- what auto tried

function buildLeaderboard() {
  const card = byId("leaderboard");
  if (!DATA.leaderboard.length) {
    card.append(el("p", { class: "note" }, "This model was named by its user. A model that auto chose has the list of what was tried here."));
    return;
  }
  const text = (value) => (value === null || value === undefined || value === 0 || value === "" ? "–" : String(value));
  const rows = DATA.leaderboard.map((row) => el("tr", { class: row.outcome === "chosen" ? "chosen" : "" },
    el("th", { scope: "row" }, text(row.name)), el("td", { class: "num" }, text(row.num_layers)),
    el("td", { class: "num" }, typeof row.val === "number" ? (100 * row.val).toFixed(2) : "–"),
    el("td", { class: "num" }, typeof row.seconds === "number" && row.seconds > 0 ? `${row.seconds.toFixed(0)} s` : "–"),
    el("td", {}, text(row.outcome))));
  card.append(el("div", { class: "matrix-frame" }, el("table", { class: "plain" },
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "recipe"), ...["layers", "validation", "time"].map((name) => el("th", { scope: "col", class: "num" }, name)), el("th", { scope: "col" }, "outcome"))),
    el("tbody", {}, ...rows))), el("p", { class: "note" }, "Validation scores in %. Lines that say baseline were not trained."));
}
