"use strict";
// What is hidden, colours, and how numbers are written. The elements: view/page/elements.js.

const PALETTE = 6;

// Systems that the reader has switched off, in all figures at once.
const shown = {
  off: new Set(),
  listeners: new Set(),
  has: (key) => !shown.off.has(key),
  toggle(key) {
    if (!shown.off.delete(key)) shown.off.add(key);
    shown.listeners.forEach((listener) => listener());
  },
};

// A system has the same colour and shape everywhere; what is no system is grey.
function colorOf(series) {
  const place = DATA.systems.indexOf(series.key);
  return place < 0 || series.key.startsWith("oracle") ? "grey" : `c${place % PALETTE}`;
}

function shapeOf(series) {
  const place = DATA.systems.indexOf(series.key);
  return ["circle", "square", "triangle", "diamond", "down", "cross"][Math.max(place, 0) % PALETTE];
}

const count = (number, word) => `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;
const percent = (share) => (share === null || share === undefined ? "–" : (100 * share).toFixed(2));

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 100) return `${seconds.toFixed(1)} s`;
  if (seconds < 5400) return `${(seconds / 60).toFixed(1)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}
