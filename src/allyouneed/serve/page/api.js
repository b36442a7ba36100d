// Requests to the server that sent this page. No other host is contacted.

export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

const KEY = "allyouneed key";
const END = "< eos >"; // the API's name of the end-of-sequence token; it never occurs in a text

// Events: "lost" (the server does not respond), "locked" (a key is required or was refused), "changed" (a model is gone).
export const connection = new EventTarget();

export function setKey(key) {
  sessionStorage.setItem(KEY, key);
}

export function hasKey() {
  return Boolean(sessionStorage.getItem(KEY));
}

function headers() {
  const key = sessionStorage.getItem(KEY);
  // A header holds ASCII only. A key with other characters is sent as text that no key equals, and is refused.
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${/^[!-~]+$/.test(key) ? key : encodeURIComponent(key)}` } : {}) };
}

async function failure(response) {
  let message = `The server returned status ${response.status}.`;
  try {
    const { error, detail } = await response.json();
    const reason = error?.message ?? error ?? detail;
    if (typeof reason === "string") message = reason;
  } catch { /* not JSON: keep the message with the status */ }
  return new ServerError(message, response.status);
}

async function request(method, path, body, signal) {
  let response;
  try {
    response = await fetch(`.${path}`, { method, headers: headers(), body: body && JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    connection.dispatchEvent(new Event("lost"));
    throw new ServerError("The server is not responding. Is it still running?", 0);
  }
  if (response.status === 401) connection.dispatchEvent(new Event("locked"));
  if (response.status === 404) connection.dispatchEvent(new Event("changed"));
  if (!response.ok) throw await failure(response);
  return response;
}

export async function isHealthy() {
  try {
    return (await fetch("./health")).ok;
  } catch {
    return false;
  }
}

export async function get(path, signal) {
  return (await request("GET", path, undefined, signal)).json();
}

export async function post(path, body, signal) {
  return (await request("POST", path, body, signal)).json();
}

// Yields each token of a completion as it arrives: {text, logprob, best, whole}. `whole` is the text so far, decoded: it is
// not always the sum of the tokens' texts. The last item is {finish, usage, whole, unknown}; `unknown` lists the words
// of the prompt that the model's vocabulary cannot represent.
export async function* complete(body, signal) {
  const full = { ...body, stream: true, logprobs: 5, stream_options: { include_usage: true } };
  const response = await request("POST", "/v1/completions", full, signal);
  let finish = null, usage = null, whole = "", unknown = [];
  for await (const line of lines(response.body)) {
    if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
    const chunk = JSON.parse(line.slice(6));
    if (chunk.error) throw new ServerError(chunk.error.message ?? "The request failed on the server.", 500);
    usage = chunk.usage ?? usage;
    unknown = chunk.unknown ?? unknown;
    const choice = chunk.choices?.[0];
    if (!choice) continue;
    finish = choice.finish_reason ?? finish;
    whole += choice.text ?? "";
    const logprobs = choice.logprobs;
    for (let place = 0; place < (logprobs?.tokens?.length ?? 0); place += 1) {
      const best = Object.entries(logprobs.top_logprobs?.[place] ?? {}).sort((a, b) => b[1] - a[1]).map(([text, logprob]) => [text === END ? "end" : text, logprob]);
      yield { text: logprobs.tokens[place], logprob: logprobs.token_logprobs[place] ?? 0, best, whole };
    }
  }
  yield { finish, usage, whole, unknown };
}

async function* lines(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error) => {
      if (error.name === "AbortError") throw error;
      connection.dispatchEvent(new Event("lost"));
      throw new ServerError("The connection broke before the output was complete.", 0);
    });
    if (done) break;
    const found = (rest + value).split("\n");
    rest = found.pop();
    yield* found.map((line) => line.replace(/\r$/, ""));
  }
  if (rest) yield rest;
}
