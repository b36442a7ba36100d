// Heat maps: a canvas with one pixel per weight, enlarged by the browser without smoothing. Maps of 256 tokens stay cheap,
// and their cells stay sharp.
import { el, visible, share } from "./dom.js";

const DARK = matchMedia("(prefers-color-scheme: dark)");
const LINE = 13; // pixels from a label to the next, at least
const TICKS = [0, 0.05, 0.25, 0.5, 1]; // weights that the legend names

function colourOf(name) {
  const probe = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return [1, 3, 5].map((at) => parseInt(probe.slice(at, at + 2), 16));
}

// Weights are shares of a row, so most are small. The square root keeps them visible.
function heatOf(weight) {
  return Math.sqrt(Math.min(1, Math.max(0, Number(weight))));
}

export function paintWeights(canvas, weights) {
  const rows = weights.length, columns = rows ? weights[0].length : 0;
  if (!rows || !columns) return;
  canvas.width = columns;
  canvas.height = rows;
  const none = colourOf("--heat-none"), full = colourOf("--heat-full");
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  let at = 0;
  for (const row of weights) {
    for (const weight of row) {
      const heat = heatOf(weight);
      for (let part = 0; part < 3; part += 1) image.data[at + part] = none[part] + (full[part] - none[part]) * heat;
      image.data[at + 3] = 255;
      at += 4;
    }
  }
  context.putImageData(image, 0, 0);
}

// Drawn again when the colour scheme changes.
class HeatElement extends HTMLElement {
  connectedCallback() {
    DARK.addEventListener("change", this.redraw = () => this.draw());
    this.draw();
  }

  disconnectedCallback() {
    DARK.removeEventListener("change", this.redraw);
  }
}

// A map without labels, for grids.
class HeatThumb extends HeatElement {
  set weights(weights) {
    this.shown = weights;
    this.draw();
  }

  draw() {
    if (!this.shown || !this.isConnected) return;
    const canvas = this.querySelector("canvas") ?? this.appendChild(el("canvas", { "aria-hidden": "true" }));
    paintWeights(canvas, this.shown);
    const rows = this.shown.length, columns = this.shown[0]?.length ?? 1;
    canvas.style.aspectRatio = String(Math.min(1.8, Math.max(0.8, columns / Math.max(1, rows))));
  }
}
customElements.define("heat-thumb", HeatThumb);

// The colours of weights, with numbers. They are placed by the square root, as on the maps.
class HeatLegend extends HeatElement {
  draw() {
    const canvas = el("canvas", { "aria-hidden": "true" });
    paintWeights(canvas, [Array.from({ length: 128 }, (_, place) => (place / 127) ** 2)]);
    const ticks = TICKS.map((weight) => {
      const tick = el("span", {}, weight ? `${100 * weight} %` : "0");
      tick.style.left = `${100 * heatOf(weight)}%`;
      return tick;
    });
    this.replaceChildren(el("span", { class: "name" }, "Weight, on a square-root scale"), el("div", { class: "scale" }, canvas, el("div", { class: "ticks" }, ticks)));
  }
}
customElements.define("heat-legend", HeatLegend);

// A map whose labels stay visible while it scrolls. Pointer, focus and arrow keys select a cell.
class HeatMap extends HeatElement {
  // {weights, rows, columns, verb, label}: rows and columns are lists of texts, or null for positions without names.
  // Weights are numbers, or true and false.
  set data(data) {
    this.given = data;
    this.draw();
  }

  connectedCallback() {
    this.resizes = new ResizeObserver(() => this.fit());
    this.resizes.observe(this);
    super.connectedCallback();
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    this.resizes.disconnect();
  }

  draw() {
    if (!this.given || !this.isConnected) return;
    const { weights } = this.given;
    this.rowCount = weights.length;
    this.columnCount = weights[0]?.length ?? 0;
    this.canvas = el("canvas", { "aria-hidden": "true" });
    this.rowBand = el("div", { class: "band", hidden: true });
    this.columnBand = el("div", { class: "band", hidden: true });
    this.body = el("div", { class: "cells", tabindex: "0", role: "application", "aria-label": this.given.label ?? "Map: arrow keys move between cells" },
      this.canvas, this.rowBand, this.columnBand);
    this.rowLabels = this.labelled(this.given.rows, this.rowCount, "rows");
    this.columnLabels = this.labelled(this.given.columns, this.columnCount, "columns");
    const inner = el("div", { class: "frame" }, el("div", { class: "corner" }), this.columnLabels, this.rowLabels, this.body);
    this.readout = el("p", { class: "readout", "aria-live": "polite" }, "\u00a0");
    this.tip = el("p", { class: "tip", "aria-hidden": "true", hidden: true }); // what the readout says, at the cell
    this.replaceChildren(el("div", { class: "scroll" }, inner), this.tip, this.readout);
    this.querySelector(".scroll").addEventListener("scroll", () => this.placeTip());
    paintWeights(this.canvas, weights);
    this.at = null;
    this.listen();
    this.fit();
  }

  labelled(names, length, side) {
    const texts = names ?? Array.from({ length }, (_, place) => String(place + 1));
    const longest = texts.reduce((most, text) => Math.max(most, [...visible(text)].length), 1);
    const box = el("div", { class: `labels ${side}`, "aria-hidden": "true" }, texts.map((text) => el("bdi", {}, visible(text))));
    box.style.setProperty("--longest", String(Math.min(11, Math.max(2, longest))));
    box.classList.toggle("upright", side === "columns" && longest === 1);
    return box;
  }

  fit() {
    if (!this.canvas || !this.clientWidth) return;
    const labels = Math.min(0.36 * this.clientWidth, this.rowLabels.offsetWidth || 60);
    const few = this.columnCount <= this.rowCount / 2;
    const cell = Math.max(7, Math.min(few ? 64 : 34, Math.floor((this.clientWidth - labels - 6) / Math.max(1, this.columnCount))));
    // Square cells, except for maps with many more rows than columns, which would not fit on a screen. Up to 64 rows
    // keep a label each; the map scrolls if there is no room for them.
    const room = parseFloat(getComputedStyle(this.querySelector(".scroll")).maxHeight) - this.columnLabels.offsetHeight - 6;
    const high = few ? Math.max(this.rowCount <= 64 ? LINE : 8, Math.min(24, Math.floor(room / this.rowCount))) : Math.max(8, Math.min(cell, 34));
    if (cell === this.cell && high === this.high && this.placed === this.canvas) return;
    Object.assign(this, { cell, high, placed: this.canvas });
    const size = (node, width, height) => {
      if (width !== null) node.style.width = `${width}px`;
      if (height !== null) node.style.height = `${height}px`;
    };
    size(this.canvas, cell * this.columnCount, high * this.rowCount);
    size(this.body, cell * this.columnCount, high * this.rowCount);
    this.body.style.setProperty("--cell", `${cell}px`);
    this.body.style.setProperty("--high", `${high}px`);
    this.body.classList.toggle("lined", Math.min(cell, high) >= 12);
    size(this.rowLabels, null, high * this.rowCount);
    size(this.columnLabels, cell * this.columnCount, null);
    size(this.rowBand, cell * this.columnCount, high);
    size(this.columnBand, cell, high * this.rowCount);
    // Labels are thinned where they would overlap. The label of the selected cell is always shown.
    for (const [box, axis, step] of [[this.rowLabels, "top", high], [this.columnLabels, "left", cell]]) {
      const every = Math.max(1, Math.ceil(LINE / step));
      [...box.children].forEach((label, place) => {
        label.style[axis] = `${(place + 0.5) * step}px`; // the middle: a label may be higher than its cell
        label.classList.toggle("thinned", place % every !== 0);
      });
    }
  }

  listen() {
    const find = (event) => {
      const box = this.body.getBoundingClientRect();
      this.point(Math.floor((event.clientY - box.top) / this.high), Math.floor((event.clientX - box.left) / this.cell));
    };
    this.body.addEventListener("pointermove", find);
    this.body.addEventListener("pointerdown", find);
    this.body.addEventListener("pointerleave", () => document.activeElement !== this.body && this.point(null));
    this.body.addEventListener("focus", () => this.at ?? this.point(0, 0));
    this.body.addEventListener("blur", () => this.point(null));
    this.body.addEventListener("keydown", (event) => {
      const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!move) return;
      event.preventDefault();
      const [row, column] = this.at ?? [0, 0];
      this.point(row + move[0], column + move[1], true);
    });
  }

  // Selects a cell and announces it. `null` selects nothing.
  point(row, column, follow = false) {
    if (row === null) {
      this.at = null;
      this.mark(null, null);
    } else {
      this.at = [Math.max(0, Math.min(this.rowCount - 1, row)), Math.max(0, Math.min(this.columnCount - 1, column))];
      this.mark(...this.at);
      if (follow) this.reveal(...this.at);
    }
    this.report();
    this.dispatchEvent(new CustomEvent("point", { detail: this.at }));
  }

  // Draws a frame around a row, a column, both or neither (null), and shows their labels.
  mark(row, column) {
    for (const label of this.querySelectorAll(".labels .on")) label.classList.remove("on");
    this.rowBand.hidden = row === null;
    this.columnBand.hidden = column === null;
    if (row !== null) {
      this.rowBand.style.transform = `translateY(${row * this.high}px)`;
      this.rowLabels.children[row].classList.add("on");
    }
    if (column !== null) {
      this.columnBand.style.transform = `translateX(${column * this.cell}px)`;
      this.columnLabels.children[column].classList.add("on");
    }
  }

  report() {
    this.tip.hidden = !this.at;
    if (!this.at) {
      this.readout.textContent = "\u00a0";
      return;
    }
    const [row, column] = this.at, weight = this.given.weights[row][column], verb = this.given.verb ?? "reads";
    const names = [this.rowLabels.children[row], this.columnLabels.children[column]].map((label) => label.textContent);
    const words = () => (typeof weight === "boolean"
      ? [el("bdi", { class: "tok" }, names[0]), weight ? ` ${verb} ` : ` does not ${verb.replace(/s$/, "")} `, el("bdi", { class: "tok" }, names[1])]
      : [el("bdi", { class: "tok" }, names[0]), ` ${verb} `, el("bdi", { class: "tok" }, names[1]), "  ", el("strong", {}, share(weight))]);
    this.readout.replaceChildren(...words());
    this.tip.replaceChildren(...words());
    this.placeTip();
  }

  // Above the cell, or below it where there is no room; never outside the map's own width.
  placeTip() {
    if (!this.at || this.tip.hidden) return;
    const [row, column] = this.at, own = this.getBoundingClientRect(), cells = this.body.getBoundingClientRect();
    const top = cells.top - own.top + row * this.high, left = cells.left - own.left + (column + 0.5) * this.cell;
    const above = top - this.tip.offsetHeight - 8;
    this.tip.style.top = `${cells.top + row * this.high - this.tip.offsetHeight < 12 ? top + this.high + 8 : above}px`;
    this.tip.style.left = `${Math.max(0, Math.min(this.clientWidth - this.tip.offsetWidth, left - this.tip.offsetWidth / 2))}px`;
  }

  reveal(row, column) {
    const scroll = this.querySelector(".scroll");
    const left = this.rowLabels.offsetWidth + column * this.cell, top = this.columnLabels.offsetHeight + row * this.high;
    if (left - this.rowLabels.offsetWidth < scroll.scrollLeft) scroll.scrollLeft = left - this.rowLabels.offsetWidth;
    if (left + this.cell > scroll.scrollLeft + scroll.clientWidth) scroll.scrollLeft = left + this.cell - scroll.clientWidth;
    if (top - this.columnLabels.offsetHeight < scroll.scrollTop) scroll.scrollTop = top - this.columnLabels.offsetHeight;
    if (top + this.high > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = top + this.high - scroll.clientHeight;
  }
}
customElements.define("heat-map", HeatMap);
