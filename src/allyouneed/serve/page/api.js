// Talking to the server that sent this page, and to nobody else.

export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

const KEY = "allyouneed key";
const END = "< eos >"; // what the API calls the token that ends an answer; no text holds it

export function setKey(key) {
  sessionStorage.setItem(KEY, key);
}

function headers() {
  const key = sessionStorage.getItem(KEY);
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

async function failure(response) {
  let message = `The server answered ${response.status}.`;
  try {
    const { error, detail } = await response.json();
    const said = error?.message ?? error ?? detail;
    if (typeof said === "string") message = said;
  } catch { /* no JSON: the status says it */ }
  return new ServerError(message, response.status);
}

async function request(method, path, body, signal) {
  let response;
  try {
    response = await fetch(path, { method, headers: headers(), body: body && JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server does not answer. Is it still running?", 0);
  }
  if (!response.ok) throw await failure(response);
  return response;
}

export async function get(path, signal) {
  return (await request("GET", path, undefined, signal)).json();
}

export async function post(path, body, signal) {
  return (await request("POST", path, body, signal)).json();
}

// The tokens of a completion, each as soon as the server has sent it: {text, logprob, best}; at last {finish, usage}.
export async function* complete(body, signal) {
  const asked = { ...body, stream: true, logprobs: 5, stream_options: { include_usage: true } };
  const response = await request("POST", "/v1/completions", asked, signal);
  let finish = null, usage = null;
  for await (const line of lines(response.body)) {
    if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
    const chunk = JSON.parse(line.slice(6));
    if (chunk.error) throw new ServerError(chunk.error.message ?? "The server gave up.", 500);
    usage = chunk.usage ?? usage;
    const choice = chunk.choices?.[0];
    if (!choice) continue;
    finish = choice.finish_reason ?? finish;
    const odds = choice.logprobs;
    for (let place = 0; place < (odds?.tokens?.length ?? 0); place += 1) {
      const best = Object.entries(odds.top_logprobs?.[place] ?? {}).sort((a, b) => b[1] - a[1]).map(([text, logprob]) => [text === END ? "end" : text, logprob]);
      yield { text: odds.tokens[place], logprob: odds.token_logprobs[place] ?? 0, best };
    }
  }
  yield { finish, usage };
}

async function* lines(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const found = (rest + value).split("\n");
    rest = found.pop();
    yield* found.map((line) => line.replace(/\r$/, ""));
  }
  if (rest) yield rest;
}
