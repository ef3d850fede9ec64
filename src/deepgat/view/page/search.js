"use strict";
// Find a node by its id: / focuses, arrows choose, Enter shows.

const MOST_FOUND = 8;

function findNodes(text) {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return [];
  const exact = [], first = [], inside = [];
  for (let node = 0; node < N; node++) {
    const place = nodeName(node).toLowerCase().indexOf(wanted);
    if (place < 0) continue;
    if (nodeName(node).length === wanted.length) exact.push(node);
    else if (place === 0) first.push(node);
    else if (inside.length < MOST_FOUND) inside.push(node);
    if (exact.length + first.length > 20 * MOST_FOUND) break;
  }
  return [...exact, ...first, ...inside].slice(0, MOST_FOUND);
}

function buildSearch() {
  let found = [], chosen = -1;
  const input = el("input", {
    id: "search-input", type: "text", role: "combobox", autocomplete: "off", autocapitalize: "off", spellcheck: "false",
    placeholder: "Find a node by its id", "aria-label": "Find a node by its id", "aria-expanded": "false",
    "aria-controls": "search-list", "aria-autocomplete": "list",
  });
  const list = el("ul", { id: "search-list", role: "listbox", "aria-label": "Nodes found", hidden: true });
  const status = el("p", { class: "unseen", role: "status" });

  function draw() {
    const open = found.length > 0 || input.value.trim() !== "";
    list.hidden = !open;
    input.setAttribute("aria-expanded", String(open));
    if (chosen >= 0) input.setAttribute("aria-activedescendant", `found-${chosen}`);
    else input.removeAttribute("aria-activedescendant");
    const rows = found.map((node, place) => el("li", {
      id: `found-${place}`, role: "option", "aria-selected": String(place === chosen),
      onmousedown: (event) => { event.preventDefault(); pick(node); },
    }, swatch(classColor(CLASS[node])), el("bdi", { class: "id" }, nodeName(node)),
    el("span", { class: "quiet" }, [className(CLASS[node]), partName(node)].filter(Boolean).join(" · "))));
    if (!rows.length && open) rows.push(el("li", { class: "quiet none" }, "No node has this in its id."));
    list.replaceChildren(...rows);
    status.textContent = open ? count(found.length, "node") : "";
  }

  function pick(node) {
    found = [];
    chosen = -1;
    input.value = "";
    draw();
    change({ node });
    byId("node").focus({ preventScroll: true });
    byId("node").scrollIntoView({ block: "nearest", behavior: calm.matches ? "instant" : "smooth" });
  }

  input.addEventListener("input", () => {
    found = findNodes(input.value);
    chosen = found.length ? 0 : -1;
    draw();
  });
  input.addEventListener("blur", () => { list.hidden = true; input.setAttribute("aria-expanded", "false"); });
  input.addEventListener("focus", draw);
  input.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && found.length) {
      chosen = (chosen + step + found.length) % found.length;
      event.preventDefault();
      draw();
    } else if (event.key === "Enter" && chosen >= 0) {
      event.preventDefault();
      pick(found[chosen]);
    } else if (event.key === "Escape") {
      input.value = "";
      found = [];
      chosen = -1;
      draw();
      input.blur();
      event.stopPropagation();
    }
  });
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, select, textarea");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      input.focus();
    }
  });
  byId("search").append(input, el("kbd", { "aria-hidden": "true", title: "Press / to search" }, "/"), list, status);
}
