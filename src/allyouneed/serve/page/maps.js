// The maps of one text: a grid of small maps (layers x heads), one large map, and the tokens shaded by their weights.
import { el, visible, share, roving } from "./dom.js";
import "./heatmap.js";

const PARTS = {
  encoder: ["Encoder self-attention", "Which source tokens each source token reads"],
  cross: ["Cross-attention", "Which source tokens each output token reads: the alignment"],
  decoder: ["Decoder self-attention", "Which earlier tokens each token reads"],
  other: ["Other maps", "Rows or columns that are not tokens, such as memory slots"],
};
const ORDER = ["cross", "decoder", "encoder", "other"];

export function meanWeights(heads) {
  return heads[0].map((row, r) => row.map((_, c) => heads.reduce((sum, head) => sum + head[r][c], 0) / heads.length));
}

// The weights of one head of a map (-1: the mean of all heads).
export function weightsOf(map, head) {
  if (head >= 0) return map.weights[head];
  map.mean ??= map.weights.length > 1 ? meanWeights(map.weights) : map.weights[0];
  return map.mean;
}

// The map shown first: the last one that reads the source, else the last one of the next part in `ORDER`.
export function mainMap(maps) {
  for (const part of ORDER) {
    const last = maps.findLastIndex((map) => map.part === part);
    if (last >= 0) return last;
  }
  return -1;
}

export function labelsOf(result, axis) {
  return { source: result.source, target: result.target, input: result.input }[axis] ?? null;
}

// States that a text is translated in pieces, and that its maps show something else. `shown`: what does.
export function wholeNote(result, shown) {
  if (!(result.pieces > 1)) return "";
  return `This text is translated in ${result.pieces} pieces, sentence by sentence. ${shown} show the model when it reads the whole text at once.`;
}

class TokenStrip extends HTMLElement {
  // A row of tokens. Calls `chosen(place)` for the selected token, and `chosen(null)` when there is none.
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

  // Shades each token by its weight, and marks one token.
  shade(weights, on = null) {
    this.items?.forEach((item, place) => {
      const weight = weights ? Math.min(1, weights[place] ?? 0) : 0;
      item.style.setProperty("--w", String(Math.round(100 * Math.sqrt(weight)) / 100));
      item.classList.toggle("read", weight > 0.005);
      item.classList.toggle("middling", weight > 0.28); // where dark text is easier to read, in the dark scheme
      item.classList.toggle("strong", weight > 0.48); // where light text is easier to read, in the light scheme
      item.classList.toggle("on", place === on);
      item.title = weights && weight > 0.0005 ? share(weight) : "";
    });
  }
}
customElements.define("token-strip", TokenStrip);

class MapExplorer extends HTMLElement {
  // A response of /attention. `chosen` is "number.head" from the address.
  show(result, chosen = "") {
    this.result = result;
    if (!result.maps.length) {
      this.replaceChildren(el("p", { class: "note" }, result.note || "There is no map to show."));
      return;
    }
    const [map, head] = chosen.split(".").map(Number);
    const known = Number.isInteger(map) && result.maps[map] && head >= -1 && head < result.maps[map].weights.length;
    this.map = known ? map : mainMap(result.maps);
    this.head = known ? head : -1;
    this.large = el("heat-map");
    this.large.addEventListener("point", (event) => this.shade(event.detail?.[0] ?? null, null));
    this.readings = el("p", { class: "note readings" });
    this.title_ = el("h3");
    this.about = el("p", { class: "note" });
    this.reader = el("token-strip");
    this.read = el("token-strip");
    const side = el("div", { class: "side" }, this.parts());
    const main = el("div", { class: "main" }, this.title_, this.about, el("div", { class: "strips" }, this.reader, this.read, this.readings), el("heat-legend"), this.large);
    const note = [result.note, wholeNote(result, "The output and the maps on this page")].filter(Boolean).map((text) => el("p", { class: "note" }, text));
    this.replaceChildren(...note, el("div", { class: result.maps.length > 1 || result.maps[0].weights.length > 1 ? "explorer" : "explorer one" }, main, side));
    this.choose(this.map, this.head, true);
  }

  parts() {
    const groups = ORDER.map((part) => [part, this.result.maps.map((map, number) => ({ map, number })).filter(({ map }) => map.part === part)]);
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
    const { map } = maps[0];
    return el("section", {}, el("h4", { title: PARTS[part][1] }, map.name === "influence" ? this.nameOf(map, -1) : PARTS[part][0]), heads, grid);
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
    return map.name === "influence" ? `Influence of the ${map.columns === "source" ? "source" : "input"}` : `${PARTS[map.part][0]}, layer ${map.layer}${which}`;
  }

  choose(number, head, silent = false) {
    this.map = number;
    this.head = head;
    const map = this.result.maps[number], weights = weightsOf(map, head);
    for (const button of this.querySelectorAll(".thumb")) {
      const on = button.dataset.map === String(number) && button.dataset.head === String(head);
      button.setAttribute("aria-pressed", String(on));
      if (on) button.tabIndex = 0;
    }
    for (const grid of this.querySelectorAll(".grid")) {
      if (!grid.querySelector('button[tabindex="0"]')) grid.querySelector("button").tabIndex = 0;
    }
    const rows = labelsOf(this.result, map.rows), columns = labelsOf(this.result, map.columns);
    this.title_.textContent = this.nameOf(map, head);
    this.about.textContent = map.name === "influence" ? "How much each token influences each output token" : PARTS[map.part][1];
    this.large.data = { weights, rows, columns, verb: map.name === "influence" ? "is influenced by" : "reads", label: `${this.nameOf(map, head)}: arrow keys move between cells` };
    this.weights = weights;
    this.reader.hidden = !rows;
    this.read.hidden = !columns;
    if (rows) this.reader.show(this.sideName(map, "rows"), rows, (place) => this.follow(place, null));
    if (columns) this.read.show(this.sideName(map, "columns"), columns, (place) => this.follow(null, place));
    this.shade(null, null);
    if (!silent) this.dispatchEvent(new CustomEvent("choose", { detail: `${number}.${head}`, bubbles: true }));
  }

  sideName(map, side) {
    const names = { source: "Source", target: "Output", input: "Input so far", other: "Positions" };
    const [reader, read] = map.name === "influence" ? ["is influenced", "influences"] : ["reads", "is read"];
    return `${names[map[side]]} · ${side === "rows" ? reader : read}`;
  }

  // A selected token marks its row or column on the map, too.
  follow(row, column) {
    this.shade(row, column);
    this.large.mark(row, column);
  }

  // A selected row shades the tokens that it reads. A selected column shades the tokens that read it.
  shade(row, column) {
    const map = this.result.maps[this.map], influence = map.name === "influence";
    const rows = labelsOf(this.result, map.rows), columns = labelsOf(this.result, map.columns);
    if (row !== null) {
      this.reader.shade(null, row);
      this.read.shade(this.weights[row]);
      this.list(rows?.[row] ?? String(row + 1), influence ? "is influenced by" : "reads", columns, this.weights[row]);
    } else if (column !== null) {
      const weights = this.weights.map((line) => line[column]);
      this.read.shade(null, column);
      this.reader.shade(weights);
      this.list(columns?.[column] ?? String(column + 1), influence ? "influences" : "is read by", rows, weights);
    } else {
      this.reader.shade(null);
      this.read.shade(null);
      this.readings.textContent = "Point at a token or a cell to see its weights.";
    }
  }

  // The largest weights of a token, in words.
  list(token, verb, names, weights) {
    const order = weights.map((_, place) => place).sort((a, b) => weights[b] - weights[a]).slice(0, 3).filter((place) => weights[place] >= 0.005);
    const parts = order.flatMap((place, number) => [number ? ", " : " ", el("bdi", { class: "tok" }, visible(names?.[place] ?? String(place + 1))), ` ${share(weights[place])}`]);
    this.readings.replaceChildren(el("bdi", { class: "tok" }, visible(token)), ` ${verb}`, ...(parts.length ? parts : [" nothing in particular"]));
  }
}
customElements.define("map-explorer", MapExplorer);
