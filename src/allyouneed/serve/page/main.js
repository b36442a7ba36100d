// The frame of the page. The address holds the state of a view: #/attention?model=demo&text=forty-one
import { el } from "./dom.js";
import { get, setKey } from "./api.js";
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
let models = [];
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
  main.replaceChildren(view);
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

function askForKey() {
  const field = el("input", { type: "password", autocomplete: "off", "aria-label": "API key" });
  const form = el("form", { class: "empty", onsubmit: (event) => { event.preventDefault(); setKey(field.value); start(); } },
    el("h3", {}, "This server requires an API key"), el("p", { class: "note" }, "The key is kept in this tab only."), field, el("button", { class: "act" }, "Continue"));
  main.replaceChildren(form);
}

async function start() {
  main.replaceChildren(el("p", { class: "note" }, "Loading the models …"));
  try {
    models = await get("/api/models");
  } catch (error) {
    if (error.status === 401 || error.status === 403) return askForKey();
    models = [];
    main.replaceChildren(el("p", { class: "status wrong", role: "status" }, error.message));
    return;
  }
  show();
}

addEventListener("hashchange", show);
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
start();
