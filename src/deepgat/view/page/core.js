"use strict";
// The graph, its predictions, colours and state.

const TYPES = { u8: Uint8Array, u16: Uint16Array, i16: Int16Array, u32: Uint32Array };

function unpack({ type, data }) {
  const text = atob(data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new TYPES[type](bytes.buffer);
}

const byId = (id) => document.getElementById(id);
const number = (value) => value.toLocaleString("en");
const count = (value, word) => `${number(value)} ${word}${value === 1 ? "" : "s"}`;
const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)}%`;
const short = (text, most) => (text.length <= most ? text : `${text.slice(0, most - 1)}…`);
// Ids often differ in their last letters: the middle is left out.
const shortId = (text, most) => (text.length <= most ? text : `${text.slice(0, Math.ceil((most - 1) / 2))}…${text.slice(-Math.floor((most - 1) / 2))}`);

// ---------------------------------------------------------------- the graph and the predictions

const N = DATA.nodes.count;
const C = DATA.classes.length;
const LABEL = unpack(DATA.nodes.label);
const PART = unpack(DATA.nodes.part);
const WHOLE = DATA.nodes.whole === null ? null : unpack(DATA.nodes.whole);
const POSITION = unpack(DATA.nodes.position);
const PTR = unpack(DATA.edges.ptr);
const SOURCE = unpack(DATA.edges.source);
const PREDICTED = DATA.predictions.class.map(unpack);
const CONFIDENCE = DATA.predictions.confidence.map(unpack);
const LAST = PREDICTED.length - 1;
const CLASS = PREDICTED[LAST];
const LIKELIEST = unpack(DATA.predictions.likeliest_class);
const LIKELIEST_SHARE = unpack(DATA.predictions.likeliest_share);
const HAS_LABELS = LABEL.some((label) => label >= 0);

const nodeName = (node) => (DATA.nodes.ids === null ? String(node) : DATA.nodes.ids[node]);
const className = (place) => DATA.classes[place];
const partName = (node) => ["", "training", "validation", "test"][PART[node]];
const isWhole = (node) => WHOLE === null || WHOLE[node] === 1;
const isWrong = (node) => LABEL[node] >= 0 && LABEL[node] !== CLASS[node];

// Positions among the predicting layers from which the class no longer changes.
const SETTLED = new Uint16Array(N);
for (let node = 0; node < N; node++) {
  let place = LAST;
  while (place > 0 && PREDICTED[place - 1][node] === CLASS[node]) place--;
  SETTLED[node] = place;
}

// Attention layers are decoded when they are first shown.
const weightCache = new Map();
function attentionOf(layer) {
  const place = DATA.attention === null ? -1 : DATA.attention.layers.indexOf(layer);
  if (place < 0) return null;
  if (!weightCache.has(place)) {
    const { scale, type, data } = DATA.attention.weights[place];
    const bytes = unpack({ type, data });
    weightCache.set(place, (edge) => scale * (bytes[edge] / 255) ** 2);
  }
  return weightCache.get(place);
}

// What the slider runs over: every layer of which the page has attention or a prediction.
const STEPS = [...new Set([...DATA.predictions.layers, ...(DATA.attention?.layers ?? [])])].sort((a, b) => a - b);

// The last prediction that was made at or before a layer, as a position; −1 before the first.
function predictionAt(layer) {
  let place = LAST;
  while (place >= 0 && DATA.predictions.layers[place] > layer) place--;
  return place;
}

// ---------------------------------------------------------------- colours

const darkMode = matchMedia("(prefers-color-scheme: dark)");
const calm = matchMedia("(prefers-reduced-motion: reduce)");
// Okabe and Ito's colours and three of Tol's, which colour-blind readers can tell apart.
const PALETTES = {
  light: ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#44318d", "#8a8a1f", "#882255", "#44aa99"],
  dark: ["#3f9fe0", "#f0b030", "#1fb58a", "#e196bf", "#8accf4", "#ee7a30", "#9c8cf0", "#bdbd4e", "#cf5c92", "#7fd6c8"],
};
// Cividis, from low to high, without its darkest end on a dark ground.
const RAMPS = {
  light: [[0, 34, 78], [53, 69, 108], [102, 105, 112], [148, 142, 119], [200, 184, 102], [240, 214, 60]],
  dark: [[70, 92, 150], [98, 112, 142], [124, 123, 120], [158, 150, 117], [205, 188, 100], [254, 232, 56]],
};
const theme = () => (darkMode.matches ? "dark" : "light");
const classColor = (place) => PALETTES[theme()][place % 10];
const QUIET = { light: "#c3c9d1", dark: "#474e58" };
const EDGE = { light: "#e3e6ea", dark: "#2b3037" };
const WRONG = { light: "#d55e00", dark: "#ff8f4a" };
const RIGHT = { light: "#8fb8d4", dark: "#3d6f91" };

function rampColor(share) {
  const stops = RAMPS[theme()];
  const at = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const low = Math.min(Math.floor(at), stops.length - 2);
  const mix = stops[low].map((value, k) => Math.round(value + (at - low) * (stops[low + 1][k] - value)));
  return `#${mix.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}

// ---------------------------------------------------------------- state

const state = { node: 0, layer: STEPS[STEPS.length - 1], hops: 1, color: "predicted", selection: null };
const listeners = [];
const listen = (keys, action) => listeners.push([keys, action]);

function change(changes) {
  const changed = Object.keys(changes).filter((key) => state[key] !== changes[key]);
  Object.assign(state, changes);
  for (const [keys, action] of listeners) if (keys.some((key) => changed.includes(key))) action();
}

darkMode.addEventListener("change", () => listeners.forEach(([, action]) => action()));

function select(title, test) {
  const nodes = [];
  for (let node = 0; node < N; node++) if (test(node)) nodes.push(node);
  change({ selection: { title, nodes, set: new Set(nodes) } });
}

const swatch = (color) => svg("svg", { class: "swatch", viewBox: "0 0 10 10", "aria-hidden": "true" },
  svg("circle", { cx: 5, cy: 5, r: 5, fill: color }));

function nodeButton(node, attributes = {}) {
  return el("button", { type: "button", class: "chip", ...attributes, onclick: () => change({ node }) },
    swatch(classColor(CLASS[node])), el("bdi", {}, nodeName(node)));
}
