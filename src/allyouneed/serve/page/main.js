// The frame of the page. The address holds the state of a view: #/attention?model=demo&text=forty-one
import { el, visible } from "./dom.js";
import { get, isHealthy, setKey, hasKey, connection } from "./api.js";
import "./translate.js";
import "./attention.js";
import "./beside.js";
import "./rasp.js";
import "./runs.js";

const VIEWS = {
  translate: ["Generate", "view-translate"],
  attention: ["Attention", "view-attention"],
  beside: ["Side by side", "view-beside"],
  rasp: ["RASP", "view-rasp"],
  runs: ["Runs", "view-runs"],
};
const main = document.querySelector("main");
const nav = document.querySelector("nav");
let models = null; // not known yet
let shown = null;

function read() {
  const [, name = "", rest = ""] = location.hash.match(/^#\/([a-z]*)\??(.*)$/) ?? [];
  return { name: name in VIEWS ? name : "translate", values: Object.fromEntries(new URLSearchParams(rest)) };
}

function link(name, values) {
  const kept = new URLSearchParams(Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined));
  return `#/${name}${kept.size ? `?${kept}` : ""}`;
}

function show() {
  const { name, values } = read();
  if (!location.hash.startsWith("#/") && location.hash) return; // an anchor of the page itself
  shown = name;
  document.title = `${VIEWS[name][0]} · allyouneed`;
  // The text and the model are kept when the view changes.
  const shared = { model: values.model, text: values.text };
  nav.replaceChildren(...Object.entries(VIEWS).map(([key, [title]]) =>
    el("a", { href: key === name ? location.hash || "#/translate" : link(key, key === "rasp" || key === "runs" ? {} : shared), "aria-current": key === name ? "page" : null }, title)));
  const view = el(VIEWS[name][1]);
  view.start({ models, values, keep: (now) => keep(name, now) });
  const gone = [values.model, ...(values.models ?? "").split(",")].filter((one) => one && !models.some((model) => model.name === one));
  main.replaceChildren(...(gone.length ? [el("p", { class: "warning", role: "status" }, "Not served here: ", el("bdi", {}, visible(gone.join(", "))), ".")] : []), view);
  nav.querySelector("[aria-current]").scrollIntoView({ block: "nearest", inline: "nearest" });
}

// Called by a view when its state changes: updates the address without a history entry for each letter.
function keep(name, values) {
  if (name !== shown) return;
  history.replaceState(null, "", link(name, values));
  const shared = { model: values.model, text: values.text };
  for (const [place, key] of Object.keys(VIEWS).entries()) {
    if (key !== name && key !== "rasp" && key !== "runs" && values.text !== undefined) nav.children[place].setAttribute("href", link(key, shared));
  }
}

function askForKey(wrong) {
  const field = el("input", { type: "password", autocomplete: "off", "aria-label": "API key", "aria-invalid": wrong ? "true" : null, "aria-describedby": wrong ? "wrong-key" : null });
  const form = el("form", { class: "empty", onsubmit: (event) => { event.preventDefault(); setKey(field.value.trim()); start(); } },
    el("h3", {}, "This server requires an API key"), el("p", { class: "note" }, "The key is kept in this tab only."), field,
    wrong ? el("p", { class: "status wrong", id: "wrong-key", role: "alert" }, wrong) : null, el("button", { class: "act" }, "Continue"));
  nav.replaceChildren();
  main.replaceChildren(form);
  field.focus();
}

async function start() {
  main.replaceChildren(el("p", { class: "note" }, "Loading the models …"));
  try {
    models = await get("/api/models");
  } catch (error) {
    models = null;
    if (error.status === 401) return askForKey(hasKey() ? "The server does not accept this key." : "");
    if (error.status === 429 && hasKey()) return askForKey(error.message); // too many wrong keys
    main.replaceChildren(el("p", { class: "status wrong", role: "status" }, error.message));
    return;
  }
  show();
}

// Fetches the models again: the server may have been restarted with others. The view is built again if they differ, or
// if its last request failed.
async function refresh(failed = false) {
  if (main.querySelector("form")) return; // a key is required first
  if (models === null) return start();
  let found;
  try {
    found = await get("/api/models");
  } catch {
    return; // the view itself reports it
  }
  if (!failed && JSON.stringify(found) === JSON.stringify(models)) return;
  models = found;
  show();
}

// A line above the view while the server does not respond. Its return is noticed without a reload.
const away = el("p", { class: "warning", role: "status", hidden: true }, "The server is not responding. This page continues when it is back.");
main.before(away);
const RETRY = 1500; // milliseconds
async function wait() {
  if (!away.hidden) return;
  away.hidden = false;
  while (!(await isHealthy())) await new Promise((done) => setTimeout(done, RETRY));
  away.hidden = true;
  refresh(true);
}

connection.addEventListener("lost", wait);
connection.addEventListener("changed", () => refresh());
connection.addEventListener("locked", () => models && !main.querySelector("form") && askForKey(hasKey() ? "The server no longer accepts this key." : ""));
addEventListener("focus", () => refresh());
addEventListener("hashchange", () => models && show());
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
start();
