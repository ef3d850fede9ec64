"use strict";
// A node and whom it listens to: laid out by d3-force, drawn as SVG; attention is the edges' width.

const MOST_NEAR = 24;
const MOST_FAR = 4;
const MOST_NAMED = 12;
const LONGEST = 16;
const RADIUS = { 0: 0, 1: 118, 2: 196 };
const WIDEST = 13;

// The edges into a node from others, those with the most attention (mean over layers) first.
function listened(node) {
  const edges = [];
  for (let edge = PTR[node]; edge < PTR[node + 1]; edge++) if (SOURCE[edge] !== node) edges.push(edge);
  const layers = (DATA.attention?.layers ?? []).map(attentionOf);
  const heard = new Map(edges.map((edge) => [edge, layers.reduce((sum, weight) => sum + weight(edge), 0)]));
  return edges.sort((a, b) => heard.get(b) - heard.get(a) || a - b);
}

function selfEdge(node) {
  for (let edge = PTR[node]; edge < PTR[node + 1]; edge++) if (SOURCE[edge] === node) return edge;
  return -1;
}

// {nodes: [{node, hop, x, y}], links: [{edge, source, target}], hidden: neighbours not drawn}
function neighborhood(center, hops) {
  const nodes = [{ node: center, hop: 0, x: 0, y: 0, fx: 0, fy: 0 }];
  const placed = new Map([[center, nodes[0]]]);
  const links = [];
  const near = listened(center);
  const add = (node, hop) => {
    if (!placed.has(node)) {
      placed.set(node, { node, hop });
      nodes.push(placed.get(node));
    }
    return placed.get(node);
  };
  for (const edge of near.slice(0, MOST_NEAR)) links.push({ edge, source: add(SOURCE[edge], 1), target: nodes[0] });
  if (hops === 2) {
    for (const target of nodes.slice(1)) {
      const others = listened(target.node).filter((edge) => SOURCE[edge] !== center);
      for (const edge of others.slice(0, MOST_FAR)) links.push({ edge, source: add(SOURCE[edge], 2), target });
    }
  }
  // Neighbours of one class start side by side, and theirs behind them.
  const start = (item, angle) => Object.assign(item, { angle, x: RADIUS[item.hop] * Math.cos(angle), y: RADIUS[item.hop] * Math.sin(angle) });
  const ring = nodes.filter((item) => item.hop === 1).sort((a, b) => CLASS[a.node] - CLASS[b.node] || a.node - b.node);
  ring.forEach((item, place) => start(item, (2 * Math.PI * place) / ring.length - Math.PI / 2));
  for (const { source, target } of links) {
    if (source.hop === 2 && source.angle === undefined) start(source, target.angle + 0.06 * ((source.node % 7) - 3));
  }
  const simulation = d3.forceSimulation(nodes).stop()
    .force("radial", d3.forceRadial((item) => RADIUS[item.hop]).strength(1))
    .force("collide", d3.forceCollide((item) => (item.hop === 2 ? 9 : 15)))
    .force("apart", d3.forceManyBody().strength((item) => (item.hop === 1 ? -120 : -20)).distanceMax(150))
    .force("link", d3.forceLink(links.filter(({ source }) => source.hop === 2).map(({ source, target }) => ({ source, target })))
      .distance(RADIUS[2] - RADIUS[1]).strength(0.04));
  simulation.tick(160);
  return { nodes, links, hidden: Math.max(0, near.length - MOST_NEAR), named: new Set(near.slice(0, MOST_NAMED).map((edge) => SOURCE[edge])) };
}

// The largest weight on any edge into the node, in any layer: what the widest line stands for
function largestWeight(node) {
  let most = 0;
  for (const weight of (DATA.attention?.layers ?? []).map(attentionOf)) {
    for (let edge = PTR[node]; edge < PTR[node + 1]; edge++) most = Math.max(most, weight(edge));
  }
  // A uniform share is at most a third as wide, so that attention to all alike looks alike in any node.
  return Math.max(most, 3 / Math.max(1, PTR[node + 1] - PTR[node]));
}

function drawNeighborhood(center, hops) {
  const drawn = neighborhood(center, hops);
  const most = largestWeight(center);
  const size = (hops === 2 ? RADIUS[2] : RADIUS[1]) + 36;
  const longest = Math.max(0, ...[...drawn.named].map((node) => shortId(nodeName(node), LONGEST).length));
  const side = hops === 2 ? size : Math.max(size, RADIUS[1] + 22 + 6.6 * longest); // names stand beside the ring
  const picture = svg("svg", {
    id: "neighborhood", viewBox: `${-side} ${-size} ${2 * side} ${2 * size}`, role: "group",
    "aria-label": `Node ${nodeName(center)} and ${count(drawn.nodes.length - 1, "node")} around it`,
  });
  const lines = drawn.links.map(({ edge, source, target }) => {
    const line = svg("line", { class: "edge", x1: source.x, y1: source.y, x2: target.x, y2: target.y },
      svg("title", {}));
    picture.append(line);
    return { edge, line, source, target };
  });
  const own = svg("circle", { class: "own", r: 17, cx: 0, cy: 0 });
  picture.append(own);
  const dots = drawn.nodes.map((item) => {
    const radius = item.hop === 0 ? 13 : item.hop === 1 ? 8.5 : 5;
    const dot = svg("circle", { r: radius });
    const group = svg("g", {
      class: `dot hop${item.hop}`, transform: `translate(${item.x},${item.y})`, tabindex: item.hop ? "0" : null,
      role: item.hop ? "button" : "img",
      onclick: () => change({ node: item.node }),
      onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); change({ node: item.node }); byId("node").focus(); } },
    }, svg("title", {}), dot);
    if (item.hop === 0 || drawn.named.has(item.node)) {
      const toward = item.hop === 0 || Math.abs(item.x) < 12 ? 0 : Math.sign(item.x);
      const below = item.hop === 0 ? 34 : toward ? 4 : item.y < 0 ? -13 : 21;
      group.append(svg("text", { x: toward * 13, y: below, "text-anchor": ["end", "middle", "start"][toward + 1] }, shortId(nodeName(item.node), hops === 2 && item.hop ? 9 : LONGEST)));
    }
    picture.append(group);
    return { item, group, dot };
  });

  function update(layer) {
    const weight = attentionOf(layer);
    const at = predictionAt(layer);
    for (const { edge, line, source, target } of lines) {
      const share = weight ? weight(edge) : null;
      const wide = target.hop === 0 ? WIDEST : WIDEST / 2;
      line.style.strokeWidth = share === null ? "1.2px" : `${Math.max(0.4, (wide * Math.min(1, share / most))).toFixed(2)}px`;
      line.style.strokeOpacity = share === null ? "0.5" : String(Math.min(0.9, 0.35 + 0.65 * (share / most)));
      line.firstChild.textContent = `${nodeName(target.node)} listens to ${nodeName(source.node)}${share === null ? "" : `: ${percent(share)}`}`;
    }
    const loop = selfEdge(center);
    const itself = weight && loop >= 0 ? weight(loop) : 0;
    own.style.strokeWidth = `${((WIDEST * itself) / most).toFixed(2)}px`;
    own.setAttribute("r", 15 + (WIDEST * itself) / most / 2);
    for (const { item, group, dot } of dots) {
      const place = Math.max(at, 0);
      const now = PREDICTED[place][item.node];
      const turned = at > 0 && DATA.predictions.layers[at] === layer && PREDICTED[at - 1][item.node] !== now;
      dot.style.fill = at < 0 ? QUIET[theme()] : classColor(now);
      group.classList.toggle("turned", turned);
      const said = `${nodeName(item.node)}: ${className(now)}${turned ? `, was ${className(PREDICTED[at - 1][item.node])}` : ""}`;
      group.querySelector("title").textContent = said;
      group.setAttribute("aria-label", said);
    }
  }
  return { picture, update, hidden: drawn.hidden };
}
