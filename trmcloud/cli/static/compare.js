// Two to four runs beside each other: their curves in one chart, and what differs between them.

import { ask, linkTo } from "./asked.js";
import { AXIS_NAMES, Chart, element } from "./charts.js";

const AXIS_WORDS = { step: "steps", hours: "paid hours", usd: "dollars" };
const EVERY_MS = 15000;

// Where a run has no point of its own, its last one before is said.
class RunsChart extends Chart {
  say() {
    const table = this.table, held = this.lines;
    const last = (values) => {
      for (let n = this.at; n >= 0; n--) if (values[n] !== null && values[n] !== undefined) return values[n];
      return null;
    };
    this.lines = held.map((line) => ({ ...line, values: Object.assign([], { [this.at]: last(line.values) }) }));
    super.say();
    this.lines = held;
    this.table = table;
  }
}

// One axis for all: the runs' points in one order, each run a line.
function joined(runs, curves, axis, kind) {
  const shown = runs.map((run, n) => ({ run, series: curves[n]?.[kind] })).filter(({ series }) => series?.value.some((value) => value !== null));
  if (!shown.length) return { x: { step: [] }, lines: [] };
  const [xs, ...columns] = uPlot.join(shown.map(({ series }) => increasing(series[axis], series.value)));
  const names = shown.map(({ run }) => run.name || run.id);
  return { x: { step: xs, hours: xs, usd: xs }, lines: shown.map(({ run }, n) => ({
    name: names.indexOf(names[n]) === names.lastIndexOf(names[n]) ? names[n] : `${names[n]} ${run.id}`.trim(), values: columns[n] })) };
}

// Points at the same place count once: the last of them.
function increasing(xs, values) {
  const found = new Map();
  xs.forEach((x, n) => { if (values[n] !== null) found.set(x, values[n]); });
  const order = [...found.keys()].sort((one, other) => one - other);
  return [order, order.map((x) => found.get(x))];
}

export async function show({ address, hear, main }) {
  document.title = "comparison · trmcloud";
  const names = new URLSearchParams(location.search).get("runs") || "";
  const back = element("p", {}, element("a", { href: linkTo("/"), text: "Choose other runs" }));
  let told = null, curves = [];
  const all = element("input", { type: "checkbox", id: "same", on: { change: () => drawTable() } });
  const axes = element("fieldset", {}, element("legend", { text: "Curves over" }), AXIS_NAMES.map((name) =>
    element("label", {}, element("input", { type: "radio", name: "axis", value: name, checked: name === "usd" }), ` ${AXIS_WORDS[name]}`)));
  const axis = () => axes.querySelector("input:checked").value;
  const charts = [
    new RunsChart("Validation", () => [...new Set(told.runs.map((run) => run.metric))].join(", "), () => joined(told.runs, curves, axis(), "evals"), { points: true }),
    new RunsChart("Training loss", "nats a token", () => joined(told.runs, curves, axis(), "train")),
  ];
  const list = element("ul", {}), rows = element("div", {}), note = element("p", { class: "dim" });
  const empty = element("p", { class: "dim", hidden: true, text: "Nothing was logged by these runs." });

  function drawRuns() {
    list.replaceChildren(...told.runs.map((run) => element("li", {},
      element("a", { href: address(run.id), text: run.id }), run.name ? ` ${run.name}` : "", ` · ${run.state.replaceAll("_", " ")}`,
      Object.entries(run.tags).map(([key, value]) => element("span", { class: "dim", text: ` · ${value ? `${key}=${value}` : key}` })))));
  }

  function drawCurves() {
    const most = Math.max(0, ...curves.flatMap((each) => (each ? [each.train, each.evals] : [])).flatMap((series) => series[axis()].slice(-1)));
    charts.forEach((chart) => chart.draw(null, axis(), [], most * 1.02 || 1));
    empty.hidden = charts.some((chart) => !chart.node.hidden);
    document.documentElement.dataset.drawn = axis();
  }

  function drawTable() {
    const shown = told.rows.filter((row) => all.checked || !row.same);
    const heads = told.runs.map((run) => (run.name ? `${run.name} (${run.id})` : run.id));
    const bodies = [...new Set(shown.map((row) => row.part))].map((part) => element("tbody", {},
      element("tr", {}, element("th", { colspan: heads.length + 1, scope: "rowgroup", text: part })),
      shown.filter((row) => row.part === part).map((row) => element("tr", { class: all.checked && !row.same ? "differs" : null },
        element("th", { scope: "row", text: row.name }), row.values.map((value, n) => element("td", { "data-name": heads[n] }, element("div", { text: value })))))));
    rows.replaceChildren(shown.length ? element("table", { class: "cardy" },
      element("thead", {}, element("tr", {}, element("td", {}), heads.map((text) => element("th", { scope: "col", text })))), bodies)
      : element("p", { class: "dim", text: "Nothing differs between these runs." }));
    note.textContent = told.note;
    document.getElementById("same-count").textContent = ` Show the ${told.rows.filter((row) => row.same).length} rows that are the same, too`;
  }

  async function look() {
    told = await ask(`/api/compare?runs=${encodeURIComponent(names)}`);
    curves = await Promise.all(told.runs.map((run) => ask(`/api/runs/${encodeURIComponent(run.id)}/curves`).catch(() => null)));
  }

  try {
    await look();
  } catch (error) {
    main.replaceChildren(element("h1", { text: "Comparison" }), element("p", { text: error.message }),
      error.next ? element("p", { class: "dim", text: `try: ${error.next}` }) : "", back);
    return;
  }
  main.replaceChildren(element("h1", { text: "Comparison" }), list, back, element("h2", { text: "Curves" }), axes, empty,
    element("div", { class: "charts" }, charts.map((chart) => chart.node)), element("h2", { text: "Differences" }),
    element("p", { class: "choices" }, element("label", {}, all, element("span", { id: "same-count" }))), rows, note);
  const draw = () => { drawRuns(); drawTable(); drawCurves(); };
  axes.addEventListener("change", () => { charts.forEach((chart) => { chart.zoomed = false; chart.at = -1; }); drawCurves(); });
  hear.redraw = () => { charts.forEach((chart) => { chart.kind = ""; }); drawCurves(); };
  draw();
  setInterval(() => {
    if (!document.hidden && told.runs.some((run) => run.live)) look().then(draw, () => {});
  }, EVERY_MS);
}
