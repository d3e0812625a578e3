// Calls trmcloud mcp by the TypeScript SDK's client: node mcp_peer.mjs MODULES JOB.json
// JOB: {command, args, env, cwd} or {url, token}, and calls: [[tool, arguments], …]. Prints one
// JSON document: the tools, and each answer or error.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [modules, jobPath] = process.argv.slice(2);
const job = JSON.parse(readFileSync(jobPath, "utf8"));
const sdk = `${modules}/node_modules/@modelcontextprotocol/sdk/dist/esm/client`;
const load = (name) => import(pathToFileURL(`${sdk}/${name}.js`).href);

const { Client } = await load("index");
let transport;
if (job.url) {
  const { StreamableHTTPClientTransport } = await load("streamableHttp");
  const requestInit = { headers: { Authorization: `Bearer ${job.token}` } };
  transport = new StreamableHTTPClientTransport(new URL(job.url), { requestInit });
} else {
  const { StdioClientTransport } = await load("stdio");
  const { command, args, env, cwd } = job;
  transport = new StdioClientTransport({ command, args, env, cwd });
}
const client = new Client({ name: "peer", version: "1" });
await client.connect(transport);
const { tools } = await client.listTools();
const answers = [];
for (const [name, given] of job.calls) {
  try {
    answers.push(await client.callTool({ name, arguments: given }));
  } catch (error) {
    answers.push({ code: error.code, message: error.message });
  }
}
console.log(JSON.stringify({ server: client.getServerVersion(), tools, answers }));
await client.close();
