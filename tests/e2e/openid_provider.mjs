// An OpenID provider by another project (oidc-provider), with one client and its own login pages.
// node openid_provider.mjs MODULES PORT REDIRECT_URI SECRET
import { createRequire } from "node:module";
import { generateKeyPairSync } from "node:crypto";
import { pathToFileURL } from "node:url";

const [modules, port, redirect, secret] = process.argv.slice(2);
const found = createRequire(`${modules}/x.js`).resolve("oidc-provider");
const { default: Provider } = await import(pathToFileURL(found).href);

const newKey = (kid) => ({
  ...generateKeyPairSync("rsa", { modulusLength: 2048 }).privateKey.export({ format: "jwk" }),
  kid, use: "sig", alg: "RS256",
});
const issuer = `http://127.0.0.1:${port}`;
const groups = { "ada@example.com": ["ml-leads"], "bob@example.com": [] };

const provider = new Provider(issuer, {
  clients: [{
    client_id: "trmcloud", client_secret: secret, redirect_uris: [redirect],
    grant_types: ["authorization_code"], response_types: ["code"],
  }],
  jwks: { keys: [newKey("first")] },
  cookies: { keys: ["only for this test"] },
  scopes: ["openid", "email", "groups"],
  claims: { openid: ["sub"], email: ["email", "email_verified"], groups: ["groups"] },
  // Whoever logs in is who they say: this is about what comes back, not about passwords.
  findAccount: (ctx, id) => ({
    accountId: id,
    claims: () => ({ sub: `id-of-${id}`, email: id, email_verified: id !== "eve@example.com", groups: groups[id] ?? [] }),
  }),
  pkce: { required: () => true },
  features: { devInteractions: { enabled: true } },
});
provider.listen(Number(port), "127.0.0.1", () => console.log(issuer));
