// Saved plans that are still valid, and their launch: the question shows what `trmcloud launch PLAN`
// prints before its own, and a yes starts that command.

import { ask } from "./asked.js";
import { element } from "./charts.js";

const ASK_EVERY_MS = 400;

function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

const pause = (ms) => new Promise((go) => setTimeout(go, ms));
const tried = (error) => error.message + (error.next ? ` — try: ${error.next}` : "");

// Asks, launches once, and opens the run's page.
function question(plan, opener, address) {
  const key = newKey();  // one for each question: two clicks on its answer are one launch
  let seen = null, open = true;
  const title = element("h2", { id: "launch-title", text: `Launch ${plan.id}` });
  const printed = element("pre", { class: "printed", text: "…" }), also = element("div", {});
  const why = element("p", { class: "why", role: "alert", hidden: true }), typed = element("div", { hidden: true });
  const no = element("button", { type: "submit", value: "no", id: "launch-no", text: "Leave it as it is" });
  const yes = element("button", { type: "submit", value: "yes", id: "launch-yes", class: "main", text: "…", disabled: true });
  const form = element("form", { method: "dialog" }, title, printed, also, why, typed, element("div", { class: "row" }, no, yes));
  const dialog = element("dialog", { class: "launch", id: "launch", "aria-labelledby": "launch-title" }, form);
  document.body.append(dialog);

  function refuse(error) {
    why.hidden = false;
    why.textContent = tried(error);
    if (error.status === 0) return;  // the server was not reached
    typed.hidden = false;
    typed.replaceChildren(element("p", { text: "This page does not pass over a refusal. In a terminal you can type, with the options that are named above:" }),
      element("p", { class: "typed", text: seen ? seen.typed : plan.typed }));
  }

  async function look() {
    try {
      seen = await ask(`/api/plans/${encodeURIComponent(plan.id)}/foreseen`);
    } catch (error) {
      printed.textContent = "";
      refuse(error);
      return;
    }
    title.textContent = seen.title;
    printed.replaceChildren(...seen.lines.map((text) => element("span", { text })));
    also.replaceChildren(...seen.also.map((text) => element("p", { text })));
    yes.textContent = seen.button;
    yes.disabled = Boolean(seen.refused);
    if (seen.refused) refuse({ message: seen.refused, next: seen.next });
  }

  async function launch() {
    yes.disabled = true;
    yes.textContent = "Launching…";
    no.textContent = "Close";
    why.hidden = typed.hidden = true;
    try {
      await ask(`/api/plans/${encodeURIComponent(plan.id)}/launch`, { key, agreed: seen.at_most });
      while (open) {
        const told = await ask(`/api/launches/${key}`);
        if (told.run) { location.href = address(told.run); return; }
        if (told.state === "failed") {
          refuse({ message: told.error, next: told.next });
          yes.textContent = seen.button;
          return;
        }
        await pause(ASK_EVERY_MS);
      }
    } catch (error) {
      const reached = error.status !== undefined;
      refuse(reached ? error : { message: "the page's server was not reached: another click continues the same launch", status: 0 });
      yes.textContent = seen.button;
      yes.disabled = reached;
    }
  }

  form.addEventListener("submit", (event) => {
    if (event.submitter !== yes) return;
    event.preventDefault();
    if (!yes.disabled && seen) launch();
  });
  dialog.addEventListener("close", () => { open = false; dialog.remove(); opener.focus(); });
  dialog.showModal();
  no.focus();
  look();
}

export async function show({ address, hear, main, when }) {
  document.title = "saved plans · trmcloud";
  const list = element("div", {});
  main.replaceChildren(element("h1", { text: "Saved plans" }),
    element("p", { class: "dim", text: "Plans of trmcloud plan that have not expired. A launch asks first." }), list);
  const heads = ["plan", "hardware", "expected", "worst case", "cap", "expires", ""];

  function row(plan) {
    const button = element("button", { type: "button", "data-plan": plan.id, text: "Launch…", "aria-label": `Launch ${plan.id}` });
    button.addEventListener("click", () => question(plan, button, address));
    const cells = [
      [element("strong", { text: plan.id }), element("div", { class: "dim", text: `${plan.recipe}, ${plan.phases.join(" and ")} · made ${when(plan.created_at)}` })],
      [plan.hardware, plan.rate ? element("div", { class: "dim", text: `${plan.rate.text}/h` }) : ""],
      [plan.expected ? plan.expected.text : "–", plan.takes ? element("div", { class: "dim", text: plan.takes }) : ""],
      [plan.reservation.text, element("div", { class: "dim", text: "is reserved" })],
      [plan.cap ? plan.cap.text : "–"],
      [when(plan.expires_at)],
      plan.refused ? [element("p", { class: "dim refused", text: `Cannot be launched: ${plan.refused}` }), button] : [button],
    ];
    return element("tr", { "data-id": plan.id }, cells.map((cell, n) =>
      element("td", { "data-name": heads[n], class: n > 1 ? "short" : null }, element("div", {}, cell.filter((part) => part !== "")))));
  }

  async function look() {
    const told = await ask("/api/plans");
    const held = document.activeElement?.dataset?.plan;
    list.replaceChildren(told.plans.length ? element("table", { class: "cardy" },
      element("thead", {}, element("tr", {}, heads.map((text) => (text ? element("th", { scope: "col", text }) : element("td", {}))))),
      element("tbody", {}, told.plans.map(row)))
      : element("p", { class: "dim", text: "None is saved now, or all have expired: trmcloud plan makes one." }));
    if (held) list.querySelector(`[data-plan="${CSS.escape(held)}"]`)?.focus();
    document.documentElement.dataset.drawn = "plans";
  }

  hear.again = () => { if (!document.getElementById("launch")) look().catch(() => {}); };
  try {
    await look();
  } catch (error) {
    list.replaceChildren(element("p", { class: "why", role: "alert", text: tried(error) }));
  }
}
