// The page that `allyouneed inspect` writes: one inspection, without a server. Its modules are concatenated into one file.
import { el, count, readable } from "./dom.js";
import "./maps.js";
import "./tokens.js";

const given = JSON.parse(document.getElementById("data").textContent);

function section(title, lead, node) {
  return el("section", {}, el("h2", {}, title), el("p", { class: "lead" }, lead), node);
}

function showAll() {
  const output = el("token-run"), maps = el("map-explorer");
  document.querySelector("main").append(
    el("h1", {}, el("bdi", {}, readable(given.title))),
    el("p", { class: "answer" }, "→ ", el("bdi", {}, readable(given.look.answer || "(empty output)"))),
    el("p", { class: "facts" }, el("span", {}, given.about), el("span", { class: "note" }, `${given.architecture} · ${count(given.parameters)} parameters · ${given.path}`)),
    section("Output", "A thick underline marks an uncertain token. Point at a token to see the alternatives.", output),
    section("Attention", "Each small map is one head. Rows are tokens that read, columns are tokens that are read. Choose a map, then point at a token.", maps));
  output.clear();
  for (const token of given.look.said) output.add(token);
  output.openLeastCertain();
  maps.show(given.look);
}

showAll();
