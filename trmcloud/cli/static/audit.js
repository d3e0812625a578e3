// Who did what to which dollars: the server's audit log, the newest first, a page at a time.

import { ask, linkTo } from "./asked.js";
import { element } from "./charts.js";

const HEADS = ["when", "who", "what", "decision", "dollars"];
const at = (x) => `${new Date(x * 1000).toISOString().slice(0, 19).replace("T", " ")}`;

function dollars(act) {
  if (!act.runs.length) return ["–"];
  return act.runs.map(({ run, spent, cap }) => element("div", {}, element("a", { href: linkTo(`/run/${encodeURIComponent(run)}`), text: run }), ` ${spent} of ${cap}`));
}

function row(act) {
  const decided = act.decision === "done" && act.exit_code !== null ? `exit ${act.exit_code}` : act.decision;
  const cells = [
    [at(act.at)],
    [`${act.person} (${act.role})`, element("div", { class: "dim", text: [act.address, act.token && `token ${act.token}`].filter(Boolean).join(", ") || "at the server" })],
    [element("span", { class: "typed", text: act.what }), act.why ? element("div", { class: "dim", text: act.why }) : ""],
    [decided, act.raise ? element("div", { class: "dim", text: act.raise }) : ""],
    dollars(act),
  ];
  return element("tr", { class: act.decision === "refused" ? "refused" : null }, cells.map((cell, n) => element("td", { "data-name": HEADS[n], class: n === 2 ? null : "short" }, element("div", {}, cell.filter((part) => part !== "")))));
}

export async function show({ hear, main }) {
  document.title = "audit · trmcloud";
  const choices = element("div", { class: "choices" }), trouble = element("p", { class: "why", role: "alert", hidden: true });
  const body = element("tbody", {}), count = element("p", { class: "dim", role: "status" });
  const older = element("button", { type: "button", hidden: true, on: { click: () => look(true) } });
  let person = new URLSearchParams(location.search).get("person") || "", last = "", number = 0, offered = "";
  main.replaceChildren(element("h1", { text: "Audit" }), element("p", { class: "dim", text: "Who did what to which dollars, in UTC. Nothing is changed or removed here." }), choices, trouble,
    element("table", { class: "cardy" }, element("caption", { text: "Acts, the newest first" }),
      element("thead", {}, element("tr", {}, HEADS.map((text) => element("th", { scope: "col", text })))), body), older, count);

  async function look(more) {
    const mine = ++number;
    try {
      const told = await ask(`/api/audit?${new URLSearchParams({ person, ...(more ? { before: last } : {}) })}`);
      if (mine !== number) return;
      draw(told, more);
    } catch (error) {
      trouble.hidden = false;
      trouble.textContent = error.message + (error.next ? ` — try: ${error.next}` : "");
    }
  }

  function draw(told, more) {
    trouble.hidden = told.broken_at === null;
    if (told.broken_at !== null) trouble.textContent = `Record ${told.broken_at} does not follow from those before it: compare the log with a backup of the database.`;
    if (JSON.stringify(told.people) !== offered) {
      offered = JSON.stringify(told.people);
      const select = element("select", { id: "person", on: { change: () => { person = select.value; history.replaceState(null, "", linkTo(person ? `/audit?${new URLSearchParams({ person })}` : "/audit")); look(false); } } },
        [["", "all"], ...told.people.map((name) => [name, name])].map(([value, text]) => element("option", { value, text, selected: value === person })));
      choices.replaceChildren(element("label", {}, "Person ", select));
    }
    if (!more) body.replaceChildren();
    body.append(...told.acts.map(row));
    last = told.acts.length ? String(told.acts[told.acts.length - 1].number) : "";
    older.hidden = !told.more;
    older.textContent = `Show older acts (${told.more})`;
    count.textContent = `${body.rows.length} shown${told.broken_at === null ? "; the log's hashes are whole" : ""}`;
    document.documentElement.dataset.drawn = "audit";
  }

  hear.redraw = () => {};
  await look(false);
}
