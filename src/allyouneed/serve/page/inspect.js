// The page that `allyouneed inspect` writes: one answer, without a server. Its modules are put into one file.
import { el, count, readable } from "./dom.js";
import "./maps.js";
import "./tokens.js";

const given = JSON.parse(document.getElementById("data").textContent);

function part(title, lead, node) {
  return el("section", {}, el("h2", {}, title), el("p", { class: "lead" }, lead), node);
}

function showAll() {
  const said = el("token-run"), maps = el("map-explorer");
  document.querySelector("main").append(
    el("h1", {}, el("bdi", {}, readable(given.title))),
    el("p", { class: "answer" }, "→ ", el("bdi", {}, readable(given.look.answer || "(nothing)"))),
    el("p", { class: "facts" }, el("span", {}, given.about), el("span", { class: "note" }, `${given.architecture} · ${count(given.parameters)} parameters · ${given.path}`)),
    part("What it says", "Underlines are thick where the model was unsure; look at a token to see what else it might have said.", said),
    part("Who reads whom", "Each small map is a head: a row is a token that reads, a column one that is read. Choose a map, then look at a token.", maps));
  said.clear();
  for (const token of given.look.said) said.add(token);
  said.openLeastSure();
  maps.show(given.look);
}

showAll();
