// The maps of one text: layers x heads as small maps, one of them large, and the tokens themselves, shaded by who is read.
import { el, visible, share, roving } from "./dom.js";
import "./heatmap.js";

const PARTS = {
  encoder: ["Reading the source", "Each token of the source looks at the others"],
  cross: ["Looking at the source", "What is read of the source for each token written: the alignment"],
  decoder: ["Looking back", "Each token looks at what came before it"],
  other: ["Elsewhere", "Memory slots and answers: no tokens of a text"],
};
const ORDER = ["cross", "decoder", "encoder", "other"];

export function meanWeights(heads) {
  return heads[0].map((row, r) => row.map((_, c) => heads.reduce((sum, head) => sum + head[r][c], 0) / heads.length));
}

// One map of an answer, by its number and its head (-1: the mean of all).
export function weightsOf(map, head) {
  if (head >= 0) return map.weights[head];
  map.mean ??= map.weights.length > 1 ? meanWeights(map.weights) : map.weights[0];
  return map.mean;
}

// The map that says most at first sight: the last one that looks at the source, else the last one of all.
export function mainMap(maps) {
  for (const part of ORDER) {
    const last = maps.findLastIndex((map) => map.part === part);
    if (last >= 0) return last;
  }
  return -1;
}

export function labelsOf(answer, axis) {
  return { source: answer.source, target: answer.target, input: answer.input }[axis] ?? null;
}

class TokenStrip extends HTMLElement {
  // A row of tokens; `chosen(place)` is called when one is looked at, and null when none is.
  show(name, tokens, chosen) {
    this.items = tokens.map((token, place) => {
      const item = el("button", { type: "button", class: "tok", tabindex: place ? "-1" : "0" }, el("bdi", {}, visible(token)));
      item.addEventListener("pointerenter", () => chosen(place));
      item.addEventListener("focus", () => chosen(place));
      item.addEventListener("pointerleave", () => document.activeElement !== item && chosen(null));
      item.addEventListener("blur", () => chosen(null));
      return item;
    });
    const row = el("div", { class: "tokens", role: "toolbar", "aria-label": name }, this.items);
    roving(row, ".tok");
    this.replaceChildren(el("h4", {}, name), row);
  }

  shade(weights, on = null) {
    this.items?.forEach((item, place) => {
      const weight = weights ? Math.min(1, weights[place] ?? 0) : 0;
      item.style.setProperty("--w", String(Math.round(100 * Math.sqrt(weight)) / 100));
      item.classList.toggle("read", weight > 0.005);
      item.classList.toggle("strong", weight > 0.3);
      item.classList.toggle("on", place === on);
      item.title = weights && weight > 0.0005 ? share(weight) : "";
    });
  }
}
customElements.define("token-strip", TokenStrip);

class MapExplorer extends HTMLElement {
  // An answer of /attention; `chosen` is "number.head" from a link.
  show(answer, chosen = "") {
    this.answer = answer;
    if (!answer.maps.length) {
      this.replaceChildren(el("p", { class: "note" }, answer.note || "There is no map to show."));
      return;
    }
    const [map, head] = chosen.split(".").map(Number);
    const known = Number.isInteger(map) && answer.maps[map] && head >= -1 && head < answer.maps[map].weights.length;
    this.map = known ? map : mainMap(answer.maps);
    this.head = known ? head : -1;
    this.large = el("heat-map");
    this.large.addEventListener("point", (event) => this.shade(event.detail?.[0] ?? null, null));
    this.title_ = el("h3");
    this.about = el("p", { class: "note" });
    this.reader = el("token-strip");
    this.read = el("token-strip");
    const side = el("div", { class: "side" }, this.parts());
    const main = el("div", { class: "main" }, this.title_, this.about, el("div", { class: "strips" }, this.reader, this.read), this.large);
    const note = answer.note ? [el("p", { class: "note" }, answer.note)] : [];
    this.replaceChildren(...note, el("div", { class: answer.maps.length > 1 || answer.maps[0].weights.length > 1 ? "explorer" : "explorer one" }, main, side));
    this.choose(this.map, this.head, true);
  }

  parts() {
    const groups = ORDER.map((part) => [part, this.answer.maps.map((map, number) => ({ map, number })).filter(({ map }) => map.part === part)]);
    return groups.filter(([, maps]) => maps.length).map(([part, maps]) => this.group(part, maps));
  }

  group(part, maps) {
    const most = Math.max(...maps.map(({ map }) => map.weights.length));
    const wide = most > 1 ? most + 1 : 1;
    const grid = el("div", { class: "grid", role: "grid", "aria-label": PARTS[part][0] });
    grid.style.setProperty("--wide", String(wide));
    for (const { map, number } of maps) {
      const heads = map.weights.map((_, head) => head);
      const cells = (most > 1 ? [-1, ...heads] : heads).map((head) => this.thumb(map, number, most > 1 ? head : -1));
      while (cells.length < wide) cells.push(el("span", { class: "blank" }));
      grid.append(el("div", { class: "layer", role: "row" }, el("span", { class: "name", role: "rowheader" }, String(map.layer)), cells));
    }
    roving(grid, "button", () => wide);
    const heads = most > 1 ? el("div", { class: "layer heads", "aria-hidden": "true" }, el("span", { class: "name" }, ""), el("span", {}, "mean"),
      Array.from({ length: most }, (_, head) => el("span", {}, /^\d+$/.test(maps[0].map.heads[head] ?? "1") ? String(head + 1) : ""))) : null;
    if (heads) heads.style.setProperty("--wide", String(wide));
    return el("section", {}, el("h4", { title: PARTS[part][1] }, PARTS[part][0]), heads, grid);
  }

  thumb(map, number, head) {
    const name = this.nameOf(map, head);
    const small = el("heat-thumb");
    small.weights = weightsOf(map, head);
    const button = el("button", { type: "button", class: "thumb", "aria-label": name, title: name, "data-map": String(number), "data-head": String(head), tabindex: "-1" }, small);
    button.addEventListener("click", () => this.choose(number, head));
    const cell = el("span", { role: "gridcell" }, button);
    return cell;
  }

  nameOf(map, head) {
    const which = map.weights.length === 1 && head < 0 ? (/^\d+$/.test(map.heads[0]) ? "" : `, ${map.heads[0]}`)
      : head < 0 ? `, mean of ${map.weights.length} heads` : /^\d+$/.test(map.heads[head]) ? `, head ${map.heads[head]}` : `, ${map.heads[head]}`;
    return `${PARTS[map.part][0]}, layer ${map.layer}${which}`;
  }

  choose(number, head, silent = false) {
    this.map = number;
    this.head = head;
    const map = this.answer.maps[number], weights = weightsOf(map, head);
    for (const button of this.querySelectorAll(".thumb")) {
      const on = button.dataset.map === String(number) && button.dataset.head === String(head);
      button.setAttribute("aria-pressed", String(on));
      if (on) button.tabIndex = 0;
    }
    for (const grid of this.querySelectorAll(".grid")) {
      if (!grid.querySelector('button[tabindex="0"]')) grid.querySelector("button").tabIndex = 0;
    }
    const rows = labelsOf(this.answer, map.rows), columns = labelsOf(this.answer, map.columns);
    this.title_.textContent = this.nameOf(map, head);
    this.about.textContent = map.name === "influence" ? "How much each token moved each answer." : `${PARTS[map.part][1]} · ${map.name}`;
    this.large.data = { weights, rows, columns, verb: map.name === "influence" ? "is moved by" : "reads", label: `${this.nameOf(map, head)}: arrow keys move through its cells` };
    this.weights = weights;
    this.reader.hidden = !rows;
    this.read.hidden = !columns;
    if (rows) this.reader.show(this.sideName(map, "rows"), rows, (place) => this.shade(place, null));
    if (columns) this.read.show(this.sideName(map, "columns"), columns, (place) => this.shade(null, place));
    this.shade(null, null);
    if (!silent) this.dispatchEvent(new CustomEvent("choose", { detail: `${number}.${head}`, bubbles: true }));
  }

  sideName(map, side) {
    const names = { source: "Source", target: "Written", input: "Seen so far", other: "Places" };
    return `${names[map[side]]} · ${side === "rows" ? "reads" : "is read"}`;
  }

  // A token that reads shades what it reads; one that is read shades its readers.
  shade(row, column) {
    if (row !== null) {
      this.reader.shade(null, row);
      this.read.shade(this.weights[row]);
    } else if (column !== null) {
      this.read.shade(null, column);
      this.reader.shade(this.weights.map((line) => line[column]));
    } else {
      this.reader.shade(null);
      this.read.shade(null);
    }
  }
}
customElements.define("map-explorer", MapExplorer);
