// Curves by uPlot, each a slider for the keyboard: arrows move along the points, and what stands
// there is said in words below it.

const AXES = {
  step: { label: "steps", say: (x) => `step ${Math.round(x).toLocaleString("en")}` },
  hours: { label: "paid hours", say: (x) => `${x.toFixed(x < 10 ? 3 : 1)} h` },
  usd: { label: "dollars", say: (x) => `$${x.toFixed(x < 1 ? 4 : 2)}` },
};
export const AXIS_NAMES = Object.keys(AXES);
export const GLYPHS = {
  checkpoint: "▴", gate: "◆", price: "$", recovery: "✚", stop: "■", pod: "●", phase: "◇", bill: "¤",
};
const DASHES = [[], [8, 3], [2, 3], [12, 3, 2, 3], [5, 5], [1, 2]];

const short = (x) => (x >= 1e6 ? `${x / 1e6}M` : x >= 1e4 ? `${x / 1e3}k` : `${Number(x.toPrecision(4))}`);
const exact = (x) => (Math.abs(x) >= 1e4 ? Math.round(x).toLocaleString("en") : x.toPrecision(4));

export function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") made.textContent = value;
    else if (name === "on") for (const [event, act] of Object.entries(value)) made.addEventListener(event, act);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) if (child !== null) made.append(child);
  return made;
}

export const dashOf = (n) => DASHES[Math.floor(n / 6) + (n % 6)] || [];

// A piece of a line, as the chart draws it.
export function swatch(colour, dash) {
  const made = ["svg", "line"].map((name) => document.createElementNS("http://www.w3.org/2000/svg", name));
  const set = (node, told) => Object.entries(told).forEach(([name, value]) => node.setAttribute(name, String(value)));
  set(made[0], { class: "swatch", "aria-hidden": "true", viewBox: "0 0 30 4" });
  set(made[1], { x1: 0, x2: 30, y1: 2, y2: 2, stroke: colour, "stroke-width": 3, "stroke-dasharray": dash.join(" ") });
  made[0].append(made[1]);
  return made[0];
}

// One chart. `columns(data)` gives {x: {step, hours, usd}, lines: [{name, values}]}.
export class Chart {
  constructor(title, unit, columns, { points = false } = {}) {
    this.title = title; this.named = unit; this.columns = columns; this.points = points;
    this.plot = null; this.at = -1;
    this.box = element("div", { class: "plot" });
    this.says = element("output", {});
    this.legend = element("ul", {});
    this.node = element("section", { class: "chart", "aria-label": title },
      this.head = element("h3", { text: typeof unit === "function" ? title : `${title}, ${unit}` }), this.box, this.says, this.legend);
    this.box.tabIndex = 0;
    this.box.setAttribute("role", "slider");
    this.box.setAttribute("aria-label", `${title}: arrow keys move along the curve`);
    this.box.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => {
      if (this.plot && Math.abs(this.plot.width - this.box.clientWidth) > 1) {
        this.plot.setSize({ width: this.box.clientWidth, height: this.height() });
      }
    }).observe(this.box);
  }

  height() { return this.box.clientWidth < 420 ? 190 : 230; }

  // Draws `data` over `axis`, from 0 to `most`.
  draw(data, axis, marks, most) {
    const { x, lines } = this.columns(data);
    this.axis = axis; this.marks = marks; this.most = most;
    this.node.hidden = !lines.length || !x.step.length;
    if (this.node.hidden) { this.drop(); return; }
    this.unit = typeof this.named === "function" ? this.named() : this.named;
    this.head.textContent = `${this.title}, ${this.unit}`;
    const table = [x[axis], ...lines.map((line) => line.values)];
    this.lines = lines;
    const kind = `${axis} ${lines.map((line) => line.name)} ${document.documentElement.dataset.theme || ""}`;
    if (this.plot && this.kind === kind) {
      this.plot.setData(table, false);
      this.plot.setScale("x", { min: 0, max: most });
    } else {
      this.drop();
      this.kind = kind;
      this.make(table, lines);
    }
    this.table = table;
    if (this.at < 0 || this.at >= table[0].length || !this.held) this.at = table[0].length - 1;
    this.say();
  }

  drop() { if (this.plot) { this.plot.destroy(); this.plot = null; } }

  make(table, lines) {
    const colours = this.colours = lines.map((_, n) => css(`--s${(n % 6) + 1}`));
    const names = lines.length > 1 ? Math.min(90, 16 + 7 * Math.max(...lines.map((line) => line.name.length))) : null;
    const axis = AXES[this.axis], dim = css("--dim"), grid = css("--grid");
    const common = { stroke: dim, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 } };
    this.plot = new uPlot({
      width: this.box.clientWidth, height: this.height(), legend: { show: false }, padding: [null, names, null, null],
      cursor: { sync: { key: "run" }, points: { size: 8 }, drag: { x: true, y: false } },
      scales: { x: { time: false, range: (u, low, high) => this.zoomed ? [low, high] : [0, this.most || 1] } },
      axes: [
        { ...common, values: (u, ticks) => ticks.map((tick) => this.axis === "usd" ? `$${tick}` : short(tick)) },
        { ...common, size: 58, values: (u, ticks) => ticks.map(short) },
      ],
      series: [{ label: axis.label }, ...lines.map((line, n) => ({
        label: line.name, stroke: colours[n], width: 2, dash: dashOf(n),
        spanGaps: true, points: { show: (u) => this.points && u.data[0].length < 60, size: 5, fill: colours[n] },
      }))],
      hooks: {
        draw: [(u) => { this.drawMarks(u); this.drawNames(u); }],
        setCursor: [(u) => { if (u.cursor.idx !== null && u.cursor.event) { this.at = u.cursor.idx; this.held = true; this.say(); } }],
        setSelect: [() => { this.zoomed = true; }],
      },
    }, table, this.box);
    this.plot.over.addEventListener("dblclick", () => { this.zoomed = false; });
    this.legend.replaceChildren(...(lines.length < 2 ? [] : lines.map((line, n) => element("li", {}, swatch(colours[n], dashOf(n)), line.name))));
  }

  drawMarks(u) {
    const { ctx } = u, { left, top, height, width } = u.bbox, ratio = devicePixelRatio || 1;
    ctx.save();
    ctx.font = `${12 * ratio}px system-ui, sans-serif`;
    ctx.textAlign = "center";
    ctx.fillStyle = ctx.strokeStyle = css("--mark");
    const many = this.marks.length > 40;
    for (const mark of this.marks) {
      const x = mark[this.axis];
      if (x === null || x === undefined) continue;
      const place = u.valToPos(x, "x", true);
      if (place < left - 1 || place > left + width + 1) continue;
      const minor = mark.kind === "checkpoint";
      ctx.globalAlpha = minor ? .35 : .8;
      ctx.lineWidth = ratio;
      ctx.setLineDash(minor ? [2 * ratio, 4 * ratio] : [6 * ratio, 3 * ratio]);
      ctx.beginPath();
      ctx.moveTo(place, top + (minor && many ? height - 8 * ratio : 14 * ratio));
      ctx.lineTo(place, top + height);
      ctx.stroke();
      ctx.globalAlpha = 1;
      if (!(minor && many)) ctx.fillText(GLYPHS[mark.kind] || "·", place, top + 11 * ratio);
    }
    ctx.restore();
  }

  // Names each of several lines at its right end, apart from the others where they meet there.
  drawNames(u) {
    if (this.lines.length < 2) return;
    const { ctx } = u, { left, top, height, width } = u.bbox, ratio = devicePixelRatio || 1, gap = 13 * ratio;
    const xs = u.data[0], right = left + width;
    const ends = this.lines.map(({ name }, n) => {
      const ys = u.data[n + 1];
      let last = xs.length - 1;
      while (last >= 0 && (xs[last] > u.scales.x.max || ys[last] === null || ys[last] === undefined)) last--;
      return last < 0 ? null : { name, colour: this.colours[n], x: Math.max(left, u.valToPos(xs[last], "x", true)), y: u.valToPos(ys[last], "y", true) };
    }).filter((end) => end && end.y >= top && end.y <= top + height).sort((one, other) => one.y - other.y);
    let least = top;
    for (const end of ends) { end.at = Math.max(end.y, least); least = end.at + gap; }
    let most = top + height;
    for (const end of [...ends].reverse()) { end.at = Math.min(end.at, most); most = end.at - gap; }
    ctx.save();
    ctx.font = `${12 * ratio}px system-ui, sans-serif`;
    ctx.textBaseline = "middle";
    ctx.textAlign = "left";
    ctx.lineWidth = ratio;
    for (const end of ends) {
      ctx.strokeStyle = end.colour;
      ctx.beginPath();
      ctx.moveTo(end.x, end.y);
      ctx.lineTo(right, end.y);
      ctx.lineTo(right + 5 * ratio, end.at);
      ctx.stroke();
      ctx.fillStyle = css("--text");
      ctx.fillText(end.name, right + 7 * ratio, end.at);
    }
    ctx.restore();
  }

  key(event) {
    if (!this.table) return;
    const last = this.table[0].length - 1, leap = Math.max(1, Math.round(last / 20));
    const moves = { ArrowLeft: -1, ArrowRight: 1, PageDown: -leap, PageUp: leap, Home: -last, End: last };
    if (!(event.key in moves)) return;
    event.preventDefault();
    this.held = event.key !== "End";
    this.at = Math.min(last, Math.max(0, this.at + moves[event.key]));
    this.plot.setCursor({ left: this.plot.valToPos(this.table[0][this.at], "x"), top: 20 }, false);
    this.say();
  }

  say() {
    const x = this.table[0][this.at];
    const told = this.lines
      .map((line) => [line.name, line.values[this.at]])
      .filter(([, value]) => value !== null && value !== undefined)
      .map(([name, value]) => (this.lines.length > 1 ? `${name} ${exact(value)}` : `${exact(value)} ${this.unit}`));
    const text = `${AXES[this.axis].say(x)}: ${told.join(" · ") || "nothing logged"}`;
    this.says.textContent = text;
    this.box.setAttribute("aria-valuemin", "0");
    this.box.setAttribute("aria-valuemax", String(this.table[0].length - 1));
    this.box.setAttribute("aria-valuenow", String(this.at));
    this.box.setAttribute("aria-valuetext", text);
  }
}
