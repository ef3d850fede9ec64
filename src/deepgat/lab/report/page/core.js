"use strict";
// Data, elements, and what is hidden. Everything that comes from a run is set as text, never as markup.

const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = document.getElementById("namespace").namespaceURI;
const PALETTE = 6;

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

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
