// The page: all runs, or one. What it shows comes from its own server alone, and every word of it
// goes in as text: a run may be called anything.

import { Refused, ask, bearer, first, firstCurves, here, linkTo, runId, token, view } from "./asked.js";
import { AXIS_NAMES, Chart, GLYPHS, element } from "./charts.js";
import { launchedSection, logSection, machineSection } from "./details.js";

const at = (id) => document.getElementById(id);
const main = at("main");
const LIGHTS = { verified: "✔", armed: "●", silent: "◐", absent: "○" };
const AXIS_WORDS = { step: "steps", hours: "paid hours", usd: "dollars" };
const KIND_WORDS = {
  checkpoint: "checkpoint", gate: "gate", price: "price or plan", recovery: "mended", stop: "stop or end",
  pod: "machine", phase: "phase ended", bill: "bill",
};
const VERBS = [["save", "Save now"], ["land", "Land"], ["stop", "Stop now"], ["fetch", "Fetch best"], ["raise", "Raise"]];
const WELL = ["finished", "landed", "stopped"];
const ENDS_AT_ONCE = "stop";  // the verb by which something is lost

// -- words ---------------------------------------------------------------------------------------

const when = (instant) => new Date(instant * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });

function address(run) {
  return linkTo(run ? `/run/${encodeURIComponent(run)}` : "/");
}

function stateOf(run) {
  const name = run.outcome || (run.landing ? `${run.state}, landing` : run.training && run.state === "running" ? run.training.state : run.state);
  const kind = run.live ? "live" : WELL.includes(run.outcome) ? "well" : "ill";
  return element("span", { class: `state ${kind}`, text: name.replaceAll("_", " ") });
}

function tagList(tags) {
  const pairs = Object.entries(tags);
  return pairs.length ? element("ul", { class: "tags", "aria-label": "Tags" }, pairs.map(([key, value]) => element("li", { text: value ? `${key}=${value}` : key }))) : "";
}

function moneyBar(money) {
  const cap = Math.max(money.cap.usd, money.at_most.usd, 1e-9);
  const parts = {
    proven: money.proven.usd,
    unproven: Math.max(0, money.at_most.usd - money.proven.usd),
    reserved: Math.max(0, Math.min(money.reserved.usd, cap - money.at_most.usd)),
  };
  const bar = element("div", { class: "bar", role: "img", "aria-label":
    `${money.proven.text} proven, ${money.at_most.text} at most, ${money.reserved.text} reserved, ${money.left.text} left of ${money.cap.text}` });
  for (const [name, usd] of Object.entries(parts)) {
    const piece = element("i", { class: name });
    piece.style.width = `${(100 * usd) / cap}%`;
    bar.append(piece);
  }
  return bar;
}

function lights(layers, long) {
  if (!layers.length) return element("span", { class: "dim", text: "–" });
  return element("ul", { class: "lights" }, layers.filter((layer) => long || layer.state !== "absent").map((layer) =>
    element("li", { title: layer.detail },
      element("span", { class: `light ${layer.state}`, "aria-hidden": "true", text: LIGHTS[layer.state] || "?" }),
      `${layer.name} ${layer.state}${long && layer.detail ? `: ${layer.detail}` : ""}`)));
}

function rows(pairs) {
  return element("dl", {}, pairs.filter(([, value]) => value)
    .flatMap(([name, value]) => [element("dt", { text: name }), element("dd", { class: "num" }, value)]));
}

// -- the stream ------------------------------------------------------------------------------------

const hear = {};

async function listen() {
  for (let pause = 500; ; pause = Math.min(pause * 2, 8000)) {
    try {
      const answer = await fetch(`/api/stream?run=${encodeURIComponent(runId)}`, { headers: bearer() });
      if (answer.status === 401) { linked(false, "the token is another server's"); return; }
      if (!answer.ok) throw new Error(String(answer.status));
      linked(true, "live");
      pause = 250;
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let text = ""; ;) {
        const { value, done } = await reader.read();
        if (done) break;
        text += value;
        for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) take(text.slice(0, end));
      }
    } catch { /* tried again below */ }
    linked(false, "no connection; trying again");
    await new Promise((go) => setTimeout(go, pause));
    if (hear.again) hear.again();
  }
}

function take(block) {
  let kind = "", data = "";
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) kind = line.slice(7);
    else if (line.startsWith("data: ")) data += line.slice(6);
  }
  if (kind && hear[kind]) hear[kind](JSON.parse(data));
}

function linked(on, text) {
  at("link").classList.toggle("on", on);
  at("link").textContent = text;
}

hear.trouble = ({ text }) => {
  at("trouble").hidden = !text;
  at("trouble").textContent = text;
};

const dismissed = new Set();
hear.jobs = (jobs) => {
  at("jobs").replaceChildren(...jobs.filter((job) => !dismissed.has(job.number)).slice(-4).map((job) => {
    const close = element("button", { type: "button", text: "Close", "aria-label": `Close the message about ${job.verb} of ${job.run}`,
      on: { click: () => { dismissed.add(job.number); hear.jobs(jobs); } } });
    const words = job.state === "working" ? `${job.run}: ${job.verb}…` : job.text + (job.next ? ` — try: ${job.next}` : "");
    const bar = job.state === "working" && job.size ? element("progress", { max: job.size, value: job.done, "aria-label": `${job.verb} of ${job.run}` }) : null;
    return element("div", { class: `job ${job.state}`, "data-verb": job.verb },
      element("div", { class: "row" }, element("span", { text: words }), job.state === "working" ? null : close), bar);
  }));
};

// -- the question before a click -------------------------------------------------------------------

// Shows what `look` tells; `act` is given what was agreed to.
function question(look, act, opener, cap) {
  const dialog = at("ask"), field = at("ask-cap"), yes = at("ask-yes"), why = at("ask-why");
  let seen = null, asked = 0;
  const show = async () => {
    const number = ++asked;
    yes.disabled = true;
    try {
      const told = await look(field.value);
      if (number !== asked) return;
      seen = told;
      at("ask-title").textContent = told.title;
      at("ask-lines").replaceChildren(...told.lines.map((line) => element("p", { text: line })));
      yes.textContent = told.button;
      yes.classList.toggle("danger", told.verb === ENDS_AT_ONCE);
      why.hidden = !told.refused;
      why.textContent = told.refused;
      yes.disabled = Boolean(told.refused);
      if (cap && !field.value) field.value = told.cap;
    } catch (error) {
      if (number !== asked) return;
      why.hidden = false;
      why.textContent = error.message + (error.next ? ` — try: ${error.next}` : "");
    }
  };
  at("ask-title").textContent = "…";
  yes.classList.remove("danger");
  at("ask-lines").replaceChildren();
  why.hidden = true;
  yes.textContent = "…";
  at("ask-cap-label").hidden = !cap;
  at("ask-cap-text").textContent = cap || "";
  field.value = "";
  let typing = 0;
  field.oninput = () => { yes.disabled = true; clearTimeout(typing); typing = setTimeout(show, 200); };
  at("ask-form").onsubmit = async (event) => {
    if (event.submitter !== yes) return;
    event.preventDefault();
    if (yes.disabled || !seen) return;
    yes.disabled = true;
    try {
      await act(seen, field.value);
      dialog.close();
    } catch (error) {
      why.hidden = false;
      why.textContent = error.message + (error.next ? ` — try: ${error.next}` : "");
      at("ask-no").focus();
    }
  };
  dialog.onclose = () => opener.focus();
  dialog.showModal();
  at("ask-no").focus();
  show();
}

function askVerb(verb, opener) {
  question(
    (cap) => ask(`${here}/foreseen?verb=${verb}&cap=${encodeURIComponent(cap)}`),
    (seen, cap) => ask(`${here}/do`, { verb, agreed: seen.at_most, cap }),
    opener, verb === "raise" ? "Whole budget, in dollars" : "",
  );
}

// A button of what cannot be done now gives the reason in place of a question.
async function askOrRefuse(verb, opener) {
  const line = at("refused");
  line.hidden = true;
  if (opener.getAttribute("aria-disabled") !== "true") { askVerb(verb, opener); return; }
  try {
    const told = await ask(`${here}/foreseen?verb=${verb}&cap=`);
    if (!told.refused) { askVerb(verb, opener); return; }
    line.textContent = `${opener.textContent}: ${told.refused}`;
  } catch (error) { line.textContent = error.message + (error.next ? ` — try: ${error.next}` : ""); }
  line.hidden = false;
}

function askLevel(line, opener) {
  question(
    async (cap) => {
      const wanted = Number(cap || (line.cap.usd * 1.5).toFixed(2));
      const more = wanted - line.cap.usd;
      return {
        title: `Raise the cap of ${line.name}`, cap: String(wanted), at_most: "0",
        refused: more > 0 ? "" : `its cap is ${line.cap.text}: name more`,
        lines: [`It is ${line.cap.text}, of which ${line.settled.text} is spent and ${line.reserved.text} reserved.`,
          `At $${wanted.toFixed(2)}, launches may spend $${Math.max(0, more).toFixed(2)} more than before. It goes on record with your name.`],
        button: `Raise it by $${Math.max(0, more).toFixed(2)}`,
      };
    },
    (seen) => ask(`/api/budgets/${encodeURIComponent(line.level)}`, { cap: seen.cap }),
    opener, "New cap, in dollars",
  );
}

// -- all runs --------------------------------------------------------------------------------------

const MOST_COMPARED = 4;

// Boxes beside runs, and the link that shows the chosen ones beside each other.
function comparing() {
  const chosen = new Set(), words = element("span", { class: "dim", role: "status" });
  const link = element("a", { text: "Compare them", hidden: true });
  const bar = element("p", { class: "row", id: "compare" }, words, link);
  const draw = () => {
    words.textContent = chosen.size ? `${chosen.size} of ${MOST_COMPARED} runs chosen` : "Choose 2 to 4 runs to compare them.";
    link.hidden = chosen.size < 2;
    link.href = linkTo(`/compare?runs=${[...chosen].map(encodeURIComponent).join(",")}`);
  };
  const box = (id) => element("input", { type: "checkbox", class: "choose", "aria-label": `Choose ${id} to compare`, checked: chosen.has(id),
    on: { change: ({ target }) => {
      if (!target.checked) chosen.delete(id);
      else if (chosen.size < MOST_COMPARED) chosen.add(id);
      else target.checked = false;
      draw();
    } } });
  draw();
  return { bar, box };
}

const SHOWN_ENDED = 50;

// The runs behind a figure of the page of spending: those of a month, or of one group in it.
async function behind() {
  const asked = new URLSearchParams(location.search), month = asked.get("month"), by = asked.get("by") || "project", of = asked.get("of");
  if (!month) return null;
  const told = await ask(`/api/spend?${new URLSearchParams({ month, by })}`);
  const groups = told.groups.filter((group) => of === null || group.name === of);
  return { ids: new Set(groups.flatMap((group) => group.run_ids)), text: `${of === null ? "" : `${by.replace(/^tag:/, "tag ")} ${of}, `}${told.month}` };
}

async function allRuns(told) {
  const only = await behind();
  const runs = new Map(told.runs.map((run) => [run.id, run]));
  let every = false, budgets = told.budgets;
  const box = element("div", { class: "cards" }), asks = element("div", { class: "cards" });
  const body = element("tbody", {});
  const heads = ["run", "state", "training", "metric", "money", "kill layers", "ends"];
  const more = element("button", { type: "button", on: { click: () => { every = true; draw(); } } });
  const key = element("p", { class: "dim keys" },
    [["proven", "proven"], ["unproven", "at most, not final"], ["reserved", "reserved"]].map(([kind, words]) =>
      element("span", {}, element("span", { class: `key ${kind}`, "aria-hidden": "true" }), words)));
  main.replaceChildren(
    element("h1", { text: only ? `Runs: ${only.text}` : "Runs" }),
    only ? element("p", {}, `${only.ids.size} run${only.ids.size === 1 ? "" : "s"} · `, element("a", { href: address(""), text: "All runs" })) : "",
    element("p", { class: "dim", text: `${told.home} · project ${told.project}` }),
    asks, box,
    element("table", { class: "cardy" }, element("thead", {}, element("tr", {}, heads.map((head) => element("th", { scope: "col", text: head })))), body),
    more, key);
  document.title = "runs · trmcloud";
  const compare = comparing();
  box.after(compare.bar);

  const made = new Map();
  function row(run) {
    const t = run.training;
    const cells = [
      [element("a", { href: address(run.id), text: run.id }), run.name ? element("div", { class: "name", text: run.name }) : "",
        element("div", { class: "dim", text: `${run.recipe} on ${run.hardware}` }), tagList(run.tags)],
      [stateOf(run), run.trouble || run.waits_for ? element("div", { class: "dim", text: run.trouble || `waits for ${run.waits_for}` }) : ""],
      t ? [`${t.phase} ${t.step.toLocaleString("en")}${t.steps ? ` of ${t.steps.toLocaleString("en")}` : " steps"}`,
        run.live && t.steps ? element("progress", { max: Math.max(1, t.steps), value: t.step, "aria-label": `steps of ${run.id}` }) : ""] : ["–"],
      [t ? t.value : "–", t && t.value !== "–" ? element("div", { class: "dim", text: run.metric }) : "", t && t.by && t.value !== "–" ? element("div", { class: "dim", text: t.by }) : "", t && run.live && t.buys ? element("div", { class: "dim", text: t.buys }) : ""],
      [moneyBar(run.money), element("div", { text: `${run.money.proven.text}${run.money.at_most.usd - run.money.proven.usd >= .01 ? ` (≤ ${run.money.at_most.text})` : ""} of ${run.money.cap.text}` }),
        run.live ? element("div", { class: "dim", text: `${run.money.reserved.text} reserved, ${run.money.left.text} left` }) : ""],
      [lights(run.layers, false), run.live ? element("div", { class: "dim", text: `max overspend ${run.max_overspend}` }) : ""],
      [run.live ? run.clock || "–" : when(run.created_at)],
    ];
    return cells.map((cell, n) => element("td", { "data-name": heads[n], class: n > 1 && n < 5 ? "num" : null }, element("div", {}, cell.filter((part) => part !== ""))));
  }
  function put(run) {
    const line = made.get(run.id);
    if (!line) { draw(); return; }
    // All but the first cell, whose link may have the keyboard.
    row(run).forEach((cell, n) => { if (n) line.children[n].replaceWith(cell); });
  }
  function draw() {
    const order = [...runs.values()].filter((run) => !only || only.ids.has(run.id)).sort((a, b) => Number(b.live) - Number(a.live) || b.created_at - a.created_at);
    const ended = order.filter((run) => !run.live).length;
    const shown = every ? order : order.filter((run, n) => run.live || n < order.length - ended + SHOWN_ENDED);
    made.clear();
    body.replaceChildren(...shown.map((run) => {
      const line = element("tr", { "data-run": run.id }, row(run));
      line.querySelector("a").before(compare.box(run.id), " ");
      made.set(run.id, line);
      return line;
    }));
    if (!shown.length) {
      body.replaceChildren(element("tr", {}, element("td", { colspan: heads.length, text: only ? "none of these runs is to be seen here" : "no runs yet: trmcloud launch local --recipe trm-tiny --budget 1 --rate 3.60" })));
    }
    more.hidden = shown.length === order.length;
    more.textContent = `Show ${order.length - shown.length} more that have ended`;
  }
  function drawAsks() {
    asks.replaceChildren(...(told.approvals || []).map((one) => {
      const card = element("section", { class: "card", "data-approval": one.id }, element("h2", { text: `${one.principal} asks for ${one.wish}` }),
        one.why ? element("p", { text: one.why }) : "");
      for (const [answer, words] of [["approve", "Approve"], ["deny", "Deny"]]) {
        const button = element("button", { type: "button", text: words, "aria-label": `${words} ${one.id} of ${one.principal}` });
        button.addEventListener("click", async () => {
          try {
            const done = await ask(`/api/approvals/${encodeURIComponent(one.id)}`, { answer });
            card.replaceChildren(element("p", { role: "status", text: `${one.id} is ${done.state}` }));
          } catch (error) { card.append(element("p", { role: "alert", text: error.message })); }
        });
        card.append(button);
      }
      return card;
    }));
  }
  function drawBudgets() {
    box.replaceChildren(...budgets.filter((line) => line.cap).map((line) => {
      const bar = element("div", { class: "bar", role: "img", "aria-label": `${Math.round(100 * (line.share || 0))} % of ${line.name} is spent or reserved` });
      const spent = element("i", { class: "proven" }), held = element("i", { class: "reserved" });
      spent.style.width = `${(100 * line.settled.usd) / line.cap.usd}%`;
      held.style.width = `${(100 * line.reserved.usd) / line.cap.usd}%`;
      bar.append(spent, held);
      const button = element("button", { type: "button", text: "Raise", "aria-label": `Raise the cap of ${line.name}` });
      button.addEventListener("click", () => askLevel(line, button));
      return element("section", { class: "card", "data-level": line.level }, element("h2", { text: line.name }), bar,
        element("p", { class: "num", text: `${line.settled.text} spent, ${line.reserved.text} reserved, ${line.left.text} left of ${line.cap.text}` }), button);
    }));
  }
  hear.beats = (beats) => {
    for (const { run, training } of beats) {
      const known = runs.get(run);
      if (known) { known.training = training; put(known); }
    }
    document.documentElement.dataset.beat = String(Math.max(...beats.map((beat) => beat.training.at)));
  };
  hear.row = (run) => { runs.set(run.id, run); if (made.has(run.id)) put(run); else draw(); };
  hear.budgets = (lines) => {
    const held = document.activeElement?.closest?.("[data-level]")?.dataset.level;
    budgets = lines;
    drawBudgets();
    if (held) box.querySelector(`[data-level="${CSS.escape(held)}"] button`)?.focus();
  };
  hear.anew = hear.again = async () => {
    const news = await ask("/api/runs").catch(() => null);
    if (news) { runs.clear(); news.runs.forEach((run) => runs.set(run.id, run)); draw(); hear.budgets(news.budgets); hear.jobs(news.jobs); told.approvals = news.approvals; drawAsks(); }
  };
  hear.jobs(told.jobs);
  drawAsks();
  drawBudgets();
  draw();
}

// -- one run -----------------------------------------------------------------------------------------

function oneRun(told) {
  let run = told, curves = null, found = null;
  document.title = `${run.name ? `${run.name} · ` : ""}${run.id} · trmcloud`;
  const box = (name, ...children) => element("section", { class: "card", "aria-label": name }, element("h2", { text: name }), ...children);
  const head = element("div", {}), cards = element("div", { class: "cards" });
  const actions = element("div", { class: "row", role: "group", "aria-label": "Steer this run" });
  for (const [verb, words] of VERBS) {
    const button = element("button", { type: "button", id: `do-${verb}`, text: words, class: verb === ENDS_AT_ONCE ? "danger" : null });
    button.addEventListener("click", () => askOrRefuse(verb, button));
    actions.append(button);
  }
  const refused = element("p", { id: "refused", class: "why", role: "alert", hidden: true });
  const axes = element("fieldset", {}, element("legend", { text: "Curves over" }), AXIS_NAMES.map((name) =>
    element("label", {}, element("input", { type: "radio", name: "axis", value: name, checked: name === "usd" }), ` ${AXIS_WORDS[name]}`)));
  const told_of = element("p", { class: "dim" });
  const charts = [
    new Chart("Validation", () => run.metric, ({ evals }) => ({ x: evals, lines: evals.step.length ? [{ name: run.metric, values: evals.value }] : [] }), { points: true }),
    new Chart("Training loss", "nats a token", ({ train }) => ({ x: train, lines: train.value.some((v) => v !== null) ? [{ name: "loss", values: train.value }] : [] })),
    new Chart("Supervision steps", "nats a token", ({ train, evals }) => {
      const from = train.passes.length ? train : evals;
      return { x: from, lines: from.passes.length > 1 ? from.passes.map((values, n) => ({ name: `ℓ${n + 1}`, values })) : [] };
    }),
    new Chart("Speed", "tokens a second", ({ train }) => ({ x: train, lines: train.speed.some((v) => v !== null) ? [{ name: "tokens a second", values: train.speed }] : [] })),
  ];
  const plots = element("div", { class: "charts" }, charts.map((chart) => chart.node));
  const marks = element("div", {});
  const machine = machineSection(() => drawCurves()), log = logSection(), launched = launchedSection();
  const health = element("div", {}), shelf = element("div", {}), layers = element("div", {}), gates = element("div", {});
  const trials = element("div", {});
  main.replaceChildren(head, actions, refused, cards, trials,
    element("h2", { text: "Curves" }), axes, told_of, plots,
    health, layers, gates, machine.node, log.node, shelf, marks, launched.node);

  const axis = () => axes.querySelector("input:checked").value;
  axes.addEventListener("change", () => { [...charts, ...machine.charts].forEach((chart) => { chart.zoomed = false; }); drawCurves(); });

  function drawHead() {
    const t = run.training;
    head.replaceChildren(element("h1", {}, run.name ? `${run.name} ` : "", element("span", { class: run.name ? "dim" : null, text: run.id }), " ", stateOf(run)),
      tagList(run.tags),
      element("p", { text: `${run.recipe} on ${run.hardware}${run.provider && run.provider !== "local" ? `, ${run.provider}` : ""} · project ${run.project}${run.principal ? ` · for ${run.principal}` : ""} · since ${when(run.created_at)}` }),
      ...[run.meaning, run.why && `why: ${run.why}`, run.waits_for && `waits for ${run.waits_for}`, run.trouble, run.unasked && "its provider is not asked now: what is shown was heard before"]
        .filter(Boolean).map((text) => element("p", { class: "dim", text })));
    const m = run.money;
    cards.replaceChildren(
      box("Money", element("p", { class: "big", text: `${m.proven.text} of ${m.cap.text}` }), moneyBar(m),
        rows([["proven", m.proven.text], ["at most", m.at_most.text], ["reserved", m.reserved.text], ["left", m.left.text],
          ["an hour", m.rate && m.rate.text], ["max overspend", run.max_overspend], ...run.volumes.map((text) => ["volume", text])])),
      box("Training", element("p", { class: "big", text: t ? `${t.step.toLocaleString("en")}${t.steps ? ` of ${t.steps.toLocaleString("en")}` : " steps"}` : "–" }),
        t && t.steps ? element("progress", { max: Math.max(1, t.steps), value: t.step, "aria-label": "steps trained" }) : "",
        rows([["phase", t && `${t.phase}, ${t.state}`], ["clock", run.clock],
          ["tokens", t && t.tokens ? t.tokens.toLocaleString("en") : ""],
          ["tokens a second", t && t.tokens_per_s ? Math.round(t.tokens_per_s).toLocaleString("en") : ""],
          ["driven", run.live && (run.driven ? "by a command" : "by this page, while it is open")]])),
      box(run.metric.replace(/^bits/, "Bits"), element("p", { class: "big", text: t ? t.value : "–" }),
        t && t.by ? element("p", { class: "dim", text: t.by }) : "",
        rows([["best", t && t.best !== "–" ? `${t.best} at step ${(t.best_step ?? 0).toLocaleString("en")}` : ""],
          ["losses", t && t.passes.length ? t.passes.map((x) => (x === null ? "–" : x >= .001 ? x.toFixed(3) : x.toPrecision(3))).join(" > ") : ""],
          ["pays", run.live && t && t.buys]])));
    for (const [verb] of VERBS) at(`do-${verb}`).setAttribute("aria-disabled", String(Boolean(run.cannot[verb])));
    layers.replaceChildren(...(run.layers.length ? [element("h2", { text: "Kill layers" }), lights(run.layers, true)] : []));
    gates.replaceChildren(...run.gates.flatMap((gate) => [
      element("h2", { text: `Gate after ${gate.phase}: ${gate.passed === null ? "cannot be read" : gate.passed ? "passed" : "failed"}` }),
      element("ul", {}, gate.checks.map((check) => element("li", { text: `${{ true: "✔", false: "✘" }[check.passed] || "–"} ${check.name}: ${check.detail}${check.blocking ? "" : " (does not block)"}` })))]));
  }

  let tried = "";
  function drawTrials() {
    const now = JSON.stringify(run.sweep);
    if (now === tried) return;
    tried = now;
    const { heads, rows: lines, said } = run.sweep || { heads: [], rows: [], said: [] };
    trials.replaceChildren(...(run.sweep ? [element("h2", { text: "Trials" }),
      element("table", { class: "cardy" }, element("thead", {}, element("tr", {}, heads.map((text) => element("th", { scope: "col", text })))),
        element("tbody", {}, lines.map((line) => element("tr", {}, line.map((text, n) => element("td", { "data-name": heads[n], class: "num" }, element("div", { text }))))))),
      element("ul", { class: "dim" }, said.map((text) => element("li", { text })))] : []));
  }

  let shelved = "", marked = "";
  function drawShelf() {
    const now = JSON.stringify(run.checkpoints);
    if (now === shelved) return;  // what somebody is about to copy stays selected
    shelved = now;
    const places = { here: "this machine", bucket: "bucket", pod: "only on its pod", volume: "network volume", fetched: "fetched to" };
    const heads = ["checkpoint", run.metric, "size", "sha256 of the weights", "where"];
    const lines = [...run.checkpoints].reverse().map((each) => element("tr", {}, [
      `${each.best ? "★ " : ""}${each.label}${each.best ? ` · ${each.best_words}` : ""}${each.latest ? " · latest" : ""}`, each.value, `${each.mb} MB`,
      element("span", { class: "hash", text: each.sha256 }), element("span", { text: each.places.map((place) => `${places[place.kind]} ${place.where}`.trim()).join("; ") }),
    ].map((cell, n) => element("td", { "data-name": heads[n], class: { 2: "short", 3: "hash" }[n] }, element("div", {}, cell)))));
    shelf.replaceChildren(element("h2", { text: "Checkpoints" }), run.checkpoints.length
      ? element("table", { class: "cardy" }, element("thead", {}, element("tr", {}, heads.map((text) => element("th", { scope: "col", text })))), element("tbody", {}, lines))
      : element("p", { class: "dim", text: "none is known of yet" }));
  }

  function drawMarks() {
    const list = curves ? curves.marks : [];
    const now = JSON.stringify([list, run.ledger]);
    if (now === marked) return;
    marked = now;
    const kinds = [...new Set(list.map((mark) => mark.kind))];
    const heads = ["when", "what", "step", "hours", "dollars"];
    const lines = [...list].reverse().slice(0, 200).map((mark) => element("tr", {}, [
      when(mark.at), [element("span", { class: "glyph", "aria-hidden": "true", text: GLYPHS[mark.kind] || "·" }), mark.text],
      mark.step === null ? "–" : mark.step.toLocaleString("en"), mark.hours.toFixed(3), `$${mark.usd.toFixed(4)}`,
    ].map((cell, n) => element("td", { "data-name": heads[n], class: "num" }, element("div", {}, cell)))));
    marks.replaceChildren(element("h2", { text: "Events" }),
      element("p", { class: "dim keys" }, kinds.map((kind) => element("span", {}, element("span", { class: "glyph", "aria-hidden": "true", text: GLYPHS[kind] }), KIND_WORDS[kind]))),
      list.length ? element("table", { class: "cardy" }, element("thead", {}, element("tr", {}, heads.map((text) => element("th", { scope: "col", text })))), element("tbody", {}, lines))
        : element("p", { class: "dim", text: "nothing has happened yet" }),
      element("p", { class: "dim", text: `ledger ${run.ledger}` }));
  }

  function drawHealth() {
    health.replaceChildren(element("h2", { text: "Health" }), ...(found === null ? [element("p", { class: "dim", text: "its numbers are being read…" })]
      : found.length ? found.map((each) => element("div", { class: "unwell" },
        element("p", { text: `${each.phase} step ${each.step.toLocaleString("en")}: ${each.message}` }), element("p", { class: "dim", text: `try: ${each.next}` })))
        : [element("p", { class: "well", text: "No problems found in its own figures." })]));
  }

  function drawCurves() {
    if (!curves) return;
    const name = axis();
    const most = Math.max(0, ...[curves.train, curves.evals].flatMap((series) => series[name].slice(-1)), ...curves.marks.map((mark) => mark[name] || 0));
    charts.forEach((chart) => chart.draw(curves, name, curves.marks, most * 1.02 || 1));
    machine.draw(name, curves.marks, most * 1.02 || 1);
    told_of.textContent = [curves.told, curves.whole ? "" : "a sample so far: all of it is being read",
      curves.train.step.length || curves.evals.step.length ? "" : "nothing was logged yet"].filter(Boolean).join(" · ");
    if (curves.train.step.length || curves.evals.step.length) {
      requestAnimationFrame(() => {
        if (!document.documentElement.dataset.drawn) performance.mark("first-curve");
        document.documentElement.dataset.drawn = curves.whole ? "whole" : "sample";
      });
    }
  }

  async function curvesAnew(answer) {
    const news = await (answer || ask(`${here}/curves`)).catch(() => null);
    if (news) { curves = news; drawCurves(); drawMarks(); }
  }

  function join(into, news) {
    for (const name of ["step", "at", "hours", "usd", "value", "speed"]) into[name].push(...news[name]);
    const rows = into.step.length, before = rows - news.step.length;
    for (let n = 0; n < Math.max(into.passes.length, news.passes.length); n++) {
      if (!into.passes[n]) into.passes[n] = Array(before).fill(null);
      into.passes[n].push(...(news.passes[n] || Array(news.step.length).fill(null)));
    }
  }

  hear.points = (news) => {
    if (!curves) return;
    if (curves.train.step.length > 2400 || news.phases.length !== curves.phases.length) { curvesAnew(); return; }
    join(curves.train, news.train);
    join(curves.evals, news.evals);
    document.documentElement.dataset.points = String(Math.max(0, ...news.train.at, ...news.evals.at));
    drawCurves();
  };
  hear.curves = () => curvesAnew();
  hear.beats = (beats) => {
    for (const beat of beats) {
      if (beat.run === run.id) {
        run.training = beat.training;
        drawHead();
        document.documentElement.dataset.beat = String(beat.training.at);
      }
    }
  };
  hear.run = (news) => {
    if (run.live !== news.live) { log.grown(); at("refused").hidden = true; }
    run = news;
    drawHead();
    drawTrials();
    drawShelf();
    if (curves) {
      const before = curves.marks.length;
      curves.marks = news.marks;
      drawMarks();
      if (news.marks.length !== before) drawCurves();
    }
  };
  hear.log = () => log.grown();
  hear.machine = () => machine.grown();
  hear.health = (news) => { found = news; drawHealth(); };
  hear.anew = hear.again = async () => {
    const news = await ask(here).catch((error) => (error.status === 404 ? gone(error) : null));
    if (news) { news.marks = curves ? curves.marks : []; hear.run(news); hear.jobs(news.jobs); log.grown(); machine.grown(); await curvesAnew(); }
  };
  hear.redraw = () => { [...charts, ...machine.charts].forEach((chart) => { chart.kind = ""; }); drawCurves(); };
  hear.jobs(told.jobs);
  drawHead();
  drawHealth();
  return curvesAnew(firstCurves).then(() => {
    drawTrials();
    drawShelf();
    drawMarks();
    for (const each of [machine, log, launched]) each.begin();
  });
}

function gone(error) {
  main.replaceChildren(element("h1", { text: "Not here" }), element("p", { text: error.message }),
    error.next ? element("p", { class: "dim", text: `try: ${error.next}` }) : "", element("p", {}, element("a", { href: address(""), text: "All runs" })));
  document.title = "not here · trmcloud";
  return null;
}

// -- the theme, and the beginning ------------------------------------------------------------------

const THEMES = ["automatic", "light", "dark"];
function theme(name) {
  if (name === "automatic") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  at("theme").textContent = `Theme: ${name}`;
  at("theme").hidden = false;
  if (hear.redraw) hear.redraw();
}
let themed = "automatic";
try { themed = localStorage.getItem("theme") || themed; } catch { /* no storage is allowed */ }
theme(THEMES.includes(themed) ? themed : "automatic");
at("theme").addEventListener("click", () => {
  themed = THEMES[(THEMES.indexOf(themed) + 1) % THEMES.length];
  try { localStorage.setItem("theme", themed); } catch { /* likewise */ }
  theme(themed);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme(themed));
at("brand").href = linkTo("/");
at("all").href = address("");
const toView = ([name, text]) => element("a", { href: linkTo(`/${name}`), text, "aria-current": view === name && "page" });
at("all").after(toView(["spend", "Spending"]));
if (!view && !runId) at("all").setAttribute("aria-current", "page");

async function openView(name) {
  document.head.append(element("link", { rel: "stylesheet", href: new URL("./views.css", import.meta.url).href }));
  await (await import(`./${name}.js`)).show({ address, hear, main, when });
}

// The fragment holds the token: a skip link must not take its place.
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });

async function begin() {
  linked(false, "connecting…");
  if (!token) {
    linked(false, "not connected");
    gone(new Refused(0, { error: "this address lacks its token", next: "open the one that trmcloud ui has printed" }));
    return;
  }
  try {
    if (view) await openView(view);
    else {
      const told = await first;
      // What is clicked is done to the run of this id, whatever has its name by then.
      if (runId && told.id !== runId) location.replace(address(told.id));
      else await (runId ? oneRun : allRuns)(told);
    }
  } catch (error) {
    gone(error);
    if (error.status === 401 || error.status === 404) { linked(false, "not connected"); return; }
    setTimeout(() => location.reload(), 3000);  // the ledger is in use, or the server just begins
    return;
  }
  listen();
}
begin();
