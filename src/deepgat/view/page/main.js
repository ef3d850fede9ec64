"use strict";
// The summary, the notes, and the start.

function buildSummary() {
  const { nodes, edges } = DATA.graph;
  const system = DATA.system.members.length ? `ensemble of ${DATA.system.members.map((member) => member.name).join(", ")}` : DATA.system.name;
  const said = [`${system}, ${count(DATA.layers, "layer")}`, `${count(nodes, "node")}, ${count(edges, "edge")}`, `${number(C)} ${C === 1 ? "class" : "classes"}`];
  const scores = ["test", "val", "train"].filter((part) => DATA.scores[part]).map((part) =>
    el("span", { class: "score" }, el("strong", {}, percent(DATA.scores[part].micro_f1)), ` ${{ test: "test", val: "validation", train: "training" }[part]}`));
  byId("summary").append(el("span", {}, said.join(" · ")), ...scores);
}

function buildNotes() {
  const notes = [...DATA.notes];
  const speaker = DATA.system.members.find((member) => member.speaks);
  if (speaker) {
    notes.push(`Layers and attention are those of the heaviest member, ${speaker.name} (${percent(speaker.share, 0)} of the vote). Predictions after the last layer are the ensemble's.`);
  }
  const { attention, predictions } = DATA;
  if (attention && attention.layers.length < attention.of) {
    notes.push(`To keep this page small it holds the attention of ${attention.layers.length} of ${attention.of} layers: ${attention.layers.join(", ")}.`);
  }
  if (predictions.layers.length < predictions.of) {
    notes.push(`To keep this page small it holds the predictions of ${predictions.layers.length} of ${predictions.of} layers.`);
  }
  byId("notes").append(...notes.map((note) => el("p", { class: "note boxed" }, note)));
}

function buildAbout() {
  const size = document.documentElement.outerHTML.length / 1e6;
  byId("about-text").append(
    el("p", {}, `Positions on the map are ${DATA.layout} of the nodes' states after the last layer${DATA.layout === "t-SNE" ? ": nodes side by side are alike, but distances between clusters mean little" : ". Outliers are drawn at its border"}.`),
    el("p", {}, `Attention is the mean over heads, stored in 8 bits. Probabilities are calibrated on validation nodes. The split is ${DATA.split}. The page has ${size.toFixed(1)} MB and asks the network for nothing. Made by deepgat ${DATA.version}.`),
    el("p", { class: "keys" }, el("kbd", {}, "/"), " finds a node, ", el("kbd", {}, "Esc"), " clears the selection. On the map: arrows move, ", el("kbd", {}, "+"), " and ", el("kbd", {}, "−"), " zoom; click it and the wheel zooms too."));
}

// A page opens with a node worth a look: one that is wrong, and that changed its mind most often.
function firstNode() {
  const asked = decodeURIComponent(location.hash.startsWith("#node=") ? location.hash.slice(6) : "");
  let best = 0, most = -1;
  for (let node = 0; node < N; node++) {
    if (asked && nodeName(node) === asked) return node;
    const worth = isWhole(node) * (1 + 100 * isWrong(node) * (PART[node] === 3) + 3 * changesOf(node).length + Math.min(PTR[node + 1] - PTR[node], 12));
    if (worth > most) [best, most] = [node, worth];
  }
  return best;
}

function start() {
  try { state.node = firstNode(); } catch { state.node = 0; } // a hash that is no text
  buildSummary();
  buildNotes();
  buildSearch();
  buildMap();
  buildNode();
  buildConfusion();
  buildDepth();
  buildLeaderboard();
  buildAbout();
  listen(["node"], () => history.replaceState(null, "", `#node=${encodeURIComponent(nodeName(state.node).toWellFormed?.() ?? "")}`));
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") change({ selection: null }); });
}

start();
