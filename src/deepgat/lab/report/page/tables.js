// Tables that sort, and the runs behind a number.

const ROWS_AT_FIRST = 25;

function textOf(cell) {
  if (cell instanceof Node) return cell.textContent;
  return Array.isArray(cell) ? cell[0] : cell;
}

const NUMBER = /^[+\-−]?[\d,]*\.?\d+(e[+-]?\d+)?(?![\w.])/i;

// The number a cell begins with, else its text; a dash is neither, and goes last either way.
function sortKey(text) {
  if (text === "–" || text === "") return null;
  const match = NUMBER.exec(text);
  return match ? Number(match[0].replace(/,/g, "").replace("−", "-")) : text.toLowerCase();
}

function compare(one, other) {
  if (typeof one === typeof other) return one < other ? -1 : one > other ? 1 : 0;
  return typeof one === "number" ? -1 : 1;
}

function isRight(rows, column) {
  const cells = rows.map((row) => textOf(row[column])).filter((text) => text !== "–" && text !== "");
  return cells.length > 0 && cells.every((text) => NUMBER.test(text));
}

function table(spec, options = {}) {
  let rows = spec.rows;
  let limit = options.limit || Infinity;
  const right = spec.columns.map((_, column) => isRight(rows, column));
  const body = el("tbody");
  const more = el("button", { type: "button", class: "close more", onclick: () => { limit = Infinity; draw(); } });
  const heads = spec.columns.map((name, column) =>
    el("th", { scope: "col", class: right[column] ? "right" : "" },
      el("button", { type: "button", onclick: () => sort(column) }, name || "quantity")),
  );

  function cell(value, column, row) {
    const attributes = { class: [right[column] ? "right" : "", options.wrap === column ? "text" : ""].join(" ").trim() || null };
    if (value instanceof Node) return el("td", attributes, value);
    if (!Array.isArray(value) || !value[1].length) return el("td", attributes, textOf(value));
    const label = [spec.title, ...row.slice(0, 2).map(textOf), spec.columns[column]].join(", ");
    const button = el("button", { type: "button", class: "number", title: count(value[1].length, "run"),
      onclick: () => showRuns(`${label}: ${value[0]}`, value[1]) }, value[0]);
    return el("td", attributes, button);
  }

  function draw() {
    body.replaceChildren(...rows.slice(0, limit).map((row) => el("tr", {}, ...row.map((value, column) => cell(value, column, row)))));
    more.hidden = rows.length <= limit;
    more.textContent = `Show all ${rows.length.toLocaleString("en")} rows`;
  }

  function sort(column) {
    const ascending = heads[column].getAttribute("aria-sort") !== "ascending";
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[column].setAttribute("aria-sort", ascending ? "ascending" : "descending");
    const keyed = spec.rows.map((row) => [sortKey(textOf(row[column])), row]);
    const known = keyed.filter(([key]) => key !== null);
    known.sort(([one], [other]) => (ascending ? compare(one, other) : compare(other, one)));
    spec.rows = [...known, ...keyed.filter(([key]) => key === null)].map(([, row]) => row);
    filter(last);
  }

  let last = "";
  function filter(words) {
    last = words;
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    rows = spec.rows.filter((row) => wanted.every((word) => row.some((value) => String(textOf(value)).toLowerCase().includes(word))));
    draw();
  }

  draw();
  const made = el("div", { class: "table", id: `table-${spec.name}` },
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": spec.title },
      el("table", {}, el("caption", {}, el("span", {}, spec.title)), el("thead", {}, el("tr", {}, ...heads)), body)),
    more,
    ...(spec.notes || []).map((note) => el("p", { class: "note" }, note)));
  made.filter = filter;
  return made;
}

// ---------------------------------------------------------------- provenance

// A whole run as the file that `deepgat run` takes.
function toml(run) {
  const spec = DATA.shared[run.spec];
  const sections = {
    data: { ...spec.data, split: run.split },
    settings: spec.settings,
    training: { ...spec.training, seed: run.seed },
    analysis: spec.analysis,
  };
  const value = (item) => (Array.isArray(item) ? `[${item.map(value).join(", ")}]` : JSON.stringify(item).replace(/\u007f/g, "\\u007f"));
  const blocks = Object.entries(sections)
    .filter(([, settings]) => Object.keys(settings).length)
    .map(([name, settings]) => {
      const lines = Object.entries(settings).filter(([, item]) => item !== null).map(([key, item]) => `${key} = ${value(item)}`);
      return [`[${name}]`, ...lines].join("\n");
    });
  return `system = ${value(spec.system)}\npreset = "none"\n\n${blocks.join("\n\n")}\n`;
}

const secondsOf = (run) => (typeof run.seconds === "number" ? run.seconds.toFixed(1) : "–");
const commitOf = (run) => DATA.shared[run.origin].versions.commit || "";

function describe(run) {
  const origin = DATA.shared[run.origin];
  const { commit, ...versions } = origin.versions;
  const facts = {
    Run: run.id,
    Commit: commit || "not recorded",
    Hardware: origin.hardware || "not recorded",
    Versions: Object.entries(versions).map(([name, text]) => `${name} ${text}`).join(", ") || "not recorded",
  };
  if (run.error) Object.assign(facts, { Error: run.error, When: run.when });
  else {
    facts["Micro-F1 (%)"] = Object.entries(run.micro_f1).filter(([, share]) => share !== null).map(([part, share]) => `${part} ${percent(share)}`).join(", ");
    facts.Training = `best epoch ${run.best_epoch} of ${run.epochs}, ended by ${run.stopped}, ${duration(run.seconds)} in all`;
    if (run.memory) facts.Memory = `${Math.round(run.memory / 2 ** 20).toLocaleString("en")} MiB at most`;
  }
  return el("div", { id: "run" },
    el("dl", {}, ...Object.entries(facts).filter(([, text]) => text).flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, String(text))])),
    el("h3", {}, "The run as a file"),
    el("p", { class: "note" }, "Save it and make the run again with: deepgat run FILE.toml"),
    el("pre", { tabindex: 0, class: "toml" }, toml(run)),
    run.traceback ? el("details", {}, el("summary", {}, "Traceback"), el("pre", { tabindex: 0 }, run.traceback)) : null);
}

function showRuns(title, places, list = DATA.runs) {
  const dialog = document.getElementById("provenance");
  const runs = places.map((place) => list[place]);
  const detail = el("div");
  const select = (run) => {
    detail.replaceChildren(describe(run));
    dialog.querySelectorAll("tbody tr").forEach((row) => row.setAttribute("aria-current", String(run.id.startsWith(row.cells[0].textContent))));
  };
  const seeds = [...new Set(runs.map((run) => run.seed))].join(", ");
  const splits = [...new Set(runs.map((run) => run.split))].join(", ");
  const head = el("header", {}, el("h2", { id: "provenance-title" }, title),
    el("button", { type: "button", class: "close", onclick: () => dialog.close() }, "Close"));
  const listed = table({
    name: "runs-behind",
    title: runs.length === 1 ? "The run" : "The runs: choose one to see all of it",
    columns: ["run", "L", "split", "seed", "lr", "test", "val", "seconds", "commit", "hardware"],
    rows: runs.map((run) => [
      el("button", { type: "button", class: "number", onclick: () => select(run) }, run.id.slice(0, 8)),
      String(run.layers), run.split, String(run.seed), String(DATA.shared[run.spec].training.lr ?? "–"),
      percent(run.micro_f1 && run.micro_f1.test), percent(run.micro_f1 && run.micro_f1.val), secondsOf(run), commitOf(run).slice(0, 10) || "–", DATA.shared[run.origin].hardware || "–",
    ]),
  });
  dialog.replaceChildren(head, el("p", {}, `${count(runs.length, "run")}; seeds ${seeds}; splits ${splits}`), listed, detail);
  select(runs[0]);
  dialog.showModal();
  dialog.scrollTop = 0;
}
