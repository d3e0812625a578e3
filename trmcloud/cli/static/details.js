// The lower part of one run's page: GPU and memory, its log, its configuration. Each is asked for
// once it is about to be seen, and again when the server says that it has grown.

import { ask, here } from "./asked.js";
import { Chart, element } from "./charts.js";

// Calls `act` once `node` is near the part of the page that is seen.
function onceNear(node, act) {
  const watch = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    watch.disconnect();
    act();
  }, { rootMargin: "100px" });
  watch.observe(node);
}

// One request at a time: what is asked for meanwhile is asked once more, `pause` ms after the answer.
function oneAtATime(read, pause) {
  let busy = false, more = false;
  return async function go() {
    if (busy) { more = true; return; }
    busy = true;
    await read();
    setTimeout(() => { busy = false; if (more) { more = false; go(); } }, pause);
  };
}

const words = (error) => error.message + (error.next ? ` — try: ${error.next}` : "");

// -- GPU and memory ------------------------------------------------------------------------------

export function machineSection(redraw) {
  let told = null;
  const line = element("p", { class: "dim", text: "loading…" });
  const chart = (title, unit, name) => new Chart(title, unit, () => ({ x: told.x, lines: told[name] }), { points: true });
  const charts = [chart("GPU use", "percent of the time", "busy"), chart("GPU memory", "GB in use", "used"),
    chart("Process memory", "GB resident", "memory")];
  const node = element("section", { id: "machine", "aria-label": "GPU and memory" }, element("h2", { text: "GPU and memory" }), line,
    element("div", { class: "charts" }, charts.map((each) => { each.node.hidden = true; return each.node; })));
  const read = oneAtATime(async () => {
    try { told = await ask(`${here}/machine`); line.textContent = told.told; redraw(); }
    catch (error) { line.textContent = words(error); }
  }, 2000);
  return {
    node, charts,
    begin: () => onceNear(node, read),
    grown: () => { if (told) read(); },
    draw: (axis, marks, most) => {
      if (told) charts.forEach((each) => each.draw(told, axis, marks, Math.max(most, ...told.x[axis].slice(-1))));
    },
  };
}

// -- the log -------------------------------------------------------------------------------------

const MOST_KEPT = 1 << 17;  // characters
const size = (bytes) => (bytes < 1e3 ? `${bytes} bytes` : bytes < 1e6 ? `${(bytes / 1e3).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`);

// A progress bar writes over its line: what follows the last carriage return is what stands there.
function asDrawn(line) {
  const end = line.endsWith("\r") ? line.length - 1 : line.length;
  return line.slice(line.lastIndexOf("\r", end - 1) + 1);
}

export function logSection() {
  let phase = "", to = null, from = 0, text = "", begun = false;
  const box = element("pre", { id: "log", class: "log", tabindex: 0, role: "region", "aria-label": "The end of the log", hidden: true });
  const pick = element("select", { id: "log-phase" });
  const label = element("label", { hidden: true }, "Log of ", pick);
  const line = element("span", { class: "dim", text: "loading…" });
  const node = element("section", { id: "logs", "aria-label": "Log" }, element("h2", { text: "Log" }), element("div", { class: "row" }, label, line), box);
  const atEnd = () => box.scrollHeight - box.scrollTop - box.clientHeight < 24;
  const selecting = () => { const chosen = getSelection(); return !chosen.isCollapsed && box.contains(chosen.anchorNode); };

  function take(told) {
    if (told.log !== phase || to === null || told.start !== to) { text = ""; from = told.start; }
    phase = told.log; to = told.end;
    text = (text + told.text).split("\n").map(asDrawn).join("\n");
    if (text.length > MOST_KEPT) { text = text.slice(text.indexOf("\n", text.length - MOST_KEPT) + 1); from = 1; }
    if (pick.options.length !== told.logs.length) pick.replaceChildren(...told.logs.map((name) => element("option", { value: name, text: name })));
    pick.value = phase;
    label.hidden = told.logs.length < 2;
    box.hidden = !text;
    line.textContent = !phase ? "This run has no log on this machine yet." : [
      !told.size ? "empty so far" : from ? `the end of ${size(told.size)}` : size(told.size),
      told.live ? "follows the run while you are at its end" : "complete: the run has ended"].join("; ");
    if (selecting()) return;
    const follows = atEnd();
    box.textContent = text.replaceAll("\r", "");
    if (follows) box.scrollTop = box.scrollHeight;
  }

  const read = oneAtATime(async () => {
    try { take(await ask(`${here}/log?phase=${encodeURIComponent(phase)}&after=${to === null ? "" : to}`)); begun = true; }
    catch (error) { line.textContent = words(error); }
  }, 500);
  pick.addEventListener("change", () => { phase = pick.value; to = null; box.textContent = text = ""; read(); });
  return { node, begin: () => onceNear(node, read), grown: () => { if (begun) read(); } };
}

// -- configuration and plan ----------------------------------------------------------------------

export function launchedSection() {
  const box = element("div", {}, element("p", { class: "dim", text: "loading…" }));
  const node = element("section", { id: "launched", "aria-label": "Configuration and plan" }, element("h2", { text: "Configuration and plan" }), box);
  const heads = ["phase", "setting", "this run", "recipe"];

  function differences(list, recipe) {
    if (!recipe) return "";
    if (list === null) return element("p", { class: "dim", text: `The recipe ${recipe} cannot be read here now.` });
    if (!list.length) return element("p", { class: "dim", text: "Every setting is the recipe's." });
    return element("table", { class: "cardy" }, element("caption", { text: "Settings that differ from the recipe" }),
      element("thead", {}, element("tr", {}, heads.map((text) => element("th", { scope: "col", text })))),
      element("tbody", {}, list.map((each) => element("tr", {}, [each.phase, each.key, each.value, each.recipe].map((text, n) =>
        element("td", { "data-name": heads[n] }, element("div", { text })))))));
  }

  async function read() {
    try {
      const told = await ask(`${here}/launched`);
      box.replaceChildren(element("dl", {}, told.rows.flatMap(([name, text]) => [element("dt", { text: name }), element("dd", { text })])), differences(told.differences, told.recipe));
    } catch (error) { box.replaceChildren(element("p", { class: "dim", text: words(error) })); }
  }
  return { node, begin: () => onceNear(node, read) };
}
