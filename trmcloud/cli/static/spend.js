// Spending of a month: added up by day, stacked by project, provider, person or tag, against the month's cap,
// with a forecast of its end; and the same figures as tables.

import { ask, linkTo } from "./asked.js";
import { Chart, css, dashOf, element, swatch } from "./charts.js";

const DAY_S = 86400;
const FILL = "33";  // of 255: how much of a colour the area below its line has
const CAP_DASH = [2, 3], FORECAST_DASH = [7, 5];

const dayOf = (x) => new Date(x * 1000).toLocaleDateString("en", { day: "numeric", month: "short", timeZone: "UTC" });
// A day ends at the first instant of the next one.
const dayBefore = (x) => dayOf(x - 1);
const at = (x) => `${new Date(x * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC`;
const dollars = (x) => `$${x.toLocaleString("en", { minimumFractionDigits: x < 1 ? 4 : 2, maximumFractionDigits: x < 1 ? 4 : 2 })}`;

class MonthChart extends Chart {
  constructor() { super("Spending", "in US dollars since the month began", () => ({})); }

  height() { return this.box.clientWidth < 420 ? 220 : 320; }

  show(told, toCap) {
    this.drop();
    this.told = told;
    this.toCap = toCap;
    const xs = [told.begins, ...told.until.filter((x) => x > told.begins)];
    this.solid = xs.length;
    if (told.forecast && told.now < told.ends) xs.push(told.ends);
    const padded = (usd) => [0, ...usd, ...Array(xs.length).fill(null)].slice(0, this.solid).concat(Array(xs.length - this.solid).fill(null));
    let below = Array(xs.length).fill(0);
    const stacked = told.lines.map((line) => {
      below = padded(line.usd).map((value, n) => (value === null ? null : value + below[n]));
      return below;
    });
    const colours = told.lines.map((_, n) => css(`--s${(n % 6) + 1}`));
    const series = [{}, ...told.lines.map((line, n) => ({
      label: line.name, stroke: colours[n], width: 2, dash: dashOf(n), points: { show: false },
      fill: n ? undefined : colours[n] + FILL,
    }))];
    const bands = told.lines.slice(1).map((_, n) => ({ series: [n + 2, n + 1], fill: colours[n + 1] + FILL }));
    this.table = [xs, ...stacked];
    const most = [told.total.so_far.usd];
    if (this.solid < xs.length) {
      const mark = css("--mark");
      for (const end of [told.forecast.high, told.forecast.low]) {
        most.push(end.usd);
        this.table.push(xs.map((_, n) => (n === this.solid - 1 ? told.total.so_far.usd : n === this.solid ? end.usd : null)));
        series.push({ stroke: mark, width: 2, dash: FORECAST_DASH, points: { show: false } });
      }
      bands.push({ series: [series.length - 2, series.length - 1], fill: mark + FILL });
    }
    if (told.cap) {
      if (toCap) most.push(told.cap.usd);
      this.table.push(xs.map(() => told.cap.usd));
      series.push({ stroke: css("--bad"), width: 2, dash: CAP_DASH, points: { show: false } });
    }
    const top = Math.max(...most) * 1.08 || 1;
    const common = { stroke: css("--dim"), grid: { stroke: css("--grid"), width: 1 }, ticks: { stroke: css("--grid"), width: 1 } };
    const step = this.box.clientWidth < 560 ? 7 : this.box.clientWidth < 1000 ? 3 : 2;
    const days = Math.round((told.ends - told.begins) / DAY_S);
    this.plot = new uPlot({
      width: this.box.clientWidth, height: this.height(), legend: { show: false },
      cursor: { drag: { x: false, y: false } },
      scales: { x: { time: false, range: () => [told.begins, told.ends] }, y: { range: () => [0, top] } },
      axes: [
        { ...common, splits: () => Array.from({ length: days }, (_, n) => told.begins + n * DAY_S).filter((_, n) => n % step === 0),
          values: (u, ticks) => ticks.map((tick) => String(new Date(tick * 1000).getUTCDate())) },
        { ...common, size: 64, values: (u, ticks) => ticks.map((tick) => `$${Number(tick.toPrecision(4))}`) },
      ],
      series, bands,
      hooks: { setCursor: [(u) => { if (u.cursor.idx !== null && u.cursor.event) { this.at = u.cursor.idx; this.say(); } }] },
    }, this.table, this.box);
    this.at = this.solid - 1;
    const keys = told.lines.map((line, n) => element("li", {}, swatch(colours[n], dashOf(n)), line.name));
    if (told.cap) keys.push(element("li", {}, swatch(css("--bad"), CAP_DASH), `the month's cap, ${told.cap.text}`));
    if (this.solid < xs.length) keys.push(element("li", {}, swatch(css("--mark"), FORECAST_DASH), "forecast, low and high"));
    this.legend.replaceChildren(...keys);
    this.say();
  }

  say() {
    const told = this.told, n = this.at - 1;
    let text = `${dayOf(told.begins)}, before the first day: ${dollars(0)}`;
    if (this.at >= this.solid) text = `${dayBefore(told.ends)}, forecast: ${told.forecast.low.text} to ${told.forecast.high.text}`;
    else if (n >= 0) {
      const parts = told.lines.length > 1 ? told.lines.map((line) => `${line.name} ${line.text[n]}`) : [];
      text = [`Until the end of ${dayBefore(told.until[n])}: ${told.total.text[n]}`, ...parts].join(" · ");
      if (told.until[n] === told.now) text = text.replace("Until the end of", "Until now,");
    }
    this.says.textContent = text;
    this.box.setAttribute("aria-valuemin", "0");
    this.box.setAttribute("aria-valuemax", String(this.table[0].length - 1));
    this.box.setAttribute("aria-valuenow", String(this.at));
    this.box.setAttribute("aria-valuetext", text);
  }
}

function lastDays(days) {
  const shown = Number(days.toFixed(1));
  return shown === 1 ? "day" : `${shown} days`;
}

// ``texts``: columns of text; all others but the first are numbers.
function table(caption, heads, lines, foot, texts = []) {
  const kind = (n) => (n && !texts.includes(n) ? "num" : null);
  const filled = (tag, more, what) => (typeof what === "string" ? element(tag, { ...more, text: what }) : element(tag, more, what));
  const cell = (what, n) => (n ? filled("td", { class: kind(n), "data-name": heads[n] }, what) : filled("th", { scope: "row" }, what));
  return element("table", { class: "cardy" }, element("caption", { text: caption }),
    element("thead", {}, element("tr", {}, heads.map((text, n) => element("th", { scope: "col", class: kind(n), text })))),
    element("tbody", {}, lines.map((line) => element("tr", {}, line.map(cell)))),
    foot ? element("tfoot", {}, element("tr", {}, foot.map(cell))) : null);
}

const runLink = (run, text) => element("a", { href: linkTo(`/run/${encodeURIComponent(run)}`), text: text || run });

// The page of the runs behind a figure: those of a month, or of one group in it.
const runsOf = (told, of) => linkTo(`/runs?${new URLSearchParams({ month: told.month, by: told.by, ...(of === undefined ? {} : { of }) })}`);
const MOST_NAMED = 50;

function withRuns(told, group) {  // each figure leads to its runs
  const [count, ...rest] = figures(group);
  if (!group.run_ids.length) return [count, ...rest];
  const more = group.run_ids.length - MOST_NAMED;
  return [element("details", {}, element("summary", { text: count, "aria-label": `${count} runs of ${group.name}` }),
    element("ul", {}, group.run_ids.slice(0, MOST_NAMED).map((run) => element("li", {}, runLink(run))),
      more > 0 ? element("li", {}, element("a", { href: runsOf(told, group.name), text: `${more} more` })) : "")),
  ...rest.map((text) => element("a", { href: runsOf(told, group.name), text, "aria-label": `${text}: runs of ${group.name}` }))];
}

const ofLimit = (cap, left) => (cap ? `${cap.text}, ${left.text} left` : "–");
// The columns of caps that any group has: (heading, its text for a group).
function limitsOf(told) {
  const word = told.by === "person" ? "grant" : "cap";
  return [[`${word}, this month`, "month_limit", "month_left"], [`${word}, all months`, "limit", "limit_left"]]
    .filter(([, cap]) => told.groups.some((group) => group[cap]))
    .map(([head, cap, left]) => [head, (group) => ofLimit(group[cap], group[left])]);
}
const WAITS_FOR = { machine: "a machine", answer: "an answer to a request for more" };

const figures = (group) => [String(group.runs || "–"), group.spent.text, group.accrued.text, group.so_far.text, group.reserved.text];

function card(name, big, href, ...lines) {
  return element("section", { class: "card", "aria-label": name }, element("h2", { text: name }),
    element("p", { class: "big" }, href ? element("a", { href, text: big, "aria-label": `${big}: runs` }) : big),
    lines.filter(Boolean).map((text) => element("p", { class: "dim", text })));
}

function choice(name, id, options, now, chosen) {
  const select = element("select", { id, on: { change: () => chosen(select.value) } },
    options.map(([value, text]) => element("option", { value, text, selected: value === now })));
  return element("label", {}, `${name} `, select);
}

export async function show({ hear, main }) {
  document.title = "spending · trmcloud";
  const asked = new URLSearchParams(location.search);
  const chart = new MonthChart(), cards = element("div", { class: "cards" }), choices = element("div", { class: "choices" });
  const tables = element("div", {}), trouble = element("p", { class: "why", role: "alert", hidden: true });
  const toCap = element("input", { type: "checkbox", checked: true, on: { change: () => chart.show(told, toCap.checked) } });
  let told = null;
  chart.node.classList.add("wide");
  main.replaceChildren(element("h1", { text: "Spending" }), choices, trouble, cards, chart.node, tables);

  async function look() {
    try {
      told = await ask(`/api/spend?${asked}`);
    } catch (error) {
      trouble.hidden = false;
      trouble.textContent = error.message + (error.next ? ` — try: ${error.next}` : "");
      return;
    }
    trouble.hidden = true;
    draw();
  }

  function choose(name, value) {
    asked.set(name, value);
    history.replaceState(null, "", linkTo(`${location.pathname}?${asked}`));
    look();
  }

  let offered = "";
  function drawChoices() {
    const now = JSON.stringify([told.months, told.groupings, told.month, told.by, Boolean(told.cap)]);
    if (now === offered) return;  // a list that is open stays open
    offered = now;
    const held = document.activeElement?.id;
    choices.replaceChildren(
      choice("Month", "month", told.months.map((month) => [month, month]), told.month, (value) => choose("month", value)),
      choice("Grouped by", "by", told.groupings.map(({ key, words }) => [key, words]), told.by, (value) => choose("by", value)),
      told.cap ? element("label", {}, toCap, " Scale up to the cap") : "");
    if (held === "month" || held === "by") document.getElementById(held).focus();
  }

  function draw() {
    drawChoices();
    const { total, cap, forecast } = told;
    cards.replaceChildren(
      card(`${told.month}, so far`, total.so_far.text, total.run_ids.length ? runsOf(told) : "", `${total.spent.text} settled, ${total.accrued.text} used by live runs`,
        told.unproven.usd ? `${told.unproven.text} of it may still change: bills are not final` : ""),
      card("Reserved for live runs", total.reserved.text, "", "the most that they may use, what they have used included"),
      card("The month's cap", cap ? cap.text : "none", "", cap ? (told.over.usd ? `${told.over.text} over it` : `${told.left.text} left to reserve`) : "set one: trmcloud budget set month USD"),
      forecast ? card("Forecast of the month's end", `${forecast.low.text} to ${forecast.high.text}`, "",
        `${forecast.per_day.text} a day over the last ${lastDays(forecast.days)}, ${forecast.days_left.toFixed(1)} days left`, forecast.rule,
        forecast.over_cap ? "The high end is above the cap: launches that do not fit are refused." : "") : "");
    chart.show(told, toCap.checked);
    const limits = limitsOf(told);
    const by = told.groupings.find(({ key }) => key === told.by)?.words || told.by;
    tables.replaceChildren(
      told.groups.length ? table(`${told.month} by ${by}`, [by, "runs", "settled", "used by live runs", "so far", "reserved", ...limits.map(([head]) => head)],
        told.groups.map((group) => [group.name, ...withRuns(told, group), ...limits.map(([, text]) => text(group))]), ["total", ...figures(total), ...limits.map(() => "")])
        : element("p", { class: "dim", text: "Nothing was spent or reserved in it." }),
      told.held.length ? table("Reserved now, and until when", ["run", "person", "project", "reserved", "until"],
        told.held.map((row) => [runLink(row.run, row.name ? `${row.run} ${row.name}` : row.run), row.person, row.project, row.reserved.text,
          row.waits ? "waits for a machine" : row.until ? `${at(row.until)}${row.kind === "volume" ? ", its volume" : ""}` : "–"]), null, [1, 2]) : "",
      told.waits.length ? table("Who waits", ["what", "person", "waits for", "dollars", "about", "since"],
        told.waits.map((row) => [row.for === "machine" ? runLink(row.id) : row.id, row.person, WAITS_FOR[row.for], row.amount && row.amount.usd ? row.amount.text : "other terms",
          row.words || "–", at(row.since)]), null, [1, 2, 4]) : "",
      element("details", {}, element("summary", { text: "Day by day" }),
        table("Spent until the end of each day, UTC", ["until", "total", ...told.lines.map((line) => line.name)],
          told.until.map((x, n) => [x === told.now ? `${dayBefore(x)}, now` : dayBefore(x), total.text[n], ...told.lines.map((line) => line.text[n])]))));
    document.documentElement.dataset.drawn = told.month;
  }

  hear.redraw = () => { if (told) chart.show(told, toCap.checked); };
  hear.budgets = hear.again = () => { if (!document.hidden) refresh(); };
  let last = Date.now();
  function refresh() {  // budgets are sent every few seconds
    if (Date.now() - last < 10000) return;
    last = Date.now();
    look();
  }
  await look();
}
