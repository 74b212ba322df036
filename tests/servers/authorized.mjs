// A real authorization server (oidc-provider, certified) and an MCP server (the official SDK) that takes its tokens, in one process.
//
// node authorized.mjs: it prints {"mcp": URL, "issuer": URL} when both listen. TOKEN_SECONDS: how long access tokens hold; OAUTH_CLIENT and
// OAUTH_SECRET: a client that was registered by hand and may log in by itself. Every login is granted at once, to whoever follows its page.
// GET /counts at the MCP server tells what the token endpoint was asked for.
import { createServer } from 'node:http';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { Provider } from 'oidc-provider';

const SCOPES = ['notes:read', 'notes:write'];
const seconds = Number(process.env.TOKEN_SECONDS ?? 3600);
const counts = { authorization_code: 0, refresh_token: 0, client_credentials: 0, refused: 0, revoked: 0 };
const notes = [];

async function listening(server) {
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return `http://127.0.0.1:${server.address().port}`;
}

const authorization = createServer((request, response) => answer(request, response));
const resources = createServer((request, response) => serve(request, response).catch((error) => response.destroy(error)));
const issuer = await listening(authorization);
const resource = `${await listening(resources)}/mcp`;

const provider = new Provider(issuer, {
  clients: process.env.OAUTH_CLIENT
    ? [{ client_id: process.env.OAUTH_CLIENT, client_secret: process.env.OAUTH_SECRET, grant_types: ['client_credentials'], redirect_uris: [], response_types: [] }]
    : [],
  scopes: ['offline_access', ...SCOPES],
  cookies: { keys: ['for tests'] },
  pkce: { required: () => true },
  rotateRefreshToken: true,
  ttl: { AccessToken: seconds, ClientCredentials: seconds, AuthorizationCode: 60, RefreshToken: 86400, Interaction: 600, Session: 86400, Grant: 86400 },
  interactions: { url: (_context, interaction) => `/interaction/${interaction.uid}` },
  async findAccount(_context, id) {
    return { accountId: id, claims: async () => ({ sub: id }) };
  },
  features: {
    devInteractions: { enabled: false },
    clientCredentials: { enabled: true },
    registration: { enabled: true },
    revocation: { enabled: true },
    resourceIndicators: {
      enabled: true,
      useGrantedResource: () => true,
      getResourceServerInfo: () => ({ scope: SCOPES.join(' '), audience: resource, accessTokenFormat: 'opaque', accessTokenTTL: seconds }),
    },
  },
});
provider.on('grant.success', (context) => (counts[context.oidc.params.grant_type] += 1));
provider.on('grant.error', () => (counts.refused += 1));
provider.on('grant.revoked', () => (counts.revoked += 1));

async function grantAll(request, response) {
  const { prompt, params, session, grantId } = await provider.interactionDetails(request, response);
  if (prompt.name === 'login') {
    return provider.interactionFinished(request, response, { login: { accountId: 'somebody' } });
  }
  const grant = grantId ? await provider.Grant.find(grantId) : new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
  grant.addOIDCScope(params.scope ?? '');
  grant.addResourceScope(resource, params.scope ?? '');
  return provider.interactionFinished(request, response, { consent: { grantId: await grant.save() } }, { mergeWithLastSubmission: true });
}

function answer(request, response) {
  if (request.url.startsWith('/interaction/')) {
    grantAll(request, response).catch((error) => response.destroy(error));
  } else {
    provider.callback()(request, response);
  }
}

function made() {
  const server = new McpServer({ name: 'authorized', version: '1' });
  server.registerTool('count', { description: 'How many notes there are.', annotations: { readOnlyHint: true } }, async () => ({
    content: [{ type: 'text', text: String(notes.length) }],
  }));
  server.registerTool('write', { description: 'Write a note.' }, async () => {
    notes.push('a note');
    return { content: [{ type: 'text', text: 'written' }] };
  });
  return server;
}

function deny(response, status, error, scope) {
  const about = `resource_metadata="${new URL('/.well-known/oauth-protected-resource/mcp', resource)}"`;
  const parts = [...(error ? [`error="${error}"`] : []), ...(scope ? [`scope="${scope}"`] : []), about];
  response.writeHead(status, { 'WWW-Authenticate': `Bearer ${parts.join(', ')}` }).end();
}

async function body(request) {
  const pieces = [];
  for await (const piece of request) pieces.push(piece);
  return pieces.length ? JSON.parse(Buffer.concat(pieces).toString()) : undefined;
}

async function serve(request, response) {
  if (request.url === '/counts') return response.end(JSON.stringify({ ...counts, notes: notes.length }));
  if (request.url.startsWith('/.well-known/oauth-protected-resource')) {
    const metadata = { resource, authorization_servers: [issuer], scopes_supported: SCOPES };
    return response.writeHead(200, { 'Content-Type': 'application/json' }).end(JSON.stringify(metadata));
  }
  const given = /^Bearer (\S+)$/.exec(request.headers.authorization ?? '')?.[1];
  if (!given) return deny(response, 401, '', 'notes:read');
  const token = (await provider.AccessToken.find(given)) ?? (await provider.ClientCredentials.find(given));
  if (!token || token.aud !== resource) return deny(response, 401, 'invalid_token', 'notes:read');
  const message = await body(request);
  const needed = message?.method === 'tools/call' && message.params.name === 'write' ? 'notes:write' : 'notes:read';
  if (!token.scopes.has(needed)) return deny(response, 403, 'insufficient_scope', needed);
  const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: undefined });
  await made().connect(transport);
  return transport.handleRequest(request, response, message);
}

process.stdout.write(`${JSON.stringify({ mcp: resource, issuer })}\n`);
