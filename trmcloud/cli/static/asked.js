// What the page asks of its own server. It waits for no other file: what is shown first is asked for
// while the rest of the page is still being read.

export const token = new URLSearchParams(location.hash.slice(1)).get("token") || "";
export const runId = location.pathname.startsWith("/run/") ? decodeURIComponent(location.pathname.slice(5)) : "";
// Views beside all runs and one run; each is a file of its own, read when it opens.
export const view = ["spend", "compare"].find((name) => location.pathname === `/${name}`) || "";
export const linkTo = (path) => `${path}#token=${encodeURIComponent(token)}`;
export const bearer = () => ({ Authorization: `Bearer ${token}` });
export const here = `/api/runs/${encodeURIComponent(runId)}`;

export class Refused extends Error {
  constructor(status, told) { super(told.error || `the server answered ${status}`); this.status = status; this.next = told.next || ""; }
}

export async function ask(path, wish) {
  const headers = bearer();
  if (wish) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, { method: wish ? "POST" : "GET", headers, body: wish ? JSON.stringify(wish) : undefined });
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, told);
  return told;
}

export const firstCurves = token && runId ? ask(`${here}/curves`) : null;
export const first = token && !view ? ask(runId ? here : "/api/runs") : null;
for (const each of [firstCurves, first]) each?.catch(() => {});  // told of once the page is there
