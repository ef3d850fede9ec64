// Figures as SVG, drawn anew at the width they have. The forms of their data: report/charts.py.

const HEIGHT = 260;
const SMALL_HEIGHT = 200;
const SUPERSCRIPTS = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

// ---------------------------------------------------------------- scales

function niceTicks(low, high, wanted) {
  const rough = (high - low || 1) / wanted;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * unit).find((size) => size >= rough);
  const ticks = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-6; tick += step) {
    ticks.push(Number(tick.toPrecision(12)));
  }
  return ticks;
}

function logTicks(low, high, wanted) {
  const first = Math.floor(Math.log10(low));
  const last = Math.ceil(Math.log10(high));
  const every = Math.max(1, Math.ceil((last - first) / wanted));
  const factors = Math.log10(high / low) < 2.2 ? [1, 2, 5] : [1];
  const ticks = [];
  for (let power = first; power <= last; power += every) ticks.push(...factors.map((factor) => factor * 10 ** power));
  return ticks.filter((tick) => tick >= low && tick <= high);
}

function tickText(value, log) {
  if (!log) return value.toLocaleString("en", { maximumFractionDigits: 6 });
  const power = Math.floor(Math.log10(value) + 1e-9);
  if (power >= -3 && power <= 3) return String(Number(value.toPrecision(1)));
  return "10" + [...String(power)].map((digit) => SUPERSCRIPTS[digit]).join("");
}

function verticalScale(values, spec, top, bottom) {
  const log = Boolean(spec.log) && values.length > 0 && values.every((value) => value > 0);
  let low = Math.min(...values);
  let high = Math.max(...values);
  if (!values.length) [low, high] = [0, 1];
  if (log) {
    const room = Math.max(1.15, (high / low) ** 0.05);
    [low, high] = [low / room, high * room];
    const ticks = logTicks(low, high, 6);
    const place = (value) => bottom - ((Math.log10(value) - Math.log10(low)) / (Math.log10(high / low) || 1)) * (bottom - top);
    return { place, ticks, log };
  }
  if (typeof spec.floor === "number") low = Math.min(spec.floor, low);
  else low -= 0.06 * (high - low || 1);
  if (typeof spec.ceiling === "number" && high > 0.5 * spec.ceiling) high = Math.min(Math.max(spec.ceiling, high), spec.ceiling * 1.02);
  else high += 0.06 * (high - low || 1);
  const ticks = niceTicks(low, high, 5);
  const place = (value) => bottom - ((value - low) / (high - low || 1)) * (bottom - top);
  return { place, ticks, log, low, high };
}

// ---------------------------------------------------------------- marks

function mark(shape, x, y, size, attributes) {
  const r = size;
  const paths = {
    square: `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}z`,
    triangle: `M${x} ${y - 1.2 * r}L${x + 1.15 * r} ${y + r}H${x - 1.15 * r}z`,
    down: `M${x} ${y + 1.2 * r}L${x + 1.15 * r} ${y - r}H${x - 1.15 * r}z`,
    diamond: `M${x} ${y - 1.3 * r}L${x + 1.3 * r} ${y}L${x} ${y + 1.3 * r}L${x - 1.3 * r} ${y}z`,
    cross: `M${x - r} ${y - r}L${x + r} ${y + r}M${x + r} ${y - r}L${x - r} ${y + r}`,
  };
  if (shape === "circle") return svg("circle", { cx: x, cy: y, r, ...attributes });
  return svg("path", { d: paths[shape], ...attributes });
}

function seriesMark(series, x, y, size) {
  if (series.hollow) return mark(shapeOf(series), x, y, size + 2.5, { class: `mark stroke ${colorOf(series)}` });
  return mark(shapeOf(series), x, y, size, { class: `mark fill ${colorOf(series)}` });
}

const dashes = (series) => (series.dash ? "5 4" : null);

function legendKey(series) {
  const line = svg("line", { x1: 1, x2: 27, y1: 7, y2: 7, class: `stroke ${colorOf(series)}`, "stroke-width": 2, "stroke-dasharray": dashes(series) });
  return svg("svg", { viewBox: "0 0 28 14", "aria-hidden": "true" }, line, seriesMark(series, 14, 7, 3.5));
}

// ---------------------------------------------------------------- the frame of every figure

// Buttons that switch series off; published numbers go with their system. Without series: as before.
function drawLegend(list, series) {
  if (series) list.entries = series.filter((item) => !item.hollow);
  const focused = [...list.querySelectorAll("button")].indexOf(document.activeElement);
  list.replaceChildren(
    ...list.entries.map((item) =>
      el("li", {},
        el("button", { type: "button", "aria-pressed": String(shown.has(item.key)), onclick: () => shown.toggle(item.key) },
          legendKey(item), item.label)),
    ),
  );
  if (focused >= 0) list.querySelectorAll("button")[focused].focus();
}

function chart(spec, small = false) {
  const { series } = spec;
  const tip = el("div", { class: "tip", role: "status", "aria-live": "polite", hidden: true });
  const plot = el("div", { class: "plot" });
  const legend = el("ul", { class: "legend", "aria-label": "Show or hide" });
  const figure = el(
    "figure",
    { id: `figure-${spec.name}` },
    el("figcaption", {}, el("h3", {}, spec.title)),
    plot,
    small ? null : legend,
    spec.note ? el("p", { class: "note" }, spec.note) : null,
  );
  let width = 0;
  let cursor = -1;

  const stops = () => drawing.stops;
  let drawing = { stops: [] };

  function draw() {
    if (!width) return;
    const height = small ? SMALL_HEIGHT : HEIGHT;
    const root = svg("svg", {
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      role: "group",
      tabindex: 0,
      "aria-roledescription": "figure",
      "aria-label": `${spec.title}: ${spec.y} against ${spec.x}. Arrow keys read the numbers, Enter lists the runs.`,
      onpointermove: (event) => point(nearestStop(event), event),
      onpointerdown: (event) => point(nearestStop(event), event),
      onpointerleave: () => point(-1),
      onblur: () => point(-1),
      onclick: (event) => openRuns(nearestRow(event)),
      onkeydown: pressed,
    });
    const visible = series.filter((item) => shown.has(item.key));
    drawing = drawLines(root, spec, visible, width, height);
    const focused = plot.contains(document.activeElement);
    plot.replaceChildren(root, tip);
    if (focused) root.focus();
    point(Math.min(cursor, drawing.stops.length - 1));
  }

  function nearestStop(event) {
    const x = place(event)[0];
    const distances = stops().map((stop) => Math.abs(stop.x - x));
    return distances.indexOf(Math.min(...distances));
  }

  function place(event) {
    const box = plot.firstChild.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * width, event.clientY - box.top];
  }

  function nearestRow(event) {
    const stop = stops()[nearestStop(event)];
    if (!stop) return null;
    const y = place(event)[1];
    const rows = stop.rows.filter((row) => row.runs && row.runs.length);
    return rows.sort((one, other) => Math.abs(one.y - y) - Math.abs(other.y - y))[0];
  }

  function openRuns(row) {
    if (row && row.runs.length) showRuns(`${spec.title}: ${row.label}, ${row.text}`, row.runs);
  }

  function pressed(event) {
    const last = stops().length - 1;
    const next = { ArrowRight: Math.min(cursor + 1, last), ArrowLeft: Math.max(cursor - 1, 0), Home: 0, End: last }[event.key];
    if (event.key === "Escape") point(-1);
    else if (event.key === "Enter" && stops()[cursor]) openRuns(stops()[cursor].rows.find((row) => row.runs && row.runs.length));
    else if (next !== undefined) point(next);
    else return;
    event.preventDefault();
  }

  function point(index) {
    cursor = index;
    const stop = stops()[index];
    plot.querySelectorAll(".cursor").forEach((line) => line.remove());
    tip.hidden = !stop;
    if (!stop) return;
    const root = plot.firstChild;
    root.append(svg("line", { class: "cursor", x1: stop.x, x2: stop.x, y1: drawing.top, y2: drawing.bottom }));
    tip.replaceChildren(
      el("strong", {}, stop.title),
      ...stop.rows.map((row) =>
        el("div", {}, el("i", { class: `${row.color} ${row.hollow ? "hollow" : ""}` }), el("span", {}, row.label), el("b", {}, row.text)),
      ),
    );
    const scale = root.getBoundingClientRect().width / width;
    const room = plot.clientWidth - tip.offsetWidth;
    const right = stop.x * scale + 12;
    tip.style.left = `${Math.max(0, right <= room ? right : Math.min(room, stop.x * scale - tip.offsetWidth - 12))}px`;
    tip.style.top = `${drawing.top}px`;
  }

  const update = () => {
    drawLegend(legend, series);
    draw();
  };
  update();
  shown.listeners.add(update);
  const observer = new ResizeObserver(([entry]) => {
    const now = Math.floor(entry.contentRect.width);
    if (now !== width) {
      width = now;
      requestAnimationFrame(draw); // at once, it would resize what is being observed
    }
  });
  observer.observe(plot);
  figure.discard = () => {
    shown.listeners.delete(update);
    observer.disconnect();
  };
  return figure;
}

// Labels that do not touch: all of them, else every second, third, ... counted from the last.
function sparse(ticks) {
  const half = (tick) => 3.6 * tick.text.length + 2;
  for (let every = 1; every < ticks.length; every += 1) {
    const kept = ticks.filter((tick, index) => (ticks.length - 1 - index) % every === 0);
    if (kept.every((tick, index) => !index || kept[index - 1].x + half(kept[index - 1]) <= tick.x - half(tick))) return kept;
  }
  return ticks.slice(-1);
}

// Axes and grid; returns where things are.
function frame(root, spec, values, width, height, xTicks) {
  const top = 26;
  const bottom = height - 42;
  const scale = verticalScale(values, spec, top, bottom);
  const texts = scale.ticks.map((tick) => tickText(tick, scale.log));
  const left = 12 + 7 * Math.max(...texts.map((text) => text.length), 1);
  const right = width - 10;
  root.append(svg("rect", { x: 0, y: 0, width, height, fill: "transparent" }));
  root.append(svg("text", { x: 0, y: 12 }, spec.y));
  scale.ticks.forEach((tick, index) => {
    const y = scale.place(tick);
    root.append(svg("line", { class: "grid", x1: left, x2: right, y1: y, y2: y }));
    root.append(svg("text", { x: left - 6, y: y + 4, "text-anchor": "end" }, texts[index]));
  });
  root.append(svg("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }));
  const ticks = xTicks(left, right);
  for (const { x, text } of sparse(ticks)) root.append(svg("text", { x, y: bottom + 17, "text-anchor": "middle" }, text));
  root.append(svg("text", { x: (left + right) / 2, y: height - 6, "text-anchor": "middle" }, spec.x));
  return { scale, left, right, top, bottom, ticks };
}

// ---------------------------------------------------------------- lines

function drawLines(root, spec, visible, width, height) {
  const all = spec.series.flatMap((item) => item.points.map((p) => p[0]));
  const xs = [...new Set(all)].sort((one, other) => one - other);
  const [first, last] = [xs[0], xs[xs.length - 1]];
  const drawn = visible.length ? visible : spec.series;
  const inside = (value) => value !== null && (typeof spec.floor !== "number" || value >= spec.floor || spec.floor !== 0);
  const values = drawn.flatMap((item) => item.points.flatMap((p) => [p[1], p[2], p[3]].filter(inside)));
  let at = null;
  const axes = frame(root, spec, spec.ceiling ? values.map((v) => Math.min(v, spec.ceiling)) : values, width, height, (left, right) => {
    at = (x) => (first === last ? (left + right) / 2 : left + 12 + ((x - first) / (last - first)) * (right - left - 24));
    return xs.map((x) => ({ x: at(x), text: String(x) }));
  });
  const { scale, top, bottom } = axes;
  const y = (value) => Math.min(Math.max(scale.place(value), top), bottom);
  for (const item of visible) {
    const points = item.points.filter((p) => p[1] !== null);
    const color = colorOf(item);
    const banded = points.filter((p) => p[2] !== null && p[3] !== null && (!scale.log || p[2] > 0));
    if (banded.length > 1) {
      const up = banded.map((p) => `${at(p[0])} ${y(p[3])}`);
      const down = banded.map((p) => `${at(p[0])} ${y(p[2])}`).reverse();
      root.append(svg("path", { class: `band ${color}`, d: `M${up.join("L")}L${down.join("L")}z` }));
    } else if (banded.length === 1) {
      const [p] = banded;
      root.append(svg("line", { class: `stroke ${color}`, x1: at(p[0]), x2: at(p[0]), y1: y(p[2]), y2: y(p[3]) }));
    }
    if (!item.hollow && points.length > 1) {
      const path = points.map((p) => `${at(p[0])} ${y(p[1])}`).join("L");
      root.append(svg("path", { class: `stroke line ${color}`, d: `M${path}`, "stroke-width": 2, "stroke-dasharray": dashes(item), "data-key": item.key }));
    }
  }
  for (const item of visible) {
    for (const p of item.points) {
      if (p[1] !== null) root.append(fill(seriesMark(item, at(p[0]), y(p[1]), 3.4), { class: `mark ${item.hollow ? "stroke" : "fill"} ${colorOf(item)} ${p[5].length ? "clickable" : ""}` }, []));
    }
  }
  const letter = spec.x.split(" ").pop();
  const stops = xs.map((x) => ({
    x: at(x),
    title: `${letter} = ${x}`,
    rows: visible.flatMap((item) =>
      item.points
        .filter((p) => p[0] === x && p[1] !== null)
        .map((p) => ({ label: item.label, text: p[4], runs: p[5], y: y(p[1]), color: colorOf(item), hollow: item.hollow })),
    ),
  }));
  return { stops, top, bottom };
}
