// The page: its head, its sections, and all runs.

const main = document.getElementById("main");

// Charts of networks of several depths: a slider chooses one.
function depthView(specs) {
  const charts = el("div", { class: "charts small" });
  const names = [...new Set(specs.map((spec) => spec.dataset))];
  const datasets = el("select", { onchange: () => choose() }, ...names.map((name) => el("option", { value: name }, name)));
  const slider = el("input", { type: "range", min: 0, step: 1, id: "network-depth", oninput: () => draw() });
  const output = el("output", { for: "network-depth" });
  const list = el("ul", { class: "legend", "aria-label": "Show or hide" });
  let depths = [];
  let drawn = [];

  function choose() {
    const own = specs.filter((spec) => spec.dataset === datasets.value);
    depths = [...new Set(own.map((spec) => spec.depth))].sort((one, other) => one - other);
    slider.max = depths.length - 1;
    slider.value = depths.length - 1;
    slider.disabled = depths.length === 1;
    draw();
  }

  function draw() {
    const depth = depths[Number(slider.value)];
    const panels = specs.filter((spec) => spec.dataset === datasets.value && spec.depth === depth);
    output.textContent = `L = ${depth}`;
    slider.setAttribute("aria-valuetext", `${depth} layers`);
    drawn.forEach((figure) => figure.discard());
    drawn = panels.map((panel) => chart(panel, true));
    charts.replaceChildren(...drawn);
    const series = new Map(panels.flatMap((panel) => panel.series.map((item) => [item.key, item])));
    drawLegend(list, [...series.values()]);
  }

  choose();
  shown.listeners.add(() => drawLegend(list, null));
  return [
    el("div", { class: "controls" },
      el("label", {}, "Dataset", datasets),
      el("label", {}, "Depth of the network", slider, output)),
    list,
    charts,
  ];
}

function sectionElement(section) {
  const specs = section.tables.flatMap((spec) => spec.charts);
  const charts = specs.filter((spec) => !spec.depth).map((spec) => chart(spec));
  const deep = specs.filter((spec) => spec.depth);
  const tables = section.tables.map((spec) => table(spec));
  const many = tables.length > 2;
  return el("section", { id: section.name, "aria-labelledby": `title-${section.name}` },
    el("h2", { id: `title-${section.name}` }, section.title),
    el("p", { class: "intro" }, section.intro),
    ...(deep.length ? depthView(deep) : []),
    charts.length ? el("div", { class: "charts" }, ...charts) : null,
    ...(many ? [el("details", {}, el("summary", {}, `The numbers as ${tables.length} tables`), ...tables)] : tables));
}

function runsSection() {
  const shown = table({
    name: "all-runs",
    title: "All runs",
    columns: ["run", "dataset", "system", "L", "split", "seed", "test", "val", "best epoch", "epochs", "seconds", "hardware", "commit"],
    rows: DATA.runs.map((run, place) => [
      [run.id.slice(0, 8), [place]], run.dataset, run.system, String(run.layers), run.split, String(run.seed),
      percent(run.micro_f1.test), percent(run.micro_f1.val), String(run.best_epoch), String(run.epochs), secondsOf(run),
      DATA.shared[run.origin].hardware || "–", commitOf(run).slice(0, 10) || "–",
    ]),
    notes: ["micro-F1 in %. A run's settings, seed, commit and versions open at its name."],
  }, { limit: ROWS_AT_FIRST });
  const search = el("input", { type: "search", placeholder: "e.g. cora gat 8", oninput: () => shown.filter(search.value) });
  return el("section", { id: "runs", "aria-labelledby": "title-runs" },
    el("h2", { id: "title-runs" }, "All runs"),
    el("p", { class: "intro" }, "Every number above is made of these."),
    el("div", { class: "controls" }, el("label", {}, "Filter", search)),
    shown);
}

function failuresSection() {
  const rows = DATA.failures.map((run, place) => [
    el("button", { type: "button", class: "number", onclick: () => showRuns(`Failed: ${run.id}`, [place], DATA.failures) }, run.id.slice(0, 8)),
    run.dataset, run.system, String(run.layers), run.split, String(run.seed), run.error,
  ]);
  return el("section", { id: "failures", "aria-labelledby": "title-failures" },
    el("h2", { id: "title-failures" }, "Failed runs"),
    el("p", { class: "intro" }, "They are in no number above."),
    table({ name: "failures", title: "Failed runs", columns: ["run", "dataset", "system", "L", "split", "seed", "error"], rows }, { wrap: 6 }));
}

function aboutSection(family) {
  const commits = [...new Set(DATA.runs.map(commitOf))].filter(Boolean);
  const hardware = [...new Set(DATA.runs.map((run) => DATA.shared[run.origin].hardware))].filter(Boolean);
  const facts = {
    Settings: family ? family.name : "–",
    Changes: family && family.changes.length > 4 ? family.changes.join(", ") : "",
    Choices: family ? family.rule : "",
    Intervals: "Mean ± half-width of Student's 95% interval, over splits where there are several, else over seeds.",
    Runs: `${count(DATA.runs.length, "run")} from ${DATA.source}, ${duration(DATA.runs.reduce((sum, run) => sum + (run.seconds || 0), 0))} of computing`,
    Hardware: hardware.join("; "),
    Commits: commits.join(", ") || "not recorded",
    "This page": `made ${DATA.made}; it needs no network and loads nothing.`,
  };
  return el("section", { id: "about", "aria-labelledby": "title-about" },
    el("h2", { id: "title-about" }, "How these numbers were made"),
    el("dl", {}, ...Object.entries(facts).filter(([, text]) => text).flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)])));
}

function drawPage(place) {
  document.querySelectorAll("figure").forEach((figure) => figure.discard());
  shown.listeners.clear();
  const family = DATA.families[place];
  const sections = [...(family ? family.sections : []), ...DATA.common].map(sectionElement);
  sections.push(runsSection());
  if (DATA.failures.length) sections.push(failuresSection());
  sections.push(aboutSection(family));
  main.replaceChildren(...sections);
  document.getElementById("contents").replaceChildren(
    ...sections.map((section) => el("a", { href: `#${section.id}` }, section.querySelector("h2").textContent)),
  );
}

function drawHead() {
  const datasets = [...new Set(DATA.runs.map((run) => run.dataset))];
  const failed = DATA.failures.length ? `, ${count(DATA.failures.length, "failed run")}` : "";
  document.getElementById("summary").textContent =
    `${count(DATA.runs.length, "run")} of ${count(DATA.systems.length, "system")} on ${datasets.join(", ")}${failed}. Click a number to see how it was made.`;
  if (DATA.families.length < 2) {
    DATA.families.forEach((family) => document.getElementById("family").append(el("p", {}, `Settings: ${family.name}`)));
    return;
  }
  const select = el("select", { onchange: () => drawPage(Number(select.value)) }, ...DATA.families.map((family, index) => el("option", { value: index }, family.name)));
  document.getElementById("family").append(el("div", { class: "controls" }, el("label", {}, "Settings", select)));
}

drawHead();
drawPage(0);
